"""All cells of a grid as one part, for components that cells of one shape share.

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
    """All cells of a grid as one part. Its attributes are ordered by the shape of their cell, then by cell.

    A single part for all shapes reads every sample only once.

    Parameters
    ----------
    grid : CellGrid
    """

    grid: CellGrid

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.grid.sample_shape

    @cached_property
    def cells(self) -> list[list[int]]:
        """Numbers of the cells of each distinct shape, whole cells first."""
        found: dict[tuple[int, ...], list[int]] = {}
        for i in range(self.grid.n_parts):
            found.setdefault(tuple(stop - start for start, stop in self.grid.box(i)), []).append(i)
        return list(found.values())

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """Number of cells of each shape, and number of attributes of one of them."""
        return tuple((len(cells), self.grid.n_features(cells[0])) for cells in self.cells)

    def split_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Return the dtype of the values of `split` for samples of a dtype."""
        return self.grid.split_dtype(dtype)

    def split_bytes(self, region: Region, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of `split`."""
        return self.grid.split_bytes(region, dtype)

    def split(self, block: Array, parts: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Copy samples (n, *sample_shape) to rows (n, n_features), the same array for each of ``parts``."""
        rows = buffer[: block.size].reshape(len(block), self.n_features(0))
        self.grid.gather(block, origin, list(self._runs(rows)))
        return [rows] * len(parts)

    def join(self, parts: Iterable[tuple[int, Array]], samples: Array) -> Array:
        """Copy rows (1, n, n_features) into samples."""
        runs = itertools.chain.from_iterable(self._runs(rows) for _, (rows,) in parts)
        return self.grid.join(((run[0], values) for run, values in runs), samples)

    def _runs(self, rows: Array) -> Iterator[tuple[list[int], Array]]:
        """Yield runs of cells, and their views (n_cells, n_samples, n_features) of rows."""
        end = 0
        for cells, (_, d) in zip(self.cells, self.groups, strict=True):
            for run in self.grid.runs(cells):
                start, end = end, end + len(run) * d
                yield run, rows[:, start:end].reshape(len(rows), len(run), d).swapaxes(0, 1)


def groups_of(grid: CellGrid, *, shared: bool) -> tuple[list[list[int]], Array]:
    """Return the cells of each group with the same components, and the group (n_cells,) of each cell."""
    plain = CellGrid(grid.sample_shape, grid.cell_shape)
    cells = SharedGrid(plain).cells if shared else [[i] for i in range(plain.n_parts)]
    group = np.empty(plain.n_parts, np.int64)
    for g, members in enumerate(cells):
        group[members] = g
    return cells, group
