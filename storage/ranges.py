"""The range of values that a sample can hold: finite, and never empty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpca.storage.errors import DataError


def checked_range(data_range: Sequence[Any] | Any) -> tuple[float, float]:
    """Return a stated range as two numbers.

    Raises
    ------
    DataError
        If it is not two finite numbers, the lower first, or if their difference is not finite.
    """
    try:
        low, high = (float(value) for value in data_range)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"data_range is {data_range!r}: give two finite numbers, the lower first") from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise DataError(f"data_range is ({low:g}, {high:g}): give two finite numbers, the lower first")
    return _with_width(low, high)


def found_range(low: float, high: float) -> tuple[float, float]:
    """Return the range of the values found; a constant gets the range to 0, and the constant 0 gets 0 to 1.

    Errors are measured in units of the width, which must not be 0.

    Raises
    ------
    DataError
        If the width is not finite.
    """
    if low == high:
        low, high = (min(low, 0.0), max(high, 0.0)) if low else (0.0, 1.0)
    return _with_width(low, high)


def type_range(dtype: np.dtype[Any]) -> tuple[float, float] | None:
    """Return the range of a type that is used whole: truth values and unsigned 8-bit integers; None for others.

    Cameras give 10, 12 or 14 bits in integers of 16, so the range of other types is that of the values.
    """
    if dtype.kind == "b":
        return 0.0, 1.0
    return (0.0, 255.0) if dtype == np.uint8 else None


def range_words(bounds: Sequence[float]) -> str:
    """Say which range a PSNR or an SSIM refers to."""
    return "range " + " to ".join(f"{bound:,.0f}" if float(bound).is_integer() else f"{bound:.5g}" for bound in bounds)


def _with_width(low: float, high: float) -> tuple[float, float]:
    if not math.isfinite(high - low):
        raise DataError(
            f"values reach from {low:g} to {high:g}, whose difference is not a finite number: divide them by a constant"
        )
    return low, high
