"""Significance of time series: the cosine content of random walks, and the effective number of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.fft

from dpca.kernels.algebra.types import Array
from dpca.kernels.persistence import independent_samples
from dpca.storage.errors import DataError
from dpca.timeseries.results import Result
from dpca.timeseries.series import score_series


@dataclass(frozen=True, eq=False)
class CosineContent(Result):
    """Cosine content of each time series; see `cosine_content`.

    Attributes
    ----------
    share : float
        Share of the variance of the field; see `dpca.timeseries.results.Result`.
    content : array (K,), float64
        From 0 to 1.
    """

    content: Array


@dataclass(frozen=True, eq=False)
class EffectiveSamples(Result):
    """Effective number of independent samples; see `effective_samples`.

    Attributes
    ----------
    share : float
        Share of the variance of the field; see `dpca.timeseries.results.Result`.
    count : array (K,), float64
        From 1 to n.
    """

    count: Array


def cosine_content(scores: Any, *, model: Any = None) -> CosineContent:
    """Return the cosine content of each time series: the share of series i that is a cosine of i half periods.

    The scores of a random walk in many dimensions are cosines. A content near 1 in the first series shows that the
    record is too short to distinguish motion from diffusion (Hess 2000; Hess 2002, equation 12).

    Parameters
    ----------
    scores : array (n, ..., K), Dask or Zarr array, DataArray, path or Scores
        In the order of time, with components sorted by variance; see `dpca.timeseries`. K <= n - 1.
    model : fitted estimator, optional
        The model of the scores, for ``share``.

    Returns
    -------
    CosineContent
        The squared coefficient of the cosine divided by the sum of squares, in the orthonormal basis of the discrete
        cosine transform. 1 for a cosine; 0 for a series of mean 0 without this cosine, and for a series of zeros.
        Costs O(K n log n).

    Raises
    ------
    DataError
        If there are fewer than 2 samples, or not more samples than series.
    """
    given = score_series(scores, model, None)
    n, k = given.values.shape
    if k >= n:
        raise DataError(f"{k} time series require at least {k + 1} samples: {n} were given, use fewer components")
    squares = scipy.fft.dct(given.values, norm="ortho", axis=0) ** 2
    own, all_of_it = squares[np.arange(1, k + 1), np.arange(k)], squares.sum(axis=0)
    return CosineContent(given.share, np.divide(own, all_of_it, out=np.zeros(k), where=all_of_it > 0))


def effective_samples(scores: Any, *, model: Any = None, of: str = "mean") -> EffectiveSamples:
    """Return the effective number of independent samples of each time series.

    The mean of n samples has the error of the mean of n_eff independent samples, n_eff = n / (1 + 2 sum_j (1 - j / n)
    r_j), where r_j is the autocorrelation. For the variance, r_j^2 replaces r_j (Bayley & Hammersley 1946; Bretherton,
    Widmann, Dymnikov, Wallace & Blade 1999, equations 30 and 31). The sum ends before the first even j for which r_j +
    r_(j + 1) is not positive, because the rest is noise (Geyer 1992, section 3.3).

    Parameters
    ----------
    scores : array (n, ..., K), Dask or Zarr array, DataArray, path or Scores
        In the order of time, at even steps; see `dpca.timeseries`.
    model : fitted estimator, optional
        The model of the scores, for ``share``.
    of : {"mean", "variance"}
        The statistic to estimate from the samples.

    Returns
    -------
    EffectiveSamples
        For a first-order autoregressive process with coefficient r and large n, the number is n (1 - r) / (1 + r) for
        the mean, and n (1 - r^2) / (1 + r^2) for the variance. Costs O(K n log n).

    Raises
    ------
    DataError
        If there are fewer than 4 samples.
    """
    given = score_series(scores, model, None, least=4)
    if of not in ("mean", "variance"):
        raise DataError(f"of is {of!r}: give 'mean' or 'variance'")
    return EffectiveSamples(given.share, independent_samples(given.values, of))
