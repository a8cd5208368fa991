"""Data ranges, the span of the possible values of a sample: finite, with a width above 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpca.storage.errors import DataError

# Shares of the data range that values should span, in words, from the smallest; and the share that may lie outside.
_SHARES, _OUTSIDE = {0.001: "a thousandth", 0.01: "a hundredth", 0.1: "a tenth"}, 0.1


def checked_range(data_range: Sequence[Any] | Any) -> tuple[float, float]:
    """Return a given range as two floats.

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
    """Return the range of the values found. A constant is extended to 0, and the constant 0 has the range 0 to 1.

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
    """Return the range of booleans and of unsigned 8-bit integers; None for other types.

    Other types rarely use their full range: cameras store 10, 12 or 14 bits in 16-bit integers.
    """
    if dtype.kind == "b":
        return 0.0, 1.0
    return (0.0, 255.0) if dtype == np.uint8 else None


def range_words(bounds: Sequence[float]) -> str:
    """Return the data range of a PSNR or an SSIM as text."""
    return "range " + " to ".join(f"{bound:,.0f}" if float(bound).is_integer() else f"{bound:.5g}" for bound in bounds)


def range_warning(spanned: tuple[float, float], data_range: tuple[float, float]) -> str | None:
    """Return a sentence if values use little of the data range or lie outside of it, else None.

    Errors are measured in units of the data range. In a range that is too wide, even an empty reconstruction has a high
    PSNR.

    Parameters
    ----------
    spanned : (float, float)
        The least and the greatest value.
    data_range : (float, float)
    """
    (least, greatest), (low, high) = spanned, data_range
    width, outside = high - low, max(data_range[0] - least, greatest - data_range[1])
    shares = [words for share, words in _SHARES.items() if 0 < greatest - least < share * width]
    if not shares and outside <= _OUTSIDE * width:
        return None
    fault, so = (f"span under {shares[0]}", "high") if shares else ("lie partly outside", "low")
    return (
        f"values from {least:.5g} to {greatest:.5g} {fault} of the {range_words(data_range)} that PSNR and SSIM refer "
        f"to, so both are too {so}: give the range of the data with --data-range LOW,HIGH (data_range)"
    )


def _with_width(low: float, high: float) -> tuple[float, float]:
    if not math.isfinite(high - low):
        raise DataError(
            f"values are between {low:g} and {high:g}, and the difference is not finite: divide them by a constant"
        )
    return low, high
