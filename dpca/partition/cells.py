"""Cells: blocks of neighboring pixels or voxels (Alakkari 2020, section 4.3).

::

    sample (10, 12), cell (4, 5)          grid (3, 3)
    +-----+-----+--+
    |  0  |  1  | 2|   4 rows             every cell keeps all channels of its pixels;
    +-----+-----+--+                      edge cells are smaller, never padded:
    |  3  |  4  | 5|   4 rows             cell 2 is 4 x 2, cell 8 is 2 x 2
    +-----+-----+--+
    |  6  |  7  | 8|   2 rows
    +-----+-----+--+
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dpca.kernels.algebra.namespace import is_numpy, namespace
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.partition.base import Partition

# Bytes that are gathered from a few samples at a time: samples and cells stay in the cache of one core.
_GATHER_BYTES = 2**17


@dataclass(frozen=True)
class CellGrid(Partition):
    """A grid of cells over the leading (spatial) axes of a sample; further axes (channels) are never split.

    Parameters
    ----------
    sample_shape : tuple of int
        Shape of one sample, spatial axes first.
    cell_shape : tuple of int
        Cell length along each spatial axis. The number of lengths is the number of spatial axes.

    Raises
    ------
    ValueError
        If a cell is empty, is larger than the sample, or has more axes.
    """

    sample_shape: tuple[int, ...]
    cell_shape: tuple[int, ...]

    scores_kind: ClassVar[str] = "cell-scores"

    def __post_init__(self) -> None:
        spatial = self.sample_shape[: len(self.cell_shape)]
        if not 1 <= len(self.cell_shape) <= len(self.sample_shape):
            raise ValueError(
                f"cell_shape {self.cell_shape} has {len(self.cell_shape)} axes, but samples of shape "
                f"{self.sample_shape} have {len(self.sample_shape)}: give one cell length for each spatial axis"
            )
        if min(self.cell_shape) < 1:
            raise ValueError(f"cell_shape {self.cell_shape} is empty: give lengths of at least 1")
        if any(c > s for c, s in zip(self.cell_shape, spatial, strict=True)):
            raise ValueError(
                f"cell_shape {self.cell_shape} is larger than the sample, {spatial}, of {math.prod(self.sample_shape)} "
                f"feature(s): give lengths of at most {spatial}"
            )

    @property
    def n_spatial(self) -> int:
        """Number of spatial axes."""
        return len(self.cell_shape)

    @property
    def channel_shape(self) -> tuple[int, ...]:
        """Lengths of the axes that are never split."""
        return self.sample_shape[self.n_spatial :]

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of cells along each spatial axis."""
        return tuple(math.ceil(s / c) for s, c in zip(self.sample_shape, self.cell_shape, strict=False))

    def grid_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Name the axes of the grid, given the names of a sample's axes."""
        return tuple(f"cell_{name}" for name in axes[: self.n_spatial])

    def centers(self, axis: int, values: Array) -> Array | None:
        """Return the mean coordinate of each cell along an axis; None for channels and coordinates without a mean."""
        if axis >= self.n_spatial or values.dtype.kind not in "iufM":
            return None
        starts = np.arange(0, len(values), self.cell_shape[axis])
        counts = np.diff(starts, append=len(values))
        if values.dtype.kind == "M":
            since = values - values[0]
            means: Array = values[0] + (np.add.reduceat(since.astype(np.int64), starts) // counts).astype(since.dtype)
        else:
            means = np.add.reduceat(values.astype(np.float64), starts) / counts
        return means

    @property
    def identity(self) -> list[Any]:
        """The shape of a cell, and the overlap 0."""
        return [list(self.cell_shape), 0]

    @property
    def max_features(self) -> int:
        """Number of attributes of a whole cell."""
        return math.prod(self.cell_shape) * math.prod(self.channel_shape)

    def box(self, index: int) -> Region:
        """Return the box of cell ``index`` (row-major) in a sample."""
        return self._boxes[index]

    def region(self, index: int) -> Region:
        """Return the box of a sample that must be read for cell ``index``, here the cell itself."""
        return self.box(index)

    @cached_property
    def _boxes(self) -> list[Region]:
        # Cached, because computing a box for every batch costs as much as the arithmetic of a small cell.
        return self._products(
            [
                [(start, min(start + c, s)) for start in range(0, s, c)]
                for c, s in zip(self.cell_shape, self.sample_shape, strict=False)
            ]
        )

    def _products(self, cuts: Sequence[Sequence[tuple[int, int]]]) -> list[Region]:
        """Return the boxes of all cells from their intervals along each spatial axis."""
        channels = tuple((0, s) for s in self.channel_shape)
        return [(*spatial, *channels) for spatial in itertools.product(*cuts)]

    def n_features(self, index: int) -> int:
        """Return the number of attributes of cell ``index``."""
        return self._sizes[index]

    @cached_property
    def _sizes(self) -> list[int]:
        along = [np.diff([*range(0, s, c), s]) for c, s in zip(self.cell_shape, self.sample_shape, strict=False)]
        sizes: list[int] = (functools.reduce(np.multiply.outer, along) * math.prod(self.channel_shape)).ravel().tolist()
        return sizes

    def tiles(self, chunk_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Group the cells, see `Partition.tiles`. A group ends at a common border of a cell and a chunk."""
        runs = []
        for size, cell, chunk in zip(self.sample_shape, self.cell_shape, chunk_shape, strict=False):
            step = math.lcm(cell, chunk) // cell
            n = math.ceil(size / cell)
            runs.append([range(start, min(start + step, n)) for start in range(0, n, step)])
        yield from self._groups(runs)

    def finer_tiles(self, chunk_shape: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
        """Yield boxes of cells, see `Partition.finer_tiles`, with the fewest borders between as many boxes."""
        sizes = [math.ceil(size / chunk) for size, chunk in zip(self.sample_shape, chunk_shape, strict=False)]
        most = [min(chunks, cells) for chunks, cells in zip(sizes, self.grid_shape, strict=False)]
        pieces = [1] * self.n_spatial
        while pieces != most:
            axis = max(
                (axis for axis in range(self.n_spatial) if pieces[axis] < most[axis]),
                key=lambda axis: sizes[axis] / pieces[axis],
            )
            pieces[axis] = min(most[axis], max(pieces[axis] + 1, pieces[axis] * 5 // 4))
            cuts = [self._cuts(axis, count, chunk_shape[axis]) for axis, count in enumerate(pieces)]
            yield [*self._groups([[range(a, b) for a, b in itertools.pairwise(cut)] for cut in cuts])]

    def _cuts(self, axis: int, count: int, chunk: int) -> list[int]:
        """Return the first cells of runs of about equal lengths along an axis, and the number of cells.

        The regions on both sides of a cut share one chunk if possible, not two.
        """
        n, cell, reach = self.grid_shape[axis], self.cell_shape[axis], self.reach
        cuts = {0, n}
        for j in range(1, count):
            nearest = round(j * n / count)
            near = (at for at in (nearest, nearest + 1, nearest - 1) if reach <= at * cell % chunk <= chunk - reach)
            cuts.add(next(near, nearest))
        return sorted(cuts)

    @property
    def reach(self) -> int:
        """Pixels beyond its border that a cell depends on."""
        return 0

    def _groups(self, runs: list[list[range]]) -> Iterator[tuple[int, ...]]:
        """Yield the cells of each box of some runs along each axis."""
        for box in itertools.product(*runs):
            yield tuple(np.ravel_multi_index(np.ix_(*box), self.grid_shape).ravel().tolist())

    def split(self, block: Array, parts: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Copy cells out of a block of samples, see `Partition.split`."""
        xp, n, end = namespace(buffer), block.shape[0], 0
        views: list[Array] = []
        targets: list[tuple[Sequence[int], Array]] = []
        for run in self.runs(parts):
            start, end = end, end + n * len(run) * self.n_features(run[0])
            out = xp.reshape(buffer[start:end], (len(run), n, self.n_features(run[0])))
            views.extend(out[i, ...] for i in range(len(run)))
            targets.append((run, out))
        self.gather(block, origin, targets)
        return views

    def gather(self, block: Array, origin: tuple[int, ...], targets: Sequence[tuple[Sequence[int], Array]]) -> None:
        """Copy runs of cells out of a block of samples.

        All cells of a few samples are copied at a time. Copying cell after cell would fetch the block from memory for
        each cell and take twice as long. Arrays on an accelerator are copied run by run.

        Parameters
        ----------
        block : array (n_samples, ...), C-ordered
        origin : tuple of int
        targets : sequence of (cells, array (n_cells, n_samples, n_features) of dtype `split_dtype`)
            Runs of cells from `runs`, and the output of each. Only the last axis must be contiguous.
        """
        n = block.shape[0]
        copies = [self._aligned(block, run[0], origin, out) for run, out in targets]
        step = _samples_at_a_time(target for _, target in targets) if is_numpy(block) else max(1, n)
        for few in blocks(n, step):
            for target, rows in copies:
                target[:, few, ...] = rows[:, few, ...]

    def join(self, parts: Iterable[tuple[int, Array]], samples: Array) -> Array:
        """Copy cells into samples, see `Partition.join`: all cells of a run, for a few samples at a time."""
        whole = (0,) * len(self.sample_shape)
        for first, values in parts:
            inside, values = samples[: values.shape[1]], np.asarray(values, samples.dtype)
            copies = []
            for run in self.runs(range(first, first + len(values))):
                start = run[0] - first
                copies.append(self._aligned(inside, run[0], whole, values[start : start + len(run)]))
            for few in blocks(len(inside), _samples_at_a_time([values])):
                for source, rows in copies:
                    rows[:, few] = source[:, few]
        return samples

    def runs(self, cells: Iterable[int]) -> Iterator[list[int]]:
        """Yield runs of neighboring cells of equal size along the last spatial axis."""
        axis = self.n_spatial - 1
        in_row, n_whole = self.grid_shape[axis], self.sample_shape[axis] // self.cell_shape[axis]
        run: list[int] = []
        for cell in cells:
            if run and not (cell == run[-1] + 1 and 0 < cell % in_row < n_whole):
                yield run
                run = []
            run.append(cell)
        if run:
            yield run

    def _aligned(self, block: Array, first: int, origin: tuple[int, ...], out: Array) -> tuple[Array, Array]:
        """Return views of equal shape of ``out`` (n_cells, n_samples, n_features) and of its cells in the block."""
        region = self.box(first)
        begin = [start - o for (start, _), o in zip(region, origin, strict=True)]
        shape = [stop - start for start, stop in region]
        axis = self.n_spatial - 1
        if not is_numpy(block) or not len(block):
            return self._permuted(block, begin, shape, out)
        # The last spatial axis and the channels are contiguous. Copying them as one item per row is two to four times
        # faster than copying elements.
        item = np.dtype((np.void, math.prod(shape[axis:]) * block.itemsize))
        offset = sum(b * s for b, s in zip(begin, block.strides[1:], strict=True))
        strides = (shape[axis] * block.strides[axis + 1], block.strides[0], *block.strides[1 : axis + 1])
        rows = np.ndarray((len(out), len(block), *shape[:axis]), item, block, offset, strides)
        return out.view(item).reshape(*out.shape[:2], *shape[:axis]), rows

    def _permuted(self, block: Array, begin: list[int], shape: list[int], out: Array) -> tuple[Array, Array]:
        """Do the same as `_aligned` by the array API standard. The run starts at ``begin`` in the block."""
        xp, axis, (count, n) = namespace(block), self.n_spatial - 1, out.shape[:2]
        lengths = [*shape[:axis], count * shape[axis], *shape[axis + 1 :]]
        box = block[(slice(None), *(slice(b, b + length) for b, length in zip(begin, lengths, strict=True)))]
        # From (n, ..., n_cells, values of a row) the axis of the cells moves to the front.
        rows = xp.reshape(box, (n, *shape[:axis], count, math.prod(shape[axis:])))
        order = (axis + 1, *range(axis + 1), axis + 2)
        return xp.reshape(out, (count, n, *shape[:axis], math.prod(shape[axis:]))), xp.permute_dims(rows, order)


def _samples_at_a_time(stacks: Iterable[Array]) -> int:
    """Return the number of samples that are copied at a time, for cells (count, n_samples, n_features)."""
    row: int = sum(len(stack) * stack.shape[2] * stack.itemsize for stack in stacks)
    return max(1, _GATHER_BYTES // max(1, row))
