"""Products of bytes with columns of 16-bit integers, and what turns them into products of samples minus a point.

Import this module only in functions that need it; see `dpca.kernels.compiled`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpca.kernels.algebra.linalg import scratch
from dpca.kernels.algebra.types import Array
from dpca.kernels.compiled import compiled
from dpca.kernels.integer_products import (
    COLUMNS,
    ROWS,
    TOP_BITS,
    UNSIGNED,
    add_narrow,
    pack,
    packed_rows,
    tile_products,
)

#: Largest magnitude of `WideColumns`, whose low byte is signed.
MOST_WIDE = 32639
# Rows that are transposed together: their part of a column is a line of the cache.
_TURNED = 32


@compiled
def add_rows(values: Array, total: Array) -> None:
    """Add the rows of bytes (n, d) to ``total`` (d,), int32."""
    for i in range(len(values)):
        for j in range(len(total)):
            total[j] += values[i, j]


@compiled
def add_levels(basis: Array, scales: Array, steps: Array, point: Array, wide: Array, along: Array) -> float:
    """Write rows (q, n) times ``scales``, rounded to integers, into the columns of ``wide`` (n, q or more).

    Adds the products of these levels with ``point`` to ``along`` (q,). Returns the squared distance of the rows from
    the levels times ``steps``.
    """
    (q, n), distance = basis.shape, 0.0
    # Rows that are a power of two apart would compete for the same lines of the cache when they are transposed.
    levels = np.empty((_TURNED, n + _TURNED), np.int16)
    for first in range(0, q, _TURNED):
        last = min(first + _TURNED, q)
        for r in range(first, last):
            row, level, product = basis[r], levels[r - first], 0.0
            for c in range(n):
                level[c] = np.int16(np.rint(row[c] * scales[r]))
            for c in range(n):
                away = row[c] - level[c] * steps[r]
                distance += away * away
                product += level[c] * point[c]
            along[r] += product
        for c in range(n):
            column = wide[c, first:last]
            for r in range(last - first):
                column[r] = levels[r, c]
    return distance


@compiled
def add_mixed(packed: Array, planes: int, first: int, words: int, start: Array, tile: Array, out: Array) -> None:
    """Add products of n columns of one or two bytes with columns of bytes to ``out`` (n, columns of bytes), float64.

    In ``packed``, panels of all ``planes`` bytes of the n columns, as in `add_wide`, precede the panels of bytes, which
    begin at ``first``.
    """
    n = planes * len(out)
    for j in range(0, out.shape[1], COLUMNS):
        for i in range(0, n, ROWS):
            row = i // COLUMNS * words * COLUMNS + i % COLUMNS
            tile_products(packed, row, packed, first + j * words, words, start[i:], tile)
            for r in range(0, min(ROWS, n - i), planes):
                sums, low, high = out[(i + r) // planes, j : j + COLUMNS], tile[r], tile[r + planes - 1]
                if planes == 2:
                    for c in range(len(sums)):
                        sums[c] += 256.0 * high[c] + low[c]
                else:
                    for c in range(len(sums)):
                        sums[c] += low[c]


@compiled
def center(gram: Array, along: Array, square: float) -> float:
    """Complete the lower triangle of x x^T to (x - p) (x - p)^T, for ``along`` = x p and ``square`` = p p.

    Returns the trace.
    """
    trace = 0.0
    for i in range(len(gram)):
        for j in range(i + 1):
            value = gram[i, j] - along[i] - along[j] + square
            gram[i, j] = gram[j, i] = value
        trace += gram[i, i]
    return trace


@compiled
def combine(sums: Array, gains: Array, offsets: Array, point: Array, sizes: Array, basis: Array, out: Array) -> None:
    """Write gains * sums - offsets * point + sizes * basis into ``out`` (m, d), rounded once."""
    for r in range(len(out)):
        gain, offset, size = gains[r], offsets[r], sizes[r]
        row, sum_, old = out[r], sums[r], basis[r]
        for c in range(len(row)):
            row[c] = gain * sum_[c] - offset * point[c] + size * old[c]


class WideColumns:
    """Columns of 8-bit or 16-bit integers, packed to be multiplied by columns of bytes: sums over up to 4,096 rows.

    Parameters
    ----------
    values : array (n, m), int8 or int16
        Of 16 bits at most `MOST_WIDE` in magnitude.
    n_bytes : int
        Most columns of bytes of one product.
    """

    def __init__(self, values: Array, n_bytes: int) -> None:
        (n, m), self._planes = values.shape, values.itemsize
        self._words, panels = -(-n // 4), -(-self._planes * m // COLUMNS)
        self._first = panels * self._words * COLUMNS
        size = self._first + -(-n_bytes // COLUMNS) * self._words * COLUMNS
        self._packed = scratch("wide columns", (size,), np.uint32)
        sums, self._start = np.empty(self._planes * m, np.int32), np.zeros(panels * COLUMNS, np.int32)
        flips = np.zeros(2, np.uint32)
        if self._planes == 2:
            # The value is 256 times its high byte plus its low byte, and both are signed.
            values, flips[0] = np.add(values, np.int16(128), order="C"), TOP_BITS
        pack(values.view(np.uint8), flips, self._packed[: self._first].reshape(panels, -1, COLUMNS), sums)
        if UNSIGNED:
            self._start[: len(sums)] = -128 * sums
        self.tile_products = np.empty((ROWS, COLUMNS), np.int32)

    def add_combined(self, block: Array, out: Array) -> None:
        """Add the products of the columns with those of x to ``out`` (m, c); x is ``block`` (n, c) minus its center."""
        flips = np.full(2, TOP_BITS if block.dtype.kind == "u" else 0, np.uint32)
        pack(block.view(np.uint8), flips, self._room(block.shape[1]), np.empty(0, np.int32))
        add_mixed(self._packed, self._planes, self._first, self._words, self._start, self.tile_products, out)

    def add_projected(self, block: Array, out: Array, grams: Sequence[Array]) -> None:
        """Add the products of the columns with the rows of x to ``out`` (m, r); x is ``block`` (r, n) minus its center.

        Adds the products of the rows among themselves to the lower triangles of ``grams``. Each has the next rows, as
        many as a multiple of `integers.GROUP`, except for the last one.
        """
        packed, first = self._room(len(block)), 0
        start = packed_rows(block, packed)
        add_mixed(self._packed, self._planes, self._first, self._words, self._start, self.tile_products, out)
        for gram in grams:
            part = packed[first // COLUMNS : -(-(first + len(gram)) // COLUMNS)]
            add_narrow(part, 0, start[first:], self.tile_products, gram)
            first += len(gram)

    def _room(self, n: int) -> Array:
        panels = -(-n // COLUMNS)
        return self._packed[self._first :][: panels * self._words * COLUMNS].reshape(panels, self._words, COLUMNS)
