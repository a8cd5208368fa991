"""Quality measures of models and reconstructions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.linalg

from dpca.kernels.algebra.types import Array
from dpca.kernels.quality import mse_per_sample, psnr_from_mse, ssim_per_sample
from dpca.storage.arrays.layout import axes_for, count_spatial
from dpca.storage.given_numbers import require_one_array

_BLOCK_ROWS = 1024

__all__ = [
    "convergence",
    "excess_loss",
    "explained_variance_ratio",
    "mse",
    "principal_angles",
    "psnr",
    "ssim",
    "variation_of_information",
]


def __dir__() -> list[str]:
    # Only public names: completion shows nothing that was imported for this file.
    return [*__all__, *(name for name in globals() if name.startswith("__") and name.endswith("__"))]


def mse(x: Array, y: Array, *, data_range: float = 1.0) -> Array:
    """Mean squared error of each sample.

    Parameters
    ----------
    x, y : arrays (n_samples, ...) of one shape
    data_range : float
        Largest minus smallest possible value. The result is in units of its square; with 1, in squared units of the
        input.

    Returns
    -------
    array (n_samples,), float64

    Raises
    ------
    ValueError
        If the shapes differ or ``data_range`` is not positive.
    """
    x, y = _pair(x, y, data_range)
    return mse_per_sample(x, y, data_range=data_range)


def psnr(x: Array, y: Array, *, data_range: float) -> Array:
    """Peak signal-to-noise ratio of each sample, in decibels: 10 log10(data_range^2 / MSE), infinite if x equals y.

    Parameters, errors and the shape of the result are those of `mse`, but ``data_range`` is required.
    """
    return psnr_from_mse(mse(x, y, data_range=data_range))


def ssim(x: Array, y: Array, *, data_range: float, n_spatial: int | None = None) -> Array:
    """Structural similarity of each sample, as ``skimage.metrics.structural_similarity`` with its defaults.

    Alakkari 2020, equation 2.25 (Wang et al. 2004, equation 13), with a uniform window of 7 pixels a side, sample
    covariance, K1 = 0.01 and K2 = 0.03. The result is averaged over channels and over the windows that lie inside the
    image. It agrees with scikit-image to 1e-6.

    Parameters
    ----------
    x, y : arrays (n_samples, *spatial, *channels) of one shape
    data_range : float
        Largest minus smallest possible value. Required, because a guess from floating-point data gives wrong results.
    n_spatial : int, optional
        Number of spatial axes. Default: all, except a last axis of length 4 or less after two others.

    Returns
    -------
    array (n_samples,), float64

    Raises
    ------
    ValueError
        If the shapes differ, ``data_range`` is not positive, or a spatial axis is shorter than 7.
    """
    x, y = _pair(x, y, data_range)
    if n_spatial is None:
        n_spatial = count_spatial(axes_for(x.shape[1:]))
    if not 1 <= n_spatial < x.ndim:
        raise ValueError(
            f"n_spatial is {n_spatial} and samples have shape {x.shape[1:]}: give arrays (n_samples, *spatial, "
            f"*channels) and n_spatial between 1 and the number of axes of a sample"
        )
    return ssim_per_sample(x, y, data_range=data_range, n_spatial=n_spatial)


def explained_variance_ratio(explained_variance: Array, total_variance: Any) -> Array:
    """Cumulative share of the total variance that the first 1, 2, ... components explain.

    Parameters
    ----------
    explained_variance : array (..., n_components)
        Variances in descending order.
    total_variance : float or array (...)

    Returns
    -------
    array (..., n_components), float64
        1 where the total is 0, because there is nothing to explain.
    """
    total = np.asarray(total_variance, np.float64)[..., None]
    cumulative = np.cumsum(explained_variance, axis=-1, dtype=np.float64)
    return np.divide(cumulative, total, out=np.ones_like(cumulative), where=total > 0)


def convergence(
    components: Array, reference: Array, x: Array | None = None, *, covariance: Array | None = None
) -> float:
    """Share of the capturable variance that components miss, as a power of ten; lower is better.

    ``log10(1 - |X W|_F^2 / |X V|_F^2)`` for the orthonormalized components W and the best components V (Alakkari 2020,
    equation 2.24).

    Parameters
    ----------
    components : array (k, d)
        Rows that span a subspace; they need not be orthonormal.
    reference : array (k, d)
        The best components, or others to compare with.
    x : array (n_samples, d), optional
        The samples. They are centered with their own mean, and read in blocks.
    covariance : array (d, d), optional
        The covariance of the samples, or a similar matrix, instead of ``x``.

    Returns
    -------
    float
        -1 if a tenth of the variance is lost, -inf if nothing is. Computed in float64, which does not resolve values
        below about -15.

    Raises
    ------
    ValueError
        Unless exactly one of ``x`` and ``covariance`` is given, and all have the same number of attributes.
    """
    found, best, _ = _captured(components, reference, x, covariance)
    return math.log10(1 - found / best) if found < best else -math.inf


def excess_loss(
    components: Array, reference: Array, x: Array | None = None, *, covariance: Array | None = None
) -> float:
    """Excess of the reconstruction error over that of the best components, in per cent (Amid & Warmuth 2020).

    100 (l(W) - l(V)) / l(V), with l the variance that a projection discards.

    Parameters and errors are those of `convergence`.

    Returns
    -------
    float
        0 for the best components; infinite if those discard nothing but ``components`` do.
    """
    found, best, total = _captured(components, reference, x, covariance)
    # A loss far below the total may be rounding error alone.
    loss = max(total - best, 0.0)
    excess = best - found
    if loss <= 1e-14 * total:
        return 0.0 if abs(excess) <= 1e-14 * total else math.inf
    return 100 * excess / loss


def principal_angles(a: Array, b: Array) -> Array:
    """Principal angles between the row spaces of two matrices, in radians (Bjorck & Golub 1973).

    Parameters
    ----------
    a : array (k, d)
    b : array (m, d)
        Rows need not be orthonormal.

    Returns
    -------
    array (min(k, m),), float64
        Ascending, from 0 to pi / 2. Small angles are as accurate as large ones. There are fewer if rows are linearly
        dependent.

    Raises
    ------
    ValueError
        If the rows have different lengths.
    """
    first, second = _span(a), _span(b)
    if len(first) != len(second):
        raise ValueError(f"rows have {len(first)} and {len(second)} attributes: give rows of equal lengths")
    if not min(first.shape[1], second.shape[1]):
        return np.empty(0)
    angles: Array = scipy.linalg.subspace_angles(first, second)
    return angles[::-1]


def variation_of_information(a: Array, b: Array) -> float:
    """Distance between two clusterings of the same samples (Meila 2005; Günter et al. 2007, equations 41 to 44).

    Parameters
    ----------
    a, b : arrays (n_samples,)
        The cluster of each sample, or its label; any values.

    Returns
    -------
    float
        H(a) + H(b) - 2 I(a, b) in nats, at most 2 log of the larger number of clusters. 0 if the clusterings are equal
        up to labels.

    Raises
    ------
    ValueError
        If the lengths differ, or there are no samples.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise ValueError(f"clusterings have shapes {a.shape} and {b.shape}: give one value for each sample in both")
    first, second = (np.unique(x, return_inverse=True)[1] for x in (a, b))
    together = first * (int(second.max()) + 1) + second
    entropies = (_entropy(np.unique(x, return_counts=True)[1] / len(a)) for x in (together, first, second))
    joint, *own = entropies
    return max(2 * joint - sum(own), 0.0)


def _entropy(shares: Array) -> float:
    return float(-(shares * np.log(shares)).sum())


def _captured(
    components: Array, reference: Array, x: Array | None, covariance: Array | None
) -> tuple[float, float, float]:
    """Return the variance along the components, along the reference, and in total, on one scale."""
    bases = [_span(components), _span(reference)]
    if (x is None) == (covariance is None):
        raise ValueError("x and covariance are alternatives: give exactly one of them")
    given: Any = covariance if x is None else x
    require_one_array(given, "covariance" if x is None else "x")
    widths = {given.shape[1], *(len(basis) for basis in bases)}
    if len(widths) > 1:
        raise ValueError(f"the arrays have {sorted(widths)} attributes: give components of the same samples")
    if x is None:
        matrix = np.asarray(covariance, np.float64)
        along = [float(np.vdot(basis, matrix @ basis)) for basis in bases]
        return along[0], along[1], float(np.trace(matrix))
    blocks = [slice(start, start + _BLOCK_ROWS) for start in range(0, len(x), _BLOCK_ROWS)]
    mean = sum(np.asarray(x[rows]).sum(axis=0, dtype=np.float64) for rows in blocks) / len(x)
    sums = np.zeros(3)
    for rows in blocks:
        centered = np.asarray(x[rows]) - mean
        sums += [np.square(centered @ basis).sum() for basis in bases] + [np.square(centered).sum()]
    return float(sums[0]), float(sums[1]), float(sums[2])


def _span(rows: Array) -> Array:
    """Return orthonormal columns (d, rank) that span the rows."""
    require_one_array(rows, "components")
    basis: Array = scipy.linalg.orth(np.atleast_2d(np.asarray(rows, np.float64)).T)
    return basis


def _pair(x: Array, y: Array, data_range: float) -> tuple[Array, Array]:
    require_one_array(x, "x")
    require_one_array(y, "y")
    x, y = np.asarray(x), np.asarray(y)
    if x.shape != y.shape:
        raise ValueError(f"x has shape {x.shape} and y has shape {y.shape}: give arrays of one shape")
    if not 0 < data_range < math.inf:
        raise ValueError(f"data_range is {data_range}: give the largest minus the smallest possible value")
    if x.dtype != y.dtype:
        common = np.result_type(x, y)
        x, y = x.astype(common), y.astype(common)
    return np.ascontiguousarray(x), np.ascontiguousarray(y)
