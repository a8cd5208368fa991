"""Lapped cells: cells of filtered samples. Their principal components overlap."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.namespace import is_numpy
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.partition.cells import CellGrid
from dpca.partition.prefilter import Prefilter, few_samples


@dataclass(frozen=True)
class LappedGrid(CellGrid):
    """The cells of P x, for samples x and the orthogonal prefilter P of these cells.

    `split` returns values of P x in float32 (float64 for float64 and wide integers). `join` joins P x and maps it back
    to x. The cells and their numbers are those of the plain grid. P is orthogonal, so that P x and x have the same
    errors, variances and distances.

    Parameters
    ----------
    sample_shape, cell_shape
        See `CellGrid`.
    overlap : int
        Pixels on each side of a border that the prefilter maps, at least 2. Short cells have fewer.

    Raises
    ------
    ValueError
        See `CellGrid`. Also if the overlap is less than 2, or more than half of the longest side of a cell.
    """

    overlap: int

    def __post_init__(self) -> None:
        super().__post_init__()
        most = max(self.cell_shape) // 2
        if not 2 <= self.overlap <= most:
            allowed = f"between 2 and {most}" if most > 1 else "only with cells of at least 4 pixels"
            raise ValueError(
                f"overlap is {self.overlap} for cells of {self.cell_shape}: give 0, or a number {allowed}, half of the "
                f"longest side (the filter of a single pixel on each side is the identity)"
            )

    @property
    def identity(self) -> list[Any]:
        """The shape of a cell, and the overlap."""
        return [list(self.cell_shape), self.overlap]

    @property
    def reach(self) -> int:
        """Pixels beyond its border that a cell depends on."""
        return self.overlap

    @cached_property
    def plain(self) -> CellGrid:
        """The same cells without a filter, for samples that are already filtered."""
        return CellGrid(self.sample_shape, self.cell_shape)

    @cached_property
    def prefilter(self) -> Prefilter:
        """The prefilter P and its inverse."""
        return Prefilter(self.plain, self.overlap)

    def region(self, index: int) -> Region:
        """Return the box of a sample that must be read for cell ``index``, including the zones at its borders."""
        return self._regions[index]

    @cached_property
    def _regions(self) -> list[Region]:
        cuts = []
        for axis, (cell, size) in enumerate(zip(self.cell_shape, self.sample_shape, strict=False)):
            halves = [0, *self.prefilter.half_widths(axis), 0]
            starts = range(0, size, cell)
            cuts.append(
                [(start - halves[i], min(start + cell, size) + halves[i + 1]) for i, start in enumerate(starts)]
            )
        return self._products(cuts)

    def split_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Return the dtype of the values of `split` for samples of a dtype."""
        return working_dtype(dtype)

    def split_bytes(self, region: Region, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of `split`: a few filtered samples, and the workspace of the filter."""
        shape, dtype = tuple(stop - start for start, stop in region), self.split_dtype(dtype)
        staged = few_samples(shape, dtype) * math.prod(shape) * dtype.itemsize
        return staged + self.prefilter.work_bytes(shape, dtype)

    def tiles(self, chunk_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Group the cells, see `Partition.tiles`.

        Cells on both sides of a zone require the same chunks. All cells along a filtered axis are therefore one group.
        """
        whole = [
            self.sample_shape[axis] if any(self.prefilter.half_widths(axis)) else chunk_shape[axis]
            for axis in range(self.n_spatial)
        ]
        return super().tiles((*whole, *chunk_shape[self.n_spatial :]))

    def gather(self, block: Array, origin: tuple[int, ...], targets: Sequence[tuple[Sequence[int], Array]]) -> None:
        """Copy runs of cells out of a filtered copy of a few samples at a time, see `CellGrid.gather`.

        Raises TypeError if the samples are not a numpy array.
        """
        if not is_numpy(block):
            raise TypeError(
                f"the samples are of type {type(block).__name__}, but lapped cells require numpy arrays: copy them to "
                "the memory of this machine first, or use cells without overlap"
            )
        # If the first axis is not filtered, only the requested rows of cells need the filter.
        low, high = zip(*(self.region(i)[0] for run, _ in targets for i in run), strict=True)
        block, origin = block[:, min(low) - origin[0] : max(high) - origin[0]], (min(low), *origin[1:])
        dtype = self.split_dtype(block.dtype)
        n, step = len(block), few_samples(block.shape[1:], dtype)
        staged = linalg.scratch("staged", (max(1, min(step, n)), *block.shape[1:]), dtype)
        copies = [self._aligned(staged, run[0], origin, out) for run, out in targets]
        for few in blocks(n, step):
            here = staged[: few.stop - few.start]
            np.copyto(here, block[few])
            self.prefilter.apply(here, origin)
            for target, rows in copies:
                np.copyto(target[:, few], rows[:, : len(here)])

    def join(self, parts: Iterable[tuple[int, Array]], samples: Array) -> Array:
        """Join the cells to P x and return the samples x, see `Partition.join`."""
        return self.prefilter.apply(super().join(parts, samples), (0,) * len(self.sample_shape), inverse=True)
