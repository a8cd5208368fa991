"""Compiled prediction of values from their neighbors; see `dpca.codec.interpolation`."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.kernels.compiled import compiled


@compiled
def _interior(along: Array) -> tuple[int, int]:
    """Return the range around the middle in which all rows are equal."""
    start = stop = len(along) // 2
    while start > 0 and (along[start - 1] == along[len(along) // 2]).all():
        start -= 1
    while stop < len(along) and (along[stop] == along[len(along) // 2]).all():
        stop += 1
    return start, stop


@compiled
def _predict_line(
    values: Array, first: int, stride: int, near: Array, along: Array, inside: Any, weights: Array, found: Array
) -> None:
    """Predict the values of a line from their neighbors; see `dpca.codec.interpolation`."""
    k, count = len(near), len(found)
    found[:] = 0
    for j in range(k):
        # The offsets of these neighbors are the same along the line, so that loops are fast.
        a, b, c, d = first + near[j, 0], first + near[j, 1], first + near[j, 2], first + near[j, 3]
        close, far = weights[j, 0], weights[j, 1]
        for p in range(count):
            at = p * stride
            found[p] += close * (values[a + at] + values[b + at]) + far * (values[c + at] + values[d + at])
    if len(along):
        close, far = weights[k, 0], weights[k, 1]
        for start, stop in ((0, inside[0]), (inside[1], count)):
            for p in range(start, stop):
                at, others = first + p * stride, along[p]
                nearest, next_ones = values[at + others[0]] + values[at + others[1]], values[at + others[2]]
                found[p] += close * nearest + far * (next_ones + values[at + others[3]])
        others = first + along[len(along) // 2]
        a, b, c, d = others[0], others[1], others[2], others[3]
        for p in range(inside[0], inside[1]):
            at = p * stride
            found[p] += close * (values[a + at] + values[b + at]) + far * (values[c + at] + values[d + at])


@compiled
def add_predicted(
    values: Array,
    codes: Array,
    lines: Array,
    count: int,
    stride: int,
    near: Array,
    along: Array,
    weights: Array,
    step: float,
) -> None:
    """Set values (n,) to their predictions plus their codes (n,) times a step."""
    found, inside = np.empty(count), _interior(along)
    for r in range(len(lines)):
        _predict_line(values, lines[r], stride, near[r], along, inside, weights, found)
        for p in range(count):
            at = lines[r] + p * stride
            values[at] = found[p] + codes[at] * step


@compiled
def subtract_predicted(
    values: Array,
    codes: Array,
    lines: Array,
    count: int,
    stride: int,
    near: Array,
    along: Array,
    weights: Array,
    step: float,
) -> float:
    """Set codes (n,) to the rounded prediction errors of values (n,) in steps, and values to their reconstruction.

    The reconstruction is that of `add_predicted`. Returns the largest magnitude of a code.
    """
    found, inside, largest = np.empty(count), _interior(along), 0.0
    for r in range(len(lines)):
        _predict_line(values, lines[r], stride, near[r], along, inside, weights, found)
        for p in range(count):
            at = lines[r] + p * stride
            code = np.rint((values[at] - found[p]) / step)
            largest = max(largest, abs(code))
            codes[at] = np.int32(code)
            values[at] = found[p] + code * step
    return largest
