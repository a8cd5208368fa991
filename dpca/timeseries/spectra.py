"""Power spectra of time functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.signal

from dpca.kernels.types import Array
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number
from dpca.timeseries.functions import time_functions
from dpca.timeseries.results import Result


@dataclass(frozen=True, eq=False)
class Spectrum(Result):
    """Power spectra; see `spectrum`.

    Attributes
    ----------
    share : float
        Of the field's variance, see `dpca.timeseries.results.Result`.
    frequencies : array (m,), float64
        Cycles per unit of time, from 0.
    power : array (m, K), float64
        Density of the variance of each function: its sum times the distance of frequencies is the variance.
    """

    frequencies: Array
    power: Array

    @property
    def total(self) -> Array:
        """Density of the variance of all functions together (m,): the spectrum of the field, up to ``1 - share``."""
        total: Array = self.power.sum(axis=1)
        return total

    @property
    def peaks(self) -> Array:
        """Frequency (K,) with the most power of each function, 0 left out."""
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
    """Return the power spectra of time functions.

    Parameters
    ----------
    scores : array (n, ..., K), Dask or Zarr array, DataArray, path or Scores
        See `dpca.timeseries`.
    model : fitted estimator, optional
        Of the scores, which says what share of the variance they hold.
    time : float or array (n,), optional
        Step between two samples, or the time of each one; dates count in days. Default what stands along the samples,
        else 1.
    segment : int, optional
        Samples of a segment of Welch's method: means over segments that overlap by half, of resolution 1 / (segment *
        step) (Welch 1967). Default all samples: the periodogram, which does not settle however long the record is.
    window : str
        Of `scipy.signal.get_window`.
    detrend : {"constant", "linear"} or False
        What is taken off each segment first.

    Returns
    -------
    Spectrum
        One-sided. Costs O(K n log(segment)).

    Raises
    ------
    DataError
        For fewer than 4 samples, steps that vary, or a segment longer than the record.
    """
    given = time_functions(scores, model, time, least=4)
    n = len(given.values)
    length = n if segment is None else whole_number(segment, "segment", 4)
    if length > n:
        raise DataError(f"segment is {length:,} samples but the record has only {n:,}: give at most that")
    rate = 1 / given.step
    try:
        frequencies, power = scipy.signal.welch(given.values, rate, window, nperseg=length, detrend=detrend, axis=0)
    except ValueError as error:
        raise DataError(
            f"window is {window!r} and detrend {detrend!r} ({error}): give a window of scipy.signal, and 'constant', "
            f"'linear' or False"
        ) from error
    return Spectrum(given.share, frequencies, power)
