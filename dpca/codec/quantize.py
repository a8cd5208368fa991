"""Quantization: steps with a dead zone, error bounds, and integer types."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array

#: Added to magnitudes before they are truncated. Values below 0.5 leave a dead zone around zero. They also move decoded
#: values closer to the mean of their interval, because large values are rarer. On photographs, 0.4 needs the fewest
#: bytes at equal error among 0.25 to 0.5.
ROUNDING = 0.4
# Share of an error bound that is reserved for rounding: another order of summation decodes to other last bits.
_MARGIN = 1 / 64


def quantize(values: Array, step: float, rounding: float = ROUNDING) -> Array:
    """Quantize values to integers in the dtype of the values. By default values below 0.6 steps become 0.

    Parameters
    ----------
    values : array of float
        Overwritten.
    step : float
        Positive. An integer decodes to ``step * integer``.
    rounding : float
        Added to absolute values before they are truncated.
    """
    values /= values.dtype.type(step)
    values += np.copysign(values.dtype.type(rounding), values)
    return np.trunc(values, out=values)


def integer_dtype(largest: float) -> np.dtype[Any]:
    """Return the smallest of int16 and int32 that holds integers up to ``largest``.

    Raises
    ------
    OverflowError
        If they do not fit into 32 bits.
    """
    for dtype in (np.dtype(np.int16), np.dtype(np.int32)):
        if largest <= np.iinfo(dtype).max:
            return dtype
    raise OverflowError(f"codes up to {largest:.4g} do not fit into 32 bits")


def to_integers(values: Array, dtype: DTypeLike) -> Array:
    """Convert integral floating-point values to an integer dtype.

    Raises
    ------
    OverflowError
        If a value does not fit into the dtype.
    """
    dtype = np.dtype(dtype)
    largest = max(float(values.max()), -float(values.min())) if values.size else 0.0
    if not largest <= np.iinfo(dtype).max:
        raise OverflowError(f"codes up to {largest:.4g} do not fit into {dtype}")
    return values.astype(dtype)


def error_within_bound(max_error: float, dtype: DTypeLike, largest: float) -> float:
    """Return the error that floating-point values may have so that stored samples satisfy an error bound.

    Parameters
    ----------
    max_error : float
        The error bound: the largest difference of a decoded value from the original.
    dtype : numpy dtype
        Type of the samples. Errors of integers are whole numbers, so that bounds below 1 are lossless.
    largest : float
        Largest absolute value of a sample.

    Raises
    ------
    ValueError
        If the type is too coarse for the error bound.
    """
    dtype = np.dtype(dtype)
    if dtype.kind != "f":
        if not max_error >= 0.5:
            raise ValueError(f"the error bound is {max_error:g}: for integers give 0.5, which is lossless, or more")
        # float64 does not distinguish large integers from their neighbors.
        distance = float(np.spacing(float(largest)))
        whole = math.floor(max_error) + 0.5
        left = whole - max(_MARGIN, 2 * distance)
    else:
        # Rounding to the dtype of the samples adds up to half of the spacing of its numbers.
        distance = float(np.spacing(np.array(largest, dtype)))
        whole = max_error
        left = whole * (1 - _MARGIN) - distance
    if not left > whole / 2:
        raise ValueError(
            f"the error bound is {max_error:g}, too small for {dtype} values up to {largest:g}: give at least "
            f"{4 * distance:.2g}"
        )
    return left
