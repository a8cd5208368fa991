"""The spiked covariance model: known covariance, and the same samples however they are made."""

from __future__ import annotations

import pickle
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca.storage import DataError, Spiked, open_stack, write_spiked


def test_the_covariance_is_the_closed_form() -> None:
    model = Spiked(20_000, (4, 5), n_spikes=3, sigma=0.5, seed=7, dtype=np.float64)
    x = np.asarray(model.fetch(range(20_000))).reshape(20_000, -1)
    expected = model.loadings.T @ model.loadings + 0.25 * np.eye(20)
    deviation = np.cov(x, rowvar=False) - expected
    # The variance of an entry of a normal sample's covariance is (c_ii c_jj + c_ij^2) / n.
    scale = np.sqrt((np.outer(expected.diagonal(), expected.diagonal()) + expected**2) / len(x))
    assert np.abs(deviation / scale).max() < 4.5
    assert np.std(deviation / scale) == pytest.approx(1, abs=0.35)
    assert np.abs(x.mean(axis=0)).max() < 4.5 * np.sqrt(expected.diagonal().max() / len(x))
    assert model.loadings.min() > -1
    assert model.loadings.max() < 1
    assert np.abs(model.loadings).mean() == pytest.approx(0.5, abs=0.15)
    # Samples are independent of each other.
    assert abs(np.corrcoef(x[:-1, 0], x[1:, 0])[0, 1]) < 4.5 / np.sqrt(len(x))


def test_without_noise_samples_lie_in_the_span_of_the_loadings() -> None:
    model = Spiked(8, 30, n_spikes=2, sigma=0, dtype=np.float64)
    x = np.asarray(model.fetch(range(8)))
    inside = np.linalg.qr(model.loadings.T)[0]
    np.testing.assert_allclose(x @ inside @ inside.T, x, atol=1e-12)
    assert np.linalg.matrix_rank(x) == 2


def test_every_sample_follows_from_seed_and_number_alone() -> None:
    model = Spiked(100, 50, seed=3)
    alone = np.asarray(model.fetch([42]))[0]
    np.testing.assert_array_equal(np.asarray(model.fetch([7, 42, 99]))[1], alone)
    np.testing.assert_array_equal(np.asarray(Spiked(43, 50, seed=3).fetch([42]))[0], alone)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model.part([42])))()[0], alone)
    assert len(pickle.dumps(Spiked(100, 10**6).part([42]))) < 1000
    assert np.any(np.asarray(Spiked(100, 50, seed=4).fetch([42]))[0] != alone)
    assert alone.dtype == np.float32


def _bytes(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): blake2b(p.read_bytes()).hexdigest() for p in files}


def test_the_store_is_the_same_for_any_number_of_workers(tmp_path: Path, cluster: Any) -> None:
    stack = write_spiked(tmp_path / "a.zarr", 1500, (20, 10), n_spikes=3, client=cluster)
    write_spiked(tmp_path / "b.zarr", 1500, (20, 10), n_spikes=3)
    assert _bytes(tmp_path / "a.zarr") == _bytes(tmp_path / "b.zarr")
    assert stack.samples.nchunks > 1 or zarr.open_array(stack.array_path).shards[0] < 1500
    np.testing.assert_array_equal(stack.samples[700], Spiked(1500, (20, 10), n_spikes=3).sample(700))
    assert (stack.shape, stack.dtype) == ((1500, 20, 10), np.float32)
    assert open_stack(tmp_path / "a.zarr").data_range == (stack.samples[...].min(), stack.samples[...].max())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"n_samples": 0}, "0 samples of shape"),
        ({"sample_shape": (3, 0)}, "every length"),
        ({"n_spikes": 0}, "n_spikes is 0"),
        ({"sample_shape": 5, "n_spikes": 6}, "n_spikes is 6 for 5 attributes"),
        ({"sigma": -1.0}, "sigma is -1"),
        ({"sigma": float("nan")}, "sigma is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"dtype": np.int16}, "dtype is int16"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        write_spiked(tmp_path / "none.zarr", **wrong)
    assert not list(tmp_path.iterdir())
