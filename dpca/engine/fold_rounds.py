"""The fold in rounds: streams side by side that part from one state and are joined again after each round."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np
from dask.base import compute
from dask.delayed import delayed
from numpy.typing import DTypeLike

from dpca.engine.boundary import guarded
from dpca.engine.checkpoint import Checkpoints
from dpca.engine.fold import FoldReport, Partitioned, Results, finish_states, group_name
from dpca.engine.identity import digest
from dpca.engine.memory import parallel_tasks, peak_resident_bytes, task_budget, thread_count, usable_bytes
from dpca.engine.plan import LINK_BYTES, FoldPlan, Group, PlanError, plan_fold
from dpca.engine.rounds import Run, Scheme, rounds, segments
from dpca.engine.source import DaskSource, DerivedSource, Reader, Source, batches, held_by, is_in_memory, numbers_of
from dpca.kernels.linalg import release_scratch
from dpca.rules.state import State
from storage.clusters import cluster_errors
from storage.progress import Progress, no_progress
from storage.tasks import one_blas_thread

Reached = tuple[list[State], int]
"""States, or streams' pieces of them, and the most memory that any process that made them ever held."""

# A stream's turn in a round is a task of its own from this many decoded bytes on. Measured with 2 workers, Oja's rule,
# 784 attributes: turns of 0.6 MiB took 1.24 times as long as tasks of their own as in one task, turns of 3 MiB 0.64
# (2 streams) and 0.87 times (10 streams).
_WORTH_A_TASK = 2**20


def fold_in_rounds(
    rule: Any,
    source: Source,
    partition: Partitioned,
    scheme: Scheme,
    *,
    client: Any | None = None,
    budget: int | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress = no_progress,
    stage: str = "fit",
) -> tuple[Results, FoldReport]:
    """Fold a rule over each partition of a stack in synchronous rounds.

    The result depends on the scheme, not on the workers. The samples are cut into segments of whole rounds. At the end
    of each, the state comes to this process, which keeps it: what a lost worker takes with it is redone from there,
    and with ``checkpoints`` a fold that was stopped goes on from there.

    Parameters
    ----------
    rule : Rule or Rule
        What to compute, as the scheme asks.
    source : Source
        Where the samples are. A numpy array is folded by threads of this process, where its memory is.
    partition : Partitioned
        How the attributes are split; groups of partitions are folded one after the other.
    scheme : Averaging or DataParallel
        What the streams of a round do.
    client, budget, checkpoints, progress, stage
        As in :func:`~dpca.engine.fold.fold`.

    Returns
    -------
    results : list of dict
        What ``rule.finish`` returned for each partition, in order.
    report : FoldReport

    Raises
    ------
    PlanError
        Before anything runs, when the budget cannot hold one partition.
    DataError
        At a value that is not finite.

    Notes
    -----
    A round costs two transfers of a state for each stream, beside the streams' own work. Where a stream's turn is
    shorter than that, or there is nobody to share the work with, one task takes all the rounds of a segment.
    """
    began = time.perf_counter()
    if is_in_memory(source):
        client = None
    threads = thread_count()
    n_parallel = parallel_tasks(client, threads)
    limit = budget if budget is not None else task_budget(client, threads)
    plan = plan_rounds(rule, source, partition, scheme, limit)
    if checkpoints is not None:
        settings = digest(rule, scheme, plan, source, partition)
        checkpoints = Checkpoints(f"{checkpoints.folder}/{settings}")
    work = _Work(rule, source, partition, scheme, plan, client, threads, n_parallel)
    results: Results = [{} for _ in range(partition.n_partitions)]
    peak = peak_resident_bytes()
    bar = progress(stage, plan.read_bytes, "B")
    try:
        for g, group in enumerate(plan.groups):
            found, group_peak = work.group_results(g, checkpoints, bar)
            peak = max(peak, group_peak)
            for index, result in zip(group.partitions, found, strict=True):
                results[index] = result
    finally:
        bar.close()
    return results, FoldReport(plan, time.perf_counter() - began, peak)


def plan_rounds(rule: Any, source: Source, partition: Partitioned, scheme: Scheme, budget: int) -> FoldPlan:
    """Plan a fold in rounds: groups and batches as in any fold, segments of whole rounds.

    Raises
    ------
    PlanError
        If one partition, and what the streams of one round leave, exceed the budget.
    """
    n, row_bytes = source.shape[0], int(np.prod(source.shape[1:])) * source.dtype.itemsize
    longest, held = LINK_BYTES, held_by(source)
    if held.whole is not None:
        longest = held.whole
        # Dask may compute all values of a segment before the first round has ended.
        held = replace(held, whole=max(longest, min(scheme.round_rows, n) * row_bytes))
    cost = _RoundCost(rule, scheme)
    try:
        plan = plan_fold(source.shape, source.dtype, source.chunks, partition, cost, budget=budget, held=held)
    except PlanError as error:
        raise PlanError(f"{error}; each of the {scheme.n_streams} streams of a round takes a state more") from error
    if plan.result_bytes > usable_bytes():
        raise PlanError(
            f"the results of {partition.n_partitions:,} partitions take {plan.result_bytes / 1e6:,.0f} MB but this "
            f"process may hold {usable_bytes() / 1e6:,.0f} MB: ask for fewer components"
        )
    return replace(plan, segments=segments(n, scheme.round_rows, longest // row_bytes))


@dataclass(frozen=True)
class _RoundCost:
    """A rule's memory in a round, whose pieces all come to one task in the end."""

    rule: Any
    scheme: Scheme
    mergeable: bool = False

    def batch_rows(self, dtype: DTypeLike) -> int:
        return self.scheme.batch_rows(self.rule, dtype)

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        # The one that a round begins with, a piece of each stream, and the one it ends with.
        return (self.scheme.n_streams + 2) * int(self.rule.state_bytes(n_features, dtype))

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        return int(self.rule.work_bytes(n_rows, n_features, dtype))

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        return int(self.rule.result_bytes(n_features, dtype))


@dataclass(frozen=True)
class _Work:
    """One fold in rounds, and where it runs."""

    rule: Any
    source: Source
    partition: Partitioned
    scheme: Scheme
    plan: FoldPlan
    client: Any | None
    threads: int
    n_parallel: int

    def group_results(self, g: int, checkpoints: Checkpoints | None, bar: Any) -> tuple[Results, int]:
        """Fold and finish one group, from where it was stopped."""
        group, name, cuts = self.plan.groups[g], group_name(g), self.plan.segments
        row_bytes = int(np.prod([b - a for a, b in group.region])) * self.source.dtype.itemsize
        if checkpoints is not None and (kept := checkpoints.load_results(name)):
            bar.advance(row_bytes * self.source.shape[0])
            return kept, 0
        reached, done = self.begin(group, name, checkpoints)
        bar.advance(row_bytes * (cuts[done - 1][1] if done else 0))
        for s in range(done, len(cuts)):
            with cluster_errors(self.client):
                reached = self.run(self.segment_graph(group, cuts[s], reached))
            if checkpoints is not None:
                checkpoints.save_states(_segment_name(name, s), reached[0])
                # The one before stays: a power cut may spoil the newest.
                checkpoints.remove(_segment_name(name, s - 2))
            bar.advance(row_bytes * (cuts[s][1] - cuts[s][0]))
        results, peak = finish_states(self.rule, self.source.name, reached[0], checkpoints, name)
        if checkpoints is not None:
            for s in range(len(cuts)):
                checkpoints.remove(_segment_name(name, s))
        return results, max(peak, reached[1])

    def begin(self, group: Group, name: str, checkpoints: Checkpoints | None) -> tuple[Reached, int]:
        """States to go on with, and how many segments are in them."""
        if checkpoints is not None:
            for s in reversed(range(len(self.plan.segments))):
                if kept := checkpoints.load_states(_segment_name(name, s)):
                    return (kept, 0), s + 1
        sizes = [self.partition.n_features(i) for i in group.partitions]
        dtype = self.partition.split_dtype(self.source.dtype)
        init = guarded(self.rule.init, self.source.name)
        return ([init(d, dtype) for d in sizes], 0), 0

    def segment_graph(self, group: Group, samples: Run, reached: Reached) -> Any:
        """Delayed `Reached` after all the rounds of a segment."""
        dealt = list(rounds(samples, self.scheme, self.source.chunks[0]))
        common = (self.rule, self.scheme, self.partition, group, self.plan.batch_rows)
        row_bytes = int(np.prod([b - a for a, b in group.region])) * self.source.dtype.itemsize
        # One task that holds the states: all others depend on it, and it can be run again on another worker.
        node = delayed(_same, pure=False)(reached)
        longest = max(stop - start for start, stop in dealt[0])
        if self.n_parallel == 1 or longest * row_bytes < _WORTH_A_TASK:
            return delayed(run_rounds, pure=False)(*common, self.piece(samples, group), dealt, node)
        for runs in dealt:
            pieces = [delayed(run_stream, pure=False)(*common, self.piece(run, group), run, node) for run in runs]
            node = delayed(join_streams, pure=False)(self.rule, self.scheme, self.source.name, node, pieces)
        return node

    def piece(self, samples: Run, group: Group) -> Any:
        """Return the source, as an argument of a task that reads these samples."""
        return self.source.piece(samples, group.region) if isinstance(self.source, DaskSource) else self.source

    def run(self, node: Any) -> Reached:
        """Compute the end of a segment."""
        if self.client is None:
            (reached,) = compute(node, scheduler="threads", num_workers=self.threads)
        else:
            # The state is meant to be in the graph, whose size Dask would warn of.
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}):
                future = self.client.compute(node)
            try:
                reached = future.result()
            except BaseException:
                self.client.cancel([future])
                raise
        states, peak = reached
        return states, peak


def run_stream(
    rule: Any,
    scheme: Scheme,
    partition: Partitioned,
    group: Group,
    rows: int,
    source: Source,
    samples: Run,
    reached: Reached,
) -> Reached:
    """Let one stream take its samples of one round: the body of a task."""
    states = reached[0]
    pieces: list[State | None] = [None] * len(states)
    origin = tuple(start for start, _ in group.region)
    n_values = min(rows, samples[1] - samples[0]) * sum(map(partition.n_features, group.partitions))
    buffer = np.empty(n_values, partition.split_dtype(source.dtype))
    with one_blas_thread():
        for first, block in batches(source, samples, group.region, rows):
            here = numbers_of(source, first, first + len(block))
            parts = guarded(partition.split, source.name, here)(block, group.partitions, origin, buffer)
            take = guarded(scheme.take, source.name, here)
            pieces = [take(rule, state, piece, part) for state, piece, part in zip(states, pieces, parts, strict=True)]
    release_scratch()
    return [piece for piece in pieces if piece is not None], max(reached[1], peak_resident_bytes())


def join_streams(rule: Any, scheme: Scheme, called: str, reached: Reached, pieces: Sequence[Reached]) -> Reached:
    """End a round over a source: the body of a task."""
    join = guarded(scheme.join, called)
    with one_blas_thread():
        joined = [join(rule, state, [stream[0][i] for stream in pieces]) for i, state in enumerate(reached[0])]
    release_scratch()
    return joined, max([peak_resident_bytes(), *(peak for _, peak in pieces)])


def run_rounds(
    rule: Any,
    scheme: Scheme,
    partition: Partitioned,
    group: Group,
    rows: int,
    source: Source,
    dealt: Sequence[Sequence[Run]],
    reached: Reached,
) -> Reached:
    """Take all the rounds of a segment, one stream after the other: the body of a task."""
    opened = _Opened(source, source.reader())
    for runs in dealt:
        pieces = [run_stream(rule, scheme, partition, group, rows, opened, run, reached) for run in runs]
        reached = join_streams(rule, scheme, source.name, reached, pieces)
    return reached


@dataclass(frozen=True, eq=False)
class _Opened(DerivedSource):
    """A source that is opened once for many short runs."""

    opened: Reader

    @property
    def window_rows(self) -> int:
        return 0

    def reader(self) -> Reader:
        return self.opened


def _same(reached: Reached) -> Reached:
    return reached


def _segment_name(group: str, s: int) -> str:
    return f"{group}-round-segment-{s:06d}"
