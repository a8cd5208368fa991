"""The few dense kernels that the rules are made of, chosen by measurement.

Batches are C-ordered (n_samples, n_features); symmetric results hold their lower triangle.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

# Below this size numpy's matmul (which calls SYRK and mirrors the triangle) is the faster of the two; above it
# SYRK into the output is, because it neither mirrors nor allocates.
_MATMUL_LIMIT = 512
_TRIANGLE_ROWS = 64
# Orthogonal iteration pays for matrices from this size on, when at most one component in so many is wanted; it takes so
# many steps in float32 and is given up after so many in float64.
_ITERATE_FROM, _ITERATE_SHARE, _SINGLE_STEPS, _DOUBLE_STEPS = 200, 8, 3, 4
# Share of the captured variance that it may lack.
_MAY_LACK = 1e-9
# Share of the largest eigenvalue below which float32 knows too little of another one.
_SMALLEST_SHARE = 1e-5

_local = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return a C-ordered array of arbitrary content, good until the next call with this name in this thread.

    Fresh large arrays cost a page fault every 4 KiB, a third of the time of the kernels here; a reused one costs none.
    """
    dtype = np.dtype(dtype)
    pool: dict[str, Array] = _local.__dict__.setdefault("pool", {})
    size = math.prod(shape) * dtype.itemsize
    buffer = pool.get(name)
    if buffer is None or buffer.nbytes < size:
        buffer = pool[name] = np.zeros(size, np.uint8)
    return buffer[:size].view(dtype).reshape(shape)


def release_scratch() -> None:
    """Give this thread's scratch arrays back."""
    _local.__dict__.pop("pool", None)


def gram_lower(x: Array, out: Array) -> Array:
    """Write the lower triangle of x.T @ x into ``out``; what is above it is undefined.

    Parameters
    ----------
    x : array (n, d), float32 or float64, C-ordered
    out : array (d, d) of the same dtype, C-ordered
    """
    if x.shape[1] <= _MATMUL_LIMIT:
        return np.matmul(x.T, x, out=out)
    (syrk,) = scipy.linalg.get_blas_funcs(("syrk",), (x,))
    # Seen by Fortran, out is its own transpose: the upper triangle there is the lower one here.
    syrk(1.0, x.T, beta=0.0, c=out.T, overwrite_c=True, lower=False)
    return out


def add_lower(total: Array, part: Array, scale: float = 1.0) -> None:
    """Add ``scale`` times the lower triangle of ``part``, as `gram_lower` leaves it, to that of ``total``."""
    if len(total) <= _MATMUL_LIMIT:
        total += part if scale == 1 else np.multiply(part, scale, dtype=total.dtype)
        return
    for start, stop in _bands(len(total)):
        # What SYRK left above the diagonal are old bits, which as numbers may be NaN: never touch them.
        for columns, band in ((slice(start), part[start:stop, :start]), (slice(start, stop), None)):
            values = np.tril(part[start:stop, columns]) if band is None else band
            total[start:stop, columns] += values if scale == 1 else np.multiply(values, scale, dtype=total.dtype)


def add_outer_lower(total: Array, u: Array, v: Array) -> None:
    """Add the lower triangle of the symmetric u.T @ v, for ``u`` and ``v`` of a few rows, to that of ``total``."""
    for start, stop in _bands(len(total)):
        total[start:stop, :stop] += u[:, start:stop].T @ v[:, :stop]


def symmetrize(lower: Array) -> Array:
    """Mirror the lower triangle into the upper one, in place."""
    for start, stop in _bands(len(lower)):
        corner = lower[start:stop, start:stop]
        np.copyto(corner, corner.T, where=np.tri(stop - start, k=-1, dtype=bool).T)
        lower[:start, start:stop] = lower[start:stop, :start].T
    return lower


def _bands(n: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _TRIANGLE_ROWS, n)) for start in range(0, n, _TRIANGLE_ROWS))


def leading_eigh(matrix: Array, k: int) -> tuple[Array, Array]:
    """Return the ``k`` largest eigenvalues (descending, >= 0) and their eigenvectors as rows, of a covariance.

    Only the lower triangle of ``matrix`` (d, d), float64, is read; the matrix is overwritten. Signs are fixed by
    :func:`fix_signs`. Costs O(d^3) time; where few components of many are wanted, O(d^2 k) if the spectrum lets
    orthogonal iteration converge.
    """
    d = len(matrix)
    if d >= _ITERATE_FROM and _ITERATE_SHARE * k <= d:
        found = _orthogonal_iteration(symmetrize(matrix), k)
        if found is not None:
            return found
    # MRRR computes a part of the spectrum, divide and conquer all of it, faster a vector.
    part = {"subset_by_index": (d - k, d - 1), "driver": "evr"} if k < d // 2 else {"driver": "evd"}
    # For Fortran the transpose of a C-ordered matrix needs no copy, and its upper triangle is our lower one.
    values, vectors = scipy.linalg.eigh(matrix.T, lower=False, overwrite_a=True, check_finite=False, **part)
    values = np.maximum(values[::-1][:k], 0.0)
    return values, fix_signs(np.ascontiguousarray(vectors.T[::-1][:k]))


def extreme_eigh(matrix: Array, k: int, j: int) -> tuple[Array, Array, Array, Array]:
    """Return the ``k`` largest eigenpairs as `leading_eigh` does, then the ``j`` smallest, ascending.

    Only the lower triangle of ``matrix`` (d, d), float64, is read; the matrix is overwritten. Costs O(d^3) time and
    16 d^2 bytes.
    """
    values, vectors = scipy.linalg.eigh(matrix.T, lower=False, overwrite_a=True, check_finite=False, driver="evd")
    values, rows = np.maximum(values, 0.0), vectors.T
    leading, least = np.ascontiguousarray(rows[::-1][:k]), np.ascontiguousarray(rows[:j])
    return values[::-1][:k].copy(), fix_signs(leading), values[:j].copy(), fix_signs(least)


def eigh_bytes(d: int, k: int) -> int:
    """Bytes of temporary arrays of `leading_eigh`, its result left out."""
    vectors = 8 * d * (2 * k + 32)
    if k >= d // 2:
        return vectors + 16 * d * d  # the work space of divide and conquer
    if d >= _ITERATE_FROM and _ITERATE_SHARE * k <= d:
        return vectors + 4 * d * d + 96 * d * k  # the matrix in float32, and a handful of bases of 2 k columns
    return vectors


def _orthogonal_iteration(matrix: Array, k: int) -> tuple[Array, Array] | None:
    """Orthogonal iteration with Rayleigh-Ritz (T 2.2.1; L 5.3) from a fixed start; None where it is slow to converge.

    Iterates on twice the components asked for, first in float32 and then, from a basis that is nearly right, in
    float64, until the captured variance lacks at most 1e-9 of itself. To first order a Ritz value t with residual r
    lacks |r|^2 / (t - t'), t' being the largest value left out (Parlett 1998, section 11.7): on cells of photographs
    (10 x 10 x 3, 25 x 25 x 3) this bound is within a tenth of the truth, and one to three float64 steps meet it.
    """
    d = len(matrix)
    # Variances may be beyond float32's range in the data's own units.
    largest = matrix.diagonal().max() or 1.0
    single = np.divide(matrix, largest, out=np.empty((d, d), np.float32), casting="same_kind")
    image = single @ np.random.default_rng(0).standard_normal((d, 2 * k), np.float32)
    for _ in range(_SINGLE_STEPS):
        image = single @ _cholesky_qr(image)
    for _ in range(_DOUBLE_STEPS):
        basis = _qr(image.astype(np.float64, copy=False))
        image = matrix @ basis
        values, turn = scipy.linalg.eigh(basis.T @ image, driver="evd", overwrite_a=True, check_finite=False)
        wanted, turn = values[-k:], turn[:, -k:]
        if wanted[0] <= _SMALLEST_SHARE * wanted[-1]:
            return None
        vectors = basis @ turn
        residual = image @ turn - vectors * wanted
        lacking = np.einsum("ij,ij->j", residual, residual) / np.maximum(wanted - values[0], np.finfo(float).tiny)
        if lacking.sum() <= _MAY_LACK * wanted.sum():
            return wanted[::-1], fix_signs(np.ascontiguousarray(vectors.T[::-1]))
    return None


def _cholesky_qr(columns: Array) -> Array:
    """Return nearly orthonormal float32 columns of the same span.

    Cholesky QR with a float64 Gram matrix (Stathopoulos & Wu 2002) takes half of Householder's time, which is left to
    columns too dependent for it.
    """
    exact = columns.astype(np.float64)
    try:
        factor = scipy.linalg.cholesky(exact.T @ exact, overwrite_a=True, check_finite=False)
    except scipy.linalg.LinAlgError:
        return _qr(columns)
    basis: Array = scipy.linalg.blas.strsm(1.0, factor.astype(np.float32), columns.T, trans_a=1).T
    return basis


def _qr(columns: Array) -> Array:
    q: Array = scipy.linalg.qr(columns, mode="economic", check_finite=False)[0]
    return q


def fix_signs(rows: Array) -> Array:
    """Make the entry of largest magnitude of each row positive, in place."""
    largest = np.abs(rows).argmax(axis=1)
    rows *= np.where(rows[np.arange(len(rows)), largest] < 0, -1, 1)[:, None].astype(rows.dtype)
    return rows
