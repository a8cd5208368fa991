"""Values for the gaps of samples, from the values around them alone.

The mean of the values in each block of two along every axis makes a sample of half the size, and so on, until no value
is missing. Then each gap is interpolated in the next smaller sample (push and pull: Gortler et al. 1996).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpca.kernels.algebra.types import Array

# Bytes of temporary arrays for each value of a sample (measured: 30 for images, 33 for volumes).
_WORK_BYTES = 40


def filled_from_around(sample: Array, n_spatial: int, empty: float) -> Array:
    """Return a copy of a floating-point sample without NaN.

    Parameters
    ----------
    sample : array (*sample_shape,)
    n_spatial : int
        Number of spatial axes, the first ones. Other axes have a gap of their own in each entry.
    empty : float
        The value where nothing is there.
    """
    missing = np.isnan(sample)
    if not missing.any():
        return sample.copy()
    found: Array = np.where(missing, _spread(sample, missing, n_spatial, empty).astype(sample.dtype), sample)
    return found


def filling_bytes(shape: Sequence[int]) -> int:
    """Return the bytes of temporary arrays of `filled_from_around`."""
    return _WORK_BYTES * math.prod(shape)


def _spread(values: Array, missing: Array, n_spatial: int, empty: float) -> Array:
    """Return an estimate of each value, float64, from values that are there in larger and larger blocks around it."""
    halved = [axis for axis in range(n_spatial) if values.shape[axis] > 1]
    if not halved:
        return np.where(missing, empty, values)
    total, count = np.where(missing, 0.0, values), (~missing).astype(np.float64)
    for axis in halved:
        total, count = _summed(total, axis), _summed(count, axis)
    absent = count == 0
    means = total / np.maximum(count, 1)
    if absent.any():
        means = np.where(absent, _spread(means, absent, n_spatial, empty), means)
    for axis in halved:
        means = _doubled(means, axis, values.shape[axis])
    return means


def _summed(values: Array, axis: int) -> Array:
    """Return the sums of successive pairs along an axis; the last value may be alone."""
    of = np.moveaxis(values, axis, 0)
    sums = of[::2].copy()
    sums[: len(of) // 2] += of[1::2]
    return np.moveaxis(sums, 0, axis)


def _doubled(values: Array, axis: int, length: int) -> Array:
    """Interpolate between the centers of pairs along an axis; at the ends, values repeat."""
    of = np.moveaxis(values, axis, 0)
    out = np.empty((length, *of.shape[1:]))
    out[::2] = 0.75 * of
    out[2::2] += 0.25 * of[:-1]
    out[0] += 0.25 * of[0]
    last = length // 2
    out[1::2] = 0.75 * of[:last]
    out[1 : 2 * (len(of) - 1) : 2] += 0.25 * of[1:]
    if length % 2 == 0:
        out[-1] += 0.25 * of[-1]
    return np.moveaxis(out, 0, axis)
