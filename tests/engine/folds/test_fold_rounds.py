"""Folds in rounds are bit-identical for all workers, also after interruptions and failures."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca.engine.folds.fold import fold
from dpca.engine.folds.plan import PlanError
from dpca.engine.folds.rounds import Averaging, DataParallel
from dpca.engine.sources.source import as_source
from dpca.partition import CellGrid, Whole
from dpca.rules import BlockPower, ImplicitKrasulina, Oja, Power
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.state import State
from dpca.storage import DataError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.conftest import smooth_images

N, CHUNK, SHAPE = 230, 16, (10, 12, 3)
WHOLE = Whole(SHAPE)
RULE = Oja(3, Power(1.0, 0.5), unit=255.0, seed=1)
AVERAGING, BATCHED = Averaging(3, 20, 10), InBatches(RULE, 10)
PARALLEL = DataParallel(64, 2)
Result = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return smooth_images(N, SHAPE)


@pytest.fixture
def path(images: np.ndarray, tmp_path: Path) -> str:
    zarr.create_array(str(tmp_path / "x.zarr"), data=images, chunks=(CHUNK, *SHAPE))
    return str(tmp_path / "x.zarr")


@pytest.fixture
def spread(given_plan: Callable[..., None]) -> None:
    """A task for each stream, and segments of two rounds."""
    given_plan(worth_a_task=0, link_bytes=128 * 360, threads=2)


def same(a: Result, b: Result) -> None:
    for name, value in b.items():
        np.testing.assert_array_equal(a[name], value)


def averaged(rule: Any, images: np.ndarray, n_streams: int, size: int) -> Result:
    """Rounds by hand, for samples that fill them but for the last one."""
    rows = images.reshape(len(images), -1)
    state = rule.init(rows.shape[1], rows.dtype)
    for start in range(0, len(rows), n_streams * size):
        states = []
        for stream in range(n_streams):
            first = start + stream * size
            states.append(state.copy())
            for batch in range(first, first + size, 10):
                states[-1] = rule.update(states[-1], rows[batch : batch + 10])
        state = rule.average(state, states)
    return rule.finish(state)


@pytest.mark.parametrize("rule", [RULE, ImplicitKrasulina(3, unit=255.0), ImplicitKrasulina(2, online=True)])
def test_rounds_are_what_they_say(rule: Any, images: np.ndarray, path: str, spread: None, cluster: Any) -> None:
    images = images[:180]
    zarr.create_array(path, data=images, chunks=(CHUNK, *SHAPE), overwrite=True)
    expected = averaged(rule, images, 3, 20)
    for x, client in ((images, None), (path, None), (path, cluster), (da.from_array(images, chunks=50), cluster)):
        (found,), report = fold(InBatches(rule, 10), as_source(x), WHOLE, scheme=AVERAGING, run=Run(client=client))
        same(found, expected)
        assert len(report.plan.segments) == (1 if isinstance(x, da.Array) else 2)


@pytest.mark.parametrize("rule", [RULE, BlockPower(3, seed=1)])
def test_spread_batches_give_what_whole_batches_give(
    rule: Any, images: np.ndarray, path: str, spread: None, cluster: Any
) -> None:
    (whole,), _ = fold(InBatches(rule, 64), as_source(path), WHOLE)
    results = []
    for x, client in ((path, None), (path, cluster), (images, None)):
        (found,), _ = fold(rule, as_source(x), WHOLE, scheme=PARALLEL, run=Run(client=client))
        overlap = np.linalg.svd(found["components"] @ whole["components"].T, compute_uv=False)
        assert overlap.min() > 1 - 1e-6
        np.testing.assert_allclose(found["mean"], whole["mean"], rtol=1e-12)
        assert float(found["total_variance"]) == pytest.approx(float(whole["total_variance"]), rel=1e-6)
        results.append(found)
    same(results[0], results[1])


@pytest.mark.parametrize("size", [10, 50, 230, 1000])
def test_one_stream_is_a_chain(size: int, path: str) -> None:
    (chain,), _ = fold(BATCHED, as_source(path), WHOLE)
    (found,), _ = fold(BATCHED, as_source(path), WHOLE, scheme=Averaging(1, size, 10))
    same(found, chain)


@pytest.mark.parametrize("size", [50, 1000])
def test_one_part_is_the_batch_itself(size: int, path: str) -> None:
    (chain,), _ = fold(InBatches(RULE, size), as_source(path), WHOLE)
    (found,), _ = fold(RULE, as_source(path), WHOLE, scheme=DataParallel(size, 1))
    assert np.linalg.svd(found["components"] @ chain["components"].T, compute_uv=False).min() > 1 - 1e-6


@pytest.mark.parametrize("scheme", [AVERAGING, PARALLEL])
def test_where_the_work_is_done_changes_nothing(
    scheme: Any, path: str, given_plan: Callable[..., None], cluster: Any
) -> None:
    rule = BATCHED if scheme is AVERAGING else RULE
    (expected,), report = fold(rule, as_source(path), WHOLE, scheme=scheme)
    assert len(report.plan.segments) == 1
    for worth, length, client in ((0, 2**30, None), (0, 60 * 360, cluster), (2**30, 60 * 360, cluster)):
        given_plan(worth_a_task=worth, link_bytes=length)
        (found,), _ = fold(rule, as_source(path), WHOLE, scheme=scheme, run=Run(client=client))
        same(found, expected)


def test_cells_have_rounds_of_their_own(images: np.ndarray, path: str, spread: None, cluster: Any) -> None:
    grid = CellGrid(SHAPE, (5, 6))
    found, _ = fold(BATCHED, as_source(path), grid, scheme=AVERAGING, run=Run(client=cluster))
    assert len(found) == 4
    for i, cell in enumerate(found):
        part = np.ascontiguousarray(images[(slice(None), *(slice(a, b) for a, b in grid.region(i)))])
        (expected,), _ = fold(BATCHED, as_source(part.reshape(N, -1)), Whole((90,)), scheme=AVERAGING)
        same(cell, expected)


@dataclass(frozen=True)
class Counting(Oja):
    """Leaves a file for each update and fails, or kills its worker, at one of them, once."""

    folder: str = ""
    strike_at: int = -1
    kill: bool = False

    def update(self, state: State, batch: np.ndarray) -> State:
        self.note()
        return super().update(state, batch)

    def partial_sums(self, state: State, part: np.ndarray) -> State:
        self.note()
        return super().partial_sums(state, part)

    def note(self) -> None:
        (Path(self.folder) / uuid.uuid4().hex).touch()
        if not 0 <= self.strike_at <= len(os.listdir(self.folder)):
            return
        try:
            # Streams run side by side, and of two that come here only one can remove the file.
            Path(self.folder).with_suffix(".fuse").unlink()
        except FileNotFoundError:
            return
        if self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("struck")


def striking(folder: Path, strike_at: int, kill: bool = False) -> Counting:
    folder.mkdir()
    folder.with_suffix(".fuse").touch()
    return Counting(3, Power(1.0, 0.5), unit=255.0, seed=1, folder=str(folder), strike_at=strike_at, kill=kill)


def updates(rule: Counting) -> int:
    return len(os.listdir(rule.folder))


@pytest.mark.parametrize("scheme", [AVERAGING, PARALLEL])
@pytest.mark.parametrize("spoil", [False, True])
def test_a_stopped_fold_goes_on_where_it_was(scheme: Any, spoil: bool, path: str, spread: None, tmp_path: Path) -> None:
    undisturbed = BATCHED if scheme is AVERAGING else RULE
    (expected,), _ = fold(undisturbed, as_source(path), WHOLE, scheme=scheme)
    rule = striking(tmp_path / "count", {AVERAGING: 17, PARALLEL: 6}[scheme])
    given = InBatches(rule, 10) if scheme is AVERAGING else rule
    kept = Checkpoints(str(tmp_path / "kept"))
    with pytest.raises(RuntimeError, match="struck"):
        fold(given, as_source(path), WHOLE, scheme=scheme, run=Run(checkpoints=kept))
    (state,) = Path(kept.folder).rglob("*.npz")
    done = updates(rule)
    if spoil:
        # A power cut took the end of it: it counts as missing.
        state.write_bytes(state.read_bytes()[:-30])
    (found,), _ = fold(given, as_source(path), WHOLE, scheme=scheme, run=Run(checkpoints=kept))
    same(found, expected)
    # The updates of a whole fold, without the first segment.
    whole, first = {AVERAGING: (23, 12), PARALLEL: (8, 4)}[scheme]
    assert updates(rule) - done == whole - (0 if spoil else first)
    assert [p.name for p in Path(kept.folder).rglob("*.npz")] == ["group-000000.npz"]
    again = updates(rule)
    (found,), _ = fold(given, as_source(path), WHOLE, scheme=scheme, run=Run(checkpoints=kept))
    same(found, expected)
    assert updates(rule) == again


@pytest.mark.parametrize("scheme", [AVERAGING, PARALLEL])
def test_a_killed_worker_changes_nothing(scheme: Any, path: str, spread: None, tmp_path: Path, cluster: Any) -> None:
    undisturbed = BATCHED if scheme is AVERAGING else RULE
    (expected,), _ = fold(undisturbed, as_source(path), WHOLE, scheme=scheme)
    rule = striking(tmp_path / "count", {AVERAGING: 17, PARALLEL: 6}[scheme], kill=True)
    given = InBatches(rule, 10) if scheme is AVERAGING else rule
    (found,), _ = fold(given, as_source(path), WHOLE, scheme=scheme, run=Run(client=cluster))
    assert not (tmp_path / "count.fuse").exists()
    same(found, expected)
    # Only the segment that was struck is done again.
    whole, segment = {AVERAGING: (23, 12), PARALLEL: (8, 4)}[scheme]
    assert updates(rule) <= whole + segment + 1
    cluster.wait_for_workers(2, timeout=60)


def test_other_settings_do_not_find_the_wrong_checkpoints(path: str, spread: None, tmp_path: Path) -> None:
    kept = Checkpoints(str(tmp_path / "kept"))
    for rule, scheme in ((RULE, AVERAGING), (RULE, Averaging(2, 20, 10)), (Oja(3, seed=2), AVERAGING)):
        (found,), _ = fold(InBatches(rule, 10), as_source(path), WHOLE, scheme=scheme, run=Run(checkpoints=kept))
        (expected,), _ = fold(InBatches(rule, 10), as_source(path), WHOLE, scheme=scheme)
        same(found, expected)


class Told:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def __call__(self, stage: str, total: int, unit: str) -> Told:
        self.said.append((stage, total, unit))
        return self

    def advance(self, n: int) -> None:
        self.said.append(n)

    def close(self) -> None:
        self.said.append("closed")


def test_progress_counts_segments(images: np.ndarray, path: str, spread: None, tmp_path: Path) -> None:
    row, kept = images.nbytes // N, Checkpoints(str(tmp_path / "kept"))
    told = Told()
    fold(BATCHED, as_source(path), WHOLE, scheme=AVERAGING, run=Run(progress=told, checkpoints=kept))
    assert told.said == [("fit", images.nbytes, "B"), 0, 120 * row, 110 * row, "closed"]
    told = Told()
    fold(BATCHED, as_source(path), WHOLE, scheme=AVERAGING, run=Run(progress=told, checkpoints=kept))
    assert told.said == [("fit", images.nbytes, "B"), images.nbytes, "closed"]


def test_what_does_not_fit_is_refused(path: str) -> None:
    one = fold(BATCHED, as_source(path), WHOLE, scheme=Averaging(1, 20, 10))[1].plan.task_bytes
    fold(BATCHED, as_source(path), WHOLE, scheme=Averaging(1, 20, 10), run=Run(memory=one))
    with pytest.raises(PlanError, match="100000"):
        fold(BATCHED, as_source(path), WHOLE, scheme=Averaging(100000, 20, 10), run=Run(memory=one))


def test_values_that_are_not_finite_are_named(tmp_path: Path, spread: None, cluster: Any) -> None:
    x = np.ones((N, 20), np.float32)
    x[77, 3] = np.nan
    zarr.create_array(str(tmp_path / "nan.zarr"), data=x, chunks=(CHUNK, 20))
    for given, scheme in ((BATCHED, AVERAGING), (RULE, PARALLEL)):
        with pytest.raises(DataError, match="sample.77"):
            fold(given, as_source(str(tmp_path / "nan.zarr")), Whole((20,)), scheme=scheme, run=Run(client=cluster))


def test_large_states_travel_without_a_warning(tmp_path: Path, spread: None, cluster: Any) -> None:
    """Dask warns of graphs beyond 10 MB; here they hold the state on purpose."""
    x = np.random.default_rng(0).integers(0, 256, (8, 400_000), np.uint8)
    zarr.create_array(str(tmp_path / "wide.zarr"), data=x, chunks=(4, 400_000))
    given, scheme = InBatches(Oja(7, Power(1.0, 0.5), unit=1e5), 2), Averaging(2, 2, 2)
    (found,), report = fold(
        given, as_source(str(tmp_path / "wide.zarr")), Whole((400_000,)), scheme=scheme, run=Run(client=cluster)
    )
    assert len(report.plan.segments) == 2
    np.testing.assert_allclose(found["mean"], x.mean(0), rtol=1e-9)
