"""The small eigenproblems of the incremental SVD: truncation of Gram matrices, and bounds on the discarded part."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.linalg

from dpca.kernels.algebra.rounding import gamma, unit_roundoff
from dpca.kernels.algebra.types import Array

# From this size on, at most one eigenpair in so many is computed faster alone (half the time for 40 of 1,024).
_PART_FROM, _PART_SHARE = 512, 6


class Truncation(NamedTuple):
    """The leading part of a Gram matrix."""

    values: Array
    """Retained eigenvalues (m,), descending and positive."""
    vectors: Array
    """Their orthonormal eigenvectors (n, m)."""
    discarded: float
    """Sum of the ``n_counted`` largest discarded eigenvalues."""
    largest: float
    """The largest of these, 0 if there are none."""


def truncate(gram: Array, n_kept: int, *, n_counted: int, floor: float) -> Truncation:
    """Retain the leading ``n_kept`` eigenpairs of a Gram matrix with eigenvalues above ``floor``.

    Parameters
    ----------
    gram : array (n, n), float64, symmetric
    n_kept : int
        Largest number of eigenpairs to retain.
    n_counted : int
        Number of the largest discarded eigenvalues in ``discarded``.
    floor : float
        Eigenvalues up to this value are rounding errors.
    """
    n, m = len(gram), n_kept + max(n_counted, 1)
    if _in_part(n, m):
        part = (n - m, n - 1)
        values, vectors = scipy.linalg.eigh(gram, driver="evr", subset_by_index=part, check_finite=False)
    else:
        values, vectors = scipy.linalg.eigh(gram, driver="evd", check_finite=False)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    kept = int(np.count_nonzero(values[:n_kept] > floor))
    discarded = values[kept:]
    return Truncation(values[:kept], vectors[:, :kept], float(discarded[:n_counted].sum()), float(discarded[:1].sum()))


def _in_part(n: int, m: int) -> bool:
    return n >= _PART_FROM and _PART_SHARE * m <= n


def truncate_bytes(n: int, n_kept: int, n_counted: int) -> int:
    """Return the bytes of the temporary arrays and the result of `truncate` for a matrix (n, n)."""
    m = n_kept + max(n_counted, 1)
    return 8 * (n * n + n * (2 * m + 32) if _in_part(n, m) else 3 * n * n + 8 * n)


def largest_sum(gram: Array, k: int) -> float:
    """Return an upper bound on the sum of the ``k`` largest eigenvalues of a positive semi-definite matrix (n, n).

    The bound is k/n times the trace plus sqrt(k (n - k)) standard deviations of the eigenvalues (Wolkowicz & Styan
    1980), by Cauchy's inequality. It is exact if the k largest eigenvalues are equal, and the others are equal, too.
    Costs O(n^2).
    """
    n, trace = len(gram), max(float(np.trace(gram)), 0.0)
    k, mean = min(k, n), trace / n
    variance = max(float(np.vdot(gram, gram)) / n - mean * mean, 0.0)
    # With the trace as the first argument, min returns it if squares overflow to NaN.
    return min(trace, k * mean + math.sqrt(k * (n - k) * variance))


def largest(gram: Array) -> float:
    """Return an upper bound on the largest eigenvalue of a positive semi-definite matrix (n, n).

    The bound is the eighth root of the sum of eighth powers of the eigenvalues, by products in float32 and their
    errors. It is mostly smaller than `largest_sum`. Costs O(n^3).
    """
    n, trace = len(gram), float(np.trace(gram))
    if not 0 < trace < math.inf:
        return trace
    u = unit_roundoff(np.float32)
    g, root = gamma(n + 2, u), (gram / trace).astype(np.float32)
    square = root.T @ root
    fourth = square.T @ square
    powers = _norm(fourth) + g * _norm(square) ** 2
    return trace * (math.sqrt(math.sqrt(powers) + g * _norm(root) ** 2) + u * _norm(root))


def _norm(x: Array) -> float:
    return math.sqrt(float(np.square(x, dtype=np.float64).sum()))
