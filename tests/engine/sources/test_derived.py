"""Computed samples agree with those of the other source, for every kind of source and every cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.engine.folds.fold import fold
from dpca.engine.folds.identity import digest
from dpca.engine.folds.plan import plan_fold
from dpca.engine.sources.derived import ComputedSource, OpenedSource
from dpca.engine.sources.lagged import LaggedSource
from dpca.engine.sources.shuffled import shuffle
from dpca.engine.sources.source import Source, as_source, batches
from dpca.partition import CellGrid, Whole
from dpca.rules.base.minibatch import InBatches
from dpca.rules.covariance.moments import Moments
from dpca.storage import DataError
from dpca.storage.run import Run

X = np.random.default_rng(0).normal(size=(53, 4, 3)).astype(np.float32)
COLUMNS = np.array([0, 2, 3, 7, 11])


class Sums(ComputedSource):
    """Some columns, each the sum over the sample, those before it and those behind it, in float64."""

    def __init__(self, source: Source, columns: Any = COLUMNS, before: int = 1, behind: int = 2) -> None:
        shape = (source.shape[0], len(columns))
        super().__init__(source, shape, np.float64, before=before, behind=behind)
        self.columns = columns

    def compute(self, values: Any, first: int, samples: Any, region: Any, out: Any) -> None:
        rows = values.reshape(len(values), -1)[:, self.columns[slice(*region[0])]].astype(float)
        for i in range(*samples):
            a, b = max(i - self.before, 0), i + self.behind + 1
            rows[max(a - first, 0) : b - first].sum(axis=0, out=out[i - samples[0]])


def truth(x: np.ndarray = X, before: int = 1, behind: int = 2) -> np.ndarray:
    rows = x.reshape(len(x), -1)[:, COLUMNS].astype(float)
    return np.array([rows[max(0, i - before) : i + behind + 1].sum(axis=0) for i in range(len(x))])


def stored(chunks: tuple[int, ...]) -> zarr.Array[Any]:
    return zarr.create_array(zarr.storage.MemoryStore(), data=X, chunks=chunks)


def read(source: Source, rows: int, columns: tuple[int, int] = (0, 5), samples: tuple[int, int] = (0, 53)) -> Any:
    return np.concatenate([b.copy() for _, b in batches(source, samples, (columns,), rows)])


@pytest.mark.long
@settings(deadline=None, max_examples=25)
@given(
    chunks=st.tuples(st.integers(1, 20), st.integers(1, 4), st.integers(1, 3)),
    halo=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    rows=st.integers(1, 60),
    cut=st.integers(1, 52),
    columns=st.sampled_from([(0, 5), (1, 3)]),
)
def test_any_chunks_batches_and_boxes(chunks: Any, halo: Any, rows: int, cut: int, columns: Any) -> None:
    wanted = truth(X, *halo)[:, slice(*columns)]
    source = Sums(as_source(stored(chunks)), COLUMNS, *halo)
    for here in ((0, 53), (0, cut), (cut, 53)):
        np.testing.assert_allclose(read(source, rows, columns, here), wanted[slice(*here)], atol=1e-12)


@pytest.mark.parametrize("made", ["numpy", "dask", "zarr", "path"])
def test_folds_over_what_is_computed(made: str, tmp_path: Path, cluster: Any, given_plan: Any) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=X, chunks=(5, 2, 3))
    inner = {"numpy": X, "dask": da.from_array(X, chunks=(7, 2, 3)), "zarr": stored((5, 2, 3)), "path": path}[made]
    source = Sums(as_source(inner))
    given_plan(segment_bytes=40 * 12, short_task=0, batch_rows=10)
    rule = InBatches(Moments(), 10)
    for client in (None, cluster) if made in ("dask", "path") else (None,):
        (found,), report = fold(rule, source, Whole((5,)), run=Run(client=client))
        np.testing.assert_allclose(found["variance"], truth().var(axis=0, ddof=1))
        assert len(report.plan.segments) > 1 or made == "dask"
        parts, _ = fold(rule, source, CellGrid((5,), (2,)), run=Run(client=client))
        np.testing.assert_allclose(np.concatenate([p["mean"] for p in parts]), truth().mean(axis=0), atol=1e-12)
    lazy = source.as_dask()
    assert (lazy is None) == (made != "dask")
    if lazy is not None:
        assert lazy.shape == source.shape
        np.testing.assert_allclose(lazy.compute(scheduler="synchronous"), truth())
        mixed = shuffle(source, 0, 0).as_dask()
        assert mixed is not None
        np.testing.assert_allclose(np.sort(mixed.compute(scheduler="synchronous"), 0), np.sort(truth(), 0))


def test_what_reading_takes_is_planned_and_what_tells_sources_apart_is_hashed() -> None:
    inner = as_source(stored((5, 4, 3)))
    names = {digest(source) for source in (inner, Sums(inner), Sums(inner, COLUMNS[:4]), Sums(inner, behind=3))}
    assert len(names) == 4
    assert digest(Sums(inner)) == digest(Sums(as_source(stored((5, 4, 3)))))
    few, many = (
        plan_fold(Sums(inner, behind=behind), Whole((5,)), Moments(), budget=2**30).task_bytes for behind in (0, 10_000)
    )
    assert many - few >= 10_000 * 2 * 12 * 4
    outer = shuffle(Sums(inner, behind=10_000), 0, 0)
    assert plan_fold(outer, Whole((5,)), Moments(), budget=2**30).task_bytes >= many


@settings(deadline=None, max_examples=15)
@given(
    chunk=st.integers(1, 20),
    lags=st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 7)),
    rows=st.integers(1, 60),
    how=st.sampled_from(["zarr", "dask"]),
)
def test_windows(chunk: int, lags: Any, rows: int, how: str) -> None:
    n_lags, lag, stride = lags
    starts = range(0, 53 - (n_lags - 1) * lag, stride)
    wanted = np.stack([X[i : i + (n_lags - 1) * lag + 1 : lag] for i in starts])
    inner = stored((chunk, 4, 3)) if how == "zarr" else da.from_array(X, chunks=(chunk, 4, 3))
    source = LaggedSource(as_source(inner), n_lags, lag, stride)
    assert source.shape == wanted.shape
    if (lazy := source.as_dask()) is not None:
        np.testing.assert_array_equal(lazy.compute(scheduler="synchronous"), wanted)
        return
    lengths = ((0, min(2, n_lags)), (0, 4), (1, 3))
    for a, b in ((0, len(wanted)), (len(wanted) // 2, len(wanted))):
        found = [values.copy() for _, values in batches(source, (a, b), lengths, rows)]
        np.testing.assert_array_equal(np.concatenate(found), wanted[a:b, :2, :, 1:3])


def test_a_source_that_is_opened_once_keeps_what_the_other_one_knows() -> None:
    x = X.copy()
    x[17, 1, 2] = np.nan
    source = as_source(x)
    box = ((0, 4), (0, 3))
    with pytest.raises(DataError, match="sample.17"):
        list(batches(OpenedSource(source), (0, 53), box, 10))
    source.with_gaps = True
    opened = OpenedSource(source)
    for run in ((0, 53), (5, 40)):
        found = [values.copy() for _, values in batches(opened, run, box, 10)]
        np.testing.assert_array_equal(np.concatenate(found), x[slice(*run)])
