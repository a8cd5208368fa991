"""Exact inner products of samples of bytes with fixed rows, such as landmarks, on any processor."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from dpca.kernels.algebra import integers, linalg
from dpca.kernels.algebra.types import Array, blocks

# Attributes of one product in float32: sums of 1,024 products of at most 2^14 are exact.
_FLOAT_ATTRIBUTES = 1024
# Attributes that are packed together: the panels of a group of rows stay in the second cache.
_PACKED_ATTRIBUTES = 4096


class BytePoints:
    """Fixed rows z of bytes (m, d), to be multiplied by samples of the same dtype.

    Attributes
    ----------
    sums, squares : array (m,), float64
        As in `moments`.
    """

    def __init__(self, rows: Array) -> None:
        self._rows = rows
        self.sums, self.squares = moments(rows)

    def multiply(self, x: Array, sums: Array, left: Array | float, right: Array | float, out: Array) -> None:
        """Write x z^T + left + right into ``out`` (n, m), float64, for samples (n, d), and numbers (n,) and (m,).

        The result is exact while it is below 2^52 in magnitude. ``sums`` (n,) are those of the samples. Costs n m d
        products of bytes.
        """
        center = integers.center_of_range(x.dtype)
        np.add.outer(center * sums + (left - center**2 * x.shape[1]), center * self.sums + right, out=out)
        if integers.kernel(len(out) * self._rows.size):
            from dpca.kernels.cross_products import add_cross_products

            for columns, packed in zip(blocks(x.shape[1], _PACKED_ATTRIBUTES), self._packed, strict=True):
                add_cross_products(x[:, columns], packed, out)
            return
        for columns in blocks(x.shape[1], _FLOAT_ATTRIBUTES):
            first, second = _floats("samples", x[:, columns]), _floats("rows", self._rows[:, columns])
            out += np.matmul(first, second.T, out=linalg.scratch("products of floats", out.shape, np.float32))

    @cached_property
    def _packed(self) -> list[Array]:
        """The rows as the kernel multiplies them, for each block of attributes."""
        from dpca.kernels.cross_products import packed_copy

        return [packed_copy(self._rows[:, columns]) for columns in blocks(self._rows.shape[1], _PACKED_ATTRIBUTES)]


def moments(x: Array) -> tuple[Array, Array]:
    """Return the sums of rows of bytes (n, d), and their squared lengths (n,), exact in float64."""
    center, sums, squares = integers.center_of_range(x.dtype), np.zeros(len(x)), np.zeros(len(x))
    if integers.compiled_pays(x.size):
        from dpca.kernels.cross_products import row_moments

        row_moments(x, center, sums, squares)
    else:
        for columns in blocks(x.shape[1], _FLOAT_ATTRIBUTES):
            part = _floats("samples", x[:, columns])
            sums += part.sum(axis=1)
            squares += np.einsum("ij,ij->i", part, part)
    squares += 2 * center * sums + center**2 * x.shape[1]
    sums += center * x.shape[1]
    return sums, squares


def _floats(name: str, x: Array) -> Array:
    """Return bytes minus the center of their range in float32."""
    out = linalg.scratch(f"{name} as floats", x.shape, np.float32)
    return np.subtract(x, np.float32(integers.center_of_range(x.dtype)), out=out)
