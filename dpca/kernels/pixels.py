"""Converts reconstructed values to the dtype and data range of a stack."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array, blocks

# Values that stay in the cache from one step to the next.
_BLOCK = 2**16


class Pixels(NamedTuple):
    """The dtype of a stack, and its smallest and largest possible value."""

    dtype: np.dtype[Any]
    data_range: tuple[float, float]

    @property
    def are_small(self) -> bool:
        """Whether they are integers of at most 16 bits. Every floating-point type holds their limits exactly."""
        return self.dtype.kind in "iu" and self.dtype.itemsize <= 2

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest value that may be stored: the data range, cut to the range of an integer dtype."""
        if self.dtype.kind == "f":
            return self.data_range
        low, high = (0, 1) if self.dtype.kind == "b" else (np.iinfo(self.dtype).min, np.iinfo(self.dtype).max)
        return max(self.data_range[0], low), min(self.data_range[1], high)


def to_pixels(values: Array, dtype: DTypeLike, data_range: tuple[float, float]) -> Array:
    """Round and clip reconstructed values to the dtype and data range of a stack.

    Floating-point stacks store values without rounding. ``values`` may be overwritten.
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        if dtype.itemsize < values.dtype.itemsize:
            most = np.finfo(dtype).max  # errors may exceed the range of a narrow type
            np.clip(values, -most, most, out=values)
        return values.astype(dtype, copy=False)
    low, high = Pixels(dtype, data_range).limits
    if dtype.kind != "b" and int(values.dtype.type(high)) > np.iinfo(dtype).max:
        high = np.nextafter(values.dtype.type(high), values.dtype.type(0))  # high rounds up in the float type
    pixels = np.empty(values.shape, dtype)
    flat, out = values.reshape(-1), pixels.reshape(-1)
    for here in blocks(flat.size, _BLOCK):
        np.rint(flat[here], out=flat[here])
        np.clip(flat[here], low, high, out=flat[here])
        out[here] = flat[here]
    return pixels
