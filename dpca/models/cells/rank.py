"""Ranks of parts from their eigenvalues: by a count, a share of variance, an error, or the noise in the data.

The functions get ``variances`` (n_parts, k), descending in each row, zero if a part has fewer, and ``totals``
(n_parts,), the sums of all eigenvalues, including those that were not computed. They return ``ranks``
(n_parts,), integers.
"""

from __future__ import annotations

import math

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.storage.errors import DataError


class UnmetError(DataError):
    """The components of a fit do not meet a target, and another fit would compute the same components.

    Parameters
    ----------
    message : str
    computed : int, optional
        Number of computed components of each part, if more of them may meet the target.
    """

    def __init__(self, message: str, computed: int | None = None) -> None:
        super().__init__(message)
        self.computed = computed


def ranks_by_threshold(variances: Array, totals: Array, threshold: float, max_components: int | None = None) -> Array:
    """Return for each part the fewest components that explain more than a share of its variance.

    See Alakkari 2020, section 4.1.

    Parameters
    ----------
    threshold : float
        Share of each part's variance, 0 <= threshold < 1.
    max_components : int, optional
        Bound on every rank (k_max in that section).

    Raises
    ------
    DataError
        If the threshold is not a share; `UnmetError` if a part requires more eigenvalues than were computed.
    """
    if not 0 <= threshold < 1:
        raise DataError(f"threshold is {threshold}: use a share of variance of at least 0 and below 1")
    explained = np.cumsum(variances, axis=1)
    # A constant partition has no variance to explain.
    reached = explained > threshold * totals[:, None]
    enough = reached.any(axis=1) | (totals <= 0)
    ranks = np.where(totals > 0, reached.argmax(axis=1) + 1, 0)
    most = variances.shape[1] if max_components is None else max_components
    if not enough.all():
        if most > variances.shape[1] or max_components is None:
            raise UnmetError(
                f"{int((~enough).sum())} parts require more than {variances.shape[1]} components to explain "
                f"{threshold:.4g} of their variance: use --max-components K (max_components=K) above "
                f"{variances.shape[1]}, or a smaller --threshold SHARE (threshold=SHARE)",
                variances.shape[1],
            )
        ranks[~enough] = most
    clipped: Array = np.minimum(ranks, most)
    return clipped


def falling(variances: Array) -> Array:
    """Return the flat indices of all variances above 0, the largest first (among equals, the first partition first).

    Each retained component decreases the summed squared error of the samples of the fit by its eigenvalue. So the best
    set of a given size consists of the largest eigenvalues of all parts. Costs O(m log m) for m eigenvalues.
    """
    # Rows descend and the sort is stable, so the selected part of a row is always its beginning.
    return np.argsort(-variances, axis=None, kind="stable")[: np.count_nonzero(variances > 0)]


def spread(variances: Array, total_components: int) -> Array:
    """Return the ranks with this sum and the least squared error, in the order of the `falling` variances.

    Raises
    ------
    DataError
        If ``total_components`` is negative; `UnmetError` if there are fewer components.
    """
    order = falling(variances)
    if total_components < 0:
        raise DataError(f"total_components is {total_components}: use a number of at least 0")
    if total_components > len(order):
        raise UnmetError(
            f"total_components is {total_components:,}, but only {len(order):,} components have variance: use at "
            "most that many, or a larger --max-components K (max_components=K)",
            variances.shape[1],
        )
    return np.bincount(order[:total_components] // variances.shape[1], minlength=len(variances))


def whole_counts(variances: Array, shared: bool) -> Array:
    """Return the possible total numbers of components, ascending from 0, in the order of the `falling` variances.

    Shared components have one variance, and are kept in all their parts or in none. Otherwise any number is
    possible.
    """
    ordered = variances.ravel()[falling(variances)]
    ends = np.flatnonzero(np.diff(ordered)) + 1 if shared else np.arange(1, len(ordered))
    return np.array([0, *ends, *([len(ordered)] if len(ordered) else [])])


def left_by(variances: Array, energies: Array, total: float) -> Array:
    """Return the squared error of 0, 1, 2, ... components in the order of the `falling` variances.

    Parameters
    ----------
    variances : array (n_parts, k)
        Variances of the samples of the fit.
    energies : array (n_parts, k)
        Summed squares of the scores of any samples.
    total : float
        Summed squares of the differences between these samples and the mean of the fit.

    Returns
    -------
    array (components + 1,), descending: total - sum of energies, since components are orthonormal
    """
    left = total - np.concatenate([[0.0], np.cumsum(energies.ravel()[falling(variances)])])
    # If all is explained, the difference is a rounding error of either sign.
    return np.maximum(left, 0.0)


def total_for_ratio(n_features: int, ratio: float) -> int:
    """Return the total number of components of all parts, n_features / ratio, rounded.

    Raises
    ------
    DataError
        If the ratio is below 1, or above the number of attributes.
    """
    if not ratio >= 1:
        raise DataError(f"ratio is {ratio}: use the number of attributes for each score, at least 1")
    if ratio > n_features:
        raise DataError(f"ratio is {ratio}, but a sample has {n_features} attributes: use at most {n_features}")
    return round(n_features / ratio)


def mse_of_psnr(psnr: float, data_range: float) -> float:
    """Return the mean squared error of a peak signal-to-noise ratio in dB, for values with this data range."""
    return float(data_range**2 / 10.0 ** min(psnr / 10, 300.0))


def ranks_by_noise(variances: Array, sizes: Array, n_samples: int, places: Array | None = None) -> Array:
    """Return the number of components of each part above the noise floor, for noise of equal variance everywhere.

    The m = min(d, n - 1) eigenvalues of white noise of variance s^2 fill an interval of width 4 s^2 sqrt(g), with
    g = m / max(d, n - 1) (Marchenko & Pastur 1967). The rank is the smallest p for which the m - p smallest eigenvalues
    fit this distribution: their mean is at least the s^2 that follows from their range (Veraart et al. 2016). Both
    sides scale with the eigenvalues, so the result does not depend on their normalization.

    Parameters
    ----------
    variances : array (n_parts, k)
        All eigenvalues of a part, min(size, n_samples - 1) of them.
    sizes : array (n_parts,)
        Attributes of each part.
    n_samples : int
    places : array (n_parts,), optional
        Number of parts that share the components of each. The samples of all of them count, and each has a mean.

    Raises
    ------
    DataError
        If not all eigenvalues were computed.
    """
    ranks = np.zeros(len(variances), np.int64)
    degrees = (n_samples - 1) * (np.ones(len(variances), np.int64) if places is None else places)
    for i, (row, size, n) in enumerate(zip(variances, sizes.tolist(), degrees.tolist(), strict=True)):
        m = min(size, n)
        if len(row) < m:
            raise DataError(
                f"the noise floor requires all {m} eigenvalues, but only {len(row)} were computed: compute all"
            )
        ranks[i] = noise_ranks(row[:m], max(size, n))
    return ranks


def noise_ranks(rows: Array, n: int) -> Array:
    """Return the ranks (...) of parts from all their eigenvalues (..., m), descending, m <= n; see `ranks_by_noise`."""
    m = rows.shape[-1]
    p = np.arange(m)
    level = np.cumsum(rows[..., ::-1], axis=-1)[..., ::-1] / (m - p)
    by_range = (rows - rows[..., -1:]) / (4 * np.sqrt((m - p) / (n - p)))
    found: Array = (level >= by_range).argmax(axis=-1)
    return found


def noise_edge(sigma: float, m: int, n: int) -> float:
    """Return the largest squared singular value of m x n values of noise (Marchenko & Pastur 1967)."""
    return (sigma * (math.sqrt(m) + math.sqrt(n))) ** 2
