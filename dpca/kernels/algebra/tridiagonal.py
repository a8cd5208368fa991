"""Eigenvalues of symmetric matrices, and then the vectors of as many of the largest as turn out to be needed."""

from __future__ import annotations

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from dpca.kernels.algebra.types import Array


class Tridiagonal:
    """A symmetric matrix (n, n), n > 1, float64, reduced to a tridiagonal one.

    `scipy.linalg.eigh` computes as many values as vectors, and reduces again for more vectors. All values cost little
    after the reduction. Costs O(n^3) time and 16 n^2 bytes, O(n^2) time for the values, and O(n^2 m) for m vectors.
    """

    def __init__(self, matrix: Array) -> None:
        n = len(matrix)
        size, _ = lapack.dsytrd_lwork(n, lower=1)
        self._reduced, self._diagonal, self._beside, self._turns, _ = lapack.dsytrd(matrix.T, lower=1, lwork=int(size))

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
        vectors[1:], _, _ = lapack.dormqr("L", "N", turns, self._turns, below, int(size[0]), overwrite_c=1)
        return vectors
