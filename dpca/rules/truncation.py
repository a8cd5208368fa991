"""The small eigenproblems of the incremental SVD: which part of a Gram matrix to keep, and what that gives up."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.linalg

from dpca.kernels.types import Array


class Truncation(NamedTuple):
    """The leading part of a Gram matrix."""

    values: Array
    """Eigenvalues kept (m,), descending and positive."""
    vectors: Array
    """Their orthonormal eigenvectors (n, m)."""
    discarded: float
    """Sum of the ``n_counted`` largest discarded eigenvalues."""
    largest: float
    """The largest of these, 0 if there are none."""


def truncate(gram: Array, n_kept: int, *, n_counted: int, floor: float) -> Truncation:
    """Keep the leading ``n_kept`` eigenpairs of a Gram matrix, those above ``floor``.

    Parameters
    ----------
    gram : array (n, n), float64, symmetric
    n_kept : int
        Eigenpairs to keep.
    n_counted : int
        How many of the largest discarded eigenvalues ``discarded`` counts.
    floor : float
        Eigenvalues up to here are rounding errors.
    """
    values, vectors = scipy.linalg.eigh(gram, driver="evd", check_finite=False)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    kept = int(np.count_nonzero(values[:n_kept] > floor))
    discarded = values[kept:]
    return Truncation(values[:kept], vectors[:, :kept], float(discarded[:n_counted].sum()), float(discarded[:1].sum()))


def largest_sum(gram: Array, k: int) -> float:
    """Upper bound on the sum of the ``k`` largest eigenvalues of a symmetric positive semi-definite matrix (n, n).

    k/n times the trace, plus sqrt(k (n - k)) standard deviations of the eigenvalues (Wolkowicz & Styan 1980), by
    Cauchy's inequality; exact where the k are equal to each other, and so are the rest. Costs O(n^2).
    """
    n, trace = len(gram), max(float(np.trace(gram)), 0.0)
    k, mean = min(k, n), trace / n
    variance = max(float(np.vdot(gram, gram)) / n - mean * mean, 0.0)
    # The trace comes first: it stays where squares exceed what float64 holds.
    return min(trace, k * mean + math.sqrt(k * (n - k) * variance))


def largest(gram: Array) -> float:
    """Upper bound on the largest eigenvalue of a symmetric matrix (n, n): the fourth root of the sum of fourth powers.

    Costs O(n^3); most often less than `largest_sum`.
    """
    square = gram @ gram
    return math.sqrt(math.sqrt(np.vdot(square, square)))
