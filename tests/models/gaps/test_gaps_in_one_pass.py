"""Fits of `StreamingPCA` to samples with missing values: close to those of several passes, and for any chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca import PCA, CellPCA, StreamingPCA, TrajectoryPCA, load
from dpca.jobs import fill_store
from dpca.metrics import principal_angles
from dpca.models.base.parameters import are_ordinary
from dpca.models.base.samples import magnitude
from dpca.storage import DataError, open_stack
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.models.gaps.test_gaps import KINDS, largest, samples_of

GAPPY = {"gaps": "iterate", "random_state": 0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "rank"), [(1500, 3), (3000, 8)])
def test_close_to_several_passes(n: int, rank: int, kind: str) -> None:
    x, mask, truth = samples_of(n, 12, rank, kind)
    gappy = np.where(mask, np.nan, x)
    model, several = StreamingPCA(rank, batch_size=300, **GAPPY).fit(gappy), PCA(rank, **GAPPY).fit(gappy)
    ours = np.linalg.norm(np.sin(principal_angles(model.components_, truth)))
    assert ours <= 1.1 * np.linalg.norm(np.sin(principal_angles(several.components_, truth)))
    np.testing.assert_allclose(model.explained_variance_, several.explained_variance_, rtol=0.03)
    assert model.total_variance_ == pytest.approx(several.total_variance_, rel=0.02)
    np.testing.assert_allclose(model.mean_, several.mean_, atol=0.2)  # later samples count more
    errors = [np.sqrt(np.mean((one.fill(gappy) - x)[mask] ** 2)) for one in (model, several)]
    assert errors[0] <= 1.01 * errors[1]
    off = (model.transform(gappy) - model.transform(x)) / model.score_errors(gappy)
    assert off.std() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "rank", "noise"), [(60, 3, 0.3), (1000, 3, 2.0), (1000, 8, 2.5)])
def test_a_single_batch_is_that_of_several_passes(n: int, rank: int, noise: float, kind: str) -> None:
    """Also of components with less variance than the noise of a batch, which a random start would not find."""
    x, mask, truth = samples_of(n, 12, rank, kind)
    gappy = np.where(mask, np.nan, x + noise * np.random.default_rng(1).standard_normal(x.shape))
    off = [
        np.linalg.norm(np.sin(principal_angles(model.fit(gappy).components_, truth)))
        for model in (StreamingPCA(rank, **GAPPY), PCA(rank, **GAPPY))
    ]
    assert off[0] <= 1.02 * off[1]


@pytest.fixture(scope="module")
def land() -> tuple[Any, Any]:
    """Samples with gaps, and which are missing; some attributes have no value."""
    x, mask, _ = samples_of(400, 8, 3, "random")
    mask[:, :2, :3] = True
    mask[:250, 4, 4] = True
    return np.where(mask, np.nan, x).astype(np.float32), mask


@pytest.mark.filterwarnings("ignore::dpca.models.base.convergence.OrderWarning")
@pytest.mark.parametrize("chunks", [(90, 8, 8), (400, 3, 8)])
def test_any_chunks_and_stops(land: tuple[Any, Any], chunks: tuple[int, ...], tmp_path: Path) -> None:
    gappy, mask = land
    zarr.create_array(path := str(tmp_path / "x.zarr"), data=gappy, chunks=chunks)
    options = GAPPY | {"batch_size": 64}
    wanted, model = StreamingPCA(3, **options).fit(gappy), StreamingPCA(3, keep_state=True, **options)
    for first in range(0, 400, 150):
        model.partial_fit(gappy[first : first + 150])
    model.save(tmp_path / "model.zarr")
    seen = StreamingPCA(3, **options).fit(path, run=Run(checkpoints=Checkpoints(str(tmp_path / "kept"))))
    for other in (model, load(tmp_path / "model.zarr"), seen):
        np.testing.assert_allclose(other.components_, wanted.components_, atol=1e-5)
        np.testing.assert_array_equal(np.isnan(other.mean_), mask.all(axis=0).ravel())
        np.testing.assert_allclose(other.fill(gappy), wanted.fill(gappy), rtol=1e-4, atol=1e-4)
    assert not wanted.components_[:, mask.all(axis=0).ravel()].any()
    *_, last = StreamingPCA(3, **options).iter_fit(path)
    np.testing.assert_array_equal(last.model.components_, seen.components_)
    model = load(tmp_path / "model.zarr")
    model.partial_fit(gappy[:100])
    assert model.n_samples_seen_ == 500


@pytest.mark.parametrize("lazy", [False, True])
def test_in_a_random_order(land: tuple[Any, Any], lazy: bool, tmp_path: Path) -> None:
    """The gaps remain gaps, and the path of samples sorted by a score is that of others."""
    gappy = land[0]
    x = gappy[np.argsort(np.nan_to_num(gappy).sum(axis=(1, 2)))]
    zarr.create_array(path := str(tmp_path / "x.zarr"), data=x, chunks=(20, 8, 8))
    source = da.from_zarr(path) if lazy else path
    shuffled = StreamingPCA(3, shuffle=True, batch_size=64, **GAPPY).fit(source)
    assert largest(shuffled.components_, PCA(3, **GAPPY).fit(gappy).components_) < 0.1


@pytest.mark.filterwarnings("ignore::dpca.models.base.convergence.OrderWarning")
def test_stores_are_filled(land: tuple[Any, Any], tmp_path: Path) -> None:
    gappy = land[0][:, 2:]
    zarr.create_array(str(tmp_path / "x.zarr"), data=gappy, chunks=(100, 6, 8))
    stack, model = open_stack(str(tmp_path / "x.zarr")), StreamingPCA(3, **GAPPY)
    fill_store(stack, tmp_path / "filled.zarr", model)
    filled = open_stack(str(tmp_path / "filled.zarr")).samples[:]
    np.testing.assert_allclose(filled, model.fit(gappy).fill(gappy), rtol=1e-4, atol=1e-4)


def test_integers_with_a_missing_value() -> None:
    x, mask, truth = samples_of(400, 10, 3, "random")
    pixels = np.where(mask, 0, np.clip(np.rint(x * 8 + 128), 1, 255)).astype(np.uint8)
    model = StreamingPCA(3, missing_value=0, **GAPPY).fit(pixels, sample_weight=np.repeat([2, 1], 200))
    assert largest(model.components_, truth) < 0.1
    filled = model.fill(pixels)
    np.testing.assert_array_equal(filled[~mask], pixels[~mask])
    assert filled[mask].all()


@pytest.mark.parametrize("n", [2, 3, 7])
def test_few_samples(n: int) -> None:
    x = np.random.default_rng(0).standard_normal((n, 5, 6)) + 3
    x[0, 0] = np.nan
    x[-1, 2, :4] = np.nan
    model = StreamingPCA(2, **GAPPY).fit(x)
    assert np.isfinite(model.fill(x)).all()
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(2), atol=1e-9)


def test_constant_values_and_those_far_from_zero() -> None:
    x = np.full((40, 9), 1e6)
    x[np.random.default_rng(0).random(x.shape) < 0.3] = np.nan
    constant = StreamingPCA(2, **GAPPY).fit(x)
    np.testing.assert_allclose(constant.fill(x), 1e6, rtol=1e-9)
    assert constant.total_variance_ == pytest.approx(0, abs=1e-6)
    shifted, mask, truth = samples_of(600, 8, 2, "random")
    far = np.where(mask, np.nan, shifted + 1e5)
    assert largest(StreamingPCA(2, batch_size=100, **GAPPY).fit(far).components_, truth) < 0.1


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"n_components": 0.5}, "n_components"),
        ({"n_components": 99}, "n_components"),
        ({"center": False}, "center"),
        ({"whiten": True}, "whiten"),
        ({"n_passes": 2}, "n_passes"),
        ({"method": "oja"}, "method"),
        ({"track_scores": True}, "track_scores"),
        ({"oversampling": 3}, "oversampling"),
        ({"execution": "averaged"}, "averaging"),
        ({"gaps": "reject"}, "finite"),
        ({"gaps": "reject", "missing_value": 0}, "missing_value"),
    ],
)
@pytest.mark.filterwarnings("ignore::dpca.models.base.convergence.OrderWarning")
def test_parameters_of_one_pass(changes: dict[str, Any], word: str) -> None:
    x = np.where(np.random.default_rng(0).random((30, 8)) < 0.3, np.nan, 1.5)
    with pytest.raises(DataError, match=word):
        StreamingPCA(**{"n_components": 2, "gaps": "iterate"} | changes).fit(x)


def test_values_that_are_not_there() -> None:
    x = np.full((30, 8), np.nan)
    with pytest.raises(DataError, match="missing"):
        StreamingPCA(2, **GAPPY).fit(x)
    x[:, 0] = np.arange(30)
    with pytest.raises(DataError, match="attributes"):
        StreamingPCA(2, **GAPPY).fit(x)
    x[3, 1] = np.inf
    with pytest.raises(DataError, match="infinite"):
        StreamingPCA(1, **GAPPY).partial_fit(x)
    with pytest.raises(DataError, match="partial_fit"):
        CellPCA(1, cell_shape=2, **GAPPY).partial_fit(x)
    assert "gaps" not in TrajectoryPCA(2).get_params()


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32])
def test_magnitudes(dtype: Any) -> None:
    values = np.array([[0, 1], [1, 0]]).astype(dtype)
    assert magnitude(values) == 1
    assert magnitude(-values if dtype not in (bool, np.uint8) else values) == 1
    assert magnitude(np.array([np.nan, -2.0])) == 2


def test_missing_values_are_no_overflow() -> None:
    assert are_ordinary(np.array([[1.0, np.nan]]))
    assert not are_ordinary(np.array([[np.nan, np.inf]]))
    assert not are_ordinary(np.array([[np.nan, 1e30]], np.float32))


def test_merge_states_why_it_is_impossible() -> None:
    x = np.random.default_rng(0).normal(size=(60, 8))
    x[::7, 3] = np.nan
    one, other = (StreamingPCA(2, gaps="iterate", random_state=0).partial_fit(part) for part in (x[:30], x[30:]))
    with pytest.raises(DataError, match="expectations"):
        one.merge(other)
