"""Eigenvalues of symmetric matrices, and then the vectors of as many of the largest as turn out to be needed."""

from __future__ import annotations

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from dpca.kernels.algebra.types import Array
from dpca.kernels.algebra.unlocked import call


class Tridiagonal:
    """A symmetric matrix (n, n), n > 1, float64, reduced to a tridiagonal one.

    `scipy.linalg.eigh` computes as many values as vectors, and reduces again for more vectors. All values cost little
    after the reduction. Costs O(n^3) time and 16 n^2 bytes, O(n^2) time for the values, and O(n^2 m) for m vectors.
    """

    def __init__(self, matrix: Array) -> None:
        n = len(matrix)
        size, _ = lapack.dsytrd_lwork(n, lower=1)
        reduced, work = matrix.copy(), np.empty(int(size))
        self._diagonal, self._beside, self._turns = np.empty(n), np.empty(n - 1), np.empty(n - 1)
        call("sytrd", "L", n, reduced, n, self._diagonal, self._beside, self._turns, work, len(work))
        self._reduced = reduced.T

    def values(self) -> Array:
        """Return all eigenvalues (n,), ascending."""
        found: Array = scipy.linalg.eigvalsh_tridiagonal(self._diagonal, self._beside, check_finite=False)
        return found

    def vectors(self, m: int) -> Array:
        """Return the eigenvectors (n, m) of the largest eigenvalues, in their order."""
        n = len(self._diagonal)
        if not m:
            return np.zeros((n, 0))
        some = {"select": "i", "select_range": (n - m, n - 1), "check_finite": False}
        try:
            _, vectors = scipy.linalg.eigh_tridiagonal(self._diagonal, self._beside, lapack_driver="stemr", **some)
        except np.linalg.LinAlgError:  # some eigenvalues are nearly the same
            _, vectors = scipy.linalg.eigh_tridiagonal(self._diagonal, self._beside, lapack_driver="stebz", **some)
        turns, below = np.asfortranarray(self._reduced[1:, :-1]), np.asfortranarray(vectors[1:])
        _, size, _ = lapack.dormqr("L", "N", turns, self._turns, below, -1)
        work = np.empty(int(size[0]))
        call("ormqr", "L", "N", *below.shape, n - 1, turns.T, n - 1, self._turns, below.T, n - 1, work, len(work))
        vectors[1:] = below
        return vectors
