"""The types in which values are computed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike


def working_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """float64 for float64 (and for integers too wide for float32), float32 for everything else."""
    dtype = np.dtype(dtype)
    # By kind and size: a float64 of the other byte order is not equal to np.float64.
    wide = dtype.itemsize > (2 if dtype.kind in "iu" else 4)
    return np.dtype(np.float64 if wide else np.float32)
