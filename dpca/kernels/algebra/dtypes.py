"""The floating-point type in which samples of a given type are processed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike


def working_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return float64 for float64 and for integers too wide for float32, and float32 for everything else."""
    dtype = np.dtype(dtype)
    # Compare kind and size, because a byte-swapped float64 is not equal to np.float64.
    wide = dtype.itemsize > (2 if dtype.kind in "iu" else 4)
    return np.dtype(np.float64 if wide else np.float32)
