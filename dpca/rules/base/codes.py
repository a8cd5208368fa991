"""Integer codes of samples as additional attributes, in digits that are exact in every dtype."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array

#: Number of attributes of a code: digits to the base 128, the lowest first.
DIGITS = 3
_BASE = 128
#: Upper limit of codes, exclusive.
MOST_CODES = _BASE**DIGITS


def written_codes(codes: Array, dtype: DTypeLike) -> Array:
    """Return the digits (n, DIGITS) of codes (n,) in a dtype."""
    digits = np.empty((len(codes), DIGITS), dtype)
    for i in range(DIGITS):  # one after the other: no temporary array is wider than the codes
        digits[:, i] = codes // _BASE**i % _BASE
    return digits


def read_codes(digits: Array) -> Array:
    """Return the codes (n,) of digits (n, DIGITS)."""
    codes = np.zeros(len(digits), np.int64)
    for i in range(DIGITS):
        codes += digits[:, i].astype(np.int64) * _BASE**i
    return codes
