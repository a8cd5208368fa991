"""Significance and sampling errors of modes: North's rule, rule N, the bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dpca.kernels.algebra.types import Array
from dpca.kernels.persistence import independent_samples
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number


@dataclass(frozen=True, eq=False)
class NorthTest:
    """Sampling errors of eigenvalues.

    Attributes
    ----------
    eigenvalue : array (k,), float64
    error : array (k,), float64
        One standard error.
    n_eff : array (k,), float64
        Effective number of samples.
    separated : array (k,), bool
        Whether the distance of the eigenvalue to both computed neighbors exceeds its error. Modes that are not
        separated mix: other samples give other combinations of them.
    """

    eigenvalue: Array
    error: Array
    n_eff: Array
    separated: Array


@dataclass(frozen=True, eq=False)
class RuleN:
    """Shares of variance, compared with those of noise.

    Attributes
    ----------
    share : array (k,), float64
    threshold : array (k,), float64
        Quantile, at the given level, of the share of the same mode of noise.
    significant : array (k,), bool
    """

    share: Array
    threshold: Array
    significant: Array


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Variation of eigenvalues and modes between samples.

    Attributes
    ----------
    low, high : array (k,), float64
        Bounds of the eigenvalues at the given level.
    congruence : array (k,), float64
        Mean absolute cosine between a mode and the mode of the same number in a draw.
    least_congruence : array (k,), float64
        The value that this cosine exceeds at the given level.
    """

    low: Array
    high: Array
    congruence: Array
    least_congruence: Array


def north_test(eigenvalues: Array, n_samples: int, pcs: Array | None = None, others: Array | None = None) -> NorthTest:
    """Return the standard errors lambda sqrt(2 / n) of eigenvalues (North, Bell, Cahalan & Moeng 1982, equation 24).

    Parameters
    ----------
    eigenvalues : array (k,), descending
    n_samples : int
        Number of independent samples.
    pcs : array (n_samples, k), optional
        Time functions. The number of independent samples is then estimated for each of them, see
        `dpca.kernels.persistence.independent_samples`.
    others : array (n_samples, k), optional
        Time functions of a second field, if the eigenvalues are covariances of both.

    Returns
    -------
    NorthTest
    """
    count = np.full(len(eigenvalues), float(n_samples))
    count = count if pcs is None else independent_samples(pcs, "variance", others)
    error = eigenvalues * np.sqrt(2 / count)
    apart = np.full(len(eigenvalues) + 1, np.inf)
    apart[1:-1] = -np.diff(eigenvalues)
    return NorthTest(eigenvalues, error, count, np.minimum(apart[:-1], apart[1:]) > error)


def rule_n(shares: Array, n_samples: int, n_places: int, n_trials: int, level: float, seed: int) -> RuleN:
    """Compare shares of variance with those of uncorrelated noise (Overland & Preisendorfer 1982).

    Parameters
    ----------
    shares : array (k,)
        Shares of the total variance.
    n_samples, n_places : int
        Size of the field. If neighbors or time steps are correlated, the field has fewer degrees of freedom than noise
        of this size.
    n_trials : int
        Number of fields of noise.
    level : float
        Share of the fields with a share of variance below ``threshold``.
    seed : int

    Returns
    -------
    RuleN

    Notes
    -----
    The fields of noise are not computed. The eigenvalues of their covariance have exactly the distribution of those of
    a tridiagonal matrix of independent entries (Dumitriu & Edelman 2002). A trial costs O(k min(n_samples, n_places)).
    """
    n_trials, level = whole_number(n_trials, "n_trials", 2), checked_level(level)
    rng, k = np.random.default_rng(seed), len(shares)
    few, many = sorted((n_samples - 1, n_places))  # the mean takes one degree of freedom
    found = np.zeros((n_trials, k))
    for trial in found:
        own, beside = rng.chisquare(many - np.arange(few)), rng.chisquare(few - np.arange(1, few))
        last, total = max(few - k, 0), own.sum() + beside.sum()
        diagonal = own + np.append(0.0, beside)
        edge = np.sqrt(own[:-1] * beside)
        values = scipy.linalg.eigvalsh_tridiagonal(diagonal, edge, select="i", select_range=(last, few - 1))
        trial[: len(values)] = values[::-1] / total
    threshold = np.quantile(found, level, axis=0)
    return RuleN(shares, threshold, shares > threshold)


def bootstrap(pcs: Array, n_trials: int, level: float, block_length: int, seed: int) -> Bootstrap:
    """Draw samples with replacement, and find the modes of each draw (Efron 1979; Fisher et al. 2016).

    The modes of a draw are combinations of the modes of the fit, so the field is not read again. Variance outside of
    the modes of the fit is ignored.

    Parameters
    ----------
    pcs : array (n_samples, k)
    n_trials : int
    level : float
        Level of the interval, such as .95.
    block_length : int
        Number of consecutive samples that are drawn together, for samples that depend on each other (Kunsch 1989).
    seed : int

    Returns
    -------
    Bootstrap
        Costs O(n_trials n_samples k^2).
    """
    n_trials, level = whole_number(n_trials, "n_trials", 2), checked_level(level)
    (n, k), length = pcs.shape, whole_number(block_length, "block_length", 1)
    if length > n:
        raise DataError(f"block_length is {length}, but there are only {n} samples: use at most {n}")
    rng, values, cosines = np.random.default_rng(seed), np.empty((n_trials, k)), np.empty((n_trials, k))
    for trial in range(n_trials):
        starts = rng.integers(0, n - length + 1, -(-n // length))
        drawn = pcs[(starts[:, None] + np.arange(length)).ravel()[:n]]
        found, turn = np.linalg.eigh(np.cov(drawn, rowvar=False).reshape(k, k))
        values[trial], cosines[trial] = found[::-1], np.abs(np.diagonal(turn[:, ::-1]))
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Bootstrap(low, high, cosines.mean(axis=0), np.quantile(cosines, 1 - level, axis=0))


def require_unweighted(weighted: bool) -> None:
    """Check that samples had no weights: a test that resamples them, or uses their order, does not support weights.

    Raises
    ------
    DataError
        If they had.
    """
    if weighted:
        raise DataError("the fit had sample_weight, which this test does not support: fit without weights")


def checked_level(level: float) -> float:
    """Return a share between 0 and 1, or raise `DataError`."""
    if isinstance(level, bool) or not isinstance(level, float | np.floating) or not 0 < level < 1:
        raise DataError(f"level is {level!r}: use a share between 0 and 1, such as .95")
    return float(level)
