"""Choice of landmarks, the few samples that represent all, by randomly pivoted Cholesky."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.kernels.inner_products import Kernel, KernelMap

# Number of pivots proposed together: products of so many rows are fast, and few proposals are rejected.
_BLOCK = 128
# Residuals of kernels below this multiple of the rounding error of the largest kernel count as 0.
_ROUNDING = 64


def pivots(kernel: Kernel, pool: Array, count: int, rng: np.random.Generator) -> Array:
    """Choose landmarks of a pool by accelerated randomly pivoted Cholesky.

    The probability of a sample is proportional to the residual of its kernel with itself after the previous landmarks
    (Chen, Epperly, Tropp & Webber 2022, algorithm 2.1). Blocks of samples are proposed. Rejections yield the same
    distribution (Epperly, Tropp & Webber 2024, algorithm 2.1).

    Parameters
    ----------
    kernel : Kernel
        Not "precomputed".
    pool : array (n, d)
    count : int
        At most n.
    rng : numpy.random.Generator

    Returns
    -------
    array (m,), integer
        Numbers of the landmarks, in the order of their choice. m < count if they span the pool up to rounding error.
        Costs 2 n m (d + m) operations and n m floating-point values.
    """
    dtype, left = working_dtype(pool.dtype), kernel.diagonal(pool)
    points = pool.astype(dtype, copy=False)
    to_pool, factor = KernelMap(kernel, points), np.empty((count, len(pool)), dtype)
    least = _ROUNDING * float(np.finfo(dtype).eps) * float(left.max())
    chosen = np.empty(0, np.intp)
    while (m := len(chosen)) < count:
        left[left <= least] = 0
        if not (total := left.sum()) > 0:
            break
        proposed = rng.choice(len(pool), min(_BLOCK, max(1, count // 4)), p=left / total)
        among = KernelMap(kernel, points[proposed]).own()
        known = factor[:m, proposed].astype(np.float64)
        among -= known.T @ known
        accepted = _accepted(among, left[proposed], least, rng)[: count - m]
        if not len(accepted):
            left[proposed] = np.minimum(left[proposed], np.diag(among))
            continue
        fresh, new = proposed[accepted], factor[m : m + len(accepted)]
        np.copyto(new, to_pool(pool[fresh]))
        new -= factor[:m, fresh].T @ factor[:m]
        lower = np.linalg.cholesky(among[np.ix_(accepted, accepted)]).astype(dtype)
        (solve,) = scipy.linalg.get_blas_funcs(("trsm",), (new,))
        solve(1.0, lower, new.T, side=True, lower=True, trans_a=True, overwrite_b=True)
        left -= np.einsum("ij,ij->j", new, new, dtype=np.float64)
        left[fresh] = 0
        chosen = np.concatenate([chosen, fresh])
    return chosen


def _accepted(among: Array, proposals: Array, least: float, rng: np.random.Generator) -> Array:
    """Return the accepted proposals. The probability is the current residual divided by that of the proposal."""
    left, accepted = among.copy(), []
    for i, draw in enumerate(rng.random(len(left))):
        if left[i, i] > least and draw * proposals[i] < left[i, i]:
            accepted.append(i)
            left[i + 1 :, i + 1 :] -= np.outer(left[i + 1 :, i], left[i, i + 1 :]) / left[i, i]
    return np.array(accepted, np.intp)
