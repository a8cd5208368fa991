"""The prefilter of a lapped transform: an orthogonal map of the pixels around each border between two cells.

::

    one axis, cells of 6 pixels, overlap 2:    . . . . a a|b b . . a a|b b . . . .
    each zone is mapped on its own                     zone       zone

A transform of the cells of the filtered sample is a lapped transform of the sample (Tran, Liang & Tu 2003, "Lapped
transform via time-domain pre- and post-filtering"). Its basis functions extend across the borders and decay there.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike
from scipy.fft import dct

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array, blocks
from dpca.partition.cells import CellGrid

# Bytes of samples that are filtered along all axes at a time: they stay in the cache of one core.
_AT_ONCE = 2**18
# Zones with fewer values in a half are gathered as the rows of one matrix product, because separate products take at
# least a microsecond per zone. With channels, most entries of the factors of this product are zeros.
_SMALL_ZONE = 48


@dataclass(frozen=True)
class _Zones:
    """Equal zones along an axis: ``half`` pixels on each side of ``count`` borders, ``period`` apart from ``first``."""

    first: int
    period: int
    count: int
    half: int


@dataclass(frozen=True)
class Prefilter:
    """The orthogonal map P and its inverse, in place on samples or boxes of samples.

    P is separable. Along each spatial axis it maps the 2h pixels around each border, h on each side, by ::

        1/2 [I  J] [I  0] [I  J]        J reverses the order,
            [J -I] [0  V] [J -I]        V = J C2^T C4 J, from the orthonormal DCT-II and DCT-IV of h values,

    With P, the DCT of cells of 2h pixels is the fast lapped orthogonal transform (Malvar & Staelin 1989). The even part
    of a zone, such as a constant, does not change at all. V rotates the odd part, such as a slope.

    h is ``overlap``, or half of the shorter cell at a border if that is less. Every pixel lies in at most one zone of
    an axis. With h = 1 the filter is the identity, like every orthogonal filter of this symmetry.

    Parameters
    ----------
    grid : CellGrid
    overlap : int
        Pixels on each side of a border.
    """

    grid: CellGrid
    overlap: int

    def half_widths(self, axis: int) -> list[int]:
        """Return h at each border along an axis; 0 if the filter is the identity."""
        size, cell = self.grid.sample_shape[axis], self.grid.cell_shape[axis]
        lengths = [min(cell, size - start) for start in range(0, size, cell)]
        halves = [min(self.overlap, left // 2, right // 2) for left, right in itertools.pairwise(lengths)]
        return [half if half > 1 else 0 for half in halves]

    def apply(self, block: Array, origin: tuple[int, ...], *, inverse: bool = False) -> Array:
        """Filter all complete zones of a block of samples in place.

        Parameters
        ----------
        block : array (n_samples, ...), float32 or float64, C-ordered
        origin : tuple of int
            Start of the block along each axis of a sample.
        inverse : bool
            Apply the inverse of P, its transpose.

        Returns
        -------
        array
            ``block``. Costs 2 h multiplications for each value of a zone and axis; if zones are small, times the number
            of channels.
        """
        if not block.flags.c_contiguous:
            raise ValueError(
                f"the block has strides {block.strides}: give a C-ordered array, because the filter works in place"
            )
        step = few_samples(block.shape[1:], block.dtype)
        # Sums of very large numbers may be infinite. Callers check the results.
        with np.errstate(over="ignore", invalid="ignore"):
            for few in blocks(len(block), step):
                for axis, zones in self._zones:
                    _map_zones(block[few], axis, origin[axis], zones, inverse)
        return block

    def work_bytes(self, shape: tuple[int, ...], dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of `apply`, for blocks of samples of a shape."""
        # The gathered zones, half as much for their odd parts, and the values that are added to the zones.
        return 5 * few_samples(shape, dtype) * math.prod(shape) * np.dtype(dtype).itemsize // 2

    @cached_property
    def _zones(self) -> list[tuple[int, _Zones]]:
        """Runs of equal zones along each axis: the zones between whole cells, and the zone of a shorter last cell."""
        found = []
        for axis, cell in enumerate(self.grid.cell_shape):
            halves = self.half_widths(axis)
            whole = len(halves) if halves[:1] == halves[-1:] else len(halves) - 1
            for start, stop in ((0, whole), (whole, len(halves))):
                if start < stop and halves[start]:
                    found.append((axis, _Zones((start + 1) * cell, cell, stop - start, halves[start])))
        return found


def few_samples(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Return the number of samples of a shape that are filtered at a time."""
    return max(1, _AT_ONCE // max(1, math.prod(shape) * np.dtype(dtype).itemsize))


@lru_cache(maxsize=64)
def rotation(half: int) -> Array:
    """Return the orthogonal V (half, half), float64. For half = 1 it is 1."""
    identity = np.eye(half)
    c2, c4 = (dct(identity, kind, norm="ortho", axis=0) for kind in (2, 4))
    # A fixed order of summation, because decoding must be bit-identical on all processors.
    turned: Array = sum(map(np.multiply.outer, c2, c4))
    return turned[::-1, ::-1]


@lru_cache(maxsize=64)
def _factors(half: int, width: int, dtype: np.dtype[Any], inverse: bool) -> tuple[Array, Array]:
    """Return D^T and L^T with P = I + L D, for pixels of ``width`` contiguous values.

    D = [J -I] is the difference of the halves of a zone. An offset of all pixels cancels exactly in it.
    L = 1/2 [J; -I] (V - I) maps the difference to the change of the zone. For W = [I J; J -I], W W = 2 I, hence
    W diag(I, V) W / 2 = I + L D.
    """
    turn, identity = rotation(half), np.eye(half)
    difference = np.hstack([identity[::-1], -identity])
    lift = difference.T @ ((turn.T if inverse else turn) - identity) / 2
    each = np.eye(width)
    return np.kron(difference.T, each).astype(dtype), np.kron(lift.T, each).astype(dtype)


def _map_zones(block: Array, axis: int, origin: int, zones: _Zones, inverse: bool) -> None:
    """Map the zones along one axis that lie completely in a block."""
    half, period, length = zones.half, zones.period, block.shape[axis + 1]
    begin = max(0, -((zones.first - half - origin) // period))
    end = min(zones.count, (origin + length - half - zones.first) // period + 1)
    if begin >= end:
        return
    width = math.prod(block.shape[axis + 2 :])
    lines = block.reshape(-1, length, width)
    first = zones.first + begin * period - half - origin
    before, pixel, value = lines.strides
    shape, strides = (len(lines), end - begin), (before, period * pixel)
    if half * width < _SMALL_ZONE:
        rows = as_strided(lines[:, first:], (*shape, 2 * half * width), (*strides, value))
        _map_rows(rows, *_factors(half, width, block.dtype, inverse))
    else:
        columns = as_strided(lines[:, first:], (*shape, 2 * half, width), (*strides, pixel, value))
        _map_columns(columns, *_factors(half, 1, block.dtype, inverse))


def _map_rows(zones: Array, difference: Array, lift: Array) -> None:
    """Map zones (n_lines, n_zones, values of a zone) in place."""
    size = zones.shape[-1]
    gathered = linalg.scratch("zones", zones.shape, zones.dtype)
    item = np.dtype((np.void, size * zones.itemsize))
    np.copyto(gathered.view(item), zones.view(item))
    flat = gathered.reshape(-1, size)
    odd = np.matmul(flat, difference, out=linalg.scratch("odd", (len(flat), size // 2), zones.dtype))
    flat += np.matmul(odd, lift, out=linalg.scratch("lifted", flat.shape, zones.dtype))
    np.copyto(zones.view(item), gathered.view(item))


def _map_columns(zones: Array, difference: Array, lift: Array) -> None:
    """Map zones (n_lines, n_zones, pixels of a zone, values of a pixel) in place."""
    *shape, size, width = zones.shape
    odd = np.matmul(difference.T, zones, out=linalg.scratch("odd", (*shape, size // 2, width), zones.dtype))
    zones += np.matmul(lift.T, odd, out=linalg.scratch("lifted", zones.shape, zones.dtype))
