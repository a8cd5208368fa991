"""The analytic signal of time series: their values, and their Hilbert transform as imaginary part."""

from __future__ import annotations

import numpy as np
import scipy.signal

from dpca.kernels.algebra.types import Array


def analytic_signal(values: Array, decay: float | None) -> Array:
    """Return the analytic signal (n, K), complex, of centered time series (n, K), in even steps, without its mean.

    Parameters
    ----------
    values : array (n, K)
    decay : float or None
        The record is extended on both sides, by its own length, by an exponential decay towards the linear trend. This
        is the decay length relative to the length of the record. None: no extension; the record counts as periodic.
    """
    n = len(values)
    signal = values if decay is None else _padded(values, decay)
    found: Array = scipy.signal.hilbert(signal, axis=0)
    found = found if decay is None else found[n : 2 * n]
    # The extension shifts the mean of the imaginary part.
    return found - found.mean(axis=0)


def _padded(values: Array, decay: float) -> Array:
    """Return values (3 n, K): n values on each side decay exponentially from the ends to the linear trend."""
    n = len(values)
    trend = values - scipy.signal.detrend(values, axis=0)
    slope, rest = (trend[-1] - trend[0]) / (n - 1), values - trend
    fall = np.exp(-np.arange(n) / (decay * n))[:, None]
    around = np.concatenate([rest[0] * fall[::-1], rest, rest[-1] * fall])
    padded: Array = around + trend[0] + slope * np.arange(-n, 2 * n)[:, None]
    return padded
