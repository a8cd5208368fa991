"""Processes the cells of a box slab by slab. The values of all samples lie side by side.

::

    samples (n, 6, 10), cells of 4 x 4 pixels        a slab in memory: cell after cell, value after value
    +------+------+---+
    |  0   |  1   | 2 |   slab 0                     cell 0                cell 1 ...
    +------+------+---+                              | pixel 0 | pixel 1 | ...
    |  3   |  4   | 5 |   slab 1                     | 1 2 ..n | 1 2 ..n |
    +------+------+---+

Codes have the same layout, position after position. Matrix products therefore need no copies, and loops over values
process n samples at once for any shape of cells. A slab is complete after the filter of its borders with the previous
and the next slab. Two slabs are therefore held at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.kernels.pixels import Pixels
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.partition.prefilter import rotation

# Bytes of the slabs that are held: they nearly fit the cache of one core. The number of samples in them is a multiple
# of _UNIT if possible, because matrix products are fast then.
_HELD_BYTES, _UNIT = 9 * 2**19, 16


class Part(NamedTuple):
    """The part of a cell that a box requires.

    Attributes
    ----------
    cell : int
    inside : region of the cell, or None for all of it
    begin, end : int
        Range of its values in the buffer of a sample.
    """

    cell: int
    inside: Region | None
    begin: int
    end: int


class Slab(NamedTuple):
    """The parts at one position along the first axis.

    Attributes
    ----------
    parts : list of Part
    zones : list of (half width, array (n_zones, 6) of integers)
        Zones to filter, in this order, after these parts are present; see `dpca.kernels.sweeps.filter_zones`.
    runs : array (n_runs, 1 + 2 * n_spatial) of integers
        Positions of the parts in the box; see `dpca.kernels.sweeps.gather_runs`.
    """

    parts: list[Part]
    zones: list[tuple[int, Array]]
    runs: Array


@dataclass(frozen=True, eq=False)
class Slabs:
    """The cells that a box of a sample requires. For lapped cells these include all zones that reach into the box.

    Parameters
    ----------
    slabs : list of Slab
    size : int
        Values per sample in the buffer: those of two slabs.
    strides : array (n_spatial - 1,) of integers
        Distances of neighbors in the box along each spatial axis except the last.
    """

    slabs: list[Slab]
    size: int
    strides: Array

    @property
    def parts(self) -> list[Part]:
        """All parts in ascending order of cells."""
        return [part for slab in self.slabs for part in slab.parts]

    def held_bytes(self, dtype: DTypeLike) -> int:
        """Return the largest number of bytes of the slabs that are held."""
        return max(_HELD_BYTES, self.size * np.dtype(dtype).itemsize)

    def split(self, samples: Array, mean: Array) -> Iterator[tuple[slice, Part, Array]]:
        """Yield the range of samples, the part, and its values (n_features, n), centered and filtered.

        The next item overwrites the values.

        Parameters
        ----------
        samples : array (n, *lengths of the box)
        mean : array (*lengths of the box), float32 or float64, the dtype of the values
            Subtracted before the filter.
        """
        from dpca.kernels.sweeps import gather_runs

        dtype, mean = mean.dtype, np.ascontiguousarray(mean).reshape(-1)
        for few in self._sample_ranges(len(samples), dtype):
            # The loop is compiled for uint8 and for the dtype of the values.
            rows = np.ascontiguousarray(samples[few], np.uint8 if samples.dtype == np.uint8 else dtype)
            rows = rows.reshape(len(rows), -1)
            values = self._held(len(rows), dtype)
            for before, slab in itertools.pairwise([None, *self.slabs, None]):
                if slab is not None:
                    gather_runs(rows, slab.runs, self.strides, mean, values)
                    _turn(slab, values, inverse=False)
                for part in () if before is None else before.parts:
                    yield few, part, values[part.begin : part.end]

    def join(
        self, fill: Callable[[slice, Part, Array], object], mean: Array, out: Array, pixels: Pixels | None = None
    ) -> None:
        """Join the parts of samples, the inverse of `split`.

        Parameters
        ----------
        fill : callable (range of samples, part, array (n_features, n))
            Writes the values of a part into the array.
        mean : array (*lengths of the box), float32 or float64, the dtype of the values
            Added after the filter.
        out : array (n, *lengths of the box), C-ordered
            Output, in the dtype of the pixels if given, else of the mean.
        pixels : Pixels, optional
            Values are rounded to these integers of at most 16 bits.
        """
        from dpca.kernels.sweeps import scatter_runs

        dtype, mean = mean.dtype, np.ascontiguousarray(mean).reshape(-1)
        low, high = (dtype.type(0), dtype.type(0)) if pixels is None else map(dtype.type, pixels.limits)
        for few in self._sample_ranges(len(out), dtype):
            rows = out[few].reshape(len(out[few]), -1)
            values = self._held(len(rows), dtype)
            for before, slab in itertools.pairwise([None, *self.slabs, None]):
                for part in () if slab is None else slab.parts:
                    fill(few, part, values[part.begin : part.end])
                if slab is not None:
                    _turn(slab, values, inverse=True)
                if before is not None:
                    scatter_runs(values, before.runs, self.strides, mean, pixels is not None, low, high, rows)

    def _sample_ranges(self, n: int, dtype: np.dtype[Any]) -> Iterator[slice]:
        """Yield the ranges of samples that are processed together."""
        most = max(1, self.held_bytes(dtype) // (self.size * dtype.itemsize))
        return blocks(n, most // _UNIT * _UNIT or most)

    def _held(self, n: int, dtype: np.dtype[Any]) -> Array:
        return linalg.scratch("slabs", (self.size, n), dtype)


def _turn(slab: Slab, values: Array, *, inverse: bool) -> None:
    from dpca.kernels.sweeps import filter_zones

    for half, zones in slab.zones:
        filter_zones(values.reshape(-1), values.shape[1], zones, _turning(half, values.dtype, inverse))


@lru_cache(maxsize=64)
def _turning(half: int, dtype: np.dtype[Any], inverse: bool) -> Array:
    """Return (V - I) / 2, or its transpose, for the odd parts of zones; see `dpca.partition.prefilter`."""
    turn = rotation(half)
    return np.ascontiguousarray(((turn.T if inverse else turn) - np.eye(half)) / 2, dtype)


def unfiltered(grid: CellGrid, samples: Array) -> Array:
    """Apply the inverse filter to samples (n, *sample_shape), float64.

    Uses the arithmetic of `Slabs.join`, which is bit-identical on all processors.
    """

    def fill(few: slice, part: Part, values: Array) -> None:
        box = (slice(*ends) for ends in grid.box(part.cell))
        values[...] = samples[(few, *box)].reshape(values.shape[::-1]).T

    found = np.empty_like(samples)
    slabs_of(grid, whole_of(grid.sample_shape)).join(fill, np.zeros(grid.sample_shape), found)
    return found


def whole_of(sample_shape: Sequence[int]) -> Region:
    """Return the box of a whole sample."""
    return tuple((0, length) for length in sample_shape)


class _Axis(NamedTuple):
    """The cells that an interval requires along an axis, the range of each, and half the width of the zone before."""

    cells: range
    needed: list[tuple[int, int]]
    halves: list[int]


def _along(grid: CellGrid, axis: int, start: int, stop: int) -> _Axis:
    cell, size = grid.cell_shape[axis], grid.sample_shape[axis]
    widths = grid.prefilter.half_widths(axis) if isinstance(grid, LappedGrid) else [0] * (grid.grid_shape[axis] - 1)
    low, high = start, stop
    for border, half in zip(range(cell, size, cell), widths, strict=True):
        if half and border - half < stop and start < border + half:
            low, high = min(low, border - half), max(high, border + half)
    cells = range(low // cell, (high - 1) // cell + 1)
    needed = [(max(low, i * cell), min(high, (i + 1) * cell)) for i in cells]
    return _Axis(cells, needed, [0, *(widths[i] for i in cells[:-1])])


@lru_cache(maxsize=16)
def slabs_of(grid: CellGrid, box: Region) -> Slabs:
    """Return the slabs of a nonempty box of a sample."""
    n, lengths = grid.n_spatial, [stop - start for start, stop in box]
    axes = [_along(grid, axis, *box[axis]) for axis in range(n)]
    strides = np.array([math.prod(lengths[axis + 1 :]) for axis in range(n - 1)], np.int64)
    width, channels = math.prod(lengths[n:]), box[n:]
    height, *rest = ([stop - start for start, stop in axis.needed] for axis in axes)
    held = width * max(height) * math.prod(map(sum, rest))
    slabs: list[Slab] = []
    lying: dict[tuple[int, ...], tuple[int, list[int], list[int]]] = {}
    for number in range(len(height)):
        zones: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        parts, runs, end = [], [], number % 2 * held
        for place in itertools.product([number], *(range(len(axis.cells)) for axis in axes[1:])):
            region = (*(axis.needed[i] for axis, i in zip(axes, place, strict=True)), *channels)
            shape = [b - a for a, b in region]
            steps = [math.prod(shape[axis + 1 :]) for axis in range(n)]
            begin, end = end, end + math.prod(shape)
            lying[place] = begin, shape, steps
            for axis, i in enumerate(place):
                if half := axes[axis].halves[i]:
                    other, before, step = lying[(*place[:axis], i - 1, *place[axis + 1 :])]
                    low = other + (before[axis] - half) * step[axis]
                    outer = math.prod(shape[:axis])
                    zone = (low, begin, outer, before[axis] * step[axis], shape[axis] * steps[axis], steps[axis])
                    zones.setdefault((axis, half), []).append(zone)
            cell = int(np.ravel_multi_index([a.cells[i] for a, i in zip(axes, place, strict=True)], grid.grid_shape))
            whole = grid.box(cell)
            inside = tuple((a - o, b - o) for (a, b), (o, _) in zip(region, whole, strict=True))
            parts.append(Part(cell, None if region == whole else inside, begin, end))
            # The part of the region inside the box.
            both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(region[:n], box, strict=False)]
            if all(a < b for a, b in both):
                at = begin + sum((a - o) * step for (a, _), (o, _), step in zip(both, region, steps, strict=False))
                to = sum((a - o) * step for (a, _), (o, _), step in zip(both, box, (*strides, width), strict=False))
                *rows, run = (b - a for a, b in both)
                runs.append((at, to, run * width, *rows, *steps[:-1]))
        # Filter the first axis last, because the previous slab is already filtered along the other axes.
        ordered = [(half, np.array(found)) for (_, half), found in sorted(zones.items(), reverse=True)]
        slabs.append(Slab(parts, ordered, np.array(runs, np.int64).reshape(len(runs), 1 + 2 * n)))
    return Slabs(slabs, held * min(2, len(slabs)), strides)
