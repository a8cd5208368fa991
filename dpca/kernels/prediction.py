"""Compiled prediction of values from their neighbors; see `dpca.codec.interpolation`."""

from __future__ import annotations

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.kernels.compiled import compiled


@compiled
def _predicted(values: Array, at: int, near: Array, along: Array, weights: Array) -> float:
    """Predict a value from its neighbors; see `dpca.codec.interpolation`."""
    total, k = 0.0, len(near)
    for j in range(k):
        a, b, c, d = near[j]
        total += weights[j, 0] * (values[at + a] + values[at + b]) + weights[j, 1] * (values[at + c] + values[at + d])
    if len(along):
        a, b, c, d = along
        total += weights[k, 0] * (values[at + a] + values[at + b]) + weights[k, 1] * (values[at + c] + values[at + d])
    return total


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
    for r in range(len(lines)):
        for i in range(count):
            at = lines[r] + i * stride
            beside = along[i] if len(along) else along.reshape(-1)
            values[at] = _predicted(values, at, near[r], beside, weights) + codes[at] * step


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
    largest = 0.0
    for r in range(len(lines)):
        for i in range(count):
            at = lines[r] + i * stride
            beside = along[i] if len(along) else along.reshape(-1)
            predicted = _predicted(values, at, near[r], beside, weights)
            code = np.rint((values[at] - predicted) / step)
            largest = max(largest, abs(code))
            codes[at] = np.int32(code)
            values[at] = predicted + code * step
    return largest
