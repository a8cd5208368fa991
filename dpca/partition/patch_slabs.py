"""Slabs of a sample for the patches that begin in them, so that no task needs a whole sample.

::

    patches of 3 rows, stride 1, 4 rows of patches in a slab
    row 0 1 2 3 4 5 6 7 8 9
        |---- 0 ----|            patches that begin in rows 0 to 3
                |---- 1 ---|     patches that begin in rows 4 to 7; two rows belong to both slabs
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.patches import PatchGrid
from dpca.partition.base import Partition


@dataclass(frozen=True)
class PatchSlabs(Partition):
    """Slabs along the first axis. Every patch lies in one of them; neighbors overlap.

    Parameters
    ----------
    grid : PatchGrid
        The patches of a sample.
    rows : int
        Rows of patches in a slab; the last one may have fewer.
    """

    grid: PatchGrid
    rows: int

    remedy = "fit a model to parts of the samples"

    @classmethod
    def of(cls, grid: PatchGrid, chunk: int) -> Iterator[PatchSlabs]:
        """Yield ways to cut samples with chunks of this length along the first axis, the largest slabs first."""
        most, step = grid.grid_shape[0], max(1, chunk // grid.stride[0])
        rows = most
        while rows > 1:
            rows = math.ceil(rows / 2)
            # Neighbors share a few rows in any case. Whole chunks leave no further ones.
            yield cls(grid, min(most, math.ceil(rows / step) * step) if rows > step else rows)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.grid.sample_shape

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """The number of slabs."""
        return (math.ceil(self.grid.grid_shape[0] / self.rows),)

    def grid_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Name the axis of the slabs."""
        return ("slab",)

    def n_features(self, index: int) -> int:
        """Return the number of attributes of a slab."""
        return math.prod(stop - start for start, stop in self.region(index))

    def region(self, index: int) -> Region:
        """Return the box of a slab."""
        first, last = index * self.rows, min((index + 1) * self.rows, self.grid.grid_shape[0]) - 1
        step, others = self.grid.stride[0], self.sample_shape[1:]
        return ((first * step, last * step + self.grid.patch_shape[0]), *((0, length) for length in others))

    def tiles(self, chunk_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield each slab: neighbors share few chunks."""
        yield from ((part,) for part in range(self.n_parts))

    def split(self, block: Array, parts: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Copy slabs out of a block of samples, see `Partition.split`."""
        end, views = 0, []
        for part in parts:
            box = tuple(slice(a - o, b - o) for (a, b), o in zip(self.region(part), origin, strict=True))
            start, end = end, end + len(block) * self.n_features(part)
            views.append(buffer[start:end].reshape(len(block), self.n_features(part)))
            values = block[(slice(None), *box)]
            np.copyto(views[-1].reshape(values.shape), values)
        return views

    def join(self, parts: Iterable[tuple[int, Array]], samples: Array) -> Array:
        """Copy slabs into samples, see `Partition.join`. Where two overlap, the values are those of the later one."""
        for first, values in parts:
            for index, slab in enumerate(values, first):
                box = tuple(slice(*ends) for ends in self.region(index))
                here = samples[: len(slab)][(slice(None), *box)]
                np.copyto(here, slab.reshape(here.shape))
        return samples
