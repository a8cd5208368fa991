"""Whole numbers that travel with samples as further attributes, in digits that every type holds exactly."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.types import Array

#: Attributes that a code takes: digits to the base 128, the lowest first.
DIGITS = 3
_BASE = 128
#: Codes are less than this.
MOST_CODES = _BASE**DIGITS


def written_codes(codes: Array, dtype: DTypeLike) -> Array:
    """Return the digits (n, DIGITS) of codes (n,) in a type of numbers."""
    return (codes[:, None] // _BASE ** np.arange(DIGITS) % _BASE).astype(dtype)


def read_codes(digits: Array) -> Array:
    """Return the codes (n,) of digits (n, DIGITS)."""
    codes: Array = digits.astype(np.int64) @ _BASE ** np.arange(DIGITS)
    return codes
