"""Products of 8-bit integers in integer arithmetic by Intel MKL, if it is installed (the extra ``mkl``).

Processors with VNNI or AMX instructions multiply bytes several times faster than floats. numpy's BLAS does not use
them. One trial product tests whether the processor multiplies without saturation. The instructions are looked up
instead of timed, because the same machine must always decide alike.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from dpca.kernels.algebra.linalg import scratch
from dpca.kernels.algebra.types import Array

#: Rows of one product: sums of 2**16 products of at most 255 * 128 stay below 2**31.
MOST_ROWS = 2**16
# From this size on, it pays to skip the upper right quarter of the product by a second call.
_HALVES_FROM = 512
# MKL packs both factors of a call at 17 bytes a value, and retains these buffers in each thread. Calls with fewer rows
# take no more time.
_ROWS_AT_ONCE = 1024
# Values of MKL's enumerations (mkl_cblas.h, mkl_service.h).
_COLUMN_MAJOR, _AS_IS, _TRANSPOSED, _SAME_OFFSET, _SEQUENTIAL = 102, 111, 112, 173, 1
# One of these instruction sets must be present, by the names that Linux lists.
_PROCESSORS = Path("/proc/cpuinfo")
_INSTRUCTIONS = {"avx512_vnni", "avx_vnni", "amx_int8"}


def is_available() -> bool:
    """Return whether `gram_lower` works on this machine."""
    return _exact_product() is not None


@cache
def pays() -> bool:
    """Return whether `gram_lower` works on this machine and is faster than floating-point products.

    With AVX2 alone it takes three times as long (AMD EPYC family 25, 1,875 attributes).
    """
    try:
        words = set(_PROCESSORS.read_text().split())
    except OSError:  # not Linux; the library is used on Linux only
        return False
    return not words.isdisjoint(_INSTRUCTIONS) and is_available()


def gram_lower(block: Array) -> tuple[Array, Array]:
    """Return x^T x and the sum of the rows of x. Here x is ``block``, minus 128 for uint8.

    Parameters
    ----------
    block : array (n, d), uint8, int8 or bool, C-ordered, n <= MOST_ROWS

    Returns
    -------
    product : array (d, d), int32, exact
        Only the lower triangle is defined. It is valid until the next call in this thread.
    total : array (d,), int32, exact
    """
    multiply = _exact_product()
    if multiply is None:
        raise RuntimeError("Intel MKL, which 8-bit products require, is not available: call is_available first")
    return _gram_lower(block, multiply)


def _gram_lower(block: Array, multiply: Any) -> tuple[Array, Array]:
    n, d = block.shape
    values = block.view(np.uint8)
    # A column of ones beside the signed values: its product is the sum of the rows.
    signed = scratch("signed", (n, d + 1), np.int8)
    signed[:, 0] = 1
    if block.dtype == np.uint8:
        # Flipping the top bit subtracts 128.
        np.bitwise_xor(values, np.uint8(128), out=signed[:, 1:].view(np.uint8))
    else:
        signed[:, 1:] = block
    if block.dtype == np.int8:
        values = np.bitwise_xor(values, np.uint8(128), out=scratch("unsigned", block.shape, np.uint8))
    out = scratch("integers", (d, d + 1), np.int32)
    out.fill(0)
    half = (d + 1) // 2 if d >= _HALVES_FROM else d
    for start in range(0, d, half):
        stop = min(start + half, d)
        # Rows start to stop of v^T [1 x], up to the diagonal block. Fortran reads the transposes of all matrices.
        multiply(signed, stop + 1, values[:, start:], stop - start, out[start:])
    product, total = out[:, 1:], out[:, 0]
    if block.dtype != bool:
        # v is x + 128. MKL can subtract 128 itself, but this doubles the cost of the product.
        total -= 128 * n
        product -= 128 * total
    return product, total


@cache
def _exact_product() -> Any | None:
    """Return the product function if it exists and is exact. Some processors saturate sums of two products at 2**15."""
    multiply = _load()
    if multiply is None:
        return None
    extremes = np.tile(np.array([[255, 255, 0], [255, 0, 0]], np.uint8), (64, 43))
    x = extremes.astype(np.int64) - 128
    product, total = _gram_lower(extremes, multiply)
    exact = (np.tril(product) == np.tril(x.T @ x)).all() and (total == x.sum(axis=0)).all()
    return multiply if exact else None


def _load() -> Any | None:
    """Return a function of (a, m, b, k, out) that writes b[:, :k]^T a[:, :m] to out[:k, :m]."""
    found = sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"))
    if not found:
        return None
    in_use = any(library["prefix"] == "libmkl_rt" for library in threadpool_info())
    library = ctypes.CDLL(str(found[-1]))
    if not in_use:
        # Only dpca uses MKL in this process, and tasks run in parallel already.
        library.MKL_Set_Threading_Layer(_SEQUENTIAL)
    size, pointer = ctypes.c_int, ctypes.c_void_p
    gemm = library.cblas_gemm_s8u8s32
    gemm.restype = None
    gemm.argtypes = [size] * 7 + [ctypes.c_float, pointer, size, ctypes.c_int8, pointer, size, ctypes.c_int8]
    gemm.argtypes += [ctypes.c_float, pointer, size, pointer]
    no_offset = np.zeros(1, np.int32)

    def multiply(a: Array, m: int, b: Array, k: int, out: Array) -> None:
        flags = (_COLUMN_MAJOR, _AS_IS, _TRANSPOSED, _SAME_OFFSET)
        result = (out.ctypes.data, out.strides[0] // out.itemsize, no_offset.ctypes.data)
        for start in range(0, len(a), _ROWS_AT_ONCE):
            rows, others = a[start : start + _ROWS_AT_ONCE], b[start : start + _ROWS_AT_ONCE]
            first, second = (rows.ctypes.data, rows.strides[0], 0), (others.ctypes.data, others.strides[0], 0)
            gemm(*flags, m, k, len(rows), 1.0, *first, *second, float(start > 0), *result)

    return multiply
