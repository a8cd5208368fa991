"""Power spectra of scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.signal

from dpca.kernels.algebra.types import Array
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number
from dpca.timeseries.results import Result
from dpca.timeseries.series import score_series


@dataclass(frozen=True, eq=False)
class Spectrum(Result):
    """Power spectra; see `spectrum`.

    Attributes
    ----------
    share : float
        Share of the variance of the field; see `dpca.timeseries.results.Result`.
    frequencies : array (m,), float64
        Cycles per unit of time, from 0.
    power : array (m, K), float64
        Power spectral density of each time series. Its sum times the frequency resolution is the variance.
    """

    frequencies: Array
    power: Array

    @property
    def total(self) -> Array:
        """Sum of the power spectral densities (m,): the spectrum of the field, except for the share ``1 - share``."""
        total: Array = self.power.sum(axis=1)
        return total

    @property
    def peaks(self) -> Array:
        """Frequency (K,) with the most power for each time series, except 0."""
        peaks: Array = self.frequencies[1 + np.argmax(self.power[1:], axis=0)]
        return peaks


def spectrum(
    scores: Any,
    *,
    model: Any = None,
    time: Any = None,
    segment: int | None = None,
    window: str = "hann",
    detrend: str | bool = "constant",
) -> Spectrum:
    """Return the power spectra of scores.

    Parameters
    ----------
    scores : array (n, ..., K), Dask or Zarr array, DataArray, path or Scores
        See `dpca.timeseries`.
    model : fitted estimator, optional
        The model of the scores, for ``share``.
    time : float or array (n,), optional
        Step between two samples, or the time of each sample; dates are in days. Default: the coordinate of the samples
        if there is one, otherwise 1.
    segment : int, optional
        Samples of a segment of Welch's method: the mean over segments that overlap by half, with resolution 1 /
        (segment * step) (Welch 1967). Default: all samples. That is the periodogram, which does not converge with the
        length of the record.
    window : str
        Name of a window of `scipy.signal.get_window`.
    detrend : {"constant", "linear"} or False
        The mean or the linear trend to subtract from each segment.

    Returns
    -------
    Spectrum
        One-sided. Costs O(K n log(segment)).

    Raises
    ------
    DataError
        If there are fewer than 4 samples, steps vary, or a segment is longer than the record.
    """
    given = score_series(scores, model, time, least=4)
    n = len(given.values)
    length = n if segment is None else whole_number(segment, "segment", 4)
    if length > n:
        raise DataError(f"segment is {length:,} samples but the record has only {n:,}: give at most {n:,}")
    rate = 1 / given.step
    try:
        frequencies, power = scipy.signal.welch(given.values, rate, window, nperseg=length, detrend=detrend, axis=0)
    except ValueError as error:
        raise DataError(
            f"window is {window!r} and detrend {detrend!r} ({error}): give a window of scipy.signal, and 'constant', "
            f"'linear' or False"
        ) from error
    return Spectrum(given.share, frequencies, power)
