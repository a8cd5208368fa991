"""Loops over pixels that numpy would make in dozens of passes, compiled by numba.

Importing this module takes half a second, so that it is imported where its loops begin. The machine code is kept in
numba's cache, beside this file or in the user's cache folder.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numba
import numpy as np

from dpca.kernels.types import Array

# Sums of so many neighbours are kept apart: the processor adds several at once, in an order that is always the same.
_LANES = 64


def _compiled(function: Any) -> Any:
    """Compile a function for the types that it is called with, which lets go of Python's lock."""
    compile_with = partial(numba.njit, nogil=True, error_model="numpy")
    try:
        return compile_with(cache=True)(function)
    except RuntimeError:  # there is no folder to keep it in
        return compile_with()(function)


@_compiled
def squared_distance(x: Array, y: Array, unit: float) -> float:
    """Return the sum of ((x - y) / unit)^2 in float64, of arrays (n,)."""
    sums = np.zeros(_LANES)
    for start in range(0, len(x), _LANES):
        a, b = x[start : start + _LANES], y[start : start + _LANES]
        for i in range(len(a)):
            difference = (np.float64(a[i]) - np.float64(b[i])) / unit
            sums[i] += difference * difference
    return float(sums.sum())


# Each loop is a function of its own, since the compiler then sees that its arrays do not overlap.


@_compiled
def sums_and_differences(x: Array, y: Array, unit: Any, center: Any, p: Array, m: Array, pp: Array, mm: Array) -> None:
    """Set p = x + y - center, m = x - y, and their squares, of x and y in a unit and in the type of ``p``."""
    kind = p.dtype.type
    for i in range(len(x)):
        a, b = kind(x[i]) / unit, kind(y[i]) / unit
        p[i] = (a + b) - center
        m[i] = a - b
    for i in range(len(x)):
        pp[i] = p[i] * p[i]
        mm[i] = m[i] * m[i]


@_compiled
def window_sum(values: Array, stride: int, out: Array) -> None:
    """Add the seven values from each position on that are ``stride`` apart."""
    n = len(out)
    # Slices, since an index that might be negative keeps the compiler from using vector instructions.
    a, b, c = values[:n], values[stride : stride + n], values[2 * stride : 2 * stride + n]
    d, e = values[3 * stride : 3 * stride + n], values[4 * stride : 4 * stride + n]
    f, g = values[5 * stride : 5 * stride + n], values[6 * stride : 6 * stride + n]
    for i in range(n):
        out[i] = ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + g[i])


@_compiled
def similarities(
    p: Array, m: Array, pp: Array, mm: Array, c1: Any, c2: Any, share: Any, center: Any, out: Array
) -> None:
    """Set the structural similarity from the sums over windows of what `sums_and_differences` gave.

    ``share`` is one over the pixels of a window; for c1 and c2 see `dpca.kernels.quality.ssim_per_sample`.
    """
    for i in range(len(out)):
        mean_p, mean_m = p[i] * share, m[i] * share
        var_p, var_m = pp[i] * share - mean_p * mean_p, mm[i] * share - mean_m * mean_m
        mean_p += center
        a, b = mean_p * mean_p, mean_m * mean_m
        out[i] = ((a - b + c1) * (var_p - var_m + c2)) / ((a + b + c1) * (var_p + var_m + c2))


@_compiled
def add_rows(values: Array, weights: Array, totals: Array) -> None:
    """Add every row of ``values``, the last one of which may be shorter, times ``weights`` to ``totals``."""
    for start in range(0, len(values), len(totals)):
        row = values[start : start + len(totals)]
        for i in range(len(row)):
            totals[i] += np.float64(row[i]) * weights[i]
