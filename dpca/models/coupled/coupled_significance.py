"""Significance of modes of two fields: permutation of blocks of samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.models.coupled.coupling import leading_svd
from dpca.models.eof.significance import checked_level
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number


@dataclass(frozen=True, eq=False)
class PermutationTest:
    """Singular values, compared with those of fields whose samples do not belong together.

    Attributes
    ----------
    singular_value : array (k,), float64
    threshold : array (k,), float64
        Quantile, at the given level, of the largest singular value of permuted fields without the modes before.
    p_value : array (k,), float64
        Share of the permutations, counting the given order as one, with a largest singular value of at least this size;
        at least that of the modes before.
    significant : array (k,), bool
        Whether the singular values of this mode and of all modes before exceed their thresholds.
    """

    singular_value: Array
    threshold: Array
    p_value: Array
    significant: Array


def permutation_test(
    x: Array, y: Array, values: Array, n_trials: int, level: float, block_length: int, seed: int
) -> PermutationTest:
    """Permute the samples of one field in blocks, and compare singular values mode by mode.

    From both permuted fields, the modes before are removed: the second canonical correlation of unrelated fields is
    smaller than the largest one that is left after a true first mode (Winkler, Renaud, Smith & Nichols 2020).

    Parameters
    ----------
    x, y : array (n_samples, r)
        Time series of both fields, whitened for CCA.
    values : array (k,)
        Singular values of the modes.
    n_trials : int
        Number of permutations.
    level : float
        Share of the permutations with a largest singular value below ``threshold``.
    block_length : int
        Number of consecutive samples that stay together, because they depend on each other; at least the decorrelation
        time.
    seed : int

    Returns
    -------
    PermutationTest
        Costs O(n_samples r_x r_y) operations for each permutation, and the largest singular value for each mode.
    """
    n_trials, level, n = whole_number(n_trials, "n_trials", 2), checked_level(level), len(x)
    length = whole_number(block_length, "block_length", 1)
    if 2 * length > n:
        raise DataError(f"block_length is {length}, but there are only {n} samples: use at most {n // 2}")
    rng, found = np.random.default_rng(seed), np.empty((n_trials, len(values)))
    runs = np.split(np.arange(n), range(length, n, length))
    left, _, right = leading_svd(x.conj().T @ y / (n - 1), len(values))
    for trial in found:
        order = np.concatenate([runs[i] for i in rng.permutation(len(runs))])
        cross = x.conj().T @ y[order] / (n - 1)
        for i in range(len(values)):
            trial[i] = leading_svd(cross, 1)[1][0]
            cross -= np.outer(left[:, i], left[:, i].conj() @ cross)
            cross -= np.outer(cross @ right[:, i], right[:, i].conj())
    threshold = np.quantile(found, level, axis=0)
    shares = (1 + (found >= values).sum(axis=0)) / (n_trials + 1)
    significant = np.logical_and.accumulate(values > threshold)
    return PermutationTest(values, threshold, np.maximum.accumulate(shares), significant)
