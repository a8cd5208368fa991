"""How much time functions say: cosines that a random walk leaves, and how many of the samples are independent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.fft

from dpca.kernels.persistence import independent_samples
from dpca.kernels.types import Array
from dpca.storage.errors import DataError
from dpca.timeseries.functions import time_functions
from dpca.timeseries.results import Result


@dataclass(frozen=True, eq=False)
class CosineContent(Result):
    """How much of each time function is a cosine; see `cosine_content`.

    Attributes
    ----------
    share : float
        Of the field's variance, see `dpca.timeseries.results.Result`.
    content : array (K,), float64
        From 0 to 1.
    """

    content: Array


@dataclass(frozen=True, eq=False)
class EffectiveSamples(Result):
    """How many samples are independent; see `effective_samples`.

    Attributes
    ----------
    share : float
        Of the field's variance, see `dpca.timeseries.results.Result`.
    count : array (K,), float64
        From 1 to n.
    """

    count: Array


def cosine_content(scores: Any, *, model: Any = None) -> CosineContent:
    """Return how much of time function i is the cosine of i half periods, as a random walk leaves it.

    The components of diffusion in many dimensions have cosines for time functions, whatever the forces: content near 1
    in the first ones says that the record is too short for a motion to be told from diffusion (Hess 2000; Hess 2002,
    equation 12).

    Parameters
    ----------
    scores : array (n, ..., K), Dask or Zarr array, DataArray, path or Scores
        In the order of time, and of components by variance; see `dpca.timeseries`. K <= n - 1.
    model : fitted estimator, optional
        Of the scores, which says what share of the variance they hold.

    Returns
    -------
    CosineContent
        The squared coefficient of the cosine by the sum of squares, in the orthonormal basis of the discrete cosine
        transform: 1 for a cosine, 0 for a function of mean 0 without it, and for one that is 0. Costs O(K n log n).

    Raises
    ------
    DataError
        For fewer than 2 samples, or no more samples than functions.
    """
    given = time_functions(scores, model, None)
    n, k = given.values.shape
    if k >= n:
        raise DataError(f"{k} time functions of {n} samples: the cosine of {k} half periods takes at least {k + 1}")
    squares = scipy.fft.dct(given.values, norm="ortho", axis=0) ** 2
    own, all_of_it = squares[np.arange(1, k + 1), np.arange(k)], squares.sum(axis=0)
    return CosineContent(given.share, np.divide(own, all_of_it, out=np.zeros(k), where=all_of_it > 0))


def effective_samples(scores: Any, *, model: Any = None, of: str = "mean") -> EffectiveSamples:
    """Return how many of the samples count as independent in each time function.

    The error of a mean of n samples is that of a mean of n_eff independent ones, n_eff = n / (1 + 2 sum_j (1 - j / n)
    r_j), r_j being the autocorrelation; that of a variance has its square in the place of r_j (Bayley & Hammersley
    1946; Bretherton, Widmann, Dymnikov, Wallace & Blade 1999, equations 30 and 31). The sum ends before the first r_j +
    r_(j + 1) that is not positive, in even j: beyond, it holds nothing but noise (Geyer 1992, section 3.3).

    Parameters
    ----------
    scores : array (n, ..., K), Dask or Zarr array, DataArray, path or Scores
        In the order of time, at even steps; see `dpca.timeseries`.
    model : fitted estimator, optional
        Of the scores, which says what share of the variance they hold.
    of : {"mean", "variance"}
        What the samples are to tell.

    Returns
    -------
    EffectiveSamples
        For an autoregressive process of first order with coefficient r, n (1 - r) / (1 + r) of a mean, and n (1 - r^2)
        / (1 + r^2) of a variance, for large n. Costs O(K n log n).

    Raises
    ------
    DataError
        For fewer than 4 samples.
    """
    given = time_functions(scores, model, None, least=4)
    if of not in ("mean", "variance"):
        raise DataError(f"of is {of!r}: give 'mean' or 'variance'")
    return EffectiveSamples(given.share, independent_samples(given.values, of))
