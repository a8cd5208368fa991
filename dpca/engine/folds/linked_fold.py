"""Segments that are folded link by link. Between links their states are in this process, to be kept or shown.

::

    segment 0   |--|----|--------|   a segment: links, each from the end of the one before it
    segment 1   |--|----|--------|   in parallel: all links end before the next ones begin
                   ^    ^            progress so far: the states of all segments are merged
    segment 2                        begins when the segments before it have ended, and are merged

Segments and merges are those of a fold without a callback. A rule with results that depend on its batches receives the
same batches. So the results do not depend on the ends of links.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dpca.engine.folds.boundary import named_errors
from dpca.engine.folds.callbacks import FoldCallback, FoldProgress, FoldReport
from dpca.engine.folds.fold_tasks import (
    GroupResult,
    GroupTask,
    StatesAndPeak,
    finish_graph,
    merge_states,
    segment_graph,
)
from dpca.engine.folds.rounds import RoundScheme, Span
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.linalg import release_scratch
from dpca.rules.base.state import State
from dpca.storage.progress import Stage
from dpca.storage.remote.memory import usable_bytes
from dpca.storage.remote.tasks import one_blas_thread
from dpca.storage.run import Run

ComputeGraph = Callable[[dict[Any, Any]], dict[Any, Any]]
# Memory of the progress so far, in states: copies of two, and one for `finish`.
_COPIES = 3


@dataclass
class _OpenSegment:
    """One segment of one group of parts, folded up to ``at``."""

    work: GroupTask
    s: int
    at: int
    stop: int
    reached: StatesAndPeak
    kept_at: int
    """The last sample of its checkpoint."""


@dataclass
class LinkedFold:
    """A fold of some groups of parts, link by link.

    Parameters
    ----------
    source : Source
    cuts : sequence of (start, stop)
        The segments.
    scheme : RoundScheme or None
    run : Run
    compute_graph : callable
        Computes a graph.
    report : callable (peak_memory)
        Returns the cost of the fold so far.
    bar : Stage
    row_bytes : sequence of int
        Bytes of each group's box of a sample.
    works : mapping of int to GroupTask
        The groups, by index.
    resume_from : sequence of State, optional
        Initial states of the first segment of a chain.
    """

    source: Source
    cuts: Sequence[Span]
    scheme: RoundScheme | None
    run: Run
    compute_graph: ComputeGraph
    report: Callable[[int], FoldReport]
    bar: Stage
    row_bytes: Sequence[int]
    works: Mapping[int, GroupTask]
    resume_from: Sequence[State] | None = None

    def __post_init__(self) -> None:
        self._n_parallel = self.run.n_parallel()
        work = next(iter(self.works.values()))
        self._merges = self.scheme is None and work.rule.mergeable
        self._side_by_side = math.ceil(self._n_parallel / len(self.works)) if self._merges else 1
        # Number of segments in each merged state: different powers of 2, in descending order.
        self._merged: dict[int, list[tuple[int, StatesAndPeak]]] = {g: [] for g in self.works}
        # Links end after whole rounds, or whole batches from the beginning of the segment; with 0, anywhere.
        exact = self.scheme is None and work.rule.is_batch_invariant(work.dtype)
        self._batch = 0 if exact else work.rows if self.scheme is None else self.scheme.round_rows

    def fit_memory(self) -> bool:
        """Return whether memory suffices for the states of all groups and parallel segments, and for `FoldProgress`."""
        states = 0
        for work in self.works.values():
            sizes = (work.partition.n_features(i) for i in work.group.partitions)
            states += sum(work.rule.state_bytes(d, work.dtype) for d in sizes)
        waiting = math.ceil(math.log2(len(self.cuts))) if self._merges else 0
        return states * (self._side_by_side + waiting + _COPIES) <= usable_bytes()

    def outcomes(self, callback: FoldCallback | None) -> Generator[FoldProgress, None, dict[int, GroupResult]]:
        """Fold all segments. Yield a `FoldProgress` after each link but the last; return the results of each group."""
        before, first = self._initial_states()
        for g in self.works:
            self.bar.advance(self.row_bytes[g] * (self.cuts[first - 1][1] if first else 0))
        for start in range(first, len(self.cuts), self._side_by_side):
            numbers = range(start, min(start + self._side_by_side, len(self.cuts)))
            segments = {(g, s): self._open_segment(g, s, before[g]) for g in self.works for s in numbers}
            while any(segment.at < segment.stop for segment in segments.values()):
                self._link(segments, callback)
                n = self._n_seen(segments)
                if callback is not None and n < self.source.shape[0] and self._are_level(segments):
                    report = partial(self.report, max(segment.reached[1] for segment in segments.values()))
                    progress = FoldProgress(n, partial(self._states, segments), report, self._reached(segments))
                    try:
                        yield progress
                    except GeneratorExit:
                        self._keep_parts(segments, 1)
                        raise
            for (g, _), segment in segments.items():
                before[g] = segment.reached
                if self._merges:
                    self._push(g, segment.reached)
        if self._merges:
            before = {g: self._all_merged(g) for g in self.works}
        copy = self.run.client is not None
        graph = {g: finish_graph(work, before.pop(g), len(self.cuts), copy=copy) for g, work in self.works.items()}
        return self.compute_graph(graph)

    def _initial_states(self) -> tuple[dict[int, StatesAndPeak], int]:
        """Return the initial states and the index of the first segment to fold."""
        for s in reversed(range(0 if self._merges else len(self.cuts))):
            kept = {g: work.load(s) for g, work in self.works.items()}
            if all(kept.values()):
                return {g: (found, 0) for g, found in kept.items() if found}, s + 1
        if self.resume_from is not None:
            return {g: (list(self.resume_from), 0) for g in self.works}, 0
        return {g: work.begin() for g, work in self.works.items()}, 0

    def _open_segment(self, g: int, s: int, before: StatesAndPeak) -> _OpenSegment:
        """Return a segment at its beginning or at its checkpoint."""
        work, (start, stop) = self.works[g], self.cuts[s]
        if self._merges and s:
            before = work.begin()
        segment = _OpenSegment(work, s, start, stop, before, start)
        if self._merges and (found := work.load(s)):
            segment.at, segment.reached = stop, (found, 0)
        elif found := work.load(s, part=True):
            segment.at, segment.reached = found.pop().counts["at"], (found, 0)
        segment.kept_at = segment.at
        if segment.at > start:
            self.bar.advance(self.row_bytes[g] * (segment.at - start))
        return segment

    def _link(self, segments: Mapping[tuple[int, int], _OpenSegment], callback: FoldCallback | None) -> None:
        """Fold one link of each segment. Groups that are ahead wait for the others."""
        live = {s: min(t.at for t in segments.values() if t.s == s) for _, s in segments}
        live = {s: at for s, at in live.items() if at < self.cuts[s][1]}
        rows = most = 2**62
        if callback is not None:
            n = self._n_seen(segments)
            rows = math.ceil((callback.until(n) - n) / len(live))
            most = rows if callback.exact else most
            if callback.most is not None:
                most = min(most, math.ceil((callback.most - n) / len(live)))
        ends = {s: self._end(s, at, rows, most) for s, at in live.items()}
        graph = {}
        for key, segment in segments.items():
            if segment.at < (end := ends.get(segment.s, 0)):
                work = replace(segment.work, checkpoints=None)
                graph[key] = segment_graph(
                    work, self.source, (segment.at, end), segment.reached, self.scheme, self._n_parallel
                )
        for (g, s), reached in self.compute_graph(graph).items():
            segment = segments[g, s]
            self.bar.advance(self.row_bytes[g] * (ends[s] - segment.at))
            segment.at, segment.reached = ends[s], reached
        self._keep_parts(segments, next(iter(self.works.values())).checkpoint_rows)

    def _end(self, s: int, at: int, rows: int, most: int) -> int:
        """Return the end of a link that begins at sample ``at``: after about ``rows`` and at most ``most`` samples."""
        start, stop = self.cuts[s]
        rows = max(1, min(rows, most, stop - at))
        if self._batch:
            end = start + math.ceil((at + rows - start) / self._batch) * self._batch
        else:
            # If a link ended inside a chunk or window, that would be read twice.
            whole = max(self.source.chunks[0], self.source.buffered_rows)
            end = min(math.ceil((at + rows) / whole) * whole, at + max(1, most))
        return min(end, stop)

    def _keep_parts(self, segments: Mapping[tuple[int, int], _OpenSegment], rows: int) -> None:
        """Keep the states of finished segments, and of those at least ``rows`` samples after their last checkpoint."""
        for segment in segments.values():
            if segment.at == segment.kept_at or (segment.at < segment.stop and segment.at - segment.kept_at < rows):
                continue
            segment.work.keep(segment.s, segment.reached[0], None if segment.at == segment.stop else segment.at)
            if segment.at == segment.stop and not self._merges:
                # Two checkpoints are kept, because a power cut may damage the newest.
                segment.work.forget(segment.s - 2)
            segment.kept_at = segment.at

    def _n_seen(self, segments: Mapping[tuple[int, int], _OpenSegment]) -> int:
        """Return the number of samples in the states of all groups."""
        least = {s: min(t.at for t in segments.values() if t.s == s) for _, s in segments}
        return self.cuts[min(least)][0] + sum(at - self.cuts[s][0] for s, at in least.items())

    def _are_level(self, segments: Mapping[tuple[int, int], _OpenSegment]) -> bool:
        return all(segment.at == segments[next(iter(self.works)), s].at for (_, s), segment in segments.items())

    def _reached(self, segments: Mapping[tuple[int, int], _OpenSegment]) -> Sequence[State]:
        one = len(segments) == 1 and not self._merges
        return next(iter(segments.values())).reached[0] if one else ()

    def _states(self, segments: Mapping[tuple[int, int], _OpenSegment]) -> list[State]:
        """Return copies of the states of all parts in order, merged over segments."""
        found: dict[int, State] = {}
        with one_blas_thread():
            for g, work in self.works.items():
                merge = named_errors(work.rule.merge, work.called)
                here = [t.reached[0] for (h, s), t in segments.items() if h == g and t.at > self.cuts[s][0]]
                pieces = [*(reached[0] for _, reached in self._merged[g]), *here]
                for i, states in zip(work.group.partitions, zip(*pieces, strict=True), strict=True):
                    found[i] = states[0].copy()
                    for other in states[1:]:
                        found[i] = merge(found[i], other)
        release_scratch()
        return [found[i] for i in sorted(found)]

    def _push(self, g: int, reached: StatesAndPeak) -> None:
        """Add the states of the next segment. They are merged in pairs of neighbors, as in `group_graph`."""
        stack, size = self._merged[g], 1
        while stack and stack[-1][0] == size:
            size, before = stack.pop()
            reached, size = merge_states(self.works[g], before, reached), 2 * size
        stack.append((size, reached))

    def _all_merged(self, g: int) -> StatesAndPeak:
        """Return the merged states of all segments."""
        stack = self._merged.pop(g)
        while len(stack) > 1:
            (_, before), (_, last) = stack[-2:]
            stack[-2:] = [(0, merge_states(self.works[g], before, last))]
        return stack[0][1]
