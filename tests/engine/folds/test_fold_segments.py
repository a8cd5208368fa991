"""Folds of samples in many segments, which are merged in a tree, kept one by one, and resumed."""

from __future__ import annotations

import os
import time
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from threadpoolctl import threadpool_info

from dpca.engine.folds.fold import FoldReport, fold, plan_for
from dpca.engine.folds.fold_tasks import GroupTask, finish_copy
from dpca.engine.folds.plan import Group, PlanError
from dpca.engine.sources.source import Source, as_source
from dpca.partition import CellGrid, Whole
from dpca.partition.bands import map_at_random
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.state import State
from dpca.rules.covariance.covariance import Covariance, CovariancePCA
from dpca.rules.covariance.moments import Moments
from dpca.rules.covariance.snapshots import SnapshotPCA
from dpca.storage import DataError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.conftest import smooth_images

GRID = CellGrid((20, 18, 3), (10, 9))
N, CHUNK = 230, 16
Results = list[dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return smooth_images(N, (20, 18, 3))


@pytest.fixture
def source(images: np.ndarray, tmp_path: Path) -> Source:
    """One group; batches of one chunk, so that every chunk can be a segment."""
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=images, chunks=(CHUNK, 20, 18, 3))
    return as_source(path)


@pytest.fixture
def segments(given_plan: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A segment a chunk, the last one short; one task after the other."""
    for rule in (Covariance, Moments):
        monkeypatch.setattr(rule, "batch_rows", lambda rule, dtype: CHUNK)
    given_plan(segment_bytes=1, threads=1)
    yield -(-N // CHUNK)


def content(results: Results) -> list[dict[str, bytes]]:
    return [{name: np.asarray(value).tobytes() for name, value in result.items()} for result in results]


def plain(rule: Any, x: np.ndarray) -> Results:
    """One update for each cell, without the engine."""
    cells = (np.ascontiguousarray(x[(slice(None), *(slice(a, b) for a, b in GRID.region(i)))]) for i in range(4))
    flat = (cell.reshape(len(x), -1) for cell in cells)
    return [rule.finish(rule.update(rule.init(cell.shape[1], cell.dtype), cell)) for cell in flat]


def test_the_tree_gives_the_bytes_of_one_update(
    images: np.ndarray, source: Source, segments: int, cluster: Any
) -> None:
    expected = content(plain(CovariancePCA(4), images))
    for client in (None, cluster):
        results, report = fold(CovariancePCA(4), source, GRID, run=Run(client=client))
        assert len(report.plan.segments) == segments == 15
        assert content(results) == expected
    lazy = as_source(da.from_array(images, chunks=((16, 100, 114), 7, 18, 2)))
    results, report = fold(CovariancePCA(4), lazy, GRID, run=Run(client=cluster))
    assert content(results) == expected


@pytest.mark.parametrize("dtype", [np.uint16, np.float32, np.float64])
def test_segments_that_drift_apart(dtype: type, tmp_path: Path, segments: int, cluster: Any) -> None:
    """Every segment has a mean of its own, so every merge moves one."""
    rng = np.random.default_rng(0)
    x = (rng.normal(100, 20, (N, 20, 18, 3)) + 150 * np.arange(N)[:, None, None, None]).astype(dtype)
    zarr.create_array(str(tmp_path / "drift.zarr"), data=x, chunks=(CHUNK, 20, 18, 3), zarr_format=2)
    expected = plain(Covariance(), x.astype(float))
    deviations = [np.sqrt(np.outer(e["covariance"].diagonal(), e["covariance"].diagonal())) for e in expected]
    for rule in (Covariance(), Moments()):
        results, _ = fold(rule, as_source(str(tmp_path / "drift.zarr")), GRID, run=Run(client=cluster))
        for result, wanted, scale in zip(results, expected, deviations, strict=True):
            np.testing.assert_allclose(result["mean"], wanted["mean"], rtol=1e-9)
            if "covariance" in result:
                assert np.max(np.abs(result["covariance"] - wanted["covariance"]) / scale) < 1e-7
            else:
                np.testing.assert_allclose(result["variance"], wanted["covariance"].diagonal(), rtol=1e-9)


@dataclass(frozen=True)
class Counting(CovariancePCA):
    """Leaves a file for each update in a folder, and fails after a given number of them."""

    folder: str = field(default="", compare=False)
    fail_at: int = field(default=-1, compare=False)

    def update(self, state: State, batch: np.ndarray) -> State:
        if 0 <= self.fail_at <= len(os.listdir(self.folder)):
            raise RuntimeError("struck")
        (Path(self.folder) / uuid.uuid4().hex).touch()
        return super().update(state, batch)


def counting(folder: Path, fail_at: int = -1) -> Counting:
    folder.mkdir()
    return Counting(4, str(folder), fail_at)


def updates(rule: Counting) -> int:
    return len(os.listdir(rule.folder))


@pytest.mark.parametrize("fail_at", [0, 4, 29, 59])
def test_only_what_is_missing_is_done_again(
    fail_at: int, images: np.ndarray, source: Source, segments: int, tmp_path: Path
) -> None:
    """15 segments of 4 cells are 60 updates; whole segments are kept, the one that failed is done again."""
    checkpoints = Checkpoints(str(tmp_path / "kept"))
    with pytest.raises(RuntimeError, match="struck"):
        fold(counting(tmp_path / "first", fail_at), source, GRID, run=Run(checkpoints=checkpoints))
    kept = list(Path(checkpoints.folder).rglob("*.npz"))
    assert len(kept) == fail_at // 4
    if kept:
        # A power cut took the end of one: it counts as missing.
        kept[0].write_bytes(kept[0].read_bytes()[:-30])
    second = counting(tmp_path / "second")
    results, _ = fold(second, source, GRID, run=Run(checkpoints=checkpoints))
    assert updates(second) == 60 - 4 * (fail_at // 4) + 4 * bool(kept)
    assert content(results) == content(plain(CovariancePCA(4), images))
    # Segments of a finished group are no longer needed.
    assert [p.name for p in Path(checkpoints.folder).rglob("*.npz")] == ["group-000000.npz"]
    third = counting(tmp_path / "third")
    results, report = fold(third, source, GRID, run=Run(checkpoints=checkpoints))
    assert updates(third) == 0
    assert report.peak_memory > 0
    assert content(results) == content(plain(CovariancePCA(4), images))


def test_a_long_segment_keeps_its_states_on_the_way(
    images: np.ndarray, source: Source, segments: int, tmp_path: Path, given_plan: Callable[..., None]
) -> None:
    """One segment takes all: 15 updates, kept after each 4."""
    whole, rule = Whole((20, 18, 3)), CovariancePCA(4)
    given_plan(segment_bytes=2**40)
    budget = plan_for(rule, source, whole).task_bytes
    given_plan(checkpoint_bytes=4 * CHUNK * 20 * 18 * 3)
    plan = plan_for(rule, source, whole, run=Run(memory=budget))
    assert (len(plan.segments), plan.batch_rows, plan.checkpoint_rows) == (1, CHUNK, 4 * CHUNK)
    checkpoints = Checkpoints(str(tmp_path / "kept"))
    for attempt, (fail_at, done) in enumerate([(9, 0), (3, 8), (-1, 8)]):
        attempted = counting(tmp_path / str(attempt), fail_at)
        if fail_at < 0:
            found, _ = fold(attempted, source, whole, run=Run(memory=budget, checkpoints=checkpoints))
            assert updates(attempted) == 15 - done
        else:
            with pytest.raises(RuntimeError, match="struck"):
                fold(attempted, source, whole, run=Run(memory=budget, checkpoints=checkpoints))
    assert content(found) == content(fold(rule, source, whole, run=Run(memory=budget))[0])
    assert [p.name for p in Path(checkpoints.folder).rglob("*.npz")] == ["group-000000.npz"]


def test_a_cluster_goes_on_too(images: np.ndarray, source: Source, segments: int, tmp_path: Path, cluster: Any) -> None:
    checkpoints = Checkpoints(str(tmp_path / "kept"))
    with pytest.raises(RuntimeError, match="struck"):
        fold(counting(tmp_path / "first", 22), source, GRID, run=Run(checkpoints=checkpoints, client=cluster))
    second = counting(tmp_path / "second")
    results, _ = fold(second, source, GRID, run=Run(checkpoints=checkpoints, client=cluster))
    # Two workers each had at most one unfinished segment of 4 updates.
    assert updates(second) <= 60 - 22 + 2 * 3
    assert content(results) == content(plain(CovariancePCA(4), images))


def test_other_settings_do_not_find_the_wrong_checkpoints(
    images: np.ndarray, source: Source, segments: int, tmp_path: Path, given_plan: Callable[..., None]
) -> None:
    """Another budget or cluster cuts the work differently."""
    checkpoints = Checkpoints(str(tmp_path / "kept"))
    with pytest.raises(RuntimeError, match="struck"):
        fold(counting(tmp_path / "first", 30), source, GRID, run=Run(checkpoints=checkpoints))
    given_plan(segment_bytes=50 * 20 * 18 * 3)
    results, report = fold(CovariancePCA(4), source, GRID, run=Run(checkpoints=checkpoints))
    assert len(report.plan.segments) == 5
    assert content(results) == content(plain(CovariancePCA(4), images))


class Told:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int, str]] = []
        self.advanced = 0
        self.counts: list[int] = []
        self.closed = 0

    def __call__(self, stage: str, total: int, unit: str) -> Told:
        self.stages.append((stage, total, unit))
        return self

    def advance(self, n: int) -> None:
        self.advanced += n
        self.counts.append(n)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("where", ["here", "cluster"])
def test_progress_reaches_the_end_also_when_gone_on(
    where: str, images: np.ndarray, source: Source, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    client = request.getfixturevalue("cluster") if where == "cluster" else None
    checkpoints = Checkpoints(str(tmp_path / "kept"))
    for _ in range(2):
        told = Told()
        fold(Moments(), source, GRID, run=Run(client=client, checkpoints=checkpoints, progress=told), stage="look")
        assert told.stages == [("look", images.nbytes, "B")]
        assert (told.advanced, told.closed) == (images.nbytes, 1)
    told = Told()
    with pytest.raises(RuntimeError, match="struck"):
        fold(counting(tmp_path / "failing", 2), source, GRID, run=Run(client=client, progress=told))
    assert (told.advanced, told.closed) == (0, 1)


def test_progress_counts_every_segment_also_those_of_an_earlier_run(
    images: np.ndarray, source: Source, segments: int, tmp_path: Path
) -> None:
    checkpoints, told = Checkpoints(str(tmp_path / "kept")), Told()
    with pytest.raises(RuntimeError, match="struck"):
        fold(counting(tmp_path / "first", 30), source, GRID, run=Run(checkpoints=checkpoints))
    kept = len(list(Path(checkpoints.folder).rglob("*segment-*.npz")))
    fold(counting(tmp_path / "second"), source, GRID, run=Run(checkpoints=checkpoints, progress=told))
    whole = CHUNK * images[0].nbytes
    assert sorted(n for n in told.counts if n) == [images.nbytes - whole * (segments - 1)] + [whole] * (segments - 1)
    assert 0 < kept < segments


def test_finished_segments_hold_no_samples_back(source: Source, segments: int, tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path / "kept"))
    with pytest.raises(RuntimeError, match="struck"):
        fold(
            InBatches(counting(tmp_path / "first", 60), 7, at_once=CHUNK),
            source,
            GRID,
            run=Run(checkpoints=checkpoints),
        )
    kept = list(Path(checkpoints.folder).rglob("*segment-*.npz"))
    assert kept
    for path in kept:
        with np.load(path) as bundle:
            assert [bundle[name].size for name in bundle.files if name.endswith("buffered_rows")] == [0]


def test_nothing_stays_behind_on_the_cluster(source: Source, segments: int, tmp_path: Path, cluster: Any) -> None:
    def keys(dask_scheduler: Any) -> list[str]:
        return [str(key) for key in dask_scheduler.tasks]

    results, report = fold(CovariancePCA(4), source, GRID, run=Run(client=cluster))
    assert len(results) == 4
    assert report.peak_memory > 50e6  # an interpreter with numpy in it
    with pytest.raises(RuntimeError, match="struck"):
        fold(counting(tmp_path / "failing", 5), source, GRID, run=Run(client=cluster))
    patience = time.monotonic() + 10
    while cluster.run_on_scheduler(keys) and time.monotonic() < patience:
        time.sleep(0.05)
    assert cluster.run_on_scheduler(keys) == []


def test_errors_of_a_worker_arrive_as_they_were(tmp_path: Path, cluster: Any) -> None:
    x = np.zeros((60, 20, 18, 3), np.float32)
    x[41, 3, 4, 1] = np.nan
    path = str(tmp_path / "nan.zarr")
    zarr.create_array(path, data=x, chunks=(10, 5, 5, 3))
    for source in (as_source(path), as_source(da.from_array(x, chunks=(7, 20, 18, 3)))):
        with pytest.raises(DataError, match="sample.41"):
            fold(CovariancePCA(2), source, GRID, run=Run(client=cluster))


@dataclass(frozen=True)
class Threads(Moments):
    """Reports the BLAS threads that an update may use."""

    folder: str = ""

    def update(self, state: State, batch: np.ndarray) -> State:
        most = max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        (Path(self.folder) / str(most)).touch()
        return super().update(state, batch)


@pytest.mark.usefixtures("two_blas_threads")
def test_threads_do_not_multiply(source: Source, tmp_path: Path, cluster: Any) -> None:
    (tmp_path / "threads").mkdir()
    for client in (None, cluster):
        fold(Threads(str(tmp_path / "threads")), source, GRID, run=Run(client=client))
    assert os.listdir(tmp_path / "threads") == ["1"]


def test_chunks_of_a_dask_array_are_computed_once(images: np.ndarray, given_plan: Callable[..., None]) -> None:
    """Also where memory cuts the cells of one chunk into several groups."""
    computed: list[Any] = []

    def note(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        computed.append(block_info[0]["chunk-location"])
        return block

    lazy = da.from_array(images, chunks=(50, 20, 9, 3)).map_blocks(note, dtype=images.dtype, meta=images[:0])
    given_plan(short_task=0)
    results, report = fold(CovariancePCA(4), as_source(lazy), GRID)
    assert len(report.plan.groups) > 1
    assert content(results) == content(plain(CovariancePCA(4), images))
    assert len(computed) == len(set(computed)) == 10


def test_results_that_this_process_cannot_hold_are_refused(source: Source, given_plan: Callable[..., None]) -> None:
    given_plan(usable=10_000)
    with pytest.raises(PlanError, match="results"):
        fold(CovariancePCA(None), source, GRID, run=Run(memory=2**30))


@pytest.mark.long
def test_the_objects_of_many_partitions_are_planned() -> None:
    """With few attributes each, they take more memory than the arrays."""
    x = np.random.default_rng(0).integers(0, 256, (8, 6000), dtype=np.uint8)
    fold(CovariancePCA(2), as_source(x[:, :60]), map_at_random((60,), 3, np.random.default_rng(0)))  # imports
    bands = map_at_random((6000,), 3, np.random.default_rng(0))
    tracemalloc.start()
    try:
        results, report = fold(CovariancePCA(2), as_source(x), bands)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(results) == 2000
    assert 2 * report.plan.result_bytes < held <= report.plan.caller_bytes


def test_a_report_says_what_was_planned(source: Source) -> None:
    _, report = fold(Moments(), source, GRID)
    assert isinstance(report, FoldReport)
    assert report.plan.read_bytes == N * 20 * 18 * 3
    assert report.plan.result_bytes == 16 * 20 * 18 * 3
    assert 0 < report.seconds < 60


def test_states_can_be_finished_again() -> None:
    """Dask may need them again for a retry. This rule takes its samples out of a state."""
    rule, rng = SnapshotPCA(4, 2), np.random.default_rng(0)
    states = [rule.update(rule.init(6, float), rng.normal(size=(4, 6))) for _ in range(5)]
    group = Group((0, 1, 2, 3, 4), ((0, 30),))
    work = GroupTask(rule, CellGrid((30,), (6,)), group, 4, 1, 2**62, "X", np.dtype(float), "group", "fit")
    once, again = (finish_copy(work, (states, 0), 1)[0] for _ in range(2))
    assert len(once) == len(again) == 5
    for found, expected in zip(again, once, strict=True):
        np.testing.assert_array_equal(found["components"], expected["components"])
