"""The planner of a fold: pure integers and tuples, no I/O.

::

                 group 0      group 1      group 2          groups: parts that share chunks
               +------------+------------+------------+
    segment 0  |  task 0,0  |  task 0,1  |  task 0,2  |     a task reads its region of its samples,
               +------------+------------+------------+     batch by batch, one batch ahead, and
    segment 1  |  task 1,0  |  task 1,1  |  task 1,2  |     folds the rule over every part
               +------------+------------+------------+
                   merge         merge        merge         segments of a group merge as a tree

Every part belongs to one group and every sample to one segment, so each value is read by one task. It is decoded twice
only if a chunk extends over several cells and memory does not allow one task for them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from dpca.engine.folds.rounds import RoundScheme, Span, segments
from dpca.engine.sources.source import BatchReader, Source
from dpca.kernels.algebra.types import Region
from dpca.partition.base import Partition
from dpca.rules.base.rule import Rule
from dpca.storage.errors import PlanError as PlanError

# Limits the length of a task. Fewer segments are better, because their states wait to be merged and take memory.
SEGMENT_BYTES = 256 * 2**30
# Distance of checkpoints. A checkpoint takes a hundredth of the time for these bytes.
CHECKPOINT_BYTES = 4 * 2**30
# Segments of a chain cannot run in parallel. They are as short as a cheap checkpoint after each allows.
LINK_BYTES = 2 * 2**30
# With fewer samples, an update spends most of its time on the state.
_FAIR_ROWS = 256
# A task with fewer decoded bytes is joined with its neighbor.
_SHORT_TASK = 64 * 2**20
# Time per byte of state to add a batch, and to merge and transfer a state, relative to the time of decoding one byte
# (measured: a covariance takes 10 ms for 28 MB, Zarr 1 ns per byte).
_ADDING, _MERGING = 1 / 3, 3
#: Bytes of one task outside of arrays: interpreter, libraries, graph.
TASK_OVERHEAD = 24 * 2**20
# Bytes of the Python objects of one part: its box, and arrays and names of its results (measured: 1.4 to 2.4 kB).
_OBJECT_BYTES = 2_500
# Memory that the allocator loses between arrays (measured: up to a fifth).
_FRAGMENTATION = 1.25


@dataclass(frozen=True)
class Group:
    """Partitions that one task folds, and the box of a sample that it reads for them."""

    partitions: tuple[int, ...]
    region: Region


@dataclass(frozen=True)
class FoldPlan:
    """The plan of a fold: groups, segments, batches and memory."""

    groups: tuple[Group, ...]
    segments: tuple[tuple[int, int], ...]
    batch_rows: int
    task_bytes: int
    read_bytes: int
    """Bytes that all tasks copy out of chunks; more than the stack if the boxes of groups overlap."""
    result_bytes: int
    """Bytes of all results in the calling process."""
    held_bytes: int = 0  #: bytes of arrays of one entry a sample or an attribute in the calling process
    object_bytes: int = 0  #: bytes of the Python objects of all parts in the calling process
    threads: int = 1  #: threads of one task, which share the samples that it reads
    checkpoint_rows: int = 2**62  #: samples between two checkpoints of a long task

    @property
    def caller_bytes(self) -> int:
        """Bytes that the calling process holds beside its own tasks."""
        return self.result_bytes + self.held_bytes + self.object_bytes


class Outline(Source):
    """The metadata of a stack that does not exist yet, for planning."""

    def reader(self) -> BatchReader:
        """Raise, because there are no samples yet."""
        raise TypeError(f"{self.name} is an outline without samples: make the stack first")


def plan_fold(
    source: Source,
    partition: Partition,
    rule: Rule,
    *,
    budget: int,
    n_parallel: int = 1,
    threads: int = 1,
    scheme: RoundScheme | None = None,
) -> FoldPlan:
    """Plan the fold of a rule over every part of a partition of a stack.

    Takes time proportional to the number of parts.

    Parameters
    ----------
    source : Source
        The stack; nothing is read.
    partition : Partition
    rule : Rule
    budget : int
        Memory of one task in bytes, in addition to that of its process at the start.
    n_parallel : int
        Number of parallel tasks. With fewer groups than that, it decides the number of segments.
    threads : int
        Threads of one task. Each works on one part.
    scheme : RoundScheme, optional
        The scheme of a fold in rounds. Its segments are whole rounds, one after the other.

    Returns
    -------
    FoldPlan

    Raises
    ------
    PlanError
        If a single part, read one chunk of samples at a time, exceeds the budget.
    """
    planner = Planner(source, partition, rule, budget, n_parallel, threads, scheme)
    pieces, cuts, rows = planner.cheapest()
    plan = FoldPlan(
        groups=tuple(Group(tuple(partitions), size.region) for partitions, size in pieces),
        segments=cuts,
        batch_rows=rows,
        task_bytes=max(planner.task_bytes(size, rows, len(cuts)) for _, size in pieces),
        read_bytes=sum(planner.box_bytes(size) for _, size in pieces) * source.shape[0],
        result_bytes=sum(size.results for _, size in pieces),
        object_bytes=_OBJECT_BYTES * partition.n_parts,
        held_bytes=partition.held_bytes + sum({id(array): array.nbytes for array in source.held()}.values()),
        threads=threads,
        checkpoint_rows=max(1, CHECKPOINT_BYTES // max(planner.box_bytes(size) for _, size in pieces) // rows) * rows,
    )
    if scheme is None:
        return plan
    longest = (source.segment_bytes or LINK_BYTES) // planner.row_bytes
    return replace(plan, segments=segments(source.shape[0], scheme.round_rows, longest))


@dataclass(frozen=True)
class _Size:
    """The joint size of some parts."""

    region: Region
    n_features: int
    most_features: int  #: attributes of the largest part
    states: int  #: in bytes
    results: int  #: in bytes


Piece = tuple[Sequence[int], _Size]
"""The parts of a future group, and their size."""
Way = tuple[list[Piece], tuple[Span, ...], int]
"""Groups, segments, and rows of a batch."""


@dataclass
class Planner:
    """The memory of groups of parts, and the ways to divide a fold into tasks."""

    source: Source
    partition: Partition
    rule: Rule
    budget: int
    n_parallel: int
    threads: int
    scheme: RoundScheme | None

    def __post_init__(self) -> None:
        source, partition, rule, scheme = self.source, self.partition, self.rule, self.scheme
        self.n, self.itemsize = source.shape[0], source.dtype.itemsize
        self.row_bytes = math.prod(source.shape[1:]) * self.itemsize
        self.values: np.dtype[Any] = partition.split_dtype(source.dtype)
        """Dtype of the rule's input."""
        self.whole = source.segment_bytes
        self.mergeable, self.n_states, wanted, self.remark = rule.mergeable, 1, rule.batch_rows, ""
        if scheme is not None:
            self.remark = f"; each of the {scheme.n_streams} streams of a round needs a further state"
            # The initial state of a round, a piece of each stream, and the final state.
            self.mergeable, self.n_states, wanted = False, scheme.n_streams + 2, partial(scheme.batch_rows, rule)
            if self.whole is not None:
                # Dask may compute all values of a segment before its first round has ended.
                self.whole = max(self.whole, min(scheme.round_rows, self.n) * self.row_bytes)
        self.least_rows = max(1, min(source.chunks[0], self.n))
        self.full_rows = min(self.whole_chunks(wanted(self.values)), max(1, self.n))
        self._measure_parts()
        tiles = list(partition.tiles(source.chunks[1:]))
        # Two ways to start with: the tiles themselves, and tiles halved until each parallel task has one.
        self.ways = [self.pieces(tiles)]
        if len(tiles) < self.n_parallel and max(map(len, tiles)) > 1:
            self.ways.append(self._halved(self.ways[0]))

    def _starts(self) -> Iterator[tuple[list[Piece], bool]]:
        """Yield all ways to start with, and whether their tiles are finer. These are computed if they are needed."""
        yield from ((way, False) for way in self.ways)
        yield from ((self.pieces(tiles), True) for tiles in self.partition.finer_tiles(self.source.chunks[1:]))

    def _measure_parts(self) -> None:
        """Collect the boxes of all parts, and their attributes and bytes. There can be hundreds of thousands."""
        parts = range(self.partition.n_parts)
        self._boxes = np.array([self.partition.region(i) for i in parts])
        self._features = np.array([self.partition.n_features(i) for i in parts])
        lengths, places = np.unique(self._features, return_inverse=True)
        states = [self.n_states * self.rule.state_bytes(d, self.values) for d in lengths.tolist()]
        self._states = np.array(states)[places]
        self._results = np.array([self.rule.result_bytes(d, self.values) for d in lengths.tolist()])[places]

    def sizes(self) -> list[_Size]:
        """Return the size of each part."""
        return [size for _, size in self.pieces([(i,) for i in range(self.partition.n_parts)])]

    def pieces(self, groups: Sequence[Sequence[int]]) -> list[Piece]:
        """Return some groups of parts, each with their joint size."""
        at = np.fromiter(itertools.chain.from_iterable(groups), np.int64)
        starts, boxes, features = np.cumsum([0, *map(len, groups)])[:-1], self._boxes[at], self._features[at]
        ends = [np.minimum.reduceat(boxes[..., 0], starts), np.maximum.reduceat(boxes[..., 1], starts)]
        regions = [tuple(map(tuple, box)) for box in np.stack(ends, axis=-1).tolist()]
        most = np.maximum.reduceat(features, starts).tolist()
        sums = [np.add.reduceat(of, starts).tolist() for of in (features, self._states[at], self._results[at])]
        return list(zip(groups, map(_Size, regions, sums[0], most, *sums[1:]), strict=True))

    def halves(self, piece: Piece) -> list[Piece]:
        """Return two halves of a piece, or the piece itself if it is a single part."""
        partitions, half = piece[0], len(piece[0]) // 2
        return self.pieces([partitions[:half], partitions[half:]]) if half else [piece]

    def _halved(self, pieces: list[Piece]) -> list[Piece]:
        """Halve pieces until there are enough, or each has a single partition."""
        while len(pieces) < self.n_parallel and max(len(partitions) for partitions, _ in pieces) > 1:
            pieces = [half for piece in pieces for half in self.halves(piece)]
        return pieces

    def box_bytes(self, size: _Size) -> int:
        """Return the bytes of the box of a sample."""
        return math.prod(b - a for a, b in size.region) * self.itemsize

    def decoded_bytes(self, pieces: Iterable[Piece]) -> int:
        """Return the bytes of all chunks of a sample that tasks decode."""
        return sum(self.source.decoded_bytes(size.region) for _, size in pieces)

    def whole_chunks(self, rows: int) -> int:
        """Round a number of samples down to whole chunks, at least one."""
        return max(1, rows // self.least_rows) * self.least_rows

    def leaf_bytes(self, size: _Size, rows: int) -> int:
        """Return the memory of a task: states, two batches, a copy by parts, temporaries of threads, reading."""
        source, box, decoded = self.source, self.box_bytes(size), self.source.decoded_bytes(size.region)
        copy = size.n_features * self.values.itemsize
        work = self.threads * self.rule.work_bytes(rows, size.most_features, self.values)
        work += self.partition.split_bytes(size.region, source.dtype)
        # Encoded chunks of one read and the values cut from them, and a further chunk that Zarr joins from parts.
        at_once = min(source.n_readers * source.read_rows(size.region), max(rows, source.buffered_rows))
        reading = at_once * (box + decoded) + 2 * source.n_readers * math.prod(source.chunks) * self.itemsize
        reading += source.buffered_rows * box + source.n_readers * source.extra_bytes(size.region)
        if self.whole is not None:
            # The values that Dask computed for a segment, and the chunks from which they are cut.
            reading += min(self.whole // box + rows, self.n) * (box + decoded)
        return math.ceil(_FRAGMENTATION * (size.states + rows * (2 * box + copy) + work + reading)) + TASK_OVERHEAD

    def task_bytes(self, size: _Size, rows: int, n_segments: int) -> int:
        """Return the memory of a task, of the states that wait on its worker to be merged, and of a result."""
        waiting = 0
        if n_segments > 1:
            waiting = math.ceil(math.log2(n_segments)) + 1 if self.mergeable else 1
            if n_segments <= self.n_parallel and self.partition.n_parts == 1:
                waiting = min(waiting, 2)  # each segment has its own worker, which merges states when it is idle
        flushed = size.states - self.rule.held_bytes(size.n_features, self.values)
        return self.leaf_bytes(size, rows) + math.ceil(_FRAGMENTATION * waiting * flushed) + size.results

    def cheapest(self) -> Way:
        """Return the fastest way that fits the budget.

        Long batches need fewer updates of the states. Groups that share chunks decode them several times. Each segment
        of a group has a state that must be merged. Short batches are slow, and used only if nothing else fits.
        """
        found: list[tuple[tuple[int, float], Way]] = []
        refusal: PlanError | None = None
        fair_rows, once = self.whole_chunks(_FAIR_ROWS), self.decoded_bytes(self.ways[0])
        enough = fair = False
        for rows in self.row_counts():
            if enough or (fair and rows < fair_rows):
                break
            for tiles, is_finer in self._starts():
                if is_finer and enough:
                    break
                try:
                    way = (*self.cut(tiles, rows), rows)
                except PlanError as error:
                    refusal = error
                    continue
                idle, _ = cost = self.cost(way)
                found.append((cost, way))
                # Short batches are better than idle workers without memory for a state.
                fair = fair or not idle or len(way[1]) == len(self.segments(way[0], rows))
                enough = enough or (not idle and self.decoded_bytes(way[0]) <= once)
                if is_finer and len(way[0]) <= len(tiles):
                    break  # still finer tiles share more chunks
        if not found:
            raise cast("PlanError", refusal)
        return min(found, key=lambda costed: costed[0])[1]

    def row_counts(self) -> Iterator[int]:
        """Yield numbers of samples of a batch: whole chunks for a full update, then fewer and fewer."""
        yield (rows := self.full_rows)
        while rows > self.least_rows:
            rows = self.whole_chunks(rows // 2)
            yield rows

    def cost(self, way: Way) -> tuple[int, float]:
        """Return the number of idle workers, and the time without the rule's arithmetic, in decoded bytes."""
        pieces, segments, rows = way
        at_once = len(pieces) * (len(segments) if self.mergeable else 1)
        states = sum(size.states for _, size in pieces)
        moved = states * (_ADDING * math.ceil(self.n / rows) + _MERGING * (len(segments) - 1))
        return max(0, self.n_parallel - at_once), self.n * self.decoded_bytes(pieces) + moved

    def cut(self, tiles: list[Piece], rows: int) -> tuple[list[Piece], tuple[Span, ...]]:
        """Return groups and segments whose tasks all fit the budget."""
        pieces = self.groups(tiles, rows, 1)
        segments = self.segments(pieces, rows)
        if len(segments) == 1:
            return pieces, segments
        # States that wait to be merged take memory, too. Fewer segments have fewer of them.
        most = len(segments)
        while most > 1:
            try:
                pieces = self.groups(tiles, rows, most)
                return pieces, self.segments(pieces, rows, most)
            except PlanError:
                if self.whole is not None:
                    raise
                most = max(math.ceil(most / 2), self.n_parallel if most > self.n_parallel else 1)
        return pieces, ((0, self.n),)  # a single segment is slow, but fits

    def groups(self, tiles: list[Piece], rows: int, n_segments: int) -> list[Piece]:
        """Split tiles that are too large for a task, and join neighbors that are too short for a task of their own."""
        groups: list[Piece] = []

        def join(pieces: list[Piece]) -> bool:
            """Join pieces with the last group, if there is one and the task stays short."""
            [whole] = self.pieces([[part for partitions, _ in (*groups[-1:], *pieces) for part in partitions]])
            short = bool(groups) and self.box_bytes(whole[1]) * self.n <= _SHORT_TASK
            if joined := short and self.task_bytes(whole[1], rows, n_segments) <= self.budget // 2:
                groups[-1] = whole
            return joined

        at, step = 0, 1
        # Twice as many tiles at each step, since there can be hundreds of thousands.
        while at < len(tiles):
            if join(tiles[at : at + step]):
                at, step = at + step, 2 * step
            elif step > 1:
                step //= 2
            else:
                for piece in self.split(tiles[at], rows, n_segments):
                    if not join([piece]):
                        groups.append(piece)
                at += 1
        return groups

    def split(self, piece: Piece, rows: int, n_segments: int) -> list[Piece]:
        """Halve a piece until each part fits the budget."""
        partitions, size = piece
        need = self.task_bytes(size, rows, n_segments)
        if need <= self.budget:
            return [piece]
        if len(partitions) == 1:
            raise PlanError(
                f"one part of {size.n_features:,} attributes, read {rows:,} samples at a time, needs "
                f"{need / 1e6:,.0f} MB but a task may use {self.budget / 1e6:,.0f} MB: allow at least "
                f"{math.ceil(need / 1e6):,} MB in addition to the memory of the process itself, or "
                f"{self.partition.remedy}{self.remark}"
            )
        return [part for half in self.halves(piece) for part in self.split(half, rows, n_segments)]

    def segments(self, pieces: list[Piece], rows: int, most: int | None = None) -> tuple[Span, ...]:
        """Cut the samples into segments that are not too long, and at least as many as parallel tasks."""
        largest = max(self.box_bytes(size) for _, size in pieces) * self.n
        longest = self.whole or (SEGMENT_BYTES if self.mergeable else LINK_BYTES)
        side_by_side = math.ceil(self.n_parallel / len(pieces)) if self.mergeable else 1
        # As many for each worker: with three segments on two of them, one would be idle for half of the time.
        wanted = max(1, math.ceil(largest / longest / side_by_side)) * side_by_side
        wanted = min(wanted, most or wanted)
        batches = max(1, math.ceil(self.n / rows))
        length = math.ceil(batches / min(wanted, batches)) * rows
        length = math.ceil(length / self.source.unit_rows) * self.source.unit_rows
        return tuple((start, min(start + length, self.n)) for start in range(0, max(self.n, 1), length))
