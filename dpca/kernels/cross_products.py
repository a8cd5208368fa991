"""Exact products of rows of bytes with other rows, by the dot-product instructions of a processor.

Import this module only in functions that need it; see `dpca.kernels.compiled`.
"""

from __future__ import annotations

import numpy as np

from dpca.kernels.algebra.integers import GROUP
from dpca.kernels.algebra.linalg import scratch
from dpca.kernels.algebra.types import Array, blocks
from dpca.kernels.compiled import compiled
from dpca.kernels.integer_products import COLUMNS, MOST_ROWS, ROWS, packed_rows, tile_products


def add_cross_products(block: Array, right: Array, out: Array) -> None:
    """Add the products of rows of bytes (n, c), minus their center, with rows of `packed_copy` to ``out`` (n, m)."""
    tile = np.empty((ROWS, COLUMNS), np.int32)
    for rows in blocks(len(block), GROUP):
        some = block[rows]
        packed = scratch("packed", (-(-len(some) // COLUMNS), *right.shape[1:]), np.uint32)
        start = packed_rows(some, packed)
        _add_packed(packed, right, start, tile, out[rows])


def packed_copy(block: Array) -> Array:
    """Return rows of bytes (n, c), c <= `MOST_ROWS`, minus their center, as `add_cross_products` multiplies them."""
    packed = np.empty((-(-len(block) // COLUMNS), -(-block.shape[1] // 4), COLUMNS), np.uint32)
    packed_rows(block, packed)
    return packed


@compiled
def _add_packed(left: Array, right: Array, start: Array, tile: Array, out: Array) -> None:
    """Add the products of packed rows of bytes with other packed rows to ``out`` (n, m), float64."""
    (n, m), words = out.shape, left.shape[1]
    for j in range(0, m, COLUMNS):
        for i in range(0, n, ROWS):
            first = i // COLUMNS * words * COLUMNS + i % COLUMNS
            tile_products(left, first, right, j * words, words, start[i:], tile)
            for r in range(min(ROWS, n - i)):
                row, sums = out[i + r, j : j + COLUMNS], tile[r]
                for c in range(len(row)):
                    row[c] += sums[c]


@compiled
def row_moments(values: Array, center: int, sums: Array, squares: Array) -> None:
    """Write the sums of the rows of bytes (n, d) minus ``center``, and their sums of squares, into arrays (n,)."""
    for i in range(len(values)):
        sums[i] = squares[i] = 0
        for first in range(0, values.shape[1], MOST_ROWS):
            row, one, square = values[i, first : first + MOST_ROWS], np.int32(0), np.int32(0)
            for j in range(len(row)):
                value = np.int32(row[j]) - np.int32(center)
                one, square = np.int32(one + value), np.int32(square + value * value)
            sums[i] += one
            squares[i] += square
