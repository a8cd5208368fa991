"""Landmarks of a stack: the pool of samples, the choice of landmarks, and the default width of a kernel."""

from __future__ import annotations

import math
import warnings

import numpy as np

from dpca.engine.sources.held_out import spread_runs
from dpca.engine.sources.sampling import chosen_samples
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.kernels.inner_products import Kernel
from dpca.models.linear.weighted import require_sum
from dpca.rules.kernel.landmarks import pivots
from dpca.storage.errors import DataError

OUT_OF_RANGE = "the kernels of these samples leave the range of numbers: divide all values by a constant"
# Samples of the pool that landmarks are chosen from. If a hundredth of a stack forms 20 groups, the pool contains all
# groups. The pool is smaller if it exceeds this number of bytes, or a quarter of the memory budget of a task.
_POOL, _POOL_BYTES = 2**14, 2**30
# The pool is also smaller if the choice costs as much as the pass. A sixteenth of the samples costs less, and so do two
# million kernels with landmarks. But it has at least 8 samples for each landmark, so that there is a choice.
_POOL_SHARE, _POOL_KERNELS, _POOL_EACH = 16, 2**21, 8
# Samples of a batch of k-means. Batches of 1,024 take 2.5 times as long, and capture little more.
_CENTERED = 256
#: Further random samples for a sharper bound of a fit: the kernels between them take 8 MB.
HELD_OUT = 1000


def draw(source: Source, count: int, rng: np.random.Generator) -> Array:
    """Read about ``count`` samples (n, d) of a stack, in its dtype, spread over the stack.

    Raises
    ------
    DataError
        If a value is not finite.
    """
    n, d = source.shape[0], math.prod(source.shape[1:])
    numbers = np.arange(n) if count >= n else spread_runs(n, source.chunks[0], count, rng)
    return chosen_samples(source, numbers).reshape(-1, d)


def pool_size(source: Source, n_landmarks: int, itemsize: int, budget: int) -> int:
    """Return the number of samples of the pool."""
    n, each = source.shape[0], itemsize * (2 * math.prod(source.shape[1:]) + n_landmarks)
    cheap = max(n // _POOL_SHARE, _POOL_KERNELS // n_landmarks, _POOL_EACH * n_landmarks)
    return min(n, max(n_landmarks, min(_POOL, cheap, min(_POOL_BYTES, budget // 4) // each)))


def chosen_of(pool: Array, kernel: Kernel, how: str, count: int, rng: np.random.Generator) -> Array:
    """Return landmarks (m, d), floating, m <= count, of a pool (n, d).

    Raises
    ------
    DataError
        If all kernels are 0.
    """
    dtype = working_dtype(pool.dtype)
    if how == "k-means":
        return _centers(pool.astype(dtype, copy=False), min(count, len(pool)), rng)
    if how == "uniform":
        return pool[np.sort(rng.choice(len(pool), min(count, len(pool)), replace=False))].astype(dtype, copy=False)
    chosen = pivots(kernel, pool, min(count, len(pool)), rng)
    if not len(chosen):
        zero = "the kernel of every sample with itself is 0: use samples that are not 0"
        raise DataError(zero if np.isfinite(kernel.diagonal(pool)).all() else OUT_OF_RANGE)
    return pool[chosen].astype(dtype, copy=False)


def _centers(pool: Array, count: int, rng: np.random.Generator) -> Array:
    """Return the distinct centers of mini-batch k-means, at most ``count``."""
    from sklearn.cluster import MiniBatchKMeans  # slow to import
    from sklearn.exceptions import ConvergenceWarning

    means = MiniBatchKMeans(count, batch_size=_CENTERED, n_init=1, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer samples than centers differ
        found: Array = means.fit(pool).cluster_centers_
    return np.unique(found, axis=0).astype(pool.dtype, copy=False)


def default_gamma(x: Array, name: str = "gamma", weights: Array | None = None) -> float:
    """Return 1 / (2 s^2) with the root mean square distance s between rows (n, d).

    Half of the mean squared distance is the sum of all variances (divisor n - 1), so the cost is linear in n. Weights
    (n,) say how often each row counts.

    Raises
    ------
    DataError
        If all rows are equal.
    """
    if weights is not None:
        squares = ((x - np.average(x, axis=0, weights=weights)) ** 2).sum(axis=1)
        return gamma_of(float(weights @ squares) / (require_sum(weights) - 1), name)
    return gamma_of(float(x.var(axis=0, dtype=np.float64, ddof=1).sum()) if len(x) > 1 else 0.0, name)


def gamma_of(total: float, name: str = "gamma") -> float:
    """Return the default of `default_gamma` for samples with this sum of all variances.

    Raises
    ------
    DataError
        If it is 0 or infinite.
    """
    if not 0 < total < math.inf or not 0 < (gamma := 1 / (4 * total)) < math.inf:
        raise DataError(
            f"the samples have a total variance of {total:g}, so {name} has no default: use samples that differ, or "
            f"set {name}"
        )
    return gamma
