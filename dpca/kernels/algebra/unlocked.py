"""BLAS and LAPACK without Python's global interpreter lock (GIL).

The functions of `scipy.linalg` hold the lock while they compute. Threads of a process then wait for each other, no
thread reports progress, and a worker of a cluster does not answer. SciPy offers the same functions to other languages,
in `scipy.linalg.cython_blas` and `scipy.linalg.cython_lapack`. Called by `ctypes`, they release the lock.

Fortran reads the transpose of a C-ordered matrix. Its upper triangle is our lower one, and its columns are our rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import cython_blas, cython_lapack

from dpca.kernels.algebra.types import Array

_REALS = {np.dtype(np.float32): ("s", ctypes.c_float), np.dtype(np.float64): ("d", ctypes.c_double)}


def call(name: str, *arguments: str | float | Array) -> None:
    """Call a function of BLAS or LAPACK.

    Parameters
    ----------
    name : str
        Without the letter of its type: "syrk".
    *arguments
        In the order of Fortran: letters, integers, floats and C-ordered arrays, of one floating-point type, or int64
        for integers. The function writes to them. The last argument of LAPACK, its status, is added.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the status is not 0: the function did not converge, or a matrix is singular or not positive definite.
    ValueError
        If an array is not C-ordered or has another type, so that the function would read something else.
    """
    arrays = [one for one in arguments if isinstance(one, np.ndarray)]
    letter, real = _REALS[dtype := arrays[0].dtype]
    if not all(one.flags.c_contiguous and one.dtype in (dtype, np.int64) for one in arrays):
        raise ValueError(f"{name} of LAPACK requires C-ordered arrays of {dtype}: copy them first")
    kinds: dict[type, Callable[[Any], Any]] = {str: lambda one: ctypes.c_char(one.encode()), float: real}
    # On processors with the lowest byte first, 64 bits can be read as 32.
    held = [one if isinstance(one, np.ndarray) else kinds.get(type(one), ctypes.c_int64)(one) for one in arguments]
    is_blas, function = _function(letter + name)
    held += [] if is_blas else [status := ctypes.c_int32(0)]
    function(*(one.ctypes.data if isinstance(one, np.ndarray) else ctypes.addressof(one) for one in held))
    if not is_blas and status.value:
        raise np.linalg.LinAlgError(f"{name} of LAPACK failed with status {status.value}")


@cache
def _function(name: str) -> tuple[bool, Callable[..., None]]:
    """Return whether a function belongs to BLAS, and the function of addresses."""
    blas = cython_blas.__pyx_capi__
    capsule = blas.get(name) or cython_lapack.__pyx_capi__[name]
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = name_of(capsule)
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (signature.count(b",") + 1))
    return name in blas, kind(pointer_of(capsule, signature))


def syrk(x: Array, out: Array, *, beta: float = 0.0, rows: bool = False, factor: float = 1.0) -> None:
    """Write ``factor * x.T @ x + beta * out``, or with ``rows`` ``x @ x.T``, to the lower triangle of ``out``.

    Both are float32 or float64, and ``out`` is C-ordered.
    """
    n, d = (x := np.ascontiguousarray(x)).shape
    trans, size, inner = ("T", n, d) if rows else ("N", d, n)
    call("syrk", "U", trans, size, inner, factor, x, d, beta, out, size)


def eigh(matrix: Array) -> Array:
    """Return all eigenvalues (d,) of a symmetric matrix, ascending; its rows become the eigenvectors.

    Divide and conquer (xSYEVD). Only the lower triangle of the matrix (d, d), C-ordered, float32 or float64, is read.
    Costs O(d^3) time and 2 d^2 further values.
    """
    d = len(matrix)
    values, work = np.empty(d, matrix.dtype), np.empty(1 + 6 * d + 2 * d * d, matrix.dtype)
    numbers = np.empty(3 + 5 * d, np.int64)
    call("syevd", "V", "U", d, matrix, d, values, work, len(work), numbers, len(numbers))
    return values


def partial_eigh(matrix: Array, k: int) -> tuple[Array, Array]:
    """Return the k largest eigenvalues (k,) of a symmetric matrix, ascending, and their eigenvectors (k, d).

    Relatively robust representations (xSYEVR). Only the lower triangle of the matrix (d, d), C-ordered, is read; it is
    overwritten. Costs O(d^3) time.
    """
    d, dtype = len(matrix), matrix.dtype
    values, rows, work = np.empty(d, dtype), np.empty((k, d), dtype), np.empty(26 * d, dtype)
    supports, numbers, found = (np.empty(length, np.int64) for length in (2 * d, 10 * d, 1))
    chosen = "I", "U", d, matrix, d, 0.0, 0.0, d - k + 1, d, 0.0  # two bounds that are not used; the tolerance
    call("syevr", "V", *chosen, found, values, rows, d, supports, work, len(work), numbers, len(numbers))
    return values[:k], rows
