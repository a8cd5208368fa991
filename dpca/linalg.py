"""The few dense kernels that the rules are made of, chosen by measurement.

Batches are C-ordered (n_samples, n_features); symmetric results hold their lower triangle.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

# Below this size numpy's matmul (which calls SYRK and mirrors the triangle) is the faster of the two; above it
# SYRK into the output is, because it neither mirrors nor allocates.
_MATMUL_LIMIT = 512
_TRIANGLE_ROWS = 256

_local = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return an uninitialized C-ordered array that lives until the next call with this name in this thread.

    Fresh large arrays cost a page fault every 4 KiB, a third of the time of the kernels here; a reused one costs none.
    """
    dtype = np.dtype(dtype)
    pool: dict[str, Array] = _local.__dict__.setdefault("pool", {})
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    buffer = pool.get(name)
    if buffer is None or buffer.nbytes < size:
        buffer = pool[name] = np.empty(size, np.uint8)
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


def add_lower(total: Array, part: Array) -> None:
    """Add the lower triangle of ``part`` to that of ``total``, in bands of rows."""
    for start in range(0, len(total), _TRIANGLE_ROWS):
        stop = min(start + _TRIANGLE_ROWS, len(total))
        total[start:stop, :stop] += part[start:stop, :stop]


def symmetrize(lower: Array) -> Array:
    """Mirror the lower triangle into the upper one, in place."""
    for start in range(0, len(lower), _TRIANGLE_ROWS):
        stop = min(start + _TRIANGLE_ROWS, len(lower))
        corner = lower[start:stop, start:stop]
        corner[...] = np.tril(corner) + np.tril(corner, -1).T
        lower[:start, start:stop] = lower[start:stop, :start].T
    return lower


def leading_eigh(matrix: Array, k: int) -> tuple[Array, Array]:
    """Return the ``k`` largest eigenvalues (descending, >= 0) and their eigenvectors as rows, of a covariance.

    Only the lower triangle of ``matrix`` (d, d) is read; the matrix is overwritten. Signs are fixed by
    :func:`fix_signs`. Costs O(d^3) time.
    """
    d = len(matrix)
    # MRRR computes a part of the spectrum, divide and conquer all of it, faster a vector.
    part = {"subset_by_index": (d - k, d - 1), "driver": "evr"} if k < d // 2 else {"driver": "evd"}
    # For Fortran the transpose of a C-ordered matrix needs no copy, and its upper triangle is our lower one.
    values, vectors = scipy.linalg.eigh(matrix.T, lower=False, overwrite_a=True, check_finite=False, **part)
    values = np.maximum(values[::-1][:k], 0.0)
    return values, fix_signs(np.ascontiguousarray(vectors.T[::-1][:k]))


def fix_signs(rows: Array) -> Array:
    """Make the entry of largest magnitude of each row positive, in place."""
    largest = np.abs(rows).argmax(axis=1)
    rows *= np.where(rows[np.arange(len(rows)), largest] < 0, -1, 1)[:, None].astype(rows.dtype)
    return rows
