"""Compiled loops that measure the quality of reconstructed bytes: sums of windows are exact integers.

Import this module only in functions that need it; see `dpca.kernels.compiled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.kernels.compiled import compiled
from dpca.kernels.sweeps import window_sum

# Values whose squares are added in 32 bits: 2**16 * 255**2 < 2**32.
_SHORT = 2**16


@compiled
def squared_distance(x: Array, y: Array) -> float:
    """Return the sum of (x - y)^2 of arrays (n,) of bytes, exactly up to 2^53."""
    total = np.int64(0)
    for start in range(0, len(x), _SHORT):
        a, b, part = x[start : start + _SHORT], y[start : start + _SHORT], np.uint32(0)
        for i in range(len(a)):
            difference = np.int32(a[i]) - np.int32(b[i])
            part = np.uint32(part + np.uint32(difference * difference))
        total = total + np.int64(part)
    return float(total)


@compiled
def similarity(x: Array, y: Array, window: int, stride: int, c1: Any, c2: Any, inside: Array, work: Array) -> float:
    """Return the sum of the structural similarities of all windows of images of bytes.

    Windows move down by one row at a time: the next row is added to the sums of columns, and the one before is
    subtracted. With p = x + y and m = x - y, the sums of 49 values p, m, p^2 and m^2, and 49 times sums of squares
    minus squares of sums, stay below 49^2 510^2 < 2^31.

    Parameters
    ----------
    x, y : array (n_rows, row) of uint8
    window : int
        Side of the windows, in pixels: as many values as `dpca.kernels.sweeps.window_sum` adds.
    stride : int
        Distance of neighboring pixels in a row.
    c1, c2 : float32
        See `dpca.kernels.quality.ssim_per_sample`.
    inside : array (row,), float64
        1 where a window starts, 0 elsewhere.
    work : array (8, row), int32
        Overwritten.
    """
    n_windows = x.shape[1] - (window - 1) * stride
    totals, values = np.zeros(n_windows), np.int32(window * window)
    work[:] = 0
    for i in range(len(x)):
        if i < window:
            _add_row(x[i], y[i], work[0], work[1], work[2], work[3])
        else:
            _move_window(x[i], y[i], x[i - window], y[i - window], work[0], work[1], work[2], work[3])
        if i >= window - 1:
            for field in range(4):
                # A row of a row: the compiler must know that values are contiguous.
                window_sum(work[field], stride, work[4 + field][:n_windows])
            p, m, pp, mm = work[4][:n_windows], work[5][:n_windows], work[6][:n_windows], work[7][:n_windows]
            _add_similarities(p, m, pp, mm, values, c1, c2, totals)
    total = 0.0
    for i in range(n_windows):
        total += totals[i] * inside[i]
    return total


# Each loop is a function of its own, because the compiler then knows that its arrays do not overlap.


@compiled
def _add_row(x: Array, y: Array, p: Array, m: Array, pp: Array, mm: Array) -> None:
    for i in range(len(x)):
        a, b = np.int32(x[i]), np.int32(y[i])
        total, difference = np.int32(a + b), np.int32(a - b)
        p[i] += total
        m[i] += difference
        pp[i] += np.int32(total * total)
        mm[i] += np.int32(difference * difference)


@compiled
def _move_window(x: Array, y: Array, u: Array, v: Array, p: Array, m: Array, pp: Array, mm: Array) -> None:
    for i in range(len(x)):
        a, b, c, d = np.int32(x[i]), np.int32(y[i]), np.int32(u[i]), np.int32(v[i])
        total, difference = np.int32(a + b), np.int32(a - b)
        before, apart = np.int32(c + d), np.int32(c - d)
        p[i] += np.int32(total - before)
        m[i] += np.int32(difference - apart)
        pp[i] += np.int32(total * total - before * before)
        mm[i] += np.int32(difference * difference - apart * apart)


@compiled
def _add_similarities(p: Array, m: Array, pp: Array, mm: Array, values: Any, c1: Any, c2: Any, totals: Array) -> None:
    for i in range(len(totals)):
        a, b = np.int32(p[i] * p[i]), np.int32(m[i] * m[i])
        c, d = np.int32(values * pp[i] - a), np.int32(values * mm[i] - b)
        above = (np.float32(np.int32(a - b)) + c1) * (np.float32(np.int32(c - d)) + c2)
        totals[i] += np.float64(above / ((np.float32(np.int32(a + b)) + c1) * (np.float32(np.int32(c + d)) + c2)))
