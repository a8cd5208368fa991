"""Cells of one shape together, for what they share.

::

    sample (10, 12), cell (4, 5)          one row a sample, cells of one shape side by side
    +-----+-----+--+
    |  0  |  1  | 2|   4 rows             |  0  |  1  |  3  |  4  | 2| 5|  6  |  7  | 8|
    +-----+-----+--+                      +-----------------------+-----+-----------+--+
    |  3  |  4  | 5|   4 rows                 4 places of 4 x 5    2 of     2 of     1 of
    +-----+-----+--+                                               4 x 2    2 x 5    2 x 2
    |  6  |  7  | 8|   2 rows
    +-----+-----+--+
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpca.partition.cells import CellGrid

Array = NDArray[Any]
Region = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class SharedGrid:
    """All cells of a grid as one partition, whose attributes are ordered by the shape of their cell, then by cell.

    One partition, and not one for each shape: whatever shares something needs all places, and a sample is then read
    once.

    Parameters
    ----------
    grid : CellGrid
    """

    grid: CellGrid

    @cached_property
    def cells(self) -> list[list[int]]:
        """Numbers of the cells of each distinct shape: whole cells first."""
        found: dict[tuple[int, ...], list[int]] = {}
        for i in range(self.grid.n_partitions):
            found.setdefault(tuple(stop - start for start, stop in self.grid.box(i)), []).append(i)
        return list(found.values())

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """How many cells there are of each shape, and how many attributes one of them has."""
        return tuple((len(cells), self.grid.n_features(cells[0])) for cells in self.cells)

    @property
    def n_partitions(self) -> int:
        """Return 1."""
        return 1

    def n_features(self, index: int) -> int:
        """Return the number of attributes of a sample."""
        return math.prod(self.grid.sample_shape)

    def region(self, index: int) -> Region:
        """Return the whole sample."""
        return tuple((0, length) for length in self.grid.sample_shape)

    def split_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Return the type of the values that `split` gives for samples of a type."""
        return self.grid.split_dtype(dtype)

    def split_bytes(self, region: Region, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of `split`."""
        return self.grid.split_bytes(region, dtype)

    def tiles(self, chunk_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield the one group there is."""
        yield (0,)

    def split(self, block: Array, parts: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Copy samples (n, *sample_shape), C-ordered, as rows (n, n_features) into a buffer of type `split_dtype`."""
        rows, end = buffer[: block.size].reshape(len(block), self.n_features(0)), 0
        targets: list[tuple[Sequence[int], Array]] = []
        for cells, (_, d) in zip(self.cells, self.groups, strict=True):
            for run in self.grid.runs(cells):
                start, end = end, end + len(run) * d
                targets.append((run, rows[:, start:end].reshape(len(block), len(run), d).swapaxes(0, 1)))
        self.grid.gather(block, origin, targets)
        return [rows] * len(parts)
