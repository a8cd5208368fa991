"""Components of windows of samples from the Gram matrix of the samples, against numpy's SVD of the windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca import PCA, StreamingPCA
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.lagged import LaggedSource
from dpca.engine.sources.source import as_source
from dpca.models.linear import component_store, dual_solver
from dpca.models.linear.window_solver import WholeSamples, Windows
from dpca.rules.dual import gram
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.timeseries import lagged

SHAPE = (40, 60, 70)


def drifting(n: int, shape: tuple[int, ...], dtype: Any = "f4", seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return (np.cumsum(3 * rng.normal(size=(n, *shape)), axis=0) + 120).astype(dtype)


def windows_of(x: np.ndarray, source: LaggedSource) -> np.ndarray:
    n_windows, n_lags = source.shape[:2]
    numbers = np.arange(n_windows)[:, None] * source.stride + np.arange(n_lags) * source.lag
    return x[numbers].reshape(n_windows, -1).astype(float)


def check(model: Any, x: np.ndarray, source: LaggedSource, k: int, *, center: bool = True) -> None:
    rows = windows_of(x, source)
    mean = rows.mean(axis=0) if center else np.zeros(rows.shape[1])
    _, values, modes = np.linalg.svd(rows - mean, full_matrices=False)
    rank = min(k, int(np.count_nonzero(values > 1e-3 * values[0])))
    np.testing.assert_allclose(model.explained_variance_[:rank], values[:rank] ** 2 / (len(rows) - 1), rtol=1e-6)
    np.testing.assert_allclose(model.mean_, mean, rtol=1e-6, atol=1e-6)
    apart = values[rank - 1] - (values[rank] if rank < len(values) else 0)
    if apart > 1e-2 * values[0]:
        found = model.components_[:rank].astype(float) @ modes[:rank].T
        assert np.linalg.svd(found, compute_uv=False).min() > 1 - 1e-5
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(k), atol=1e-5)
    assert 0 < model.captured_bound_ <= 1


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(6, 30),
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    n_lags=st.integers(1, 5),
    lag=st.integers(1, 3),
    stride=st.integers(1, 2),
    k=st.integers(1, 3),
    dtype=st.sampled_from(["u1", "i2", "f4", "f8", "i8"]),
    center=st.booleans(),
)
def test_any_shape_lag_and_type(
    n: int, shape: list[int], n_lags: int, lag: int, stride: int, k: int, dtype: str, center: bool
) -> None:
    x = drifting(n, tuple(shape), dtype)
    if (n_lags - 1) * lag + 1 > n - stride:
        return
    source = LaggedSource(as_source(x), n_lags, lag, stride)
    k = min(k, source.shape[0], n_lags * int(np.prod(shape)))
    model = PCA(k, solver="dual", center=center).fit(source)
    check(model, x, source, k, center=center)
    assert model.sample_shape_ == (n_lags, *shape)


@pytest.mark.parametrize("dtype", ["f4", "f8", "u1", "i8"])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize(("n_lags", "lag", "stride"), [(4, 1, 1), (3, 2, 1), (9, 1, 2)])
def test_means_that_differ_between_lags(dtype: str, center: bool, n_lags: int, lag: int, stride: int) -> None:
    x = drifting(40, (5, 6), dtype)
    source = LaggedSource(as_source(x), n_lags, lag, stride)
    assert isinstance(WholeSamples.of(source), Windows)
    check(PCA(3, solver="dual", center=center).fit(source), x, source, 3, center=center)


@pytest.mark.parametrize("chunks", [(1, *SHAPE), (2, 16, 60, 35), (12, 7, 13, 70)])
def test_no_task_holds_a_sample(tmp_path: Path, chunks: tuple[int, ...]) -> None:
    x = drifting(12, SHAPE)
    zarr.create_array(path := str(tmp_path / "x.zarr"), data=x, chunks=chunks)
    source = lagged(path, 4)
    for kind in (PCA, StreamingPCA):
        model = kind(3).fit(source, run=Run(memory=34 * 2**20, threads=2))
        plan = model.fit_report_.plan
        assert plan.groups[0].region[0][1] < x[0].size  # attributes of a block
        assert plan.task_bytes <= 34 * 2**20
        assert x.nbytes <= plan.read_bytes < 1.5 * x.nbytes  # each sample once, not once a window; blocks of equal size
        assert getattr(model, "solver_", None) == "dual" or model.method_ == "dual"
        check(model, x, source, 3)


def test_integers_give_the_same_bytes_for_any_blocks(tmp_path: Path) -> None:
    x, found = drifting(30, SHAPE, "u1"), []
    for i, chunks in enumerate([(1, *SHAPE), (5, 16, 20, 70)]):
        zarr.create_array(path := str(tmp_path / f"{i}.zarr"), data=x, chunks=chunks)
        run = Run(memory=(31 + 200 * i) * 2**20, threads=1 + i)
        found.append(PCA(3, solver="dual").fit(lagged(path, 4), run=run))
    small, large = (model.fit_report_.plan.groups[0].region[0][1] for model in found)
    assert small < large
    for name in ("components_", "mean_", "explained_variance_", "captured_bound_"):
        np.testing.assert_array_equal(getattr(found[0], name), getattr(found[1], name))


def test_dask_arrays() -> None:
    x = drifting(14, (9, 80))
    source = lagged(da.from_array(x, chunks=(4, 9, 40)), 3, lag=2)
    check(PCA(2, solver="dual").fit(source), x, source, 2)


def test_windows_far_apart_have_a_smaller_gram_matrix_of_their_own() -> None:
    x = drifting(40, (9, 80))
    source = LaggedSource(as_source(x), 4, 1, 30)
    assert not isinstance(WholeSamples.of(source), Windows)
    check(PCA(1, solver="dual").fit(source), x, source, 1)


def test_an_interrupted_fit_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass over samples is not repeated."""
    zarr.create_array(path := str(tmp_path / "x.zarr"), data=drifting(14, (9, 80)), chunks=(4, 9, 40))
    kept, expected = Checkpoints(str(tmp_path / "kept")), PCA(2, solver="dual").fit(lagged(path, 3))
    with monkeypatch.context() as patch:
        patch.setattr(dual_solver, "dual_weights", lambda *_: [][0])
        with pytest.raises(IndexError):
            PCA(2, solver="dual").fit(lagged(path, 3), run=Run(checkpoints=kept))
    monkeypatch.setattr(gram.BlockGram, "_take", None)
    resumed = PCA(2, solver="dual").fit(lagged(path, 3), run=Run(checkpoints=kept))
    np.testing.assert_array_equal(resumed.components_, expected.components_)


@pytest.mark.parametrize("dtype", ["u1", "f4"])
@pytest.mark.parametrize("center", [True, False])
def test_components_on_disk_are_those_in_memory(
    tmp_path: Path, dtype: str, center: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of the store have all lags; what is read of a window is a part of each."""
    x = drifting(12, SHAPE, dtype)
    zarr.create_array(path := str(tmp_path / "x.zarr"), data=x, chunks=(4, 16, 20, 70))
    expected = PCA(3, solver="dual", center=center).fit(lagged(path, 4))
    monkeypatch.setattr(dual_solver, "MOST_BYTES", 0)
    monkeypatch.setattr(component_store, "_SHARD_BYTES", 2**18)
    model = PCA(3, solver="dual", center=center).fit(lagged(path, 4), run=Run(memory=34 * 2**20, threads=2))
    assert isinstance(model.components_, da.Array)
    windows = windows_of(x, lagged(path, 4)).reshape(-1, 4, *SHAPE).astype(dtype)
    rows, scores = model.components_.compute(), expected.transform(windows)
    signs = np.sign((rows * expected.components_).sum(axis=1))
    np.testing.assert_allclose(rows * signs[:, None], expected.components_, atol=2e-6)
    np.testing.assert_allclose(model.mean_.compute(), expected.mean_, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(model.transform(windows) * signs, scores, rtol=1e-4, atol=1e-5 * np.abs(scores).max())
    assert 0.999 < model.captured_bound_ <= 1


def test_a_share_of_the_variance_of_windows() -> None:
    x = drifting(30, (9, 80))
    every, model = PCA(8, solver="dual").fit(lagged(x, 3)), PCA(0.9, solver="dual").fit(lagged(x, 3))
    shares = np.cumsum(every.explained_variance_) / every.total_variance_
    assert len(model.components_) == np.searchsorted(shares, 0.9) + 1


def test_blocks_that_no_task_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = lagged(da.from_array(drifting(12, (9, 80)), chunks=(4, 9, 80)), 3)
    for refused in (
        lambda run: PCA(2, solver="dual").fit(source, run=run),
        lambda run: PCA(2, solver="dual").plan_fit(source, ("lag", "y", "x"), run),
    ):
        with pytest.raises(PlanError, match="dual"):
            refused(Run(memory=1_000_000))
