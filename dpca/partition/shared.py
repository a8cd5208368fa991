"""All cells of a grid, or blocks of them, as parts, for components that cells of one shape share.

::

    sample (10, 12), cell (4, 5)          one row per sample, cells of one shape side by side
    +-----+-----+--+
    |  0  |  1  | 2|   4 rows             |  0  |  1  |  3  |  4  | 2| 5|  6  |  7  | 8|
    +-----+-----+--+                      +-----------------------+-----+-----------+--+
    |  3  |  4  | 5|   4 rows                 4 places of 4 x 5    2 of     2 of     1 of
    +-----+-----+--+                                               4 x 2    2 x 5    2 x 2
    |  6  |  7  | 8|   2 rows
    +-----+-----+--+
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array, Region
from dpca.partition.base import Partition
from dpca.partition.cells import CellGrid


@dataclass(frozen=True)
class SharedGrid(Partition):
    """All cells of a grid as one part, or blocks of them as parts, for components that cells of one shape share.

    The attributes of a part are ordered by the shape of their cell, then by cell. A single part for all shapes reads
    every sample only once.

    Parameters
    ----------
    grid : CellGrid
    block : tuple of int, optional
        Number of cells of a part along each spatial axis. By default, a part has all cells.
    """

    grid: CellGrid
    block: tuple[int, ...] | None = None

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.grid.sample_shape

    @cached_property
    def _blocks(self) -> CellGrid:
        """The boxes of the cells of each part."""
        sizes = zip(self.block or self.grid.grid_shape, self.grid.cell_shape, self.sample_shape, strict=False)
        return CellGrid(self.sample_shape, tuple(min(n * cell, length) for n, cell, length in sizes))

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of blocks along each spatial axis."""
        return self._blocks.grid_shape

    def grid_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Name the axes of the grid, given the names of a sample's axes."""
        return self._blocks.grid_axes(axes)

    def n_features(self, index: int) -> int:
        """Return the number of attributes of a part."""
        return self._blocks.n_features(index)

    def region(self, index: int) -> Region:
        """Return the box of a sample that must be read for a part."""
        _, cells = zip(*self.members(index), strict=True)
        corners = [self.grid.region(i) for i in (cells[0][0], cells[-1][-1])]
        return tuple((low, high) for (low, _), (_, high) in zip(*corners, strict=True))

    def tiles(self, chunk_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield groups of parts, see `Partition.tiles`."""
        return self._blocks.tiles(chunk_shape)

    @property
    def cells(self) -> list[list[int]]:
        """Numbers of the cells of each distinct shape, whole cells first."""
        return [cells for _, cells in _by_shape(self.grid, np.arange(self.grid.n_parts))]

    def members(self, part: int) -> list[tuple[int, list[int]]]:
        """Return the cells of a part by shape: the position of the shape in `cells`, and the numbers of the cells."""
        box = zip(self._blocks.box(part), self.grid.cell_shape, strict=False)
        inside = np.ix_(*(range(start // cell, math.ceil(stop / cell)) for (start, stop), cell in box))
        return _by_shape(self.grid, np.ravel_multi_index(inside, self.grid.grid_shape).ravel())

    def groups_in(self, part: int) -> tuple[tuple[int, int], ...]:
        """Return the number of cells of each shape in a part, and the number of attributes of one of them."""
        return tuple((len(cells), self.grid.n_features(cells[0])) for _, cells in self.members(part))

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """Number of cells of each shape in a sample, and number of attributes of one of them."""
        return SharedGrid(self.grid).groups_in(0)

    def split_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Return the dtype of the values of `split` for samples of a dtype."""
        return self.grid.split_dtype(dtype)

    def split_bytes(self, region: Region, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of `split`."""
        return self.grid.split_bytes(region, dtype)

    def split(self, block: Array, parts: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Copy parts out of a block of samples, see `Partition.split`."""
        views, targets, end = [], list[tuple[list[int], Array]](), 0
        for part in parts:
            start, end = end, end + len(block) * self.n_features(part)
            views.append(buffer[start:end].reshape(len(block), self.n_features(part)))
            targets.extend(self._runs(part, views[-1]))
        self.grid.gather(block, origin, targets)
        return views

    def join(self, parts: Iterable[tuple[int, Array]], samples: Array) -> Array:
        """Copy parts into samples, see `Partition.join`."""
        each = (pair for first, values in parts for pair in enumerate(values, first))
        runs = itertools.chain.from_iterable(itertools.starmap(self._runs, each))
        return self.grid.join(((run[0], values) for run, values in runs), samples)

    def _runs(self, part: int, rows: Array) -> Iterator[tuple[list[int], Array]]:
        """Yield runs of cells of a part, and their views (n_cells, n_samples, n_features) of rows."""
        end = 0
        for _, cells in self.members(part):
            d = self.grid.n_features(cells[0])
            for run in self.grid.runs(cells):
                start, end = end, end + len(run) * d
                yield run, rows[:, start:end].reshape(len(rows), len(run), d).swapaxes(0, 1)


def _by_shape(grid: CellGrid, cells: Array) -> list[tuple[int, list[int]]]:
    """Return cells by shape: the number of each shape, whole cells first, and the numbers of its cells."""
    shape = np.zeros(len(cells), np.int64)
    lengths = zip(grid.sample_shape, grid.cell_shape, grid.grid_shape, strict=False)
    for place, (length, cell, n) in zip(np.unravel_index(cells, grid.grid_shape), lengths, strict=True):
        if length % cell:  # the last cells along this axis are smaller
            shape = 2 * shape + (place == n - 1)
    return [(int(s), cells[shape == s].tolist()) for s in np.unique(shape)]


def groups_of(grid: CellGrid, *, shared: bool) -> tuple[list[list[int]], Array]:
    """Return the cells of each group with the same components, and the group (n_cells,) of each cell."""
    plain = CellGrid(grid.sample_shape, grid.cell_shape)
    cells = SharedGrid(plain).cells if shared else [[i] for i in range(plain.n_parts)]
    group = np.empty(plain.n_parts, np.int64)
    for g, members in enumerate(cells):
        group[members] = g
    return cells, group
