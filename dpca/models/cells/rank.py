"""How many components each partition keeps: from a count, a share of variance, an error, or the noise in the data.

All rules here look only at the eigenvalues: ``variances`` (n_partitions, k), descending in each row, zero where a
partition has fewer; ``totals`` (n_partitions,), the sums of all eigenvalues, known or not. They return ``ranks``
(n_partitions,), integers.
"""

from __future__ import annotations

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.storage.errors import DataError


class UnmetError(DataError):
    """A target cannot be met with the components that a fit found, and another fit would find the same ones.

    Parameters
    ----------
    message : str
    computed : int, optional
        Components of each partition that were computed, where more of them may meet the target.
    """

    def __init__(self, message: str, computed: int | None = None) -> None:
        super().__init__(message)
        self.computed = computed


def ranks_by_threshold(variances: Array, totals: Array, threshold: float, max_components: int | None = None) -> Array:
    """Return for each partition the fewest components that explain more than a share of its variance.

    See Alakkari 2020, section 4.1.

    Parameters
    ----------
    threshold : float
        Share of each partition's variance, 0 <= threshold < 1.
    max_components : int, optional
        Bound on every rank (k_max there).

    Raises
    ------
    DataError
        If the threshold is no share; `UnmetError` if a partition would need more eigenvalues than are known.
    """
    if not 0 <= threshold < 1:
        raise DataError(f"threshold is {threshold}: it is a share of variance, at least 0 and below 1")
    explained = np.cumsum(variances, axis=1)
    # A constant partition has nothing to explain.
    reached = explained > threshold * totals[:, None]
    enough = reached.any(axis=1) | (totals <= 0)
    ranks = np.where(totals > 0, reached.argmax(axis=1) + 1, 0)
    most = variances.shape[1] if max_components is None else max_components
    if not enough.all():
        if most > variances.shape[1] or max_components is None:
            raise UnmetError(
                f"{int((~enough).sum())} partitions need more than {variances.shape[1]} components to explain "
                f"{threshold:.4g} of their variance: raise --max-components K (max_components=K) above "
                f"{variances.shape[1]}, or lower --threshold SHARE (threshold=SHARE)",
                variances.shape[1],
            )
        ranks[~enough] = most
    clipped: Array = np.minimum(ranks, most)
    return clipped


def falling(variances: Array) -> Array:
    """Return the flat places of all variances above 0, the largest first (equal ones: first partition first).

    Each component kept lowers the summed squared error of the samples of the fit by its eigenvalue, so the best set of
    a given size is that of the largest ones, wherever they are. Sorting costs O(m log m) for m eigenvalues.
    """
    # Rows descend, and a stable sort keeps equal ones in order: what is taken of a row is always its beginning.
    return np.argsort(-variances, axis=None, kind="stable")[: np.count_nonzero(variances > 0)]


def spread(variances: Array, total_components: int) -> Array:
    """Return the ranks of that sum which leave the least squared error: those of the `falling` variances.

    Raises
    ------
    DataError
        If a negative number is asked for; `UnmetError` if there are fewer components than that.
    """
    order = falling(variances)
    if total_components < 0:
        raise DataError(f"total_components is {total_components}: it cannot be negative")
    if total_components > len(order):
        raise UnmetError(
            f"total_components is {total_components:,} but only {len(order):,} components have variance: ask for at "
            "most that many, or raise --max-components K (max_components=K)",
            variances.shape[1],
        )
    return np.bincount(order[:total_components] // variances.shape[1], minlength=len(variances))


def whole_counts(variances: Array, shared: bool) -> Array:
    """Return how many components in all can be kept, ascending from 0: any number, of the `falling` variances.

    Components that partitions share have one variance, and are kept in all of these or in none.
    """
    ordered = variances.ravel()[falling(variances)]
    ends = np.flatnonzero(np.diff(ordered)) + 1 if shared else np.arange(1, len(ordered))
    return np.array([0, *ends, *([len(ordered)] if len(ordered) else [])])


def left_by(variances: Array, energies: Array, total: float) -> Array:
    """Return the squared error that 0, 1, 2, ... components leave, taken in the order of the `falling` variances.

    Parameters
    ----------
    variances : array (n_partitions, k)
        Of the samples of the fit.
    energies : array (n_partitions, k)
        Summed squares of the scores of any samples.
    total : float
        Summed squares of these samples, less the mean of the fit.

    Returns
    -------
    array (components + 1,), falling: total - sum of energies, since components are orthonormal
    """
    left = total - np.concatenate([[0.0], np.cumsum(energies.ravel()[falling(variances)])])
    # Where all is explained, rounding errors remain, of either sign.
    return np.maximum(left, 0.0)


def total_for_ratio(n_features: int, ratio: float) -> int:
    """Return the number of components of all partitions that is nearest to one for every ``ratio`` attributes.

    Raises
    ------
    DataError
        If the ratio is below 1, or leaves no component at all.
    """
    if not ratio >= 1:
        raise DataError(f"ratio is {ratio}: give the number of attributes for each score, at least 1")
    if ratio > n_features:
        raise DataError(f"ratio is {ratio} but a sample has {n_features} attributes: ask for at most that ratio")
    return round(n_features / ratio)


def mse_of_psnr(psnr: float, data_range: float) -> float:
    """Return the mean squared error of a peak signal-to-noise ratio in dB, for values that span ``data_range``."""
    return float(data_range**2 / 10.0 ** min(psnr / 10, 300.0))


def ranks_by_noise(variances: Array, sizes: Array, n_samples: int, places: Array | None = None) -> Array:
    """Return for each partition the components whose variance exceeds what noise of one level would show.

    Of m = min(d, n - 1) eigenvalues, those of white noise of variance s^2 fill an interval of width 4 s^2 sqrt(g), with
    g = m / max(d, n - 1) (Marchenko & Pastur 1967). The rank is the smallest p for which the m - p smallest eigenvalues
    fit: their mean is at least the s^2 that their range implies (Veraart et al. 2016). Both sides scale with the
    eigenvalues, so it does not matter that those of a wide matrix are scaled by its number of samples.

    Parameters
    ----------
    variances : array (n_partitions, k)
        All eigenvalues of a partition, min(size, n_samples - 1) of them.
    sizes : array (n_partitions,)
        Attributes of each partition.
    n_samples : int
    places : array (n_partitions,), optional
        How many partitions share the components of each: the samples of all of them count, less a mean for each.

    Raises
    ------
    DataError
        If not all eigenvalues are known.
    """
    ranks = np.zeros(len(variances), np.int64)
    degrees = (n_samples - 1) * (np.ones(len(variances), np.int64) if places is None else places)
    for i, (row, size, n) in enumerate(zip(variances, sizes.tolist(), degrees.tolist(), strict=True)):
        m = min(size, n)
        if len(row) < m:
            raise DataError(f"noise shows in the smallest of {m} eigenvalues but only {len(row)} are known: keep all")
        ranks[i] = _noise_rank(row[:m], max(size, n))
    return ranks


def _noise_rank(row: Array, n: int) -> int:
    m = len(row)
    p = np.arange(m)
    level = np.cumsum(row[::-1])[::-1] / (m - p)
    by_range = (row - row[-1]) / (4 * np.sqrt((m - p) / (n - p)))
    return int((level >= by_range).argmax())
