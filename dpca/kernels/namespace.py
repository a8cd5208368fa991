"""Arrays of any library: numpy's, or those that torch and CuPy hold on an accelerator (the array API standard).

A library qualifies if its arrays can be written to in place and hold float64.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_cupy_array, is_torch_array, to_device
from numpy.typing import DTypeLike

from dpca.kernels.types import Array


def is_numpy(x: Array) -> bool:
    """Say whether an array, or a scalar, is numpy's: for those there may be a faster way."""
    return isinstance(x, np.ndarray | np.generic)


def namespace(x: Array) -> Any:
    """Return the functions of the array API standard for arrays like ``x``."""
    return np if is_numpy(x) else array_namespace(x)


def dtype_of(x: Array) -> np.dtype[Any]:
    """Return the dtype of an array as numpy knows it."""
    return x.dtype if isinstance(x.dtype, np.dtype) else _numpy_dtype(x.dtype)


@cache
def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    name = str(dtype).rpartition(".")[2]
    try:
        return np.dtype(name)
    except TypeError:
        raise TypeError(f"numpy has no dtype {name}: convert the samples to float32 first") from None


def empty(shape: tuple[int, ...], dtype: DTypeLike, x: Array) -> Array:
    """Return an array of arbitrary content, of the library of ``x`` and where ``x`` is."""
    xp = namespace(x)
    made: Array = xp.empty(shape, dtype=_dtype_in(xp, dtype), device=device(x))
    return made


def cast(x: Array, dtype: DTypeLike) -> Array:
    """Return an array in another dtype, given as numpy's; the same one where it has that already."""
    if is_numpy(x):
        return x.astype(dtype, copy=False)
    xp = namespace(x)
    made: Array = xp.astype(x, _dtype_in(xp, dtype), copy=False)
    return made


def any_of(x: Array) -> bool:
    """Say whether any value is true, or not 0; an accelerator is waited for."""
    # Where arrays are small, this costs a quarter of np.any.
    return bool(x.any() if is_numpy(x) else namespace(x).any(x))


def beside(values: Array, x: Array) -> Array:
    """Return ``values`` as an array of the library of ``x``, where ``x`` is; ``values`` itself if that is so."""
    if is_numpy(values) and is_numpy(x):
        return values
    if type(values) is type(x) and device(values) == device(x):
        return values
    if is_numpy(x):
        return to_numpy(values)
    made: Array = namespace(x).asarray(to_numpy(values), device=device(x))
    return made


def to_numpy(x: Array) -> Array:
    """Return an array, wherever it is, as numpy's in this machine's memory."""
    if is_numpy(x):
        return np.asarray(x)
    return np.asarray(to_device(x, "cpu")) if is_torch_array(x) or is_cupy_array(x) else np.from_dlpack(x)


def copy_of(x: Array) -> Array:
    """Return a C-ordered copy, where ``x`` is."""
    if is_numpy(x):
        return x.copy()
    made: Array = namespace(x).asarray(x, copy=True)
    return made


def _dtype_in(xp: Any, dtype: DTypeLike) -> Any:
    return np.dtype(dtype) if xp is np else getattr(xp, np.dtype(dtype).name)
