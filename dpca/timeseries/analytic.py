"""Hilbert EOF analysis: modes that propagate, from the analytic signal of time functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.signal

from dpca.kernels.types import Array
from dpca.rules.rule import check_number
from dpca.storage.errors import DataError
from dpca.timeseries.functions import checked_modes, time_functions
from dpca.timeseries.results import Modes, turned, with_share


@dataclass(frozen=True, eq=False)
class HilbertModes(Modes):
    """Complex modes; see `hilbert_eof`.

    Attributes
    ----------
    share : float
        Of the field's variance, see `dpca.timeseries.results.Result`.
    coefficients : array (n_modes, K), complex128
        Orthonormal. The modulus of `modes` is the amplitude of a wave, the angle its phase.
    scores : array (n, n_modes), complex128
        Time functions: the analytic field is the sum of scores times modes.
    explained_variance : array (n_modes,), float64
        Of the analytic field, divisor n - 1, descending.
    explained_variance_ratio : array (n_modes,), float64
        Of all the variance of the analytic field, what was not kept included as ``share`` has it.
    """

    scores: Array
    explained_variance: Array
    explained_variance_ratio: Array


def hilbert_eof(
    scores: Any,
    n_modes: int,
    *,
    model: Any = None,
    time: Any = None,
    padding: str | None = "exponential",
    decay: float = 0.2,
) -> HilbertModes:
    """Return the complex modes of the analytic signal of a field, which tell standing from propagating patterns.

    The Hilbert transform in time commutes with the projection on components, so it is taken of the time functions
    (Rasmusson, Arkin, Chen & Jalickee 1981; Barnett 1983).

    Parameters
    ----------
    scores : array (n, ..., K), Dask or Zarr array, DataArray, path or Scores
        See `dpca.timeseries`.
    n_modes : int
        At most K, and at most n.
    model : fitted estimator, optional
        Of the scores.
    time : float or array (n,), optional
        Only to refuse steps that vary; see `dpca.timeseries.spectrum`.
    padding : {"exponential", None}
        What continues the record on both sides, for its own length, so that its ends leak less: an exponential decay
        towards its linear trend; or nothing, which takes it for periodic.
    decay : float
        Length of the decay as a share of the record.

    Returns
    -------
    HilbertModes
        The largest entry of a mode's coefficients is real and positive. Costs O(K n log n + n K^2).

    Raises
    ------
    DataError
        For fewer than 3 samples, steps that vary, or modes that there are not.
    """
    given = time_functions(scores, model, time, least=3)
    n, k = given.values.shape
    m = checked_modes(n_modes, min(n, k), f"{k} time functions of {n} samples")
    given.step  # noqa: B018 - refuses steps that vary
    signal = given.centered
    if padding == "exponential":
        try:
            check_number("decay", decay, "a share of the record above 0", above=0)
        except ValueError as error:
            raise DataError(str(error)) from error
        signal = scipy.signal.hilbert(_padded(signal, decay), axis=0)[n : 2 * n]
    elif padding is None:
        signal = scipy.signal.hilbert(signal, axis=0)
    else:
        raise DataError(f"padding is {padding!r}: give 'exponential' or None")
    # What continues the record moves the mean of the imaginary part.
    signal -= signal.mean(axis=0)
    left, sizes, right = scipy.linalg.svd(signal, full_matrices=False)
    variances = sizes**2 / (n - 1)
    phase = turned(right[:m])
    ratio = given.share * variances[:m] / max(variances.sum(), 1e-300)
    time_series = left[:, :m] * sizes[:m] * phase.conj().T
    return HilbertModes(
        coefficients=right[:m] * phase,
        scores=time_series,
        explained_variance=variances[:m],
        explained_variance_ratio=ratio,
        **with_share(given),
    )


def _padded(values: Array, decay: float) -> Array:
    """Return values (3 n, K): n before and n behind fall from the ends to the linear trend, exponentially."""
    n = len(values)
    trend = values - scipy.signal.detrend(values, axis=0)
    slope, rest = (trend[-1] - trend[0]) / (n - 1), values - trend
    fall = np.exp(-np.arange(n) / (decay * n))[:, None]
    around = np.concatenate([rest[0] * fall[::-1], rest, rest[-1] * fall])
    padded: Array = around + trend[0] + slope * np.arange(-n, 2 * n)[:, None]
    return padded
