"""Orthonormalization of rows, by a fast method if it is accurate enough."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.state import ALL, AttributeBlocks

# Columns of one float64 product: rows of float32 are converted one block at a time.
_BLOCK_COLUMNS = 4096
# Smallest distance of a row of unit length from the span of the previous rows. Its square in the Gram matrix is 1e-8,
# the rounding error of float32.
_NEAREST = 1e-4


def orthonormalize(rows: Array) -> Array:
    """Return orthonormal rows. For every j, the first j rows span the same space as the first j given rows.

    Cholesky QR of the rows scaled to unit length, with the Gram matrix and the triangular inverse in float64
    (Stathopoulos & Wu 2002). For float32 it is 3 to 15 times as fast as Householder QR, and as orthonormal. Householder
    QR replaces it for nearly dependent rows and zero rows, and completes the basis. The inner product of each result
    with its row is positive.

    Parameters
    ----------
    rows : array (k, d), k <= d, float32 or float64
        Finite. Not changed.

    Returns
    -------
    array (k, d) of the same dtype. Costs O(k^2 d).
    """
    found = _cholesky_qr(rows)
    if found is not None and rows.dtype == np.float64:
        # The Gram matrix squares the condition number, so that float64 needs a second step.
        found = _cholesky_qr(found)
    return _householder_qr(rows) if found is None else found


def gram(rows: Array, other: Array | None = None, over: AttributeBlocks = ALL) -> Array:
    """Return rows @ other.T in float64. The default of ``other`` is ``rows``."""
    total = np.zeros((len(rows), len(rows if other is None else other)))
    for columns in blocks(rows.shape[1], _BLOCK_COLUMNS):
        block = rows[:, columns].astype(np.float64, copy=False)
        total += block @ (block if other is None else other[:, columns]).T
    return over.summed(total)[0]


def _cholesky_qr(rows: Array) -> Array | None:
    products = gram(rows)
    norms = np.sqrt(products.diagonal())
    if not (norms > 0).all() or not np.isfinite(norms).all():
        return None
    # Call LAPACK directly: scipy's checks of the arguments take a hundred times as long as matrices of a few rows.
    lower, failed = scipy.linalg.lapack.dpotrf(products / np.outer(norms, norms), lower=True)
    if failed or lower.diagonal().min() < _NEAREST:
        return None
    inverse, _ = scipy.linalg.lapack.dtrtrs(lower, np.diag(1 / norms), lower=True)
    out = np.empty_like(rows)
    for columns in blocks(rows.shape[1], _BLOCK_COLUMNS):
        out[:, columns] = inverse @ rows[:, columns].astype(np.float64, copy=False)
    return out


def _householder_qr(rows: Array) -> Array:
    lengths = np.abs(rows).max(axis=1, keepdims=True)
    # Scale all rows alike, so that a tiny row is not lost beside a huge one.
    scaled = rows / np.where(lengths > 0, lengths, 1)
    q, r = scipy.linalg.qr(scaled.T, mode="economic", check_finite=False)
    out: Array = np.ascontiguousarray(q.T)
    out *= np.where(r.diagonal() < 0, -1, 1).astype(out.dtype)[:, None]
    return out
