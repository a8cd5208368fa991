"""Floating-point values as integers: steps with a dead zone, errors that keep a promise, types that hold them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.types import Array

#: What is added before values are cut to integers. Less than a half leaves a dead zone around zero, and puts what
# integers stand for near the mean of the values that they were made of, as these become rarer away from zero. Of .25 to
# .5, this gives the fewest bytes at equal error on photographs.
ROUNDING = 0.4
# Share of a promised error that arithmetic may take: another order of summation decodes to other last bits.
_MARGIN = 1 / 64


def quantize(values: Array, step: float, rounding: float = ROUNDING) -> Array:
    """Return the integers that stand for values, in the type of the values: by default 0 below .6 steps.

    Parameters
    ----------
    values : array of float
        Overwritten.
    step : float
        Positive; ``step * integer`` is what an integer stands for.
    rounding : float
        What is added to absolute values before they are cut to integers.
    """
    values /= values.dtype.type(step)
    values += np.copysign(values.dtype.type(rounding), values)
    return np.trunc(values, out=values)


def integer_dtype(largest: float) -> np.dtype[Any]:
    """Return the type for integers of at most this size: 16 bits, or 32 where these do not hold them.

    Raises
    ------
    OverflowError
        If 32 bits do not hold them either.
    """
    for dtype in (np.dtype(np.int16), np.dtype(np.int32)):
        if largest <= np.iinfo(dtype).max:
            return dtype
    raise OverflowError(f"integers up to {largest:.4g} do not fit in 32 bits")


def to_integers(values: Array, dtype: DTypeLike) -> Array:
    """Return integral floating-point values in an integer type.

    Raises
    ------
    OverflowError
        If the type does not hold one of them.
    """
    dtype = np.dtype(dtype)
    largest = max(float(values.max()), -float(values.min())) if values.size else 0.0
    if not largest <= np.iinfo(dtype).max:
        raise OverflowError(f"integers up to {largest:.4g} do not fit in {dtype}")
    return values.astype(dtype)


def promised_error(max_error: float, dtype: DTypeLike, largest: float) -> float:
    """Return the error that decoded floating-point values may have, so that what they are stored as keeps a promise.

    Parameters
    ----------
    max_error : float
        Most by which a value of a decoded sample may differ from the original.
    dtype : numpy dtype
        Type of the samples. Integers are rounded: they differ by whole numbers, and less than 1 is none.
    largest : float
        Largest absolute value of a sample.

    Raises
    ------
    ValueError
        If the type is too coarse for the promise.
    """
    dtype = np.dtype(dtype)
    if dtype.kind != "f":
        if not max_error >= 0.5:
            raise ValueError(f"a largest error of {max_error:g} cannot be kept: give 0.5 for no error at all, or more")
        # Arithmetic in float64 does not tell large integers from their neighbors.
        distance = float(np.spacing(float(largest)))
        whole = math.floor(max_error) + 0.5
        left = whole - max(_MARGIN, 2 * distance)
    else:
        # Rounding to the type of the samples takes half of the distance of its numbers.
        distance = float(np.spacing(np.array(largest, dtype)))
        whole = max_error
        left = whole * (1 - _MARGIN) - distance
    if not left > whole / 2:
        raise ValueError(
            f"a largest error of {max_error:g} cannot be kept in {dtype} for values up to {largest:g}: give at least "
            f"{4 * distance:.2g}"
        )
    return left
