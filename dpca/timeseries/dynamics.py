"""Dynamic mode decomposition: modes that each grow or decay, and oscillate, at a rate of their own."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from dpca.kernels.types import Array
from dpca.models.convergence import ConvergenceWarning
from dpca.storage.errors import DataError
from dpca.timeseries.exponentials import amplitudes_of, fit_exponentials
from dpca.timeseries.functions import TimeFunctions, checked_modes, time_functions
from dpca.timeseries.results import Modes, turned, with_share


@dataclass(frozen=True, eq=False)
class Dynamics(Modes):
    """Modes with an exponential in time each; see `dmd`.

    Attributes
    ----------
    share : float
        Of the field's variance, see `dpca.timeseries.results.Result`.
    coefficients : array (m, K), complex128
        In general not orthogonal. Of length 1 together with that of the constant, if there is one, which only the mode
        has at which the dynamics rest; largest entry real and positive.
    rates : array (m,), complex128
        Growth and 2 pi i times frequency, per unit of time. Modes are in the order of their part in the record; real
        fields have pairs.
    amplitudes : array (m,), complex128
        At the time of the first sample, ``start``.
    start : float
    residual : float
        Norm of what the modes leave of the time functions, relative to these.
    """

    rates: Array
    amplitudes: Array
    start: float
    residual: float

    @property
    def frequencies(self) -> Array:
        """Cycles per unit of time (m,), negative in one of each pair."""
        frequencies: Array = self.rates.imag / (2 * math.pi)
        return frequencies

    @property
    def growth(self) -> Array:
        """Growth rates per unit of time (m,), negative where a mode decays."""
        growth: Array = self.rates.real
        return growth

    def scores(self, times: Any) -> Array:
        """Return the time functions (len(times), K), float64, that the modes make, also at times to come.

        In the order of the functions that `dmd` was given: what ``inverse_transform`` of an unwhitened model takes.
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
    """Return the modes of the linear dynamics that fit time functions best.

    Parameters
    ----------
    scores : array (n, ..., K), Dask or Zarr array, DataArray, path or Scores
        See `dpca.timeseries`.
    n_modes : int, optional
        At most K, and for "exact" at most n - 1; default the rank of the functions.
    model : fitted estimator, optional
        Of the scores.
    time : float or array (n,), optional
        See `dpca.timeseries.spectrum`.
    method : {"exact", "optimized"}
        "exact": the eigenvectors of the map from a sample to the next, in the leading singular vectors (Schmid 2010;
        Tu, Rowley, Luchtenburg, Brunton & Kutz 2014, algorithm 2), with amplitudes that fit all samples. Noise damps
        its rates. "optimized": the exponentials that fit all samples best, by variable projection (Askham & Kutz 2018,
        algorithm 2); unbiased, and at any times.
    constant : bool, optional
        Whether a constant counts as one more function, so that the dynamics may rest elsewhere than at 0 (Hirsh,
        Harris, Kutz & Brunton 2020). Default where there is a model: its scores are those of the field less the mean,
        at which the dynamics hardly rest.

    Returns
    -------
    Dynamics
        Costs O(n K^2); "optimized" O(n K m^2) for each of up to 100 steps, and 32 n K m bytes.

    Raises
    ------
    DataError
        For fewer than 3 samples, steps that vary with "exact", more modes than there are, or functions that are 0.

    Warns
    -----
    ConvergenceWarning
        When the rates of "optimized" still move after 100 steps.
    """
    given = time_functions(scores, model, time, least=3)
    n, k = given.values.shape
    if method not in ("exact", "optimized"):
        raise DataError(f"method is {method!r}: give 'exact' or 'optimized'")
    values, size = given.values, np.sqrt((given.values**2).sum(axis=1).mean())
    if model is not None if constant is None else constant:
        values = np.concatenate([values, np.full((n, 1), size)], axis=1)
    left, sizes, right = scipy.linalg.svd(values[:-1].T, full_matrices=False)
    rank = int((sizes > max(n, k) * np.finfo(np.float64).eps * sizes[0]).sum())
    if size == 0:
        raise DataError(f"all {n} samples of the scores are 0: they have no dynamics")
    m = rank if n_modes is None else checked_modes(n_modes, rank, f"{k} time functions of {n} samples, of rank {rank},")
    if method == "exact":
        following = values[1:].T @ right[:m].T / sizes[:m]
        eigenvalues, vectors = np.linalg.eig(left[:, :m].T @ following)
        lasting = np.abs(eigenvalues) > np.finfo(np.float64).eps  # others are gone after a step
        if not lasting.any():
            raise DataError("what the scores hold is gone after a sample, so nothing lasts: give a longer record")
        rates = np.log(eigenvalues[lasting].astype(np.complex128)) / given.step
        return _settled(given, values, rates, (following @ vectors[:, lasting]).T)
    rates, coefficients, settled = fit_exponentials(values, given.times, m)
    if not settled:
        warnings.warn(
            f"the rates of {m} modes have not settled: ask for fewer of them (n_modes), or take method='exact'",
            ConvergenceWarning,
            stacklevel=2,
        )
    return _settled(given, values, rates, coefficients)


def _settled(given: TimeFunctions, values: Array, rates: Array, coefficients: Array) -> Dynamics:
    """Return modes in the order of their part in the record, with amplitudes that fit all values (n, K or K + 1)."""
    coefficients = coefficients / np.linalg.norm(coefficients, axis=1, keepdims=True)
    coefficients = coefficients * turned(coefficients)
    since = given.times - given.times[0]
    amplitudes, courses = amplitudes_of(values, since, rates, coefficients)
    coefficients = coefficients[:, : given.values.shape[1]]
    part = np.linalg.norm(courses, axis=0)
    # Those of a pair are equal but for rounding.
    order = np.lexsort((-rates.imag, -np.round(part / part.max(), 6)))
    left = np.linalg.norm(given.values - (courses @ coefficients).real) / np.linalg.norm(given.values)
    return Dynamics(
        coefficients=coefficients[order],
        rates=rates[order],
        amplitudes=amplitudes[order],
        start=float(given.times[0]),
        residual=float(left),
        **with_share(given),
    )
