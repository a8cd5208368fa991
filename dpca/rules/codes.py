"""Integer codes of samples as additional attributes, in digits that are exact in every dtype."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.types import Array

#: Number of attributes of a code: digits to the base 128, the lowest first.
DIGITS = 3
_BASE = 128
#: Upper limit of codes, exclusive.
MOST_CODES = _BASE**DIGITS


def written_codes(codes: Array, dtype: DTypeLike) -> Array:
    """Return the digits (n, DIGITS) of codes (n,) in a dtype."""
    return (codes[:, None] // _BASE ** np.arange(DIGITS) % _BASE).astype(dtype)


def read_codes(digits: Array) -> Array:
    """Return the codes (n,) of digits (n, DIGITS)."""
    codes: Array = digits.astype(np.int64) @ _BASE ** np.arange(DIGITS)
    return codes
