"""Arrays of any library of the array API standard: numpy, or torch and CuPy on an accelerator.

A library is supported if its arrays are mutable and it has float64.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_cupy_array, is_torch_array, to_device
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array


def is_numpy(x: Array) -> bool:
    """Return whether an array or a scalar belongs to numpy."""
    return isinstance(x, np.ndarray | np.generic)


def namespace(x: Array) -> Any:
    """Return the functions of the array API standard for arrays like ``x``."""
    return np if is_numpy(x) else array_namespace(x)


def dtype_of(x: Array) -> np.dtype[Any]:
    """Return the numpy dtype of an array."""
    return x.dtype if isinstance(x.dtype, np.dtype) else _numpy_dtype(x.dtype)


@cache
def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    name = str(dtype).rpartition(".")[2]
    try:
        found = np.dtype(name)
    except TypeError:
        found = None
    if found is None or found.isbuiltin != 1:  # other packages add types like bfloat16 to numpy, which are not its own
        raise TypeError(f"samples have dtype {name}, which numpy lacks: convert them to float32 first")
    return found


def empty(shape: tuple[int, ...], dtype: DTypeLike, x: Array) -> Array:
    """Return an array of arbitrary content, in the library and on the device of ``x``."""
    xp = namespace(x)
    return xp.empty(shape, dtype=_dtype_in(xp, dtype), device=device(x))


def cast(x: Array, dtype: DTypeLike) -> Array:
    """Convert an array to a numpy dtype. An array that has it already is returned itself."""
    if is_numpy(x):
        return x.astype(dtype, copy=False)
    xp = namespace(x)
    return xp.astype(x, _dtype_in(xp, dtype), copy=False)


def any_of(x: Array) -> bool:
    """Return whether any value is nonzero. On an accelerator, this waits for the result."""
    # For small arrays the method costs a quarter of np.any.
    return bool(x.any() if is_numpy(x) else namespace(x).any(x))


def beside(values: Array, x: Array) -> Array:
    """Return ``values`` in the library and on the device of ``x``, without a copy if they are there already."""
    if is_numpy(values) and is_numpy(x):
        return values
    if type(values) is type(x) and device(values) == device(x):
        return values
    if is_numpy(x):
        return to_numpy(values)
    return namespace(x).asarray(to_numpy(values), device=device(x))


def to_numpy(x: Array) -> Array:
    """Return an array of any library as a numpy array in the memory of this machine."""
    if is_numpy(x):
        return np.asarray(x)
    return np.asarray(to_device(x, "cpu")) if is_torch_array(x) or is_cupy_array(x) else np.from_dlpack(x)


def copy_of(x: Array) -> Array:
    """Return a C-ordered copy on the device of ``x``."""
    if is_numpy(x):
        return x.copy()
    return namespace(x).asarray(x, copy=True)


def _dtype_in(xp: Any, dtype: DTypeLike) -> Any:
    return np.dtype(dtype) if xp is np else getattr(xp, np.dtype(dtype).name)
