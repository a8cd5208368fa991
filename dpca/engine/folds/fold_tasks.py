"""The tasks of a fold, for one group of parts: segments, their merge tree, and the rounds of streams."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any, ClassVar, TypeVar

import numpy as np
from dask.delayed import delayed

from dpca.engine.folds.boundary import named_errors
from dpca.engine.folds.checkpoint import load_states, save_results, save_states, stacked, unstacked
from dpca.engine.folds.plan import Group
from dpca.engine.folds.rounds import RoundScheme, Span, rounds
from dpca.engine.sources.derived import OpenedSource
from dpca.engine.sources.source import Source, batches
from dpca.kernels.algebra.linalg import release_scratch
from dpca.kernels.algebra.types import Array
from dpca.partition.base import Partition
from dpca.rules.base.state import State
from dpca.storage.remote.clusters import for_workers, task_key
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.remote.reports import Reporter
from dpca.storage.remote.tasks import one_blas_thread, run_in_order
from dpca.storage.transaction.checkpoints import Checkpoints

T = TypeVar("T")
Results = list[dict[str, Array]]
GroupResult = tuple[Results, int]
"""Results of a group, and the peak memory of the processes that computed them."""
StatesAndPeak = tuple[list[State], int]
"""States of a group, one for each of its parts, and the peak memory of the processes that computed them.

In a round, a stream has a piece of each state instead.
"""


class ResultWriter(ABC):
    """Base of what writes results, so that they never come together in the memory of one process."""

    in_tasks: ClassVar[bool] = True
    """Whether tasks write; otherwise the calling process does, one group after the other.

    In tasks, it is part of the identity of a fold: a fold that resumes relies on what was written before.
    """

    @property
    @abstractmethod
    def kept_bytes(self) -> int:
        """Bytes of what remains of a result."""

    @abstractmethod
    def write(self, part: int, result: dict[str, Array]) -> dict[str, Array]:
        """Write the result of a part, and return what the calling process needs of it."""

    @abstractmethod
    def summary(self, result: dict[str, Array]) -> dict[str, Array]:
        """Return what `write` returns, without writing."""

    def write_all(self, parts: Sequence[int], results: Results) -> Results:
        """Write the results of the parts of a group. Each is freed before the next one is written."""
        return [self.write(*both) for both in zip(parts, _emptied(results[::-1]), strict=True)]


# A stream's turn in a round is a separate task from this many decoded bytes on. Measured with 2 workers, Oja's rule,
# 784 attributes: as separate tasks, turns of 0.6 MiB took 1.24 times as long as in one task, turns of 3 MiB 0.64
# times (2 streams) and 0.87 times (10 streams).
_WORTH_A_TASK = 2**20


@dataclass(frozen=True)
class GroupTask:
    """Data that the tasks of one group share. It is small, because each task opens the source itself.

    Attributes
    ----------
    rule : Rule
    partition : Partition
    group : Group
        Some parts of the partition, which are folded together, and the box of a sample that contains them.
    rows : int
        Samples of a batch.
    threads : int
        Threads that update the states of different parts.
    checkpoint_rows : int
        As in `FoldPlan`.
    called : str
        Name of the source in errors.
    dtype : dtype
        Type of the values of the parts.
    name, stage : str
        Names of the checkpoints, and of the tasks of the group.
    checkpoints : Checkpoints, optional
    writer : ResultWriter, optional
        One that writes in tasks.
    reports : str
        The name under which finished samples are reported, see `dpca.storage.remote.reports`.
    """

    rule: Any
    partition: Partition
    group: Group
    rows: int
    threads: int
    checkpoint_rows: int
    called: str
    dtype: np.dtype[Any]
    name: str
    stage: str
    checkpoints: Checkpoints | None = None
    writer: ResultWriter | None = None
    reports: str = ""

    def begin(self) -> StatesAndPeak:
        """Return the initial states."""
        parts, sizes = self.group.partitions, self.partition.n_features
        return named_errors(lambda: [self.rule.of_part(i).init(sizes(i), self.dtype) for i in parts], self.called)(), 0

    def parts(self, source: Source, samples: Span) -> Iterator[tuple[Span | None, list[Array]]]:
        """Yield each batch, split into parts, with its range of samples if that is known."""
        origin, members = tuple(start for start, _ in self.group.region), self.group.partitions
        n_values = min(self.rows, samples[1] - samples[0]) * sum(map(self.partition.n_features, members))
        buffer = np.empty(n_values, self.dtype)
        for first, block in batches(source, samples, self.group.region, self.rows):
            here = source.numbers(first, first + len(block))
            yield here, named_errors(self.partition.split, self.called, here)(block, members, origin, buffer)

    def segment(self, s: int) -> str:
        """Return the name of a segment's checkpoint."""
        return f"{self.name}-segment-{s:06d}"

    def load(self, s: int, *, part: bool = False) -> list[State] | None:
        """Return the kept states of a segment, or of a part of it with a further state that counts its samples."""
        name = f"{self.segment(s)}-part" if part else self.segment(s)
        return None if self.checkpoints is None else load_states(self.checkpoints, name)

    def keep(self, s: int, states: Sequence[State], at: int | None) -> None:
        """Keep the states of a segment, or of its part up to sample ``at``."""
        if self.checkpoints is None:
            return
        if at is not None:
            save_states(self.checkpoints, f"{self.segment(s)}-part", [*states, State({}, {"at": at})])
            return
        save_states(self.checkpoints, self.segment(s), states)
        self.checkpoints.remove(f"{self.segment(s)}-part")

    def forget(self, s: int) -> None:
        """Remove the kept states of a segment."""
        if self.checkpoints is not None:
            self.checkpoints.remove(self.segment(s))


def fold_segment(
    work: GroupTask,
    source: Source,
    samples: Span,
    before: StatesAndPeak | None = None,
    keep_as: str | None = None,
    *,
    finished: bool = False,
) -> StatesAndPeak | GroupResult:
    """Fold the rule over each part of a group, for one run of samples.

    In a chain, ``before`` has the states after the preceding samples. With ``keep_as``, states kept under that name are
    loaded instead, and otherwise the computed states are kept under it. With several threads, each updates the states
    of some parts. A long run keeps its states at intervals, and resumes from them. With ``finished``, the run has
    all samples: the result is that of `finish` in the same task, so that states are never transferred.
    """
    kept, report = work.checkpoints, Reporter(work.reports, f"{work.name} {samples[0]}")
    if kept is not None and keep_as is not None and (found := load_states(kept, keep_as)):
        report(samples[1] - samples[0], ended=True)
        return found, 0
    states, peak = work.begin() if before is None else ([state.copy() for state in before[0]], before[1])
    part = f"{keep_as or work.segment(0)}-part"
    at, stop = samples
    if kept is not None and stop - at > work.checkpoint_rows and (found := load_states(kept, part)):
        at = found.pop().counts["at"]
        states = found
    mark = at + work.checkpoint_rows
    with one_blas_thread():
        for here, parts in work.parts(source, (at, stop)):
            states = _updated(work, here, zip(states, parts, strict=True))
            at += len(parts[0])
            report(at - samples[0])
            if kept is not None and mark <= at < stop:
                save_states(kept, part, [*states, State({}, {"at": at})])
                mark = at + work.checkpoint_rows
        if keep_as is not None and work.rule.mergeable:  # to send and merge as little as possible
            states = list(map(named_errors(work.rule.flush, work.called), states))
    if not finished:  # the end of a finished group is counted when its results are there
        report(at - samples[0], ended=True)
    release_scratch()
    reached: StatesAndPeak = states, max(peak, peak_resident_bytes())
    outcome = finish(work, reached) if finished else reached
    if kept is not None and (finished or keep_as is not None):
        if keep_as is not None:
            save_states(kept, keep_as, states)
        kept.remove(part)
    return outcome


def _updated(work: GroupTask, here: Span | None, calls: Iterable[tuple[State, Array]]) -> list[State]:
    """Return the states of all parts after a batch."""
    if work.threads == 1:  # one guard for all, because there may be 100,000 small partitions
        return named_errors(lambda: list(starmap(work.rule.update, calls)), work.called, here)()
    return list(run_in_order(named_errors(work.rule.update, work.called, here), calls, threads=work.threads))


def merge_states(work: GroupTask, a: StatesAndPeak, b: StatesAndPeak) -> StatesAndPeak:
    """Merge the states of two neighboring segments."""
    merge = named_errors(work.rule.merge, work.called)
    with one_blas_thread():  # the number of BLAS threads would change rounding
        merged = [merge(x.copy(), y) for x, y in zip(a[0], b[0], strict=True)]
    return merged, max(a[1], b[1], peak_resident_bytes())


def finish_copy(work: GroupTask, reached: StatesAndPeak, n_segments: int) -> GroupResult:
    """Finish a copy of the states, because Dask may need the states again for a retry."""
    return finish(work, (list(reached[0]), reached[1]), n_segments, copy=True)


def finish(work: GroupTask, reached: StatesAndPeak, n_segments: int = 0, *, copy: bool = False) -> GroupResult:
    """Finish states, one after the other in each thread. Keep the results and remove the kept segments.

    Without ``copy`` the states are consumed: each is freed before the next one is finished.
    """
    states = reached[0]
    states.reverse()
    # Several runs of neighbors for each thread, which may take unequal time.
    length = math.ceil(len(states) / (1 if work.threads == 1 else 8 * work.threads))
    runs = (([states.pop() for _ in range(min(length, len(states)))],) for _ in range(0, len(states), length))

    def finished(run: list[State]) -> Results:
        run.reverse()
        return list(work.rule.finish_all(state.copy() if copy else state for state in _emptied(run)))

    with one_blas_thread():
        calls = run_in_order(named_errors(finished, work.called), runs, threads=work.threads, window=work.threads)
        results = [result for found in calls for result in found]
        if work.writer is not None:
            results = named_errors(work.writer.write_all, work.called)(work.group.partitions, results)
    release_scratch()
    if work.checkpoints is not None:
        save_results(work.checkpoints, work.name, results)
        for s in range(n_segments):
            work.checkpoints.remove(work.segment(s))
    return _Results(results), max(reached[1], peak_resident_bytes())


class _Results(list[dict[str, Array]]):
    """Results of a group. They are sent as few arrays: Dask would make a message of each array in a list."""

    def __reduce__(self) -> tuple[Any, ...]:
        return unstacked, (stacked(self), len(self))


def _emptied(items: list[T]) -> Iterator[T]:
    """Yield items from the last to the first, and remove each from the list."""
    while items:
        yield items.pop()


def finish_graph(work: GroupTask, reached: StatesAndPeak, n_segments: int, *, copy: bool) -> Any:
    """Return the delayed `GroupResult` of states in this process."""
    return _node(f"{work.stage} finish", finish_copy if copy else finish, work, reached, n_segments)()


def group_graph(work: GroupTask, source: Source, cuts: Sequence[Span]) -> Any:
    """Return the delayed `GroupResult` of a group: its segments are merged in pairs of neighbors, then finished."""
    pieces = [source.piece(samples, work.group.region) for samples in cuts]
    if len(cuts) == 1:
        return _node(work.stage, partial(fold_segment, finished=True), work)(pieces[0], cuts[0])
    leaf, merge = _node(work.stage, fold_segment, work), _node(f"{work.stage} merge", merge_states, work)
    nodes: list[Any] = []
    for s, (piece, samples) in enumerate(zip(pieces, cuts, strict=True)):
        before = None if work.rule.mergeable or not nodes else nodes.pop()
        nodes.append(leaf(piece, samples, before, work.segment(s)))
    while len(nodes) > 1:
        pairs = [merge(*nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
        nodes = pairs + nodes[2 * len(pairs) :]
    return _node(f"{work.stage} finish", finish_copy, work)(nodes[0], len(cuts))


def segment_graph(
    work: GroupTask, source: Source, samples: Span, reached: StatesAndPeak, scheme: RoundScheme | None, n_parallel: int
) -> Any:
    """Return the delayed `StatesAndPeak` after a segment that continues from ``reached``.

    Each round transfers the state of every stream twice. If a stream's turn is shorter than that, or there is a single
    worker, one task runs all rounds.
    """
    # One task holds the states. All others depend on it, and it can run again on another worker.
    node = _node(f"{work.stage} begin", _same)(reached)
    region = work.group.region
    if scheme is None:
        return _node(work.stage, fold_segment, work)(source.piece(samples, region), samples, node)
    round_runs = list(rounds(samples, scheme, source.chunks[0]))
    row_bytes = int(np.prod([b - a for a, b in region])) * source.dtype.itemsize
    longest = max(stop - start for start, stop in round_runs[0])
    if n_parallel == 1 or longest * row_bytes < _WORTH_A_TASK:
        return _node(work.stage, run_rounds, work, scheme)(source.piece(samples, region), round_runs, node)
    stream = _node(work.stage, run_stream, work, scheme)
    join = _node(f"{work.stage} merge", join_streams, work, scheme)
    for runs in round_runs:
        node = join(node, [stream(source.piece(run, region), run, node) for run in runs])
    return node


def _node(name: str, function: Callable[..., Any], *known: Any) -> Callable[..., Any]:
    """Return a delayed function with bound first arguments, so that Dask does not search them for delayed values.

    Each call is a separate task; ``name`` is its name on the dashboard.
    """
    later = delayed(for_workers(partial(function, *known)), pure=False)
    return lambda *arguments: later(*arguments, dask_key_name=task_key(name))


def _same(reached: StatesAndPeak) -> StatesAndPeak:
    return reached


def run_stream(
    work: GroupTask, scheme: RoundScheme, source: Source, samples: Span, reached: StatesAndPeak
) -> StatesAndPeak:
    """Fold the samples of one stream in one round."""
    states = reached[0]
    pieces: list[State | None] = [None] * len(states)
    with one_blas_thread():
        for here, parts in work.parts(source, samples):
            take = named_errors(scheme.take, work.called, here)
            pieces = [take(work.rule, *of) for of in zip(states, pieces, parts, strict=True)]
    release_scratch()
    return [piece for piece in pieces if piece is not None], max(reached[1], peak_resident_bytes())


def join_streams(
    work: GroupTask, scheme: RoundScheme, reached: StatesAndPeak, pieces: Sequence[StatesAndPeak]
) -> StatesAndPeak:
    """Join the streams of a round."""
    join = named_errors(scheme.join, work.called)
    with one_blas_thread():
        joined = [join(work.rule, state, [stream[0][i] for stream in pieces]) for i, state in enumerate(reached[0])]
    release_scratch()
    return joined, max([peak_resident_bytes(), *(peak for _, peak in pieces)])


def run_rounds(
    work: GroupTask, scheme: RoundScheme, source: Source, round_runs: Sequence[Sequence[Span]], reached: StatesAndPeak
) -> StatesAndPeak:
    """Run all rounds of a segment, one stream after the other."""
    opened = OpenedSource(source)
    for runs in round_runs:
        reached = join_streams(work, scheme, reached, [run_stream(work, scheme, opened, run, reached) for run in runs])
    return reached
