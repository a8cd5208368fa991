"""Reconstructed values as pixels that a stack can hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.types import Array


def to_pixels(values: Array, dtype: DTypeLike, data_range: tuple[float, float]) -> Array:
    """Round and clip reconstructed values to what the stack can hold; floating-point stacks take them as they are.

    Works in place on ``values`` where it can.
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        if dtype.itemsize < values.dtype.itemsize:
            most = np.finfo(dtype).max  # what was at the end of a narrow type may come back a little beyond it
            np.clip(values, -most, most, out=values)
        return values.astype(dtype, copy=False)
    info_min, info_max = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    low, high = max(data_range[0], info_min), min(data_range[1], info_max)
    if int(values.dtype.type(high)) > info_max:
        high = np.nextafter(values.dtype.type(high), values.dtype.type(0))  # the float type has no such number
    np.rint(values, out=values)
    return np.clip(values, low, high, out=values).astype(dtype)
