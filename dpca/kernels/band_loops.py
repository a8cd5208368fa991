"""Compiled loops over the attributes of bands, which lie anywhere in a sample.

Import this module only in functions that need it; see `dpca.kernels.compiled`.
"""

from __future__ import annotations

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.kernels.compiled import compiled


@compiled
def _center(rows: Array, j: int, weights: Array, roots: Array, x: Array) -> float:
    """Write roots of weights times samples (n,) at an attribute, minus their mean, to ``x``, and return the mean."""
    # About the first sample, so that the mean of equal samples is exact.
    n, first, total, count = len(x), np.float64(rows[0, j]), 0.0, 0.0
    for i in range(n):
        x[i] = np.float64(rows[i, j]) - first
        total += weights[i] * x[i]
        count += weights[i]
    total /= count
    for i in range(n):
        x[i] = (x[i] - total) * roots[i]
    return first + total


@compiled
def add_grams(rows: Array, labels: Array, weights: Array, grams: Array) -> float:
    """Add the products of centered samples to the Gram matrices of the bands of their attributes.

    Parameters
    ----------
    rows : array (n, d)
        All samples at some attributes.
    labels : array (d,), int32
        The band of each attribute.
    weights : array (n,), float64
        How often each sample counts.
    grams : array (n_bands, n, n), float64
        Only lower triangles are written.

    Returns
    -------
    float
        The largest magnitude of a mean.
    """
    n, d = rows.shape
    x, roots, largest = np.empty(n), np.sqrt(weights), 0.0
    for j in range(d):
        largest = max(largest, abs(_center(rows, j, weights, roots, x)))
        gram = grams[labels[j]]
        for i in range(n):
            value, products = x[i], gram[i]
            for m in range(i + 1):
                products[m] += value * x[m]
    return largest


@compiled
def band_images(rows: Array, labels: Array, weights: Array, turns: Array, mean: Array, images: Array) -> None:
    """Write the mean of the samples, and the sums of centered samples times the turns of the bands of attributes.

    Parameters
    ----------
    rows, labels, weights : arrays
        As in `add_grams`.
    turns : array (n_bands, k, n), float64
    mean : array (d,), float64
    images : array (k, d)
    """
    n, d = rows.shape
    x, roots = np.empty(n), np.sqrt(weights)
    for j in range(d):
        mean[j] = _center(rows, j, weights, roots, x)
        of_band = turns[labels[j]]
        for a in range(len(images)):
            row, total = of_band[a], 0.0
            for i in range(n):
                total += row[i] * x[i]
            images[a, j] = total
