"""Hilbert EOF analysis: propagating modes from the analytic signal of scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import scipy.linalg

from dpca.kernels.algebra.types import Array
from dpca.kernels.analytic import analytic_signal
from dpca.rules.base.options import check_number
from dpca.storage.errors import DataError
from dpca.timeseries.results import Modes, phase_factors
from dpca.timeseries.series import checked_modes, score_series


@dataclass(frozen=True, eq=False)
class HilbertModes(Modes):
    """Complex modes; see `hilbert_eof`.

    Attributes
    ----------
    share : float
        Share of the variance of the field; see `dpca.timeseries.results.Result`.
    coefficients : array (n_modes, K), complex128
        Orthonormal. The modulus of `modes` is the amplitude of a wave, the angle its phase.
    scores : array (n, n_modes), complex128
        Complex time series of the modes. The analytic field is the sum of scores times modes.
    explained_variance : array (n_modes,), float64
        Variance of the analytic field along each mode, divisor n - 1, descending.
    explained_variance_ratio : array (n_modes,), float64
        The same divided by the total variance of the analytic field, including the part that the model discards.
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
    """Return the complex modes of the analytic signal of a field. They separate standing from propagating patterns.

    The Hilbert transform in time commutes with the projection on components, so it applies to the scores (Rasmusson,
    Arkin, Chen & Jalickee 1981; Barnett 1983).

    Parameters
    ----------
    scores : array (n, ..., K), Dask or Zarr array, DataArray, path or Scores
        See `dpca.timeseries`.
    n_modes : int
        At most K, and at most n.
    model : fitted estimator, optional
        The model of the scores.
    time : float or array (n,), optional
        Used only to check that steps are even; see `dpca.timeseries.spectrum`.
    padding : {"exponential", None}
        Extension of the record on both sides, by its own length, to reduce leakage at its ends. "exponential": an
        exponential decay towards the linear trend. None: no extension; the record counts as periodic.
    decay : float
        Decay length relative to the length of the record.

    Returns
    -------
    HilbertModes
        The largest entry of a mode's coefficients is real and positive. Costs O(K n log n + n K^2).

    Raises
    ------
    DataError
        If there are fewer than 3 samples, steps vary, or n_modes is out of range.
    """
    given = score_series(scores, model, time, least=3)
    n, k = given.values.shape
    m = checked_modes(n_modes, min(n, k), f"{k} time series of {n} samples")
    given.step  # noqa: B018 - raises DataError if steps vary
    signal = given.centered
    if padding == "exponential":
        try:
            check_number("decay", decay, "a positive share of the record", above=0)
        except ValueError as error:
            raise DataError(str(error)) from error
    elif padding is not None:
        raise DataError(f"padding is {padding!r}: give 'exponential' or None")
    signal = analytic_signal(signal, None if padding is None else decay)
    left, sizes, right = scipy.linalg.svd(signal, full_matrices=False)
    variances = sizes**2 / (n - 1)
    phase = phase_factors(right[:m])
    ratio = given.share * variances[:m] / max(variances.sum(), 1e-300)
    time_series = left[:, :m] * sizes[:m] * phase.conj().T
    return HilbertModes(
        coefficients=right[:m] * phase,
        scores=time_series,
        explained_variance=variances[:m],
        explained_variance_ratio=ratio,
        share=given.share,
        _grid=given.grid,
    )
