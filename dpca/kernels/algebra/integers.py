"""Integers whose products are summed exactly, and the kernel that multiplies them."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
from numpy.typing import DTypeLike

#: Rows of bytes that are multiplied among themselves: a multiple of the columns of every panel of the kernel.
GROUP = 192
# What is subtracted from values, so that each of their bytes is signed.
_CENTERS = {"bool": 0, "int8": 0, "uint8": 128, "int16": 128, "uint16": 32896}
# Loading the cached kernel takes about as much time as so many multiplications of floats. Compiling it takes a second.
_PAYS_FROM, _COMPILED = 2 * 10**9, "dpca.kernels.compiled"
_multiplied = 0


def is_exact(dtype: DTypeLike) -> bool:
    """Return whether values are integers of 8 or 16 bits. Sums of their products are exact."""
    return np.dtype(dtype).name in _CENTERS and np.dtype(dtype).isnative


def is_byte(dtype: DTypeLike) -> bool:
    """Return whether values are integers of 8 bits."""
    return is_exact(dtype) and np.dtype(dtype).itemsize == 1


def center_of_range(dtype: DTypeLike) -> int:
    """Return the constant that is subtracted from values of an exact dtype, near the middle of their range."""
    return _CENTERS[np.dtype(dtype).name]


def compiled_pays(multiplications: int) -> bool:
    """Return whether compiled loops pay: they take long to load, and floats do the first products of a process sooner.

    Only loops with bit-identical results are chosen by this.
    """
    global _multiplied
    if _COMPILED not in sys.modules:
        _multiplied += multiplications
    return _COMPILED in sys.modules or _multiplied >= _PAYS_FROM


def kernel(multiplications: int = _PAYS_FROM) -> ModuleType | None:
    """Return `dpca.kernels.integer_products`, or None if it does not pay or the processor lacks the instructions."""
    if not compiled_pays(multiplications):
        return None
    from dpca.kernels import integer_products

    return integer_products if integer_products.INSTRUCTION else None
