"""Dynamic mode decomposition: each mode grows or decays and oscillates at one complex rate."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from dpca.kernels.algebra.types import Array
from dpca.models.base.convergence import ConvergenceWarning
from dpca.storage.errors import DataError
from dpca.timeseries.exponentials import amplitudes_of, fit_exponentials
from dpca.timeseries.results import Modes, phase_factors
from dpca.timeseries.series import ScoreSeries, checked_modes, score_series


@dataclass(frozen=True, eq=False)
class Dynamics(Modes):
    """Modes with exponential time dependence; see `dmd`.

    Attributes
    ----------
    share : float
        Share of the variance of the field; see `dpca.timeseries.results.Result`.
    coefficients : array (m, K), complex128
        In general not orthogonal. Unit length, including the coefficient of the constant function if there is one; only
        the mode of the equilibrium has such a coefficient. The largest entry is real and positive.
    rates : array (m,), complex128
        Growth rate plus 2 pi i times frequency, per unit of time. Modes are sorted by the norm of their contribution.
        Real fields have conjugate pairs.
    amplitudes : array (m,), complex128
        Amplitudes at the time of the first sample, ``start``.
    start : float
    residual : float
        Norm of the residual of the scores, relative to the norm of the scores.
    """

    rates: Array
    amplitudes: Array
    start: float
    residual: float

    @property
    def frequencies(self) -> Array:
        """Cycles per unit of time (m,), negative for one mode of each pair."""
        frequencies: Array = self.rates.imag / (2 * math.pi)
        return frequencies

    @property
    def growth(self) -> Array:
        """Growth rates per unit of time (m,), negative for modes that decay."""
        growth: Array = self.rates.real
        return growth

    def scores(self, times: Any) -> Array:
        """Return the scores (len(times), K), float64, of the dynamics at any times, also as a forecast.

        They have the order of the input of `dmd`. ``inverse_transform`` of a model without whitening supports them.
        """
        since = np.atleast_1d(np.asarray(times, np.float64))[:, None] - self.start
        functions: Array = ((np.exp(since * self.rates) * self.amplitudes) @ self.coefficients).real
        return functions


def dmd(
    scores: Any,
    n_modes: int | None = None,
    *,
    model: Any = None,
    time: Any = None,
    method: str = "exact",
    constant: bool | None = None,
) -> Dynamics:
    """Return the modes of the linear dynamics that best fit the scores.

    Parameters
    ----------
    scores : array (n, ..., K), Dask or Zarr array, DataArray, path or Scores
        See `dpca.timeseries`.
    n_modes : int, optional
        At most K, and for "exact" at most n - 1. Default: the rank of the scores.
    model : fitted estimator, optional
        The model of the scores.
    time : float or array (n,), optional
        See `dpca.timeseries.spectrum`.
    method : {"exact", "optimized"}
        "exact": the eigenvectors of the map from each sample to the next, in the leading singular vectors (Schmid 2010;
        Tu, Rowley, Luchtenburg, Brunton & Kutz 2014, algorithm 2), with amplitudes that fit all samples. Noise biases
        its rates towards decay. "optimized": the exponentials that best fit all samples, by variable projection (Askham
        & Kutz 2018, algorithm 2). It is unbiased, and supports uneven times.
    constant : bool, optional
        Whether to add a constant function, so that the equilibrium of the dynamics may differ from 0 (Hirsh, Harris,
        Kutz & Brunton 2020). Default: True if there is a model. Scores of a model are relative to the mean of the
        field, which is hardly ever the equilibrium.

    Returns
    -------
    Dynamics
        Costs O(n K^2); "optimized" O(n K m^2) for each of up to 100 steps, and 32 n K m bytes.

    Raises
    ------
    DataError
        If there are fewer than 3 samples, steps vary with "exact", n_modes is out of range, or all scores are 0.

    Warns
    -----
    ConvergenceWarning
        If the rates of "optimized" have not converged after 100 steps.
    """
    given = score_series(scores, model, time, least=3)
    n, k = given.values.shape
    if method not in ("exact", "optimized"):
        raise DataError(f"method is {method!r}: give 'exact' or 'optimized'")
    values, size = given.values, np.sqrt((given.values**2).sum(axis=1).mean())
    if model is not None if constant is None else constant:
        values = np.concatenate([values, np.full((n, 1), size)], axis=1)
    left, sizes, right = scipy.linalg.svd(values[:-1].T, full_matrices=False)
    rank = int((sizes > max(n, k) * np.finfo(np.float64).eps * sizes[0]).sum())
    if size == 0:
        raise DataError(f"all {n} samples of the scores are 0: give scores that vary")
    m = rank if n_modes is None else checked_modes(n_modes, rank, f"{k} time series of {n} samples, of rank {rank},")
    if method == "exact":
        following = values[1:].T @ right[:m].T / sizes[:m]
        eigenvalues, vectors = np.linalg.eig(left[:, :m].T @ following)
        lasting = np.abs(eigenvalues) > np.finfo(np.float64).eps  # other modes vanish after one step
        if not lasting.any():
            raise DataError("all modes of the scores vanish after one sample: give a longer record")
        rates = np.log(eigenvalues[lasting].astype(np.complex128)) / given.step
        return _sorted_modes(given, values, rates, (following @ vectors[:, lasting]).T)
    rates, coefficients, converged = fit_exponentials(values, given.times, m)
    if not converged:
        warnings.warn(
            f"the rates of {m} modes have not converged: give a smaller n_modes, or use method='exact'",
            ConvergenceWarning,
            stacklevel=2,
        )
    return _sorted_modes(given, values, rates, coefficients)


def _sorted_modes(given: ScoreSeries, values: Array, rates: Array, coefficients: Array) -> Dynamics:
    """Return the modes sorted by the norm of their contribution; amplitudes fit all values (n, K or K + 1)."""
    coefficients = coefficients / np.linalg.norm(coefficients, axis=1, keepdims=True)
    coefficients = coefficients * phase_factors(coefficients)
    since = given.times - given.times[0]
    amplitudes, courses = amplitudes_of(values, since, rates, coefficients)
    coefficients = coefficients[:, : given.values.shape[1]]
    part = np.linalg.norm(courses, axis=0)
    # Contributions are rounded, because those of a conjugate pair are equal up to rounding error.
    order = np.lexsort((-rates.imag, -np.round(part / part.max(), 6)))
    left = np.linalg.norm(given.values - (courses @ coefficients).real) / np.linalg.norm(given.values)
    return Dynamics(
        coefficients=coefficients[order],
        rates=rates[order],
        amplitudes=amplitudes[order],
        start=float(given.times[0]),
        residual=float(left),
        share=given.share,
        _grid=given.grid,
    )
