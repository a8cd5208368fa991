"""What is left of samples, as integers: stored as they are, or as differences between neighbours in a sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpca.kernels.types import Array


def differences(values: Array, axes: Sequence[int]) -> Array:
    """Return integers minus their neighbours along some axes; what does not fit into the type wraps around."""
    for axis in axes:
        values = np.diff(values, axis=axis, prepend=values.dtype.type(0))
    return values


def sums(values: Array, axes: Sequence[int]) -> Array:
    """Return what `differences` was given."""
    for axis in axes:
        values = np.cumsum(values, axis=axis, dtype=values.dtype)
    return values


def best_axes(values: Array, n_spatial: int) -> tuple[int, ...]:
    """Return the axes of integers (n, *sample_shape) along which differences have the least entropy."""
    space, every = tuple(range(1, n_spatial + 1)), tuple(range(1, values.ndim))
    tried = dict.fromkeys([(), (n_spatial,), space, every])
    return min(tried, key=lambda axes: _entropy(differences(values, axes)))


def _entropy(values: Array) -> float:
    counts = np.unique(values, return_counts=True)[1]
    return float(-(counts * np.log2(counts / values.size)).sum())
