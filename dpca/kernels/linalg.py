"""The few dense kernels that the rules are made of, chosen by measurement.

Batches are C-ordered (n_samples, n_features); symmetric results hold their lower triangle. Single matrices of numpy go
to BLAS and LAPACK directly. Everything else takes the functions of its own library (see ``namespace``), and may
have leading axes: a stack of matrices (..., n, d), each treated as if it were alone, in one call for all. That is what
an accelerator needs, on which a call costs as much as a small matrix.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike
from scipy.linalg import lapack

from dpca.kernels.namespace import any_of, beside, cast, copy_of, dtype_of, empty, is_numpy, namespace, to_numpy
from dpca.kernels.types import Array

# Below this size numpy's matmul (which calls SYRK and mirrors the triangle) is the faster of the two; above it
# SYRK into the output is, because it neither mirrors nor allocates.
_MATMUL_LIMIT = 512
_TRIANGLE_ROWS = 64
# Orthogonal iteration pays for matrices from this size on, when at most one component in so many is wanted. It takes
# steps in float32, at a quarter of the cost of those in float64, until the captured variance grows by less than such a
# share of itself in one, or there were so many; and it is given up after so many in float64, or d / (4 k) if that is
# more: together they cost half of what the direct solver does.
_ITERATE_FROM, _ITERATE_SHARE = 200, 8
_SLOW_GROWTH, _SINGLE_STEPS = 2e-4, 10
_DOUBLE_STEPS, _STEPS_SHARE = 4, 4
# Part of a spectrum is found faster alone where it is less than one component in so many.
_PART_SHARE = 6
# Share of the captured variance that orthogonal iteration may lack.
_MAY_LACK = 1e-9
# Share of the largest eigenvalue below which float32 knows too little of another one.
_SMALLEST_SHARE = 1e-5
_TINY = float(np.finfo(np.float64).tiny)
# Share of the trace of a Gram matrix, in float64, that is added to its diagonal: far above rounding errors of the
# trace, and so far below the float32 columns' own that it turns nothing.
_CHOLESKY_SHIFT = 1e-13

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


def is_single(x: Array) -> bool:
    """Say whether ``x`` is one matrix of numpy's, for which there are faster ways than the standard's."""
    return is_numpy(x) and x.ndim == 2


def workspace(name: str, shape: tuple[int, ...], dtype: DTypeLike, x: Array) -> Array:
    """Return an array of arbitrary content where ``x`` is: `scratch` for numpy, else a new one.

    Accelerators' libraries keep the memory of arrays that are gone for those to come.
    """
    return scratch(name, shape, dtype) if is_numpy(x) else empty(shape, dtype, x)


def copy_into(out: Array, values: Array) -> None:
    """Write values of any dtype over ``out``."""
    if is_numpy(out):
        np.copyto(out, values)
    else:
        out[...] = cast(values, dtype_of(out))


def combine_into(out: Array, function: str, a: Array, b: Array) -> Array:
    """Write ``function`` ("add", "subtract") of two arrays of any dtype over ``out``, in the dtype of ``out``."""
    if is_numpy(out):
        # Converted first: functions of two dtypes take twice the time.
        np.copyto(out, a)
        getattr(np, function)(out, b, out=out)
    else:
        dtype = dtype_of(out)
        out[...] = getattr(namespace(out), function)(cast(a, dtype), cast(b, dtype))
    return out


def workspace_product(name: str, a: Array, b: Array) -> Array:
    """Return the matrix a @ b in a `workspace`."""
    if is_numpy(a):
        return np.matmul(a, b, out=scratch(name, (len(a), b.shape[1]), a.dtype))
    product: Array = namespace(a).matmul(a, b)
    return product


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


def workspace_gram(name: str, x: Array) -> Array:
    """Return what `gram_lower` does, of one matrix or a stack, in a `workspace`."""
    if is_single(x):
        return gram_lower(x, scratch(name, (x.shape[1],) * 2, x.dtype))
    xp = namespace(x)
    product: Array = xp.matmul(xp.matrix_transpose(x), x)
    return product


def add_lower(total: Array, part: Array, scale: Array | float = 1.0) -> None:
    """Add ``scale`` times the lower triangle of ``part``, as `gram_lower` leaves it, to that of ``total``.

    Matrices of a stack (..., d, d) have a scale each, shape (...).
    """
    plain = isinstance(scale, float) and scale == 1
    if not is_single(total):
        total += part if plain else cast(part, np.float64) * scale[..., None, None]  # type: ignore[index]
        return
    if len(total) <= _MATMUL_LIMIT:
        total += part if plain else np.multiply(part, scale, dtype=total.dtype)
        return
    for start, stop in _bands(len(total)):
        # What SYRK left above the diagonal are old bits, which as numbers may be NaN: never touch them.
        for columns, band in ((slice(start), part[start:stop, :start]), (slice(start, stop), None)):
            values = np.tril(part[start:stop, columns]) if band is None else band
            total[start:stop, columns] += values if plain else np.multiply(values, scale, dtype=total.dtype)


def add_outer_lower(total: Array, u: Array, v: Array) -> None:
    """Add the lower triangle of the symmetric u.T @ v, for ``u`` and ``v`` of a few rows, to that of ``total``."""
    if not is_single(total):
        xp = namespace(total)
        total += xp.matmul(xp.matrix_transpose(u), v)
        return
    for start, stop in _bands(len(total)):
        total[start:stop, :stop] += u[:, start:stop].T @ v[:, :stop]


def symmetrize(lower: Array) -> Array:
    """Mirror the lower triangle into the upper one, in place."""
    if not is_single(lower):
        xp = namespace(lower)
        lower[...] = xp.tril(lower) + xp.matrix_transpose(xp.tril(lower, k=-1))
        return lower
    for start, stop in _bands(len(lower)):
        corner = lower[start:stop, start:stop]
        np.copyto(corner, corner.T, where=np.tri(stop - start, k=-1, dtype=bool).T)
        lower[:start, start:stop] = lower[start:stop, :start].T
    return lower


def diagonal(x: Array) -> Array:
    """Return the diagonal of each matrix."""
    found: Array = x.diagonal() if is_single(x) else namespace(x).linalg.diagonal(x)
    return found


def column_products(x: Array, y: Array) -> Array:
    """Return the inner product of each column of x (..., n, d) with that of y."""
    if is_single(x):
        products: Array = np.einsum("ij,ij->j", x, y)
    else:
        products = namespace(x).sum(x * y, axis=-2)
    return products


def column_squares(x: Array) -> Array:
    """Return the sum of squares of each column of x (..., n, d)."""
    return column_products(x, x)


def bring_to_one(x: Array, which: Array) -> Array | None:
    """Divide matrices whose squares leave their dtype's range by a power of two, in place and exactly.

    Parameters
    ----------
    x : array (..., n, d), floating-point
    which : array (...), bool
        The matrices that this is for.

    Returns
    -------
    array (...), float64, or None
        What each was divided by, so that its largest magnitude is in [1/2, 1) now; 1 for the others, and for zeros.
        None where that is all of them.
    """
    xp = namespace(x)
    largest = to_numpy(xp.maximum(xp.max(x, axis=(-2, -1)), -xp.min(x, axis=(-2, -1))))
    exponent = np.where(to_numpy(which) & (largest > 0) & (largest < math.inf), np.frexp(largest)[1], 0)
    if not exponent.any():
        return None
    if is_numpy(x):
        np.ldexp(x, -exponent[..., None, None], out=x)
    else:
        # In two steps, because the standard has no ldexp, and float32 no power of two for the smallest numbers.
        for part in (exponent // 2, exponent - exponent // 2):
            x *= cast(beside(np.asarray(np.ldexp(1.0, -part)), x), dtype_of(x))[..., None, None]
    return beside(np.asarray(np.ldexp(1.0, exponent)), x)


def _bands(n: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _TRIANGLE_ROWS, n)) for start in range(0, n, _TRIANGLE_ROWS))


def leading_eigh(matrix: Array, k: int, *, precise: bool = False) -> tuple[Array, Array]:
    """Return the ``k`` largest eigenvalues (descending, >= 0) and their eigenvectors as rows, of a covariance.

    Only the lower triangle of ``matrix`` (..., d, d), float64, is read; the matrix is overwritten. Signs are fixed by
    :func:`fix_signs`. Costs O(d^3) time; where few components of many are wanted, O(d^2 k) if the spectrum lets
    orthogonal iteration converge, which may lack 1e-9 of what they capture, and 3e-5 of a vector; with ``precise`` the
    direct solver finds them to rounding.

    Returns
    -------
    values : array (..., k)
    rows : array (..., k, d)
    """
    d = matrix.shape[-1]
    if precise or not iterates(d, k):
        return direct_eigh(matrix, k)
    values, rows, converged, _ = orthogonal_iteration(symmetrize(matrix), k)
    if is_single(matrix):
        return (values, rows) if converged else direct_eigh(matrix, k)
    for place in np.argwhere(~to_numpy(converged)):
        one: Any = (*place.tolist(), ...)
        values[one], rows[one] = direct_eigh(matrix[one], k)
    return values, rows


def iterates(d: int, k: int) -> bool:
    """Say whether orthogonal iteration pays for k of d eigenpairs."""
    return d >= _ITERATE_FROM and _ITERATE_SHARE * k <= d


def direct_eigh(matrix: Array, k: int) -> tuple[Array, Array]:
    """Return what `leading_eigh` does, from a direct solver."""
    d = matrix.shape[-1]
    if not is_single(matrix):
        return extreme_eigh(matrix, k, 0)[:2]
    # LAPACK itself: what checks its arguments takes as long as a fifth of a small problem. For Fortran the transpose of
    # a C-ordered matrix needs no copy, and its upper triangle is our lower one.
    if _PART_SHARE * k < d:
        # MRRR computes a part of the spectrum, divide and conquer all of it, faster a vector.
        values, vectors, _, _, failed = lapack.dsyevr(matrix.T, range="I", il=d - k + 1, iu=d, overwrite_a=True)
        values = values[:k]
    else:
        values, vectors, failed = lapack.dsyevd(matrix.T, overwrite_a=True)
    if failed:
        raise np.linalg.LinAlgError(f"the eigenproblem of {d} attributes did not converge")
    return np.maximum(values[::-1][:k], 0.0), fix_signs(np.ascontiguousarray(vectors.T[::-1][:k]))


def extreme_eigh(matrix: Array, k: int, j: int) -> tuple[Array, Array, Array, Array]:
    """Return the ``k`` largest eigenpairs as `leading_eigh` does, then the ``j`` smallest, ascending.

    Only the lower triangle of ``matrix`` (..., d, d), float64, is read; the matrix is overwritten. Costs O(d^3) time
    and 16 d^2 bytes.
    """
    xp = namespace(matrix)
    if is_single(matrix):
        values, vectors = scipy.linalg.eigh(matrix.T, lower=False, overwrite_a=True, check_finite=False, driver="evd")
    else:
        values, vectors = xp.linalg.eigh(symmetrize(matrix))
    values, rows = xp.where(values < 0, 0.0, values), xp.matrix_transpose(vectors)
    leading, least = copy_of(xp.flip(rows, axis=-2)[..., :k, :]), copy_of(rows[..., :j, :])
    values, low = copy_of(xp.flip(values, axis=-1)[..., :k]), copy_of(values[..., :j])
    return values, fix_signs(leading), low, fix_signs(least)


def eigh_bytes(d: int, k: int) -> int:
    """Bytes of temporary arrays of `leading_eigh` of one matrix, its result left out."""
    vectors = 8 * d * (2 * k + 32)
    if _PART_SHARE * k >= d:
        return vectors + 16 * d * d  # the work space of divide and conquer
    if iterates(d, k):
        return vectors + 4 * d * d + 96 * d * k  # the matrix in float32, and a handful of bases of 2 k columns
    return vectors


def orthogonal_iteration(matrix: Array, k: int) -> tuple[Array, Array, Array, Array]:
    """Run orthogonal iteration with Rayleigh-Ritz from a fixed start; also say where it converged, and what follows.

    Alakkari 2020, section 2.2.1; Arora 2015, section 5.3.

    Iterates on twice the components asked for, first in float32, with the spectrum shifted by half of what is to be
    left out, and then, from a basis that is nearly right, in float64, until the captured variance lacks at most 1e-9 of
    itself. To first order a Ritz value t with residual r lacks |r|^2 / (t - t'), t' being the largest value left out
    (Parlett 1998, section 11.7): on cells of photographs (10 x 10 x 3, 25 x 25 x 3) this bound is within a tenth of the
    truth. There two or three steps in float32 and one to three in float64 meet it; in random bands, whose spectra fall
    off slowly, six and one.
    """
    xp, d = namespace(matrix), matrix.shape[-1]
    # Variances may be beyond float32's range in the data's own units.
    largest = xp.max(diagonal(matrix), axis=-1)[..., None, None]
    single = _in_single(matrix, xp.where(largest > 0, largest, 1.0))
    image = xp.matmul(single, beside(_start(d, 2 * k), matrix))
    captured: Any = 0.0
    for _ in range(_SINGLE_STEPS):
        basis = _cholesky_qr(image)
        image = xp.matmul(single, basis)
        quotients = column_products(basis, image)
        before, captured = captured, xp.sum(quotients, axis=-1)
        if not any_of(captured - before > _SLOW_GROWTH * captured):
            break
        # Eigenvalues left out lie between 0 and about the least of these: halfway, all of them are damped most.
        image -= (xp.min(quotients, axis=-1) / 2)[..., None, None] * basis
    for _ in range(max(_DOUBLE_STEPS, d // (_STEPS_SHARE * k))):
        basis = _qr(cast(image, np.float64))
        image = xp.matmul(matrix, basis)
        values, turn = xp.linalg.eigh(xp.matmul(xp.matrix_transpose(basis), image))
        wanted, turn = values[..., -k:], turn[..., -k:]
        vectors = xp.matmul(basis, turn)
        residual = xp.matmul(image, turn) - vectors * wanted[..., None, :]
        gaps = wanted - values[..., :1]
        lacking = xp.sum(column_squares(residual) / xp.where(gaps > _TINY, gaps, _TINY), axis=-1)
        known = wanted[..., 0] > _SMALLEST_SHARE * wanted[..., -1]
        converged = known & (lacking <= _MAY_LACK * xp.sum(wanted, axis=-1))
        if not any_of(known & ~converged):
            break
    rows = copy_of(xp.flip(xp.matrix_transpose(vectors), axis=-2))
    return xp.flip(wanted, axis=-1), fix_signs(rows), converged, values[..., -k - 1]


def _in_single(matrix: Array, unit: Array) -> Array:
    """Return matrix / unit in float32."""
    if is_single(matrix):
        return np.divide(matrix, unit, out=np.empty(matrix.shape, np.float32), casting="same_kind")
    return cast(matrix / unit, np.float32)


@lru_cache(maxsize=4)  # partitions of few sizes take turns
def _start(d: int, n_columns: int) -> Array:
    return np.random.default_rng(0).standard_normal((d, n_columns), np.float32)


def _cholesky_qr(columns: Array) -> Array:
    """Return nearly orthonormal float32 columns of the same span.

    Cholesky QR in float64 (Stathopoulos & Wu 2002) takes half of Householder's time. A shift of the Gram matrix (Fukaya
    et al. 2020) keeps it from failing where columns are dependent: those come out shorter.
    """
    xp, exact = namespace(columns), cast(columns, np.float64)
    gram = xp.matmul(xp.matrix_transpose(exact), exact)
    trace = xp.linalg.trace(gram)[..., None, None]
    gram += _CHOLESKY_SHIFT * xp.where(trace > 0, trace, 1.0) * beside(np.eye(gram.shape[-1]), columns)
    if is_single(gram):
        # LAPACK itself: numpy's checks, and its inverse of any matrix, take five times as long.
        inverse = lapack.dtrtri(lapack.dpotrf(gram, lower=True)[0], lower=True)[0]
    else:
        inverse = xp.linalg.inv(xp.linalg.cholesky(gram))
    return cast(xp.matmul(exact, xp.matrix_transpose(inverse)), np.float32)


def _qr(columns: Array) -> Array:
    if is_single(columns):
        q: Array = scipy.linalg.qr(columns, mode="economic", check_finite=False)[0]
    else:
        q = namespace(columns).linalg.qr(columns)[0]
    return q


def fix_signs(rows: Array) -> Array:
    """Make the entry of largest magnitude of each row (..., d) positive, in place."""
    xp = namespace(rows)
    largest = xp.argmax(xp.abs(rows), axis=-1, keepdims=True)
    # Where there are few rows, indices cost a tenth of take_along_axis.
    found = rows[np.arange(len(rows)), largest.T].T if is_single(rows) else xp.take_along_axis(rows, largest, axis=-1)
    rows *= 1 - 2 * cast(found < 0, dtype_of(rows))
    return rows
