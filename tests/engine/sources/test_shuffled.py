"""A shuffled source has every sample once, in an order that depends only on the seed and the chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.engine.folds.fold import fold
from dpca.engine.folds.plan import plan_fold
from dpca.engine.sources.derived import DerivedSource
from dpca.engine.sources.shuffled import ShuffledSource, shuffle
from dpca.engine.sources.source import DaskSource, ZarrSource, as_source, batches
from dpca.partition import CellGrid, Whole
from dpca.rules.base.minibatch import InBatches
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.rules.stochastic.oja import Oja
from dpca.storage.errors import DataError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.engine.folds.test_fold_chain import Fragile


def numbered(n: int, shape: tuple[int, ...] = (3, 2), dtype: Any = np.int32) -> np.ndarray:
    """Samples that hold their own number, and where in the sample a value is."""
    place = np.arange(int(np.prod(shape))).reshape(shape)
    return (1000 * np.arange(n).reshape(n, *(1,) * len(shape)) + place).astype(dtype)


def read(source: Any, rows: int, region: Any = ((0, 3), (0, 2)), samples: tuple[int, int] | None = None) -> np.ndarray:
    return np.concatenate([b.copy() for _, b in batches(source, samples or (0, source.shape[0]), region, rows)])


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(1, 30),
    chunk=st.integers(1, 10),
    rows=st.integers(1, 18),
    cut=st.integers(0, 30),
    seed=st.integers(0, 9),
)
def test_every_sample_once_wherever_it_is_cut(n: int, chunk: int, rows: int, cut: int, seed: int) -> None:
    x = numbered(n)
    stored = zarr.create_array(zarr.storage.MemoryStore(), data=x, chunks=(min(chunk, n), 2, 2))
    source = shuffle(as_source(stored), seed, 0)
    found = read(source, rows)
    np.testing.assert_array_equal(found[np.argsort(found[:, 0, 0])], x)
    cut = min(cut, n)
    parts = [read(source, 7, samples=(a, b)) for a, b in ((0, cut), (cut, n)) if a < b]
    np.testing.assert_array_equal(np.concatenate(parts), found)
    np.testing.assert_array_equal(read(source, rows, region=((1, 3), (0, 1))), found[:, 1:3, :1])


def test_chunks_are_drawn_whole_and_mixed_in_windows() -> None:
    x = numbered(200)
    stored = zarr.create_array(zarr.storage.MemoryStore(), data=x, chunks=(10, 3, 2))
    source = shuffle(as_source(stored), 3, 0)
    assert isinstance(source, ShuffledSource)
    assert source.window_rows == 40
    order = read(source, 16)[:, 0, 0] // 1000
    windows = order.reshape(5, 40)
    drawn = [set(window // 10) for window in windows]
    assert [len(chunks) for chunks in drawn] == [4] * 5
    assert sorted(chunk for chunks in drawn for chunk in chunks) == list(range(20))
    assert any(max(chunks) - min(chunks) > 3 for chunks in drawn)
    # Neighbors of the store are neighbors no more.
    assert np.mean(np.abs(np.diff(order)) == 1) < 0.2
    assert not np.array_equal(order, read(shuffle(as_source(stored), 4, 0), 16)[:, 0, 0] // 1000)


def test_each_chunk_is_read_once() -> None:
    stored = zarr.create_array(zarr.storage.MemoryStore(), data=numbered(95), chunks=(10, 3, 2))
    inner = as_source(stored)
    seen: list[tuple[int, int]] = []

    class Counting(DerivedSource):
        def reader(self) -> Any:
            read = inner.reader()

            def counted(samples: tuple[int, int], region: Any, out: np.ndarray) -> None:
                seen.append(samples)
                read(samples, region, out)

            return counted

    read(ShuffledSource(Counting(inner, window_rows=0), 0, 0), 8)
    assert sorted(i for a, b in seen for i in range(a, b)) == list(range(95))
    assert all(a % 10 == 0 for a, _ in seen)


@pytest.mark.parametrize("chunks", [(10, 3, 2), (10, 2, 1), ((7, 20, 3, 65), (3,), (2,))])
def test_a_dask_array_is_shuffled_by_its_own_tasks(chunks: Any) -> None:
    x = numbered(95)
    lazy = da.from_array(x, chunks=chunks)
    source = shuffle(as_source(lazy), 1, 0)
    assert isinstance(source, DaskSource)
    found = source.array.compute(scheduler="synchronous")
    np.testing.assert_array_equal(found[np.argsort(found[:, 0, 0])], x)
    assert np.mean(np.abs(np.diff(found[:, 0, 0])) == 1000) < 0.2
    again = shuffle(as_source(da.from_array(x, chunks=chunks)), 1, 0)
    assert isinstance(again, DaskSource)
    assert again.array.name == source.array.name
    if chunks == (10, 3, 2):
        stored = zarr.create_array(zarr.storage.MemoryStore(), data=x, chunks=chunks)
        np.testing.assert_array_equal(read(shuffle(as_source(stored), 1, 0), 16), found)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_spoiled_sample_is_named_by_its_place_in_the_store(lazy: bool) -> None:
    x = numbered(95, dtype=np.float32)
    x[61, 1, 1] = np.nan
    stored = zarr.create_array(zarr.storage.MemoryStore(), data=x, chunks=(10, 3, 2))
    source = shuffle(as_source(da.from_array(x, chunks=(10, 3, 2)) if lazy else stored), 5, 0)
    with pytest.raises(DataError, match="sample.61"):
        read(source, 16)


def test_chained_segments_stopped_and_resumed_on_any_worker(
    tmp_path: Path, given_plan: Callable[..., None], cluster: Any
) -> None:
    given_plan(link_bytes=40 * 24, batch_rows=8)
    x = np.random.default_rng(0).normal(size=(230, 3, 2)).astype(np.float32)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(8, 3, 2))
    source, rule = shuffle(as_source(str(tmp_path / "x.zarr")), 2, 0), InBatches(Oja(2, seed=1), 20)
    state = rule.init(6, np.float32)
    expected = rule.finish(rule.update(state, read(source, 230).reshape(230, 6)))
    for client in (None, cluster):
        (found,), report = fold(rule, source, Whole((3, 2)), run=Run(client=client))
        assert len(report.plan.segments) > 3
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
    (tmp_path / "fuse").touch()
    fragile = InBatches(Fragile(2, seed=1, fuse=str(tmp_path / "fuse")), 20)
    kept = Checkpoints(str(tmp_path / "kept"))
    with pytest.raises(RuntimeError, match="stopped"):
        fold(fragile, source, Whole((3, 2)), run=Run(checkpoints=kept))
    assert list((tmp_path / "kept").rglob("*segment*"))
    (tmp_path / "fuse").unlink()
    (found,), _ = fold(fragile, source, Whole((3, 2)), run=Run(checkpoints=kept))
    np.testing.assert_array_equal(found["components"], expected["components"])


def test_the_window_is_planned_for() -> None:
    stored, grid = (
        ZarrSource("nowhere", (4000, 64, 64), np.dtype(np.uint8), (100, 64, 64)),
        CellGrid((64, 64), (16, 16)),
    )
    shuffled = ShuffledSource(stored, 0)
    plain, held = (plan_fold(source, grid, CovariancePCA(2), budget=2**31) for source in (stored, shuffled))
    assert held.task_bytes - plain.task_bytes >= shuffled.window_rows * 64 * 64 > 0
