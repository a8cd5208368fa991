"""Estimates of the time of a fold: a few batches of one group are measured and extrapolated with the plan.

Inside `rehearsing`, `dpca.engine.folds.fold.fold` runs only these measurements. An estimator that is fitted there
requests its folds in their order and with their rules, and continues with components of a few samples.

Processor time is measured instead of wall-clock time, so that other work on the machine does not change the estimate.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpca.engine.folds.checkpoint import save_states
from dpca.engine.folds.fold_tasks import GroupTask, Results, ResultWriter, StatesAndPeak, finish, merge_states
from dpca.engine.folds.plan import FoldPlan, plan_fold
from dpca.engine.folds.rounds import RoundScheme
from dpca.engine.sources.derived import OpenedSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.linalg import release_scratch
from dpca.kernels.algebra.types import Array
from dpca.partition.base import Partition
from dpca.partition.cells import CellGrid
from dpca.rules.base.rule import Rule
from dpca.storage.remote.tasks import one_blas_thread
from dpca.storage.transaction.checkpoints import Checkpoints

# Most samples, and most bytes of samples, for the approximate results of every group.
_FEW, _FEW_BYTES = 256, 2**26
# Number of places in the stack from which these samples are read.
_RUNS = 4
# Most seconds of measurements, bytes of one batch, batches in one run, and number of runs. If other machines share the
# processor, the time of a batch varies by a third (measured), so a few seconds are needed.
_LONG, _BATCH_BYTES, _IN_A_ROW, _TURNS = 6.0, 2**27, 3, 8
#: Processor seconds of the scheduler for one task, and bytes per second of a state in transfer (measured: 1 to 1.5 ms,
#: and 23 MB in 50 ms).
SCHEDULING, MOVING = 1.5e-3, 4.6e8


@dataclass(frozen=True)
class Workers:
    """The workers: ``n`` processes of one thread on ``cores`` processors, and the memory of a task in bytes."""

    n: int
    cores: int
    budget: int


@dataclass(frozen=True)
class FoldCost:
    """The cost of the parts of one fold, in processor seconds.

    Attributes
    ----------
    stage : str
        Name of the fold.
    planned : callable
        Returns the plan of the fold for given `Workers`.
    n_samples : int
    mergeable : bool
        Whether segments run in parallel.
    reading, folding : float
        Per sample, in all groups together.
    merging, keeping, finishing : float
        For merging two states, keeping one checkpoint and computing one result, in all groups together.
    state_bytes : int
        In all groups together.
    """

    stage: str
    planned: Callable[[Workers], FoldPlan]
    n_samples: int
    mergeable: bool
    reading: float
    folding: float
    merging: float
    keeping: float
    finishing: float
    state_bytes: int

    def seconds(self, workers: Workers) -> float:
        """Return the wall-clock seconds of the fold on an idle machine."""
        plan = self.planned(workers)
        groups, segments = len(plan.groups), len(plan.segments)
        tasks = groups * (segments if self.mergeable else 1)
        turns = math.ceil(tasks / workers.n) / tasks  # share of the busiest worker
        busy = min(workers.n, tasks)
        # A task reads the next batch in a second thread while it computes, if there are processors for both.
        both = (self.reading + self.folding) * busy / min(workers.cores, 2 * busy)
        total = self.n_samples * turns * max(self.reading, self.folding, both)
        kept = (segments if segments > 1 else 0) + self.n_samples // plan.checkpoint_rows
        total += self.keeping / groups * math.ceil(groups * kept / busy)
        left = segments if self.mergeable else 1
        while left > 1:
            pairs = left // 2
            each = (self.merging + self.state_bytes / MOVING) / groups
            total += math.ceil(pairs * groups / workers.n) * each
            left -= pairs
        total += self.finishing / groups * math.ceil(groups / workers.n) + plan.result_bytes / MOVING
        return max(total, groups * (2 * segments) * SCHEDULING)


@dataclass
class Rehearsal:
    """The folds that were requested during a rehearsal, and their costs.

    Parameters
    ----------
    workers : Workers
        The workers of the measured plan.
    folder : str
        Folder for a checkpoint, to measure its time.
    """

    workers: Workers
    folder: str
    costs: list[FoldCost] = field(default_factory=list)
    spent: float = 0.0
    """Processor seconds of the rehearsal itself."""

    def fold(
        self,
        rule: Rule,
        source: Source,
        partition: Partition,
        scheme: RoundScheme | None,
        stage: str,
        writer: ResultWriter | None = None,
    ) -> tuple[Results, FoldPlan]:
        """Measure a fold, and return approximate results from a few samples."""
        began = time.process_time()

        def planned(workers: Workers) -> FoldPlan:
            n_parallel = 1 if scheme is not None else workers.n
            return plan_fold(source, partition, rule, budget=workers.budget, n_parallel=n_parallel, scheme=scheme)

        plan = planned(self.workers)
        try:
            results = self._few(rule, source, partition, plan, stage, writer)
            self.costs.append(self._measured(rule, source, partition, plan, stage, planned, scheme))
        finally:
            release_scratch()
            self.spent += time.process_time() - began
        return results, plan

    def _work(self, rule: Rule, source: Source, partition: Partition, plan: FoldPlan, g: int, stage: str) -> GroupTask:
        dtype, kept = partition.split_dtype(source.dtype), Checkpoints(self.folder)
        rule = rule.of_region(source.shape[1:], plan.groups[g].region)
        return GroupTask(
            rule, partition, plan.groups[g], plan.batch_rows, 1, 2**62, source.name, dtype, f"{g}", stage, kept
        )

    def _few(
        self,
        rule: Rule,
        source: Source,
        partition: Partition,
        plan: FoldPlan,
        stage: str,
        writer: ResultWriter | None,
    ) -> Results:
        """Return the results of a few samples for every part."""
        n, sample = source.shape[0], math.prod(source.shape[1:]) * source.dtype.itemsize
        rows = max(2, min(n, _FEW, _FEW_BYTES // sample))
        runs = _runs(n, rows, source.chunks[0])
        results: Results = [{} for _ in range(partition.n_parts)]
        rule = rule.for_samples(sum(stop - start for start, stop in runs))
        for g, group in enumerate(plan.groups):
            work = replace(self._work(rule, source, partition, plan, g, stage), checkpoints=None)
            states, _ = work.begin()
            with one_blas_thread():
                for _, parts in itertools.chain.from_iterable(work.parts(source, run) for run in runs):
                    states = [work.rule.update(*both) for both in zip(states, parts, strict=True)]
            for index, found in zip(group.partitions, finish(work, (states, 0))[0], strict=True):
                results[index] = found if writer is None else writer.summary(found)
        return results

    def _measured(
        self,
        rule: Rule,
        source: Source,
        partition: Partition,
        plan: FoldPlan,
        stage: str,
        planned: Callable[[Workers], FoldPlan],
        scheme: RoundScheme | None,
    ) -> FoldCost:
        """Measure the largest group, and scale to all groups by the number of values in their boxes."""
        boxes = [math.prod(b - a for a, b in group.region) for group in plan.groups]
        g = int(np.argmax(boxes))
        times = sum(boxes) / boxes[g]
        parts = sum(len(group.partitions) for group in plan.groups) / len(plan.groups[g].partitions)
        work = self._work(rule, source, partition, plan, g, stage)
        work, reading, folding, states = _batches(work, source, plan.batch_rows, len(plan.segments))
        # The cost of a rule that keeps all samples grows with their number.
        kept = 1.0 if work.rule is rule else source.shape[0] / states[0].counts["n_samples"]
        merging = keeping = 0.0
        with one_blas_thread():
            if rule.mergeable:
                copies: list[StatesAndPeak] = [([state.copy() for state in states], 0) for _ in range(2)]
                merging = _seconds(lambda: merge_states(work, *copies))
            keeping = _seconds(lambda: save_states(work.checkpoints, "state", states) if work.checkpoints else None)
            size = sum(array.nbytes for state in states for array in state.arrays.values())
            finishing = _seconds(lambda: finish(work, (states, 0), copy=True))
        return FoldCost(
            stage,
            planned,
            source.shape[0],
            scheme is None and rule.mergeable,
            reading * times,
            folding * times,
            merging * parts,
            keeping * parts * kept,
            finishing * parts * kept,
            round(size * parts * kept),
        )


def _batches(work: GroupTask, source: Source, rows: int, segments: int) -> tuple[GroupTask, float, float, list[Any]]:
    """Return the work, the processor seconds per sample of reading and of the rule, and states after a few batches.

    As in a fold, batches are consecutive and a second thread reads ahead. A rule with the number of all samples begins
    again with each run: the returned work has the rule of the last run.
    """
    n = source.shape[0]
    values = math.prod(b - a for a, b in work.group.region)
    most = max(source.chunks[0], _BATCH_BYTES // (values * source.dtype.itemsize))
    rows = min(n, rows, most)
    # Whole batches of the rule, because it would hold back a partial batch, and its time would be missed.
    size = int(getattr(work.rule, "size", 1))
    most = math.ceil(_IN_A_ROW * rows / size) * size
    work, opened, states = replace(work, rows=rows), OpenedSource(source), work.begin()[0]
    runs, reading, folding, samples = 0, 0.0, 0.0, 0
    chunk = max(1, source.chunks[0])
    starts = _starts(n, most, chunk, np.random.default_rng(0))
    with one_blas_thread():
        while runs < 2 or (runs <= _TURNS and reading + folding < _LONG):
            first = next(starts)
            run = (first, min(n, first + most))
            if (rule := work.rule.for_samples(run[1] - run[0])) is not work.rule:
                work = replace(work, rule=rule)
                states = work.begin()[0]
            all_threads, this_thread = time.process_time(), time.thread_time()
            for _, parts in work.parts(opened, run):
                states = [work.rule.update(*both) for both in zip(states, parts, strict=True)]
            # The first run is left out, because it includes imports, compilation and allocation. The other ones are
            # those in the middle of a segment, because the first batches of some rules take more time.
            if not runs:
                for state in states:
                    work.rule.extrapolate(state, n // (2 * segments))
            else:
                spent = time.thread_time() - this_thread
                folding += spent
                reading += time.process_time() - all_threads - spent
                samples += run[1] - run[0]
            runs += 1
    # These batches cut chunks, and whole chunks are decoded. Batches of the fold do not cut chunks.
    whole = rows / (-(-rows // chunk) * chunk) if rows % chunk and n > rows else 1.0
    return work, max(0.0, reading) / samples * whole, folding / samples, states


def _runs(n: int, rows: int, chunk: int) -> list[tuple[int, int]]:
    """Return runs of samples, each in one chunk, with ``rows`` samples together."""
    if n < _RUNS * max(chunk, rows):
        return [(0, rows)]
    length = math.ceil(rows / _RUNS)
    firsts = np.sort(np.random.default_rng(0).choice(n // chunk, _RUNS, replace=False)) * chunk
    return [(int(first), int(first) + length) for first in firsts]


def _starts(n: int, rows: int, chunk: int, rng: np.random.Generator) -> Iterator[int]:
    """Yield the first samples of batches: random beginnings of chunks."""
    while True:
        yield int(rng.integers(0, max(1, (n - rows) // chunk + 1))) * chunk if n - rows >= chunk else 0


def _seconds(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


_now: ContextVar[Rehearsal | None] = ContextVar("rehearsal", default=None)


def rehearsal() -> Rehearsal | None:
    """Return the active rehearsal, if any."""
    return _now.get()


@contextmanager
def rehearsing(workers: Workers, folder: str) -> Iterator[Rehearsal]:
    """Rehearse all folds of the block for these workers, instead of running them."""
    token = _now.set(found := Rehearsal(workers, folder))
    try:
        yield found
    finally:
        _now.reset(token)


def of_independent(parts: Sequence[dict[str, Array]], grid: CellGrid, *, whole: bool) -> dict[str, Array]:
    """Return a result of the right shapes from results of blocks that were computed one by one.

    Without ``whole``, components and mean are zeros that take no memory.
    """
    k = min(len(part["components"]) for part in parts)
    variance = np.sum([part["explained_variance"][:k] for part in parts], axis=0)
    total = np.sum([part["total_variance"] for part in parts], axis=0)
    sums = {"explained_variance": variance, "total_variance": total}
    if not whole:
        nothing = np.broadcast_to(np.zeros((), parts[0]["components"].dtype), (k, math.prod(grid.sample_shape)))
        mean = np.broadcast_to(np.zeros(()), nothing.shape[1:])
        largest = np.max([np.abs(part["mean"]).max() for part in parts])
        return {**parts[0], "components": nothing, "mean": mean, "mean_largest": largest, **sums}
    scale, found = 1 / math.sqrt(len(parts)), {**parts[0], **sums}
    for name in {"components", "directions"} & parts[0].keys():
        several = [part[name] for part in parts]
        q = min(map(len, several))
        rows = ((i, (one[:q] * scale)[None]) for i, one in enumerate(several))
        found[name] = grid.join(rows, np.empty((q, *grid.sample_shape), several[0].dtype)).reshape(q, -1)
    mean = grid.join(((i, part["mean"][None, None]) for i, part in enumerate(parts)), np.empty((1, *grid.sample_shape)))
    return {**found, "mean": mean.ravel()}
