"""Measures of how well a model, or a reconstruction, does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.rules.quality import mse_per_sample, psnr_from_mse, ssim_per_sample
from storage.layout import axes_for

Array = NDArray[Any]


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
    """Structural similarity of each sample, as ``skimage.metrics.structural_similarity`` with its defaults (T 2.25).

    Uniform window of 7 pixels a side, sample covariance, mean over positions and channels.

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
        n_spatial = sum(axis != "channel" for axis in axes_for(x.shape[1:]))
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


def _pair(x: Array, y: Array, data_range: float) -> tuple[Array, Array]:
    x, y = np.asarray(x), np.asarray(y)
    if x.shape != y.shape:
        raise ValueError(f"shapes {x.shape} and {y.shape} differ: compare samples of one shape")
    if not data_range > 0:
        raise ValueError(f"data_range is {data_range}: give the largest minus the smallest possible value")
    if x.dtype != y.dtype:
        common = np.result_type(x, y)
        x, y = x.astype(common), y.astype(common)
    return np.ascontiguousarray(x), np.ascontiguousarray(y)
