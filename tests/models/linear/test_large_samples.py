"""Few samples with more attributes than a task can hold components of: the Gram matrix by blocks of attributes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca import PCA, StreamingPCA
from dpca.engine.folds.plan import Outline, PlanError
from dpca.engine.folds.rehearsal import Workers, rehearsing
from dpca.engine.sources.source import as_source
from dpca.models.base import attribute_blocks
from dpca.models.base.attribute_blocks import gram_blocks
from dpca.models.base.passes import Passes
from dpca.models.linear import dual_solver
from dpca.storage.errors import DataError
from dpca.storage.remote.memory import room_within
from dpca.storage.run import Run

SHAPE = (40, 60, 70)


@pytest.fixture(scope="module")
def x() -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(4, *SHAPE)) * np.array([9, 6, 4, 2])[:, None, None, None]
    return (5 + np.tensordot(rng.normal(size=(9, 4)), patterns, 1) + rng.normal(size=(9, *SHAPE))).astype("f4")


def check(model: Any, x: np.ndarray, k: int, bound: float = 0.99999) -> None:
    exact = x.reshape(len(x), -1).astype(float)
    mean = exact.mean(axis=0)
    _, values, rows = np.linalg.svd(exact - mean, full_matrices=False)
    np.testing.assert_allclose(model.explained_variance_, values[:k] ** 2 / (len(x) - 1), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.mean_, mean, atol=1e-5)
    components = model.components_.reshape(k, -1).astype(float)
    np.testing.assert_allclose(components @ components.T, np.eye(k), atol=1e-6)
    rank = min(k, len(x) - 1)
    assert np.linalg.svd(components[:rank] @ rows[:rank].T, compute_uv=False).min() > 1 - 1e-6
    assert bound < model.captured_bound_ <= 1


@pytest.mark.cases(2)
@pytest.mark.parametrize("chunks", [(1, *SHAPE), (2, 16, 60, 35), (9, 7, 13, 70)])
@pytest.mark.parametrize("k", [3, 9])
def test_no_task_holds_a_component(x: np.ndarray, tmp_path: Path, chunks: tuple[int, ...], k: int) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=chunks)
    run = Run(memory=32 * 2**20, threads=2)
    streaming, dual = (kind(k).fit(str(tmp_path / "x.zarr"), run=run) for kind in (StreamingPCA, PCA))
    assert dual.fit_report_.plan.groups[0].region[0][1] < x[0].size  # attributes of a block
    assert dual.fit_report_.plan.task_bytes <= 32 * 2**20
    assert (dual.solver_, streaming.method_) == ("dual", "dual")
    np.testing.assert_array_equal(streaming.components_, dual.components_)
    for model in (dual, streaming):
        check(model, x, k)
    assert np.isnan(streaming.angle_moved_)
    assert (streaming.captured_estimate_, streaming.captured_estimate_error_) == (1, 0)
    streaming.save(tmp_path / "m.zarr")
    assert StreamingPCA.load(tmp_path / "m.zarr").method_ == "dual"


def test_with_memory_streaming_stays_what_it_is(x: np.ndarray) -> None:
    model = StreamingPCA(3).fit(x)
    assert model.method_ == "incremental-svd"
    check(model, x, 3, bound=0.999)


OTHERWISE = (
    {"n_passes": 2},
    {"forgetting": 0.9},
    {"keep_state": True},
    {"execution": "chain"},
    {"batch_size": 4},
    {"oversampling": 60},
)


@pytest.mark.parametrize("options", OTHERWISE, ids=str)
def test_what_the_exact_solver_does_not_give_is_not_replaced(x: np.ndarray, options: dict[str, Any]) -> None:
    assert StreamingPCA(3, memory_budget=34 * 2**20).fit(x).method_ == "dual"
    with pytest.raises(PlanError, match="allow"):
        StreamingPCA(3, memory_budget=34 * 2**20, **options).fit(x, run=Run(threads=1))


def test_without_centering_it_is_the_svd_of_the_samples(x: np.ndarray) -> None:
    model = StreamingPCA(3, center=False, memory_budget=34 * 2**20).fit(x)
    values = np.linalg.svd(x.reshape(len(x), -1).astype(float), compute_uv=False)
    assert model.method_ == "dual"
    np.testing.assert_allclose(model.explained_variance_, values[:3] ** 2 / (len(x) - 1), rtol=1e-6)


def test_blocks_are_cut_at_borders_of_chunks(x: np.ndarray, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(2, 16, 60, 35))
    source = as_source(str(tmp_path / "x.zarr"))
    grid = gram_blocks(Passes(source, Run(memory=32 * 2**20)), center=True, n_components=3)
    assert grid.n_parts > 1
    whole = source.decoded_bytes(tuple((0, length) for length in SHAPE))
    assert sum(source.decoded_bytes(grid.region(i)) for i in range(grid.n_parts)) == whole


def test_blocks_are_small_where_that_decodes_nothing_twice() -> None:
    for chunk, most in ((50, 32 * 2**20), (2000, 8 * 2000 * 8000)):
        source = Outline("x", (8, 4000, 8000), np.dtype("u1"), (1, chunk, 8000))
        grid = gram_blocks(Passes(source, Run(memory=2 * 10**9)), center=True, n_components=3)
        assert 8 * chunk * 8000 <= 8 * grid.max_features <= most
        assert grid.cell_shape[0] % chunk == 0


def test_components_that_this_process_cannot_hold_are_on_disk(x: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dual_solver, "usable_bytes", lambda: 9_000_000)
    assert isinstance(PCA(9).fit(x).components_, da.Array)


def test_a_rehearsal_counts_all_samples(x: np.ndarray, tmp_path: Path) -> None:
    """It measures the products of some samples, and the stream of blocks has all of them."""
    more = np.concatenate([x[:, ::4, ::4]] * 60).astype(np.uint8)  # 540
    with rehearsing(Workers(1, 1, 10**9), str(tmp_path)) as found:
        PCA(3, solver="dual").fit(more)
    gram, components = found.costs
    assert gram.n_samples % 540 == 0
    assert components.n_samples == 540
    assert min(gram.folding, gram.finishing, components.folding) > 0


def test_a_plan_knows_it(x: np.ndarray) -> None:
    source, run = as_source(x), Run(memory=32 * 2**20)
    basis, known = StreamingPCA(3).plan_fit(source, ("z", "y", "x"), run)
    assert known
    assert basis.score_shape == (3,)
    with pytest.raises(PlanError, match="batch_size|memory"):
        StreamingPCA(3, n_passes=2).plan_fit(source, ("z", "y", "x"), run)


@pytest.mark.cases(1)
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_integers_give_the_same_bytes_for_any_chunks_memory_and_threads(tmp_path: Path, dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 255, (6, 60, 80, 100)).astype(dtype)
    expected, widths = PCA(4).fit(x), []
    for i, chunks in enumerate([(1, 60, 80, 100), (4, 7, 80, 11), (6, 16, 9, 50)]):
        path = str(tmp_path / f"{i}.zarr")
        zarr.create_array(path, data=x, chunks=chunks)
        model = PCA(4, solver="dual").fit(path, run=Run(memory=(34 + 2 * i) * 2**20, threads=1 + i % 2))
        widths.append(model.fit_report_.plan.groups[0].region[0][1])
        for name in ("components_", "mean_", "explained_variance_", "captured_bound_"):
            np.testing.assert_array_equal(getattr(model, name), getattr(expected, name))
    assert min(widths) < x[0].size


def test_integers_without_centering() -> None:
    x = np.random.default_rng(0).integers(0, 255, (6, 2_000)).astype(np.uint8)
    model = PCA(3, solver="dual", center=False).fit(x)
    _, values, rows = np.linalg.svd(x.astype(float), full_matrices=False)
    np.testing.assert_allclose(model.explained_variance_, values[:3] ** 2 / 5, rtol=1e-9)
    np.testing.assert_allclose(np.abs(np.sum(model.components_ * rows[:3], axis=1)), 1, rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_task_adds_up_the_gram_matrices_of_its_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """There is memory for two of them, and there are more blocks."""
    x = np.random.default_rng(0).normal(size=(600, 5, 700)) * np.linspace(1, 4, 700)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(7, 2, 90))
    expected, n = PCA(3, solver="dual").fit(x), 600
    monkeypatch.setattr(attribute_blocks, "_LARGEST_BLOCK", 400)
    monkeypatch.setattr(attribute_blocks, "usable_bytes", lambda: 2 * 8 * n * n)
    model = PCA(3, solver="dual").fit(str(tmp_path / "x.zarr"), run=Run(threads=threads))
    plan = model.fit_report_.plan
    assert plan.groups[0].region[0][1] <= 400
    assert len(plan.segments) <= 2
    assert plan.caller_bytes < 8 * n * n
    np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-10)
    monkeypatch.setattr(attribute_blocks, "usable_bytes", lambda: 8 * n * n)
    with pytest.raises(PlanError, match="samples"):
        PCA(3, solver="dual").fit(str(tmp_path / "x.zarr"))


@pytest.mark.parametrize("chunks", [(1, 200_000), (100, 20_000)])
def test_many_samples_fit_a_worker_of_8_gigabytes(chunks: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only half of the Gram matrix of 20,000 samples is in memory, and one of 2 GB does not hold it."""
    monkeypatch.setattr(attribute_blocks, "usable_bytes", lambda: 6 * 10**9)
    source = Outline("x", (20_000, 200_000), np.dtype("u1"), chunks)
    assert gram_blocks(Passes(source, Run(memory=room_within(8 * 10**9))), center=True, n_components=10).n_parts > 1
    with pytest.raises(PlanError, match="allow"):
        gram_blocks(Passes(source, Run(memory=room_within(2 * 10**9))), center=True, n_components=10)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named_by_its_sample(x: np.ndarray, tmp_path: Path, bad: float) -> None:
    damaged = x.copy()
    damaged[7, 30, 5, 5] = bad
    zarr.create_array(str(tmp_path / "x.zarr"), data=damaged, chunks=(2, 16, 60, 35))
    with pytest.raises(DataError, match=r"\b7\b"):
        PCA(3, solver="dual").fit(str(tmp_path / "x.zarr"), run=Run(memory=34 * 2**20))
