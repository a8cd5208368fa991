"""Dense linear algebra for the rules. Measurements decided between the alternatives.

Batches are C-ordered (n_samples, n_features). Of symmetric results only the lower triangle is valid. Single numpy
matrices go to BLAS and LAPACK directly. Other arrays use the functions of their own library (see ``namespace``). They
may have leading axes: one call processes a stack of matrices (..., n, d), each on its own. Accelerators need this,
because a call there costs as much as a small matrix.
"""

from __future__ import annotations

import math
import threading
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike
from scipy.linalg import lapack

from dpca.kernels.algebra import unlocked
from dpca.kernels.algebra.namespace import any_of, beside, cast, copy_of, dtype_of, empty, is_numpy, namespace, to_numpy
from dpca.kernels.algebra.types import Array, blocks

# Up to this size numpy's matmul is faster, which calls SYRK and mirrors the triangle. Above it SYRK into the output is
# faster, because it neither mirrors nor allocates.
_MATMUL_LIMIT = 512
_TRIANGLE_ROWS = 64
# Orthogonal iteration pays for matrices from _ITERATE_FROM attributes on, if at most one component in _ITERATE_SHARE is
# requested. Its first steps are in float32, at a quarter of the cost of float64. They end when one step increases the
# captured variance by less than the share _SLOW_GROWTH, or after _SINGLE_STEPS. The direct solver takes over if
# max(_DOUBLE_STEPS, d / (_STEPS_SHARE k)) steps in float64 do not converge. All steps together cost half as much as the
# direct solver.
_ITERATE_FROM, _ITERATE_SHARE = 200, 8
_SLOW_GROWTH, _SINGLE_STEPS = 2e-4, 10
_DOUBLE_STEPS, _STEPS_SHARE = 4, 4
# A solver for a part of the spectrum is faster if fewer than one component in so many is requested.
_PART_SHARE = 6
# Largest share of the captured variance that orthogonal iteration may miss.
_MAY_LACK = 1e-9
# Eigenvalues below this share of the largest one are too inaccurate in float32.
_SMALLEST_SHARE = 1e-5
_TINY = float(np.finfo(np.float64).tiny)
# This share of the trace of a float64 Gram matrix is added to its diagonal. It is far above the rounding errors of the
# trace, and far below those of the float32 columns.
_CHOLESKY_SHIFT = 1e-13

_local = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return a C-ordered array of arbitrary content. It is valid until the next call with this name in this thread.

    A new large array costs a page fault every 4 KiB: a third of the time of these kernels. A reused array costs none.
    """
    dtype = np.dtype(dtype)
    pool: dict[str, Array] = _local.__dict__.setdefault("pool", {})
    size = math.prod(shape) * dtype.itemsize
    buffer = pool.get(name)
    if buffer is None or buffer.nbytes < size:
        buffer = pool[name] = np.zeros(size, np.uint8)
    return buffer[:size].view(dtype).reshape(shape)


def release_scratch() -> None:
    """Free the scratch arrays of this thread."""
    _local.__dict__.pop("pool", None)


def is_single(x: Array) -> bool:
    """Return whether ``x`` is a single numpy matrix. BLAS and LAPACK are faster there than the array API."""
    return is_numpy(x) and x.ndim == 2


def workspace(name: str, shape: tuple[int, ...], dtype: DTypeLike, x: Array) -> Array:
    """Return an array of arbitrary content on the device of ``x``: `scratch` for numpy, else a new array.

    The libraries of accelerators reuse the memory of freed arrays themselves.
    """
    return scratch(name, shape, dtype) if is_numpy(x) else empty(shape, dtype, x)


def signed_bytes(x: Array) -> Array:
    """Return x - 128 as int8 in scratch memory, for a numpy array of uint8."""
    # Flipping the top bit subtracts 128 in 8 bits, which is cheaper than subtracting floats.
    return np.bitwise_xor(x, np.uint8(128), out=scratch("flipped", x.shape, np.uint8)).view(np.int8)


def copy_into(out: Array, values: Array) -> None:
    """Write values of any dtype over ``out``."""
    if is_numpy(out):
        np.copyto(out, values)
    else:
        out[...] = cast(values, dtype_of(out))


def subtract_into(out: Array, a: Array, b: Array) -> Array:
    """Write a - b, arrays of any dtype, over ``out``, in the dtype of ``out``."""
    if is_numpy(out):
        # Convert first, because functions of two dtypes take twice the time.
        np.copyto(out, a)
        np.subtract(out, b, out=out)
    else:
        out[...] = cast(a, dtype_of(out)) - cast(b, dtype_of(out))
    return out


def workspace_product(name: str, a: Array, b: Array) -> Array:
    """Return the matrix a @ b in a `workspace`."""
    if is_numpy(a):
        return np.matmul(a, b, out=scratch(name, (len(a), b.shape[1]), a.dtype))
    return namespace(a).matmul(a, b)


def gram_lower(name: str, x: Array) -> Array:
    """Return the lower triangle of x.T @ x in a `workspace`. The values above it are undefined.

    ``x`` (..., n, d), float32 or float64, is C-ordered: one matrix or a stack.
    """
    if not is_single(x):
        xp = namespace(x)
        return xp.matmul(xp.matrix_transpose(x), x)
    out = scratch(name, (x.shape[1],) * 2, x.dtype)
    if x.shape[1] <= _MATMUL_LIMIT:
        return np.matmul(x.T, x, out=out)
    unlocked.syrk(x, out)
    return out


def add_lower(total: Array, part: Array, scale: Array | float = 1.0) -> None:
    """Add ``scale`` times the lower triangle of ``part`` (see `gram_lower`) to the lower triangle of ``total``.

    For a stack of matrices (..., d, d), ``scale`` has shape (...).
    """
    plain = isinstance(scale, float) and scale == 1
    if not is_single(total):
        total += part if plain else cast(part, np.float64) * scale[..., None, None]  # type: ignore[index]
        return
    if len(total) <= _MATMUL_LIMIT:
        total += part if plain else np.multiply(part, scale, dtype=total.dtype)
        return
    for band in blocks(len(total), _TRIANGLE_ROWS):
        # Above the diagonal SYRK leaves old bits, which may be NaN: never read them.
        for columns in (slice(band.start), band):
            values = np.tril(part[band, band]) if columns is band else part[band, columns]
            total[band, columns] += values if plain else np.multiply(values, scale, dtype=total.dtype)


def add_outer_lower(total: Array, u: Array, v: Array) -> None:
    """Add the lower triangle of the symmetric u.T @ v to that of ``total``. ``u`` and ``v`` have a few rows."""
    if not is_single(total):
        xp = namespace(total)
        total += xp.matmul(xp.matrix_transpose(u), v)
        return
    for band in blocks(len(total), _TRIANGLE_ROWS):
        total[band, : band.stop] += u[:, band].T @ v[:, : band.stop]


def symmetrize(lower: Array) -> Array:
    """Mirror the lower triangle into the upper one, in place."""
    if not is_single(lower):
        xp = namespace(lower)
        lower[...] = xp.tril(lower) + xp.matrix_transpose(xp.tril(lower, k=-1))
        return lower
    for band in blocks(len(lower), _TRIANGLE_ROWS):
        corner = lower[band, band]
        np.copyto(corner, corner.T, where=np.tri(len(corner), k=-1, dtype=bool).T)
        lower[: band.start, band] = lower[band, : band.start].T
    return lower


def diagonal(x: Array) -> Array:
    """Return the diagonal of each matrix."""
    return x.diagonal() if is_single(x) else namespace(x).linalg.diagonal(x)


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


def largest_magnitude(x: Array) -> Array:
    """Return the largest magnitude in each matrix (..., n, d), as a numpy array."""
    xp = namespace(x)
    return to_numpy(xp.maximum(xp.max(x, axis=(-2, -1)), -xp.min(x, axis=(-2, -1))))


def bring_to_one(x: Array, which: Array, largest: Array | None = None) -> Array | None:
    """Divide matrices by a power of two, in place and exactly, so that squares stay in the range of the dtype.

    Parameters
    ----------
    x : array (..., n, d), floating-point
    which : array (...), bool
        The matrices to divide.
    largest : array (...), optional
        Magnitudes to bring to one. The default is `largest_magnitude`.

    Returns
    -------
    array (...), float64, or None
        The divisors. Divided matrices have their largest magnitude in [1/2, 1). All other matrices, and zero matrices,
        have divisor 1. None if all divisors are 1.
    """
    largest = largest_magnitude(x) if largest is None else largest
    exponent = np.where(to_numpy(which) & (largest < math.inf), np.frexp(largest)[1], 0)
    if not exponent.any():
        return None
    if is_numpy(x):
        np.ldexp(x, -exponent[..., None, None], out=x)
    else:
        # In two steps, because the array API has no ldexp, and float32 cannot hold the scale of the smallest numbers.
        for part in (exponent // 2, exponent - exponent // 2):
            x *= cast(beside(np.asarray(np.ldexp(1.0, -part)), x), dtype_of(x))[..., None, None]
    return beside(np.asarray(np.ldexp(1.0, exponent)), x)


def leading_eigh(matrix: Array, k: int, *, precise: bool = False) -> tuple[Array, Array]:
    """Return the ``k`` largest eigenvalues (descending, >= 0) of a covariance, and their eigenvectors as rows.

    Only the lower triangle of ``matrix`` (..., d, d), float64, is read; the matrix is overwritten. Signs are fixed by
    :func:`fix_signs`. Costs O(d^3) time. If few of many components are requested and orthogonal iteration converges,
    it costs O(d^2 k). The iteration may miss a share of 1e-9 of the captured variance, and 3e-5 of a vector. With
    ``precise`` the direct solver computes the eigenpairs up to rounding error.

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
    """Return whether orthogonal iteration pays for k of d eigenpairs."""
    return d >= _ITERATE_FROM and _ITERATE_SHARE * k <= d


def direct_eigh(matrix: Array, k: int) -> tuple[Array, Array]:
    """Return the eigenpairs of `leading_eigh`, computed by a direct solver."""
    d = matrix.shape[-1]
    if not is_single(matrix):
        return extreme_eigh(matrix, k, 0)[:2]
    # MRRR can compute a part of the spectrum. Divide and conquer computes all of it, in less time per vector.
    if _PART_SHARE * k < d:
        values, rows = unlocked.partial_eigh(matrix, k)
    else:
        values, rows = unlocked.eigh(matrix), matrix
    return np.maximum(values[::-1][:k], 0.0), fix_signs(np.ascontiguousarray(rows[::-1][:k]))


def extreme_eigh(matrix: Array, k: int, j: int) -> tuple[Array, Array, Array, Array]:
    """Return the ``k`` largest eigenpairs like `leading_eigh`, then the ``j`` smallest ones, ascending.

    Only the lower triangle of ``matrix`` (..., d, d), float64, is read; the matrix is overwritten. Costs O(d^3) time
    and 16 d^2 bytes.
    """
    xp = namespace(matrix)
    if is_single(matrix):
        values, rows = unlocked.eigh(matrix), matrix
    else:
        values, vectors = xp.linalg.eigh(symmetrize(matrix))
        rows = xp.matrix_transpose(vectors)
    values = xp.where(values < 0, 0.0, values)
    leading, least = copy_of(xp.flip(rows, axis=-2)[..., :k, :]), copy_of(rows[..., :j, :])
    values, low = copy_of(xp.flip(values, axis=-1)[..., :k]), copy_of(values[..., :j])
    return values, fix_signs(leading), low, fix_signs(least)


def eigh_bytes(d: int, k: int) -> int:
    """Return the bytes of temporary arrays of `leading_eigh` for one matrix, without its result."""
    vectors = 8 * d * (2 * k + 32)
    if _PART_SHARE * k >= d:
        return vectors + 16 * d * d  # the workspace of divide and conquer
    if iterates(d, k):
        return vectors + 4 * d * d + 96 * d * k  # the matrix in float32, and a few bases of 2 k columns
    return vectors


def orthogonal_iteration(matrix: Array, k: int) -> tuple[Array, Array, Array, Array]:
    """Run orthogonal iteration with Rayleigh-Ritz from a fixed start (Alakkari 2020, section 2.2.1; Arora 2015, 5.3).

    Returns the ``k`` leading values and rows, whether they converged, and the next Ritz value.

    It iterates on 2 k components, first in float32. There half of the smallest Rayleigh quotient shifts the spectrum.
    Then it iterates in float64, until the captured variance misses at most a share of 1e-9. To first order a Ritz value
    t with residual r misses |r|^2 / (t - t') (Parlett 1998, section 11.7). Here t' is the smallest of the 2 k Ritz
    values. On cells of photographs (10 x 10 x 3, 25 x 25 x 3) this estimate is within a tenth of the true value. These
    cells need two or three steps in float32 and one to three in float64. Random bands have slowly decaying spectra;
    they need six and one.
    """
    xp, d = namespace(matrix), matrix.shape[-1]
    # In the units of the data, variances may exceed the range of float32.
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
        # The other eigenvalues lie between 0 and about the smallest quotient. A shift to the middle damps them most.
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


@lru_cache(maxsize=4)  # a partition has parts of few sizes
def _start(d: int, n_columns: int) -> Array:
    return np.random.default_rng(0).standard_normal((d, n_columns), np.float32)


def _cholesky_qr(columns: Array) -> Array:
    """Return nearly orthonormal float32 columns of the same span.

    Cholesky QR in float64 (Stathopoulos & Wu 2002) takes half the time of Householder QR. A shift of the Gram matrix
    (Fukaya et al. 2020) keeps it from failing if columns are dependent. Such columns come out shorter than 1.
    """
    xp, exact = namespace(columns), cast(columns, np.float64)
    gram = xp.matmul(xp.matrix_transpose(exact), exact)
    trace = xp.linalg.trace(gram)[..., None, None]
    gram += _CHOLESKY_SHIFT * xp.where(trace > 0, trace, 1.0) * beside(np.eye(gram.shape[-1]), columns)
    if is_single(gram):
        # Call LAPACK directly: numpy's checks and its general inverse take five times as long.
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


def peaks(rows: Array) -> Array:
    """Return the entry of largest magnitude of each row (..., d), as (..., 1)."""
    xp = namespace(rows)
    largest = xp.argmax(xp.abs(rows), axis=-1, keepdims=True)
    # For few rows, indexing costs a tenth of take_along_axis.
    return rows[np.arange(len(rows)), largest.T].T if is_single(rows) else xp.take_along_axis(rows, largest, axis=-1)


def fix_signs(rows: Array) -> Array:
    """Make the entry of largest magnitude of each row (..., d) positive, in place."""
    rows *= 1 - 2 * cast(peaks(rows) < 0, dtype_of(rows))
    return rows
