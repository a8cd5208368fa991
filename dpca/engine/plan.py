"""The planner of a fold: pure integers and tuples, no I/O.

::

                 group 0      group 1      group 2          groups: partitions that share chunks
               +------------+------------+------------+
    segment 0  |  task 0,0  |  task 0,1  |  task 0,2  |     a task reads its region of its samples,
               +------------+------------+------------+     batch by batch, one batch ahead, and
    segment 1  |  task 1,0  |  task 1,1  |  task 1,2  |     folds the rule over every partition
               +------------+------------+------------+
                   merge         merge        merge         segments of a group merge as a tree

Every partition belongs to one group, every sample to one segment, so each value is read by one task (twice only where
a cell and a chunk overlap without sharing a border and memory forces them apart).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import DTypeLike

from storage.errors import PlanError as PlanError

Region = tuple[tuple[int, int], ...]

# A task should outlast the scheduler's cost of 1.5 ms a thousand times, and a checkpoint should not be far away.
SEGMENT_BYTES = 16 * 2**30
# Segments of a chain cannot run side by side; they are as short as a checkpoint after each is cheap.
LINK_BYTES = 2 * 2**30
# Samples are read a few whole chunks at a time: Zarr holds the encoded bytes and a copy of all it is asked for at once.
_READ_BYTES = 16 * 2**20
# Updates of fewer samples than this spend their time on the state.
_FAIR_ROWS = 256
# Below this many decoded bytes a task is joined with its neighbor.
_SHORT_TASK = 64 * 2**20
# What it costs to add a batch to a byte of state, or to merge and ship one, beside decoding a byte (measured: a
# covariance takes 10 ms for 28 MB, Zarr 1 ns a byte).
_ADDING, _MERGING = 1 / 3, 3
# Interpreter and graph overhead of one task, and what the allocator loses between arrays (measured: up to a fifth).
_TASK_OVERHEAD = 24 * 2**20
_FRAGMENTATION = 1.25


class Partition(Protocol):
    """What the planner needs to know of a partition (cells, bands)."""

    @property
    def n_partitions(self) -> int:
        """Number of partitions."""

    def n_features(self, index: int) -> int:
        """Attributes of one of them."""

    def region(self, index: int) -> Region:
        """Smallest box of a sample that must be read for it."""

    def tiles(self, chunk_shape: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
        """Groups of partitions that share chunks."""

    def split_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Type of the values of a partition, for samples of a type."""

    def split_bytes(self, region: Region, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays of splitting a batch of a region, of a type."""


class RuleCost(Protocol):
    """What the planner needs to know of a rule."""

    @property
    def mergeable(self) -> bool:
        """Whether states of two streams can be merged."""

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Samples that an update should get."""

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a state."""

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays."""

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a result."""


@dataclass(frozen=True)
class Held:
    """What reading a source takes, beside the box that is asked for and the chunks that it is cut from."""

    whole: int | None = None
    """For sources that give a task all values of its segment at once: the most bytes of them."""
    rows: int = 0
    """For sources whose reader holds samples of its own: how many."""
    readers: int = 1
    """How many boxes are read at once."""


NOTHING_HELD = Held()


@dataclass(frozen=True)
class Group:
    """Partitions that one task folds together, and the box of a sample that it reads for them."""

    partitions: tuple[int, ...]
    region: Region


@dataclass(frozen=True)
class FoldPlan:
    """What will run, and the most memory one task of it takes."""

    groups: tuple[Group, ...]
    segments: tuple[tuple[int, int], ...]
    batch_rows: int
    task_bytes: int
    read_bytes: int
    """Bytes copied out of chunks by all tasks together; more than the stack where the boxes of groups overlap."""
    result_bytes: int
    """Bytes of all results, which the process that asked for the fold holds in the end."""
    threads: int = 1
    """Threads of one task, which share what it reads."""


def plan_fold(
    shape: Sequence[int],
    dtype: DTypeLike,
    chunks: Sequence[int],
    partition: Partition,
    rule: RuleCost,
    *,
    budget: int,
    n_parallel: int = 1,
    held: Held = NOTHING_HELD,
    threads: int = 1,
) -> FoldPlan:
    """Plan the fold of a rule over every partition of a stack.

    Parameters
    ----------
    shape, dtype, chunks
        Of the stack, samples first; ``chunks`` are the units of decoding.
    partition : Partition
        How the attributes of a sample are split.
    rule : RuleCost
        The rule's memory.
    budget : int
        Bytes that one task may take beyond what its process holds anyway.
    n_parallel : int
        Tasks that can run at once. It decides only how many segments there are when there are fewer groups than that.
    held : Held
        What the source takes; see `dpca.engine.source.held_by`.
    threads : int
        Threads of one task, each of which works on a partition.

    Returns
    -------
    FoldPlan

    Raises
    ------
    PlanError
        If even one partition at a time, read one chunk of samples at a time, exceeds the budget.
    """
    planner = _Planner(tuple(shape), np.dtype(dtype), tuple(chunks), partition, rule, held, threads)
    groups, segments, rows = planner.cheapest(list(partition.tiles(tuple(chunks[1:]))), budget, n_parallel)
    task_bytes = max(planner.task_bytes(g.partitions, rows, len(segments)) for g in groups)
    read = sum(planner.region_bytes(g.partitions) for g in groups) * shape[0]
    results = sum(planner.result_bytes(g.partitions) for g in groups)
    return FoldPlan(groups, segments, rows, task_bytes, read, results, threads)


def decoded_row_bytes(region: Region, chunks: Sequence[int], itemsize: int) -> int:
    """Bytes of one sample in all the chunks that a region touches; ``chunks`` with the samples' first."""
    return math.prod(-(-b // c) * c - a // c * c for (a, b), c in zip(region, chunks[1:], strict=True)) * itemsize


def read_rows(region: Region, chunks: Sequence[int], itemsize: int) -> int:
    """Return how many samples a source reads at a time: whole chunks, that take about 16 MiB decoded."""
    return max(1, _READ_BYTES // (chunks[0] * decoded_row_bytes(region, chunks, itemsize))) * chunks[0]


def _halves(tile: tuple[int, ...]) -> list[tuple[int, ...]]:
    half = len(tile) // 2
    return [tile[:half], tile[half:]] if half else [tile]


@dataclass(frozen=True)
class _Planner:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    partition: Partition
    rule: RuleCost
    held: Held
    threads: int

    @cached_property
    def values(self) -> np.dtype[Any]:
        """Type of what the rule gets."""
        return self.partition.split_dtype(self.dtype)

    @property
    def least_rows(self) -> int:
        return max(1, min(self.chunks[0], self.shape[0]))

    @property
    def fair_rows(self) -> int:
        return self.whole_chunks(_FAIR_ROWS)

    def target_rows(self) -> int:
        """Whole chunks of samples, as many as make a full update."""
        return min(self.whole_chunks(self.rule.batch_rows(self.values)), max(1, self.shape[0]))

    def whole_chunks(self, rows: int) -> int:
        return max(1, rows // self.least_rows) * self.least_rows

    def region(self, partitions: Sequence[int]) -> Region:
        regions = [self.partition.region(i) for i in partitions]
        return tuple((min(a[0] for a in axis), max(a[1] for a in axis)) for axis in zip(*regions, strict=True))

    def region_bytes(self, partitions: Sequence[int]) -> int:
        return math.prod(b - a for a, b in self.region(partitions)) * self.dtype.itemsize

    def state_bytes(self, partitions: Sequence[int]) -> int:
        return sum(self.rule.state_bytes(self.partition.n_features(i), self.values) for i in partitions)

    def result_bytes(self, partitions: Sequence[int]) -> int:
        return sum(self.rule.result_bytes(self.partition.n_features(i), self.values) for i in partitions)

    def leaf_bytes(self, partitions: Sequence[int], rows: int) -> int:
        """States, the batch, the one read ahead, its copy by partitions, temporaries of threads, what reading takes."""
        d = max(self.partition.n_features(i) for i in partitions)
        region, box = self.region_bytes(partitions), self.region(partitions)
        copy = sum(self.partition.n_features(i) for i in partitions) * self.values.itemsize
        decoded = decoded_row_bytes(box, self.chunks, self.dtype.itemsize)
        work = self.threads * self.rule.work_bytes(rows, d, self.values) + self.partition.split_bytes(box, self.dtype)
        # Encoded chunks and the values cut from them, of one read; a chunk more where Zarr joins parts of one.
        held = self.held
        at_once = min(held.readers * read_rows(box, self.chunks, self.dtype.itemsize), max(rows, held.rows))
        reading = at_once * (region + decoded) + 2 * held.readers * math.prod(self.chunks) * self.dtype.itemsize
        reading += held.rows * region
        if held.whole is not None:
            # What Dask computed for a segment, beside the chunks that it was cut from.
            reading += min(held.whole // region + rows, self.shape[0]) * (region + decoded)
        arrays = self.state_bytes(partitions) + rows * (2 * region + copy) + work + reading
        return math.ceil(_FRAGMENTATION * arrays) + _TASK_OVERHEAD

    def task_bytes(self, partitions: Sequence[int], rows: int, n_segments: int) -> int:
        """A task, beside the states that wait on its worker for their turn in the merge tree, and a finished result."""
        waiting = 0
        if n_segments > 1:
            waiting = math.ceil(math.log2(n_segments)) + 1 if self.rule.mergeable else 1
        return (
            self.leaf_bytes(partitions, rows)
            + math.ceil(_FRAGMENTATION * waiting * self.state_bytes(partitions))
            + self.result_bytes(partitions)
        )

    def cheapest(
        self, tiles: Sequence[tuple[int, ...]], budget: int, n_parallel: int
    ) -> tuple[tuple[Group, ...], tuple[tuple[int, int], ...], int]:
        """Groups, segments and rows of a batch that take least time, of those that fit the budget.

        Longer batches are added to the states less often; groups that share chunks decode them each for itself;
        segments of one group hold a state each, to be merged. Slow, short batches only where nothing else helps.
        """
        found: list[tuple[tuple[int, float], tuple[Group, ...], tuple[tuple[int, int], ...], int]] = []
        refusal: PlanError | None = None
        finer = self.halved(tiles, n_parallel)
        for rows in self.row_counts():
            if found and rows < self.fair_rows:
                break
            for way in [tiles] if finer == tiles else [tiles, finer]:
                try:
                    groups, segments = self.cut(way, rows, budget, n_parallel)
                except PlanError as error:
                    refusal = error
                    continue
                found.append((self.cost(groups, segments, rows, n_parallel), groups, segments, rows))
            if any(self.reads_once(groups, tiles) and not idle for (idle, _), groups, _, _ in found):
                break
        if not found:
            raise cast("PlanError", refusal)
        return min(found, key=lambda way: way[0])[1:]

    def row_counts(self) -> Iterator[int]:
        """Yield samples of a batch, from most to least."""
        rows = self.target_rows()
        yield rows
        while rows > self.least_rows:
            rows = self.whole_chunks(rows // 2)
            yield rows

    def halved(self, tiles: Sequence[tuple[int, ...]], n: int) -> list[tuple[int, ...]]:
        """Tiles, halved until there are ``n`` of them or nothing is left to halve."""
        pieces = list(tiles)
        while len(pieces) < n and max(map(len, pieces)) > 1:
            pieces = [part for piece in pieces for part in _halves(piece)]
        return pieces

    def reads_once(self, groups: Sequence[Group], tiles: Sequence[tuple[int, ...]]) -> bool:
        """Say whether groups decode no more than tiles would."""
        return self.decoded(g.region for g in groups) <= self.decoded(map(self.region, tiles))

    def decoded(self, regions: Iterable[Region]) -> int:
        return sum(decoded_row_bytes(region, self.chunks, self.dtype.itemsize) for region in regions)

    def cost(
        self, groups: Sequence[Group], segments: Sequence[tuple[int, int]], rows: int, n_parallel: int
    ) -> tuple[int, float]:
        """Workers that have nothing to do, then the time of all but the rule's own arithmetic, in decoded bytes."""
        n, n_segments = self.shape[0], len(segments)
        states = sum(self.state_bytes(g.partitions) for g in groups)
        at_once = len(groups) * (n_segments if self.rule.mergeable else 1)
        moved = states * (_ADDING * math.ceil(n / rows) + _MERGING * (n_segments - 1))
        return max(0, n_parallel - at_once), n * self.decoded(g.region for g in groups) + moved

    def cut(
        self, tiles: Sequence[tuple[int, ...]], rows: int, budget: int, n_parallel: int
    ) -> tuple[tuple[Group, ...], tuple[tuple[int, int], ...]]:
        """Groups and segments whose tasks all fit the budget."""
        groups = self.groups(tiles, rows, budget, 1)
        segments = self.segments(groups, rows, n_parallel)
        if len(segments) == 1:
            return groups, segments
        # States that wait to be merged take room too.
        most = len(segments)
        try:
            groups = self.groups(tiles, rows, budget, most)
        except PlanError:
            if self.held.whole is not None:
                raise
            return groups, ((0, self.shape[0]),)  # one after the other rather than not at all
        return groups, self.segments(groups, rows, n_parallel, most)

    def groups(self, tiles: Sequence[tuple[int, ...]], rows: int, budget: int, n_segments: int) -> tuple[Group, ...]:
        """Tiles, split where they are too much for a task and joined where they are too little."""
        pieces = [piece for tile in tiles for piece in self.split(tile, rows, budget, n_segments)]
        return tuple(Group(p, self.region(p)) for p in self.join(pieces, rows, budget, n_segments))

    def split(self, tile: tuple[int, ...], rows: int, budget: int, n_segments: int) -> list[tuple[int, ...]]:
        """Halve a tile until each part fits the budget."""
        need = self.task_bytes(tile, rows, n_segments)
        if need <= budget:
            return [tile]
        if len(tile) == 1:
            raise PlanError(
                f"one partition of {self.partition.n_features(tile[0]):,} attributes, read {rows:,} samples at a "
                f"time, needs {need / 1e6:,.0f} MB but a task may take {budget / 1e6:,.0f} MB: allow at least "
                f"{math.ceil(need / 1e6):,} MB more memory than the process itself takes, or choose smaller cells "
                "or bands"
            )
        return [part for piece in _halves(tile) for part in self.split(piece, rows, budget, n_segments)]

    def join(self, pieces: list[tuple[int, ...]], rows: int, budget: int, n_segments: int) -> list[tuple[int, ...]]:
        """Join neighbors that would make tasks too short to be worth scheduling."""
        joined: list[tuple[int, ...]] = []
        for piece in pieces:
            whole = (joined[-1] + piece) if joined else piece
            small = self.region_bytes(whole) * self.shape[0] <= _SHORT_TASK
            if joined and small and self.task_bytes(whole, rows, n_segments) <= budget // 2:
                joined[-1] = whole
            else:
                joined.append(piece)
        return joined

    def segments(
        self, groups: Sequence[Group], rows: int, n_parallel: int, most: int | None = None
    ) -> tuple[tuple[int, int], ...]:
        """Cut the samples so that tasks are neither endless nor fewer than what can run at once."""
        n = self.shape[0]
        largest = max(self.region_bytes(g.partitions) for g in groups) * n
        longest = self.held.whole or (SEGMENT_BYTES if self.rule.mergeable else LINK_BYTES)
        side_by_side = math.ceil(n_parallel / len(groups)) if self.rule.mergeable else 1
        wanted = max(math.ceil(largest / longest), side_by_side, 1)
        wanted = min(wanted, most or wanted)
        batches = max(1, math.ceil(n / rows))
        length = math.ceil(batches / min(wanted, batches)) * rows
        return tuple((start, min(start + length, n)) for start in range(0, max(n, 1), length))
