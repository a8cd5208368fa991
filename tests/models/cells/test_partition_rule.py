"""Gram matrices of few samples, covariances if affordable, else incremental SVD; the report names the choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca import BandPCA, CellPCA
from dpca.engine.folds.plan import PlanError
from dpca.models.cells import partition_rule


@pytest.fixture(scope="module")
def volumes() -> np.ndarray[Any, Any]:
    """1,300 volumes of 12 x 16 x 24: a few patterns of decreasing strength, under a little noise."""
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(8, 12, 16, 24)) * 0.7 ** np.arange(8)[:, None, None, None]
    return (np.tensordot(rng.normal(size=(1300, 8)), patterns, 1) + rng.normal(0, 0.05, (1300, 12, 16, 24))).astype(
        "f4"
    )


def test_volumes_in_cells_too_large_for_their_covariances_stream(volumes: np.ndarray) -> None:
    exact = CellPCA(5, cell_shape=(12, 16, 12)).fit(volumes)
    assert exact.fit_report_.note == ""
    streamed = CellPCA(5, cell_shape=(12, 16, 12), memory_budget=44 * 2**20).fit(volumes)
    for words in ("2 cells does not fit", "incremental SVD", "once"):
        assert words in streamed.fit_report_.note
    assert streamed.fit_report_.plan.task_bytes <= 44 * 2**20
    np.testing.assert_allclose(streamed.explained_variance_, exact.explained_variance_, rtol=1e-3)
    np.testing.assert_allclose(streamed.total_variance_, exact.total_variance_, rtol=1e-5)
    np.testing.assert_allclose(streamed.mean_, exact.mean_, atol=1e-6)
    rebuilt = streamed.inverse_transform(streamed.transform(volumes))
    measured = ((rebuilt - volumes).astype(float) ** 2).mean()
    # The certificate is a bound then, and nearly the truth.
    assert measured <= streamed.expected_mse((0, 1)) * (1 + 1e-5)
    assert measured == pytest.approx(exact.expected_mse((0, 1)), rel=1e-3)


@pytest.mark.long
def test_groups_take_turns_where_that_is_cheaper_than_streaming(volumes: np.ndarray, tmp_path: Path) -> None:
    """In chunks of whole volumes, every group of cells decodes all of the stack."""
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=volumes[:200], chunks=(10, 12, 16, 24))
    exact = CellPCA(2, cell_shape=(6, 8, 8)).fit(path)
    assert exact.fit_report_.note == ""
    for k, mb, reads in ((2, 38, 8), (2, 34, 12), (None, 36, 12)):
        model = CellPCA(k, cell_shape=(6, 8, 8), memory_budget=mb * 2**20).fit(path)
        assert model.fit_report_.note.endswith(f": {reads} groups of cells in turn read the stack {reads} times")
        np.testing.assert_allclose(model.explained_variance_[..., :2], exact.explained_variance_, rtol=1e-6)


def test_many_large_cells_stream_rather_than_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_rule, "FEW_SAMPLES", 0.0)  # 800 samples would be needed otherwise
    x = np.random.default_rng(0).normal(size=(30, 16, 24, 80)).astype(np.float32)
    x[:, :, :, ::4] *= 4
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=x, chunks=(10, 16, 24, 80))
    model = CellPCA(2, cell_shape=(16, 24, 4), memory_budget=84 * 2**20).fit(path)
    for words in ("20 cells", "378 MB", "20 reads", "incremental SVD", "2 times"):
        assert words in model.fit_report_.note
    cell = x[:, :, :, 8:12].reshape(30, -1).astype(float)
    exact = np.linalg.svd(cell - cell.mean(0), compute_uv=False) ** 2 / 29
    np.testing.assert_allclose(model.explained_variance_[0, 0, 2], exact[:2], rtol=1e-5)


def test_where_nothing_fits_the_lesser_need_is_named(volumes: np.ndarray) -> None:
    def refused(k: int | None) -> str:
        with pytest.raises(PlanError) as refusal:
            CellPCA(k, cell_shape=(12, 16, 12), memory_budget=24 * 2**20).fit(volumes)
        return str(refusal.value)

    needs = [float(refused(k).split("needs ")[1].split(" MB")[0].replace(",", "")) for k in (5, None)]
    assert needs[0] < 0.7 * needs[1]


@pytest.mark.long
def test_small_bands_are_not_streamed_for_the_sake_of_a_few_reads(tmp_path: Path) -> None:
    """A basis of 52 directions takes nearly as much as the covariance of 60 attributes, and far longer."""
    x = np.random.default_rng(0).normal(size=(100, 24_000)).astype(np.float32)
    model = BandPCA(2, band_size=60, mapping="random", random_state=0, memory_budget=30 * 2**20).fit(x)
    assert "incremental SVD" not in model.fit_report_.note


def test_few_samples_take_no_more_memory_than_themselves(tmp_path: Path) -> None:
    """Each cell is that of numpy's SVD, and smaller cells at the border are, too."""
    x = np.random.default_rng(0).integers(0, 256, (7, 60, 50), dtype=np.uint8)
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=x, chunks=(1, 16, 16))
    model = CellPCA(3, cell_shape=(24, 20), memory_budget=40 * 2**20).fit(path)
    assert "Gram" in model.fit_report_.note
    again = CellPCA(3, cell_shape=(24, 20)).fit(x)
    np.testing.assert_array_equal(model.components_, again.components_)
    for i, j in np.ndindex(3, 3):
        cell = x[:, 24 * i : 24 * i + 24, 20 * j : 20 * j + 20].reshape(7, -1).astype(float)
        values = np.linalg.svd(cell - cell.mean(0), compute_uv=False) ** 2 / 6
        np.testing.assert_allclose(model.explained_variance_[i, j], values[:3], rtol=1e-6)
        np.testing.assert_allclose(model.total_variance_[i, j], values.sum(), rtol=1e-9)


@pytest.mark.parametrize("n", [239, 240, 241])
def test_few_samples_and_covariances_agree(n: int) -> None:
    """Up to half as many samples as attributes, the Gram matrix of samples is used."""
    x = np.random.default_rng(0).normal(size=(n, 480)) * np.linspace(3, 1, 480)
    model = CellPCA(4, cell_shape=480).fit(x)
    assert ("Gram" in model.fit_report_.note) == (n <= 240)
    values = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2 / (n - 1)
    np.testing.assert_allclose(model.explained_variance_[0], values[:4], rtol=1e-6)
