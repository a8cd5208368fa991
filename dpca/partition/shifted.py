"""Shifted grids: the cells of several grids, each shifted by half a cell along some of the axes.

::

    sample (10,), cell (4,)                 the edges of a grid are as equal as possible
    |    0    |    1    |                   grid 0, not shifted
    |  2 |    3    | 4  |                   grid 1, shifted by half a cell; its border cells are cut

With k axes there are 2^k such grids. From three axes on, those that are shifted along an even number of axes are used:
the centers of their cells fill space evenly, as those of the face-centered cubic lattice do, and half of the grids have
nearly the same effect. Every attribute belongs to one cell of each grid.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpca.kernels.algebra.namespace import is_numpy, namespace
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.partition.base import Partition

# Axes from which on half of the shifts are used.
_EVEN_FROM = 3
# Samples that are copied at a time.
_SAMPLES = 32


@dataclass(frozen=True)
class ShiftedGrids(Partition):
    """Cells of several grids over the leading (spatial) axes of a sample; further axes (channels) are never split.

    Parts are numbered grid by grid. `join` averages the values of all cells that have an attribute.

    Parameters
    ----------
    sample_shape : tuple of int
        Shape of one sample, spatial axes first.
    cell_shape : tuple of int
        Approximate cell length along each spatial axis. An axis is divided as equally as possible, so that no cell is
        much smaller than the others. A longer cell than the axis is cut to it.
    shifted : bool
        Whether there are shifted grids. Otherwise there is one grid.

    Raises
    ------
    ValueError
        If a cell is empty, or has more axes than a sample.
    """

    sample_shape: tuple[int, ...]
    cell_shape: tuple[int, ...]
    shifted: bool = True

    remedy = "choose smaller cells"

    def __post_init__(self) -> None:
        if not 1 <= len(self.cell_shape) <= len(self.sample_shape) or min(self.cell_shape) < 1:
            raise ValueError(
                f"cell_shape {self.cell_shape} does not fit samples of shape {self.sample_shape}: give one length of "
                "at least 1 for each spatial axis"
            )

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """The number of cells of all grids."""
        return (len(self.boxes),)

    def grid_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Name the axis of the cells."""
        return ("cell",)

    @cached_property
    def boxes(self) -> list[Region]:
        """The box of each cell."""
        cuts = [self._cuts(*lengths) for lengths in zip(self.sample_shape, self.cell_shape, strict=False)]
        channels = tuple((0, s) for s in self.sample_shape[len(self.cell_shape) :])
        divided = sum(len(of_axis) > 1 for of_axis in cuts)
        shifts = (
            grid
            for grid in itertools.product(*(range(len(of_axis)) for of_axis in cuts))
            if divided < _EVEN_FROM or sum(grid) % 2 == 0
        )
        grids = ([of_axis[s] for of_axis, s in zip(cuts, grid, strict=True)] for grid in shifts)
        return [(*box, *channels) for grid in grids for box in itertools.product(*grid)]

    def _cuts(self, size: int, cell: int) -> list[list[tuple[int, int]]]:
        """Return the intervals of an axis in each grid."""
        n = max(1, round(size / cell))
        edges = [[round(i * size / n) for i in range(n + 1)]]
        if self.shifted and n > 1:
            edges.append([0, *(round((i + 0.5) * size / n) for i in range(n)), size])
        return [[(a, b) for a, b in itertools.pairwise(of_grid) if a < b] for of_grid in edges]

    @cached_property
    def max_features(self) -> int:
        """Number of attributes of the largest cell."""
        return max(map(self.n_features, range(self.n_parts)))

    def n_features(self, index: int) -> int:
        """Return the number of attributes of a cell."""
        return math.prod(stop - start for start, stop in self.boxes[index])

    def region(self, index: int) -> Region:
        """Return the box of a cell."""
        return self.boxes[index]

    def overlapping(self, box: Region) -> list[int]:
        """Return the cells with attributes in a box."""
        low, high = np.array(box).T
        return np.flatnonzero(((self._starts < high) & (self._stops > low)).all(axis=1)).tolist()

    def reach(self, box: Region) -> Region:
        """Return the box of all cells with attributes in a box."""
        boxes = np.array([self.boxes[part] for part in self.overlapping(box)])
        return tuple(zip(boxes[..., 0].min(axis=0).tolist(), boxes[..., 1].max(axis=0).tolist(), strict=True))

    @cached_property
    def _starts(self) -> Array:
        return np.array([[start for start, _ in box] for box in self.boxes])

    @cached_property
    def _stops(self) -> Array:
        return np.array([[stop for _, stop in box] for box in self.boxes])

    def tiles(self, chunk_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Group the cells of all grids by the chunk in which their middle lies, see `Partition.tiles`."""
        found: dict[tuple[int, ...], list[int]] = defaultdict(list)
        middles = (self._starts + self._stops - 1) // 2 // np.array(chunk_shape)
        for index, place in enumerate(map(tuple, middles.tolist())):
            found[place].append(index)
        yield from (tuple(found[place]) for place in sorted(found))

    def split(self, block: Array, parts: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Copy cells out of a block of samples, see `Partition.split`."""
        xp, n, end, views, copies = namespace(buffer), block.shape[0], 0, [], []
        for part in parts:
            box = tuple(slice(a - o, b - o) for (a, b), o in zip(self.boxes[part], origin, strict=True))
            values = block[(slice(None), *box)]
            start, end = end, end + n * self.n_features(part)
            target = xp.reshape(buffer[start:end], values.shape)
            copies.append((target, values))
            views.append(xp.reshape(target, (n, self.n_features(part))))
        # All cells of a few samples at a time: cell after cell would fetch the block from memory for each of them.
        for few in blocks(n, _SAMPLES if is_numpy(block) else max(1, n)):
            for target, values in copies:
                target[few] = values[few]
        return views

    def join(self, parts: Iterable[tuple[int, Array]], samples: Array) -> Array:
        """Average the values of all cells that have an attribute, see `Partition.join`."""
        total = np.zeros(samples.shape)
        count = np.zeros(self.sample_shape)
        for first, values in parts:
            for index, cell in enumerate(values, first):
                box = tuple(slice(a, b) for a, b in self.boxes[index])
                here = total[: len(cell)][(slice(None), *box)]
                here += cell.reshape(here.shape)
                count[box] += 1
        samples[...] = total / count
        return samples
