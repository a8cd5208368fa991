"""Measures of how well a model, or a reconstruction, does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.linalg

from dpca.kernels.quality import mse_per_sample, psnr_from_mse, ssim_per_sample
from dpca.kernels.types import Array
from dpca.storage.given_numbers import require_one_array
from dpca.storage.layout import axes_for, count_spatial

_BLOCK_ROWS = 1024


def mse(x: Array, y: Array, *, data_range: float = 1.0) -> Array:
    """Mean squared error of each sample.

    Parameters
    ----------
    x, y : arrays (n_samples, ...) of one shape
    data_range : float
        Largest minus smallest possible value; the result is in units of its square. 1 leaves it in squared units of
        the input.

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
    """Peak signal-to-noise ratio of each sample, in decibels: 10 log10(data_range^2 / MSE), infinite where x equals y.

    Parameters, errors and shape of the result as in `mse`; ``data_range`` is required.
    """
    return psnr_from_mse(mse(x, y, data_range=data_range))


def ssim(x: Array, y: Array, *, data_range: float, n_spatial: int | None = None) -> Array:
    """Structural similarity of each sample, as ``skimage.metrics.structural_similarity`` with its defaults.

    Alakkari 2020, equation 2.25 (Wang et al. 2004, equation 13), over a uniform window of 7 pixels a side, with sample
    covariance, K1 = 0.01 and K2 = 0.03, averaged over channels and the positions where the whole window lies inside the
    image. Agrees with scikit-image to 1e-6.

    Parameters
    ----------
    x, y : arrays (n_samples, *spatial, *channels) of one shape
    data_range : float
        Largest minus smallest possible value; required, since guessing it from floating-point data gives wrong values.
    n_spatial : int, optional
        Number of spatial axes. Default: all, but for a last axis of length 4 or less behind two others.

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
            f"samples of shape {x.shape[1:]} with {n_spatial} spatial axes have no SSIM: give arrays (n_samples, "
            f"*spatial, *channels) and n_spatial between 1 and the number of axes of a sample"
        )
    return ssim_per_sample(x, y, data_range=data_range, n_spatial=n_spatial)


def explained_variance_ratio(explained_variance: Array, total_variance: Any) -> Array:
    """Share of the total variance that the first 1, 2, ... components explain together.

    Parameters
    ----------
    explained_variance : array (..., n_components)
        Variances in descending order.
    total_variance : float or array (...)

    Returns
    -------
    array (..., n_components), float64
        Cumulative; 1 where the total is 0, since nothing is left to explain.
    """
    total = np.asarray(total_variance, np.float64)[..., None]
    cumulative = np.cumsum(explained_variance, axis=-1, dtype=np.float64)
    return np.divide(cumulative, total, out=np.ones_like(cumulative), where=total > 0)


def convergence(
    components: Array, reference: Array, x: Array | None = None, *, covariance: Array | None = None
) -> float:
    """Share of the best capturable variance that components miss, as a power of ten; lower is better.

    ``log10(1 - |X W|_F^2 / |X V|_F^2)`` for the components W, orthonormalized first, and the best ones V (Alakkari
    2020, equation 2.24).

    Parameters
    ----------
    components : array (k, d)
        Rows that span a subspace; they need not be orthonormal.
    reference : array (k, d)
        The best components, or what to compare with.
    x : array (n_samples, d), optional
        The samples; they are centered with their own mean, and read in blocks.
    covariance : array (d, d), optional
        Their covariance, or any matrix in its place, instead of ``x``.

    Returns
    -------
    float
        -1 for a tenth of the variance lost, -inf where nothing is. Evaluated in float64, which cannot tell values below
        about -15.

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
    """Reconstruction error of components beyond that of the best ones, in per cent of it (Amid & Warmuth 2020).

    100 (l(W) - l(V)) / l(V), where l is the variance that a projection leaves out.

    Parameters and errors as in `convergence`.

    Returns
    -------
    float
        0 for the best components; infinite if those leave nothing out but ``components`` do.
    """
    found, best, total = _captured(components, reference, x, covariance)
    # What is left beside the total may be rounding error alone.
    loss = max(total - best, 0.0)
    excess = best - found
    if loss <= 1e-14 * total:
        return 0.0 if abs(excess) <= 1e-14 * total else math.inf
    return 100 * excess / loss


def principal_angles(a: Array, b: Array) -> Array:
    """Principal angles between the subspaces that two sets of rows span, in radians (Bjorck & Golub 1973).

    Parameters
    ----------
    a : array (k, d)
    b : array (m, d)
        Rows need not be orthonormal.

    Returns
    -------
    array (min(k, m),), float64
        Ascending, from 0 to pi / 2, small ones as accurate as large ones. Fewer where rows depend on each other.

    Raises
    ------
    ValueError
        If the rows have different lengths.
    """
    first, second = _span(a), _span(b)
    if len(first) != len(second):
        raise ValueError(f"rows of {len(first)} and {len(second)} attributes span no common angles: give equal lengths")
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
        H(a) + H(b) - 2 I(a, b) in nats, at most 2 log of the larger number of clusters: 0 where the clusters are the
        same under other names.

    Raises
    ------
    ValueError
        If the lengths differ, or there are no samples.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise ValueError(f"clusterings of {a.shape} and {b.shape} do not go together: give one value for each sample")
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
    """Return the variance along the components, along the reference, and in total, all to one scale."""
    bases = [_span(components), _span(reference)]
    if (x is None) == (covariance is None):
        raise ValueError("the variance comes from the samples x or from their covariance: give exactly one of them")
    given: Any = covariance if x is None else x
    require_one_array(given, "covariance" if x is None else "x")
    widths = {given.shape[1], *(len(basis) for basis in bases)}
    if len(widths) > 1:
        raise ValueError(f"{sorted(widths)} attributes do not go together: give components of the same samples")
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
    """Orthonormal columns (d, rank) with the span of the rows."""
    require_one_array(rows, "components")
    basis: Array = scipy.linalg.orth(np.atleast_2d(np.asarray(rows, np.float64)).T)
    return basis


def _pair(x: Array, y: Array, data_range: float) -> tuple[Array, Array]:
    require_one_array(x, "x")
    require_one_array(y, "y")
    x, y = np.asarray(x), np.asarray(y)
    if x.shape != y.shape:
        raise ValueError(f"shapes {x.shape} and {y.shape} differ: compare samples of one shape")
    if not 0 < data_range < math.inf:
        raise ValueError(f"data_range is {data_range}: give the largest less the smallest possible value")
    if x.dtype != y.dtype:
        common = np.result_type(x, y)
        x, y = x.astype(common), y.astype(common)
    return np.ascontiguousarray(x), np.ascontiguousarray(y)
