"""Leading eigenpairs, with an upper bound on all other eigenvalues."""

from __future__ import annotations

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.rounding import eigen_error, gamma, unit_roundoff
from dpca.kernels.algebra.types import Array, blocks
from dpca.kernels.algebra.unlocked import call

# Two eigenvalues count as equal if they differ by less than this share.
_TIED = 1e-9
# With several threads, dpotrf of OpenBLAS 0.3.30 crashes for 16,000 rows, but not for 14,500.
_LARGEST_FACTORED = 8192
# Rows of a block of larger matrices.
_BAND = 1024


def bounded_eigh(matrix: Array, k: int, *, precise: bool = False) -> tuple[Array, Array, float, Array]:
    """Return the eigenpairs of `dpca.kernels.algebra.linalg.leading_eigh`, and an upper bound on all other eigenvalues.

    The direct solver computes one more eigenvalue. Orthogonal iteration proves nothing about directions outside its
    subspace. A Cholesky factorization proves that none of them has more variance, see `dpca.kernels.algebra.rounding`.
    It costs d^3 / 3 operations.

    Parameters
    ----------
    matrix : numpy array (d, d), float64
        Only the lower triangle is read. The matrix is overwritten.
    k : int
    precise : bool

    Returns
    -------
    values : array (k,)
    rows : array (k, d)
    beyond : float
        Upper bound on the (k + 1)-th eigenvalue, 0 if there is none.
    errors : array (k,)
        Upper bounds on the norms of rows @ matrix - values rows.
    """
    d, trace = len(matrix), float(np.trace(matrix))
    if not precise and linalg.iterates(d, k):
        values, rows, converged, unwanted = linalg.orthogonal_iteration(linalg.symmetrize(matrix), k)
        if converged:
            residual = rows @ matrix
            residual -= values[:, None] * rows
            wrong = gamma(d + 2, unit_roundoff(np.float64)) * trace
            errors = np.sqrt(np.einsum("ij,ij->i", residual, residual)) + wrong
            lowest, following = float(values[-1]), float(unwanted)
            for least in ((lowest + following) / 2, lowest * (1 + _TIED)):
                if (beyond := _beyond(matrix, values, rows, least)) is not None:
                    return values, rows, beyond + wrong, errors
                linalg.symmetrize(matrix)
    values, rows = linalg.direct_eigh(matrix, min(k + 1, d))
    wrong = eigen_error(d, float(values[0]))
    beyond = float(values[k]) + wrong if k < d else 0.0
    return values[:k], rows[:k], beyond, np.full(min(k, d), wrong)


def _beyond(matrix: Array, values: Array, rows: Array, least: float) -> float | None:
    """Return an upper bound near ``least`` on the eigenvalues of matrix - rows^T diag(values) rows.

    Returns None if ``least`` is no upper bound. The matrix is symmetric; its upper triangle is overwritten.
    """
    diagonal, scaled = matrix.diagonal().copy(), np.sqrt(values)[:, None] * rows
    # Fortran reads the transpose: our upper triangle is its lower one.
    call("syrk", "L", "N", len(matrix), len(scaled), 1.0, scaled, len(matrix), -1.0, matrix, len(matrix))
    np.fill_diagonal(matrix, matrix.diagonal() + least)
    trace = float(np.abs(matrix.diagonal()).sum())
    positive = _cholesky(matrix)
    np.fill_diagonal(matrix, diagonal)
    d, k, u = len(matrix), len(values), unit_roundoff(np.float64)
    error = gamma(d + 1, u)
    rounded = gamma(k + 3, u) * float(diagonal.sum() + values.sum() + least * d)
    return least + error / (1 - error) * trace + rounded if positive else None


def _cholesky(matrix: Array) -> bool:
    """Return whether the matrix is positive definite. The upper triangle is overwritten."""
    if len(matrix) <= _LARGEST_FACTORED:
        try:
            call("potrf", "L", len(matrix), matrix, len(matrix))
        except np.linalg.LinAlgError:
            return False
        return True
    (trsm,) = scipy.linalg.get_blas_funcs(("trsm",), (matrix,))
    for rows in blocks(len(matrix), _BAND):
        factor, failed = lapack.dpotrf(matrix[rows, rows].T, lower=True)
        if failed:
            return False
        beside = trsm(1.0, factor, matrix[rows, rows.stop :], lower=True)
        for some in blocks(beside.shape[1], _BAND):
            band = slice(rows.stop + some.start, rows.stop + some.stop)
            product = beside[:, some].T @ beside[:, some.start :]
            square = product[:, : len(product)]
            square[...] = np.triu(square)
            matrix[band, band.start :] -= product
    return True
