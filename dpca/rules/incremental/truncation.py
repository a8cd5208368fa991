"""The small eigenproblems of the incremental SVD: truncation of Gram matrices, and bounds on the discarded part."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.linalg

from dpca.kernels.algebra.rounding import gamma, unit_roundoff
from dpca.kernels.algebra.tridiagonal import Tridiagonal
from dpca.kernels.algebra.types import Array

# From this size on, at most one eigenpair in so many is computed faster alone (half the time for 110 of 1,024).
_PART_FROM, _PART_SHARE = 512, 4
# Turns of an iteration for a leading part, and the most that its values may miss, as a share of their sum.
_MOST_TURNS, _MISSED = 3, 1e-6


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
    values, vectors = _leading(gram, n_kept) if _in_part(len(gram), n_kept) else _all(gram)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    kept = int(np.count_nonzero(values[:n_kept] > floor))
    discarded = values[kept:]
    return Truncation(values[:kept], vectors[:, :kept], float(discarded[:n_counted].sum()), float(discarded[:1].sum()))


def iterated(gram: Array, n_kept: int, *, n_counted: int) -> Truncation | None:
    """Return the leading part of a Gram matrix by orthogonal iteration from that of its first rows, and bounds.

    The vectors are Ritz vectors. ``discarded`` and ``largest`` are upper bounds, those of `largest_sum`, on the
    eigenvalues of (I - P) gram (I - P), with the projection P onto the vectors. The iteration is float32, vectors,
    values and bounds are float64. Takes a third to a fifth of the time of `truncate` if the spectrum decays as that of
    photographs.

    Returns None if `truncate` is fast, or if the sum of the ``n_counted`` leading values has not converged after three
    turns. It has, if it misses at most a millionth: the sum of |gram v - value v|^2 / gap for all of their vectors v,
    with the gap between their value and the least one (Parlett 1998, theorem 11.7.1).
    """
    n, trace = len(gram), float(np.trace(gram))
    if not (_in_part(n, n_kept) and 0 < trace < math.inf):
        return None
    first, short = 3 * n_kept, (gram / trace).astype(np.float32)
    _, vectors = _all(short[:first, :first])
    image = short[:, :first] @ vectors[:, -n_kept:]
    for _ in range(_MOST_TURNS):
        # Float32 leaves all vectors apart for two multiplications.
        image = short @ (short @ np.linalg.qr(short @ image)[0])
        basis, _ = np.linalg.qr(image.astype(np.float64))
        exact = gram @ basis
        inner = basis.T @ exact
        values, turn = _all(inner)
        leading, some = values[-n_counted:], turn[:, -n_counted:]
        residual = np.square(exact @ some - basis @ some * leading).sum(axis=0)
        gaps = leading - values[0]
        if gaps[0] > 0 and (residual / gaps).sum() <= _MISSED * leading.sum():
            break
        image = (exact / trace).astype(np.float32)
    else:
        return None
    # The squared norm of (I - P) gram (I - P), and more than the rounding errors of its terms.
    whole = float(np.vdot(gram, gram))
    squares = whole - 2 * float(np.vdot(exact, exact)) + float(np.vdot(inner, inner))
    squares += 4 * gamma(n * n, unit_roundoff(np.float64)) * whole
    bounds = (_largest_sum(n, trace - float(np.trace(inner)), squares, k) for k in (n_counted, 1))
    return Truncation(values[::-1], basis @ turn[:, ::-1], *bounds)


def _all(gram: Array) -> tuple[Array, Array]:
    found: tuple[Array, Array] = scipy.linalg.eigh(gram, driver="evd", check_finite=False)
    return found


def _leading(gram: Array, m: int) -> tuple[Array, Array]:
    """Return all eigenvalues, ascending, and the eigenvectors (n, m) of the largest."""
    reduced = Tridiagonal(gram)
    return reduced.values(), reduced.vectors(m)


def _in_part(n: int, m: int) -> bool:
    return n >= _PART_FROM and _PART_SHARE * m <= n


def truncate_bytes(n: int, n_kept: int) -> int:
    """Return the bytes of the temporary arrays and the result of `truncate` for a matrix (n, n)."""
    return 8 * (3 * n * n + (n * (6 * n_kept + 48) if _in_part(n, n_kept) else 8 * n))


def largest_sum(gram: Array, k: int) -> float:
    """Return an upper bound on the sum of the ``k`` largest eigenvalues of a positive semi-definite matrix (n, n).

    The bound is k/n times the trace plus sqrt(k (n - k)) standard deviations of the eigenvalues (Wolkowicz & Styan
    1980), by Cauchy's inequality. It is exact if the k largest eigenvalues are equal, and the others are equal, too.
    Costs O(n^2).
    """
    return _largest_sum(len(gram), float(np.trace(gram)), float(np.vdot(gram, gram)), k)


def _largest_sum(n: int, trace: float, squares: float, k: int) -> float:
    """Return the bound of `largest_sum` from the trace and the squared norm of a matrix (n, n)."""
    trace = max(trace, 0.0)
    k, mean = min(k, n), trace / n
    variance = max(squares / n - mean * mean, 0.0)
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
