"""Residuals of samples as integers, and their differences between neighbors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpca.kernels.algebra.types import Array


def differences(values: Array, axes: Sequence[int]) -> Array:
    """Return differences of neighboring integers along some axes. Overflow wraps around."""
    for axis in axes:
        values = np.diff(values, axis=axis, prepend=values.dtype.type(0))
    return values


def sums(values: Array, axes: Sequence[int]) -> Array:
    """Invert `differences`."""
    for axis in axes:
        values = np.cumsum(values, axis=axis, dtype=values.dtype)
    return values


def best_axes(values: Array, n_spatial: int) -> tuple[int, ...]:
    """Return the axes of least entropy of the differences, for integers (n, *sample_shape)."""
    space, every = tuple(range(1, n_spatial + 1)), tuple(range(1, values.ndim))
    tried = dict.fromkeys([(), (n_spatial,), space, every])
    return min(tried, key=lambda axes: _entropy(differences(values, axes)))


def _entropy(values: Array) -> float:
    counts = np.unique(values, return_counts=True)[1]
    return float(-(counts * np.log2(counts / values.size)).sum())
