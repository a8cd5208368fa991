"""Cells: blocks of neighboring pixels or voxels (T 4.3).

::

    sample (10, 12), cell (4, 5)          grid (3, 3)
    +-----+-----+--+
    |  0  |  1  | 2|   4 rows             every cell keeps all channels of its pixels;
    +-----+-----+--+                      edge cells have the true remaining size:
    |  3  |  4  | 5|   4 rows             cell 2 is 4 x 2, cell 8 is 2 x 2
    +-----+-----+--+
    |  6  |  7  | 8|   2 rows
    +-----+-----+--+
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpca.kernels.namespace import is_numpy, namespace

Array = NDArray[Any]
Region = tuple[tuple[int, int], ...]  #: (start, stop) along each axis of a sample

# Samples of which all cells are gathered before the next ones: they stay in a core's own cache.
_GATHER_BYTES = 2**16


@dataclass(frozen=True)
class CellGrid:
    """A grid of cells over the leading (spatial) axes of a sample; further axes (channels) are never split.

    Parameters
    ----------
    sample_shape : tuple of int
        Shape of one sample, spatial axes first.
    cell_shape : tuple of int
        Cell length along each spatial axis; its length says how many axes are spatial.

    Raises
    ------
    ValueError
        If a cell is empty, larger than the sample, or has more axes than it.
    """

    sample_shape: tuple[int, ...]
    cell_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        spatial = self.sample_shape[: len(self.cell_shape)]
        if not 1 <= len(self.cell_shape) <= len(self.sample_shape):
            raise ValueError(
                f"cell shape {self.cell_shape} has {len(self.cell_shape)} axes but a sample of shape "
                f"{self.sample_shape} has {len(self.sample_shape)}: give one cell length for each spatial axis"
            )
        if min(self.cell_shape) < 1:
            raise ValueError(f"cell shape {self.cell_shape} is empty: every length must be at least 1")
        if any(c > s for c, s in zip(self.cell_shape, spatial, strict=True)):
            raise ValueError(
                f"cell shape {self.cell_shape} is larger than the sample, {spatial}: choose cells of at most {spatial}"
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

    @property
    def n_partitions(self) -> int:
        """Number of cells."""
        return math.prod(self.grid_shape)

    @property
    def max_features(self) -> int:
        """Attributes of a whole cell, the largest there is."""
        return math.prod(self.cell_shape) * math.prod(self.channel_shape)

    def box(self, index: int) -> Region:
        """Return where cell ``index`` (row-major) lies in a sample."""
        return self._boxes[index]

    def region(self, index: int) -> Region:
        """Return the box of a sample that must be read for cell ``index``: its own."""
        return self.box(index)

    @cached_property
    def _boxes(self) -> list[Region]:
        # Looked up once a cell and batch: computing them there would cost as much as a small cell's arithmetic.
        return self._products(
            [
                [(start, min(start + c, s)) for start in range(0, s, c)]
                for c, s in zip(self.cell_shape, self.sample_shape, strict=False)
            ]
        )

    def _products(self, cuts: Sequence[Sequence[tuple[int, int]]]) -> list[Region]:
        """Boxes of all cells from their intervals along each spatial axis."""
        channels = tuple((0, s) for s in self.channel_shape)
        return [(*spatial, *channels) for spatial in itertools.product(*cuts)]

    def n_features(self, index: int) -> int:
        """Return the number of attributes of cell ``index``."""
        return math.prod(stop - start for start, stop in self.box(index))

    def split_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Return the type of the values that `split` gives for samples of a type: the same."""
        return np.dtype(dtype)

    def split_bytes(self, region: Region, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of `split`: it has none."""
        return 0

    def tiles(self, chunk_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Group the cells so that each chunk is touched by as few groups as possible.

        A group ends where a cell border meets a chunk border; where they never meet, the group spans the axis.

        Parameters
        ----------
        chunk_shape : tuple of int
            Chunk length along every axis of a sample.
        """
        runs = []
        for size, cell, chunk in zip(self.sample_shape, self.cell_shape, chunk_shape, strict=False):
            step = math.lcm(cell, chunk) // cell
            n = math.ceil(size / cell)
            runs.append([range(start, min(start + step, n)) for start in range(0, n, step)])
        for tile in itertools.product(*runs):
            places = itertools.product(*tile)
            yield tuple(int(np.ravel_multi_index(place, self.grid_shape)) for place in places)

    def take(self, block: Array, index: int, origin: tuple[int, ...], out: Array) -> Array:
        """Copy cell ``index`` out of a block of samples.

        Parameters
        ----------
        block : array (n_samples, ...), C-ordered
            Samples, or the part of them that begins at ``origin``.
        index : int
            Which cell.
        origin : tuple of int
            Where the block begins along each axis of a sample.
        out : array (n_samples, n_features) of the block's dtype, C-ordered

        Returns
        -------
        array
            ``out``.
        """
        self.split(block, (index,), origin, namespace(out).reshape(out, (-1,)))
        return out

    def split(self, block: Array, cells: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Copy several cells out of a block of samples that begins at ``origin``.

        All cells of a few samples are copied before those of the next: one cell after the other, each would fetch the
        block from memory again, which takes twice as long. Arrays of other libraries, on an accelerator, are copied a
        run of cells at a time instead.

        Parameters
        ----------
        block : array (n_samples, ...), C-ordered
        cells : sequence of int
        origin : tuple of int
        buffer : array (at least n_samples times the attributes of all these cells,) of the block's dtype

        Returns
        -------
        list of array (n_samples, n_features)
            Views of ``buffer``, C-ordered, one for each cell.
        """
        xp, n, end = namespace(buffer), block.shape[0], 0
        views: list[Array] = []
        targets: list[tuple[Sequence[int], Array]] = []
        for run in self.runs(cells):
            start, end = end, end + n * len(run) * self.n_features(run[0])
            out = xp.reshape(buffer[start:end], (len(run), n, self.n_features(run[0])))
            views.extend(out[i, ...] for i in range(len(run)))
            targets.append((run, out))
        self.gather(block, origin, targets)
        return views

    def gather(self, block: Array, origin: tuple[int, ...], targets: Sequence[tuple[Sequence[int], Array]]) -> None:
        """Copy runs of cells out of a block of samples, a few samples at a time.

        Parameters
        ----------
        block : array (n_samples, ...), C-ordered
        origin : tuple of int
            Where the block begins along each axis of a sample.
        targets : sequence of (cells, array (n_cells, n_samples, n_features) of type `split_dtype`)
            Runs, as `runs` yields them, and where each goes; only the last axis must be contiguous.
        """
        n = block.shape[0]
        copies = [self._aligned(block, run[0], origin, out) for run, out in targets]
        step = self._step(block) if is_numpy(block) else max(1, n)
        for begin in range(0, n, step):
            few = slice(begin, min(begin + step, n))
            for target, rows in copies:
                target[:, few, ...] = rows[:, few, ...]

    def _step(self, block: Array) -> int:
        """Return how many samples of a block are gathered before the next ones."""
        return max(1, _GATHER_BYTES // max(1, math.prod(block.shape[1:]) * block.itemsize))

    def runs(self, cells: Sequence[int]) -> Iterator[list[int]]:
        """Yield runs of cells of equal size that lie side by side along the last spatial axis."""
        run: list[int] = []
        for cell in cells:
            if run and not self._adjoins(run[-1], cell):
                yield run
                run = []
            run.append(cell)
        if run:
            yield run

    def _adjoins(self, left: int, right: int) -> bool:
        axis, a, b = self.n_spatial - 1, self.box(left), self.box(right)
        same = a[:axis] == b[:axis] and a[axis][1] - a[axis][0] == b[axis][1] - b[axis][0]
        return same and a[axis][1] == b[axis][0]

    def _aligned(self, block: Array, first: int, origin: tuple[int, ...], out: Array) -> tuple[Array, Array]:
        """View ``out`` (n_cells, n_samples, n_features) and the run of cells that goes there in shapes that agree."""
        region = self.box(first)
        begin = [start - o for (start, _), o in zip(region, origin, strict=True)]
        shape = [stop - start for start, stop in region]
        axis = self.n_spatial - 1
        if not is_numpy(block):
            return self._permuted(block, begin, shape, out)
        # The last spatial axis and the channels lie together in memory: copied as one item a row, two to four times
        # faster than element by element.
        item = np.dtype((np.void, math.prod(shape[axis:]) * block.itemsize))
        offset = sum(b * s for b, s in zip(begin, block.strides[1:], strict=True))
        strides = (shape[axis] * block.strides[axis + 1], block.strides[0], *block.strides[1 : axis + 1])
        rows = np.ndarray((len(out), len(block), *shape[:axis]), item, block, offset, strides)
        return out.view(item).reshape(*out.shape[:2], *shape[:axis]), rows

    def _permuted(self, block: Array, begin: list[int], shape: list[int], out: Array) -> tuple[Array, Array]:
        """Do as `_aligned` with nothing but the array API standard; the run begins at ``begin`` of the block."""
        xp, axis, (count, n) = namespace(block), self.n_spatial - 1, out.shape[:2]
        lengths = [*shape[:axis], count * shape[axis], *shape[axis + 1 :]]
        box = block[(slice(None), *(slice(b, b + length) for b, length in zip(begin, lengths, strict=True)))]
        # (n, ..., cells side by side, what a cell has of a row): the axis of the cells comes first.
        rows = xp.reshape(box, (n, *shape[:axis], count, math.prod(shape[axis:])))
        order = (axis + 1, *range(axis + 1), axis + 2)
        return xp.reshape(out, (count, n, *shape[:axis], math.prod(shape[axis:]))), xp.permute_dims(rows, order)

    def put(self, values: Array, index: int, origin: tuple[int, ...], block: Array) -> None:
        """Copy the values (n_samples, n_features) of cell ``index`` into a block that begins at ``origin``."""
        region = self.box(index)
        where = tuple(slice(start - o, stop - o) for (start, stop), o in zip(region, origin, strict=True))
        shape = (values.shape[0], *(stop - start for start, stop in region))
        block[(slice(None), *where)] = namespace(values).reshape(values, shape)

    def to_samples(self, block: Array) -> Array:
        """Return the samples that all cells, put into a block of whole samples, stand for: the block."""
        return block
