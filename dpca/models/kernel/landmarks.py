"""Landmarks of a stack: which samples they are chosen from, how, and how wide a kernel is by default."""

from __future__ import annotations

import math

import numpy as np

from dpca.engine.sources.held_out import spread_runs
from dpca.engine.sources.sampling import read_samples
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.kernels.inner_products import Kernel
from dpca.rules.kernel.landmarks import pivots
from dpca.storage.errors import DataError

CHOICES = ("cholesky", "uniform")
OUT_OF_RANGE = "the kernels of these samples leave the range of numbers: divide all values by a constant"
# Samples that landmarks are chosen from: of a hundredth of a stack in 20 groups, all groups are among them. Fewer where
# they would take more bytes than this, or than a quarter of what a task may take.
_POOL, _POOL_BYTES = 2**14, 2**30
# And fewer where the choice would cost as much as the pass: a sixteenth of the samples does not, nor do two million
# kernels with landmarks, which take a moment. But at least 8 for each landmark: of fewer there is little to choose.
_POOL_SHARE, _POOL_KERNELS, _POOL_EACH = 16, 2**21, 8
#: Samples drawn beside, on which the bound of a fit is sharpened: their kernels with each other take 8 MB.
HELD_OUT = 1000


def draw(source: Source, count: int, rng: np.random.Generator) -> Array:
    """Read about ``count`` samples (n, d) of a stack, in its type, spread over all of it.

    Raises
    ------
    DataError
        At a value that is not finite.
    """
    n, d = source.shape[0], math.prod(source.shape[1:])
    numbers = np.arange(n) if count >= n else spread_runs(n, source.chunks[0], count, rng)
    return np.concatenate([rows.reshape(-1, d) for rows in read_samples(source, numbers)])


def pool_size(source: Source, n_landmarks: int, itemsize: int, budget: int) -> int:
    """Return how many samples landmarks are chosen from."""
    n, each = source.shape[0], itemsize * (2 * math.prod(source.shape[1:]) + n_landmarks)
    cheap = max(n // _POOL_SHARE, _POOL_KERNELS // n_landmarks, _POOL_EACH * n_landmarks)
    return min(n, max(n_landmarks, min(_POOL, cheap, min(_POOL_BYTES, budget // 4) // each)))


def chosen_of(pool: Array, kernel: Kernel, how: str, count: int, rng: np.random.Generator) -> Array:
    """Return landmarks (m, d), m <= count, of a pool (n, d), floating.

    Raises
    ------
    DataError
        If all kernels are 0.
    """
    if how == "uniform":
        return pool[np.sort(rng.choice(len(pool), min(count, len(pool)), replace=False))]
    chosen = pivots(kernel, pool, min(count, len(pool)), rng)
    if not len(chosen):
        zero = "the kernel of every sample with itself is 0: give samples that differ from 0"
        raise DataError(zero if np.isfinite(kernel.diagonal(pool)).all() else OUT_OF_RANGE)
    return pool[chosen]


def default_gamma(x: Array, name: str = "gamma") -> float:
    """Return 1 / (2 s^2), s being the root mean square distance between rows (n, d).

    Half of the mean squared distance is the sum of all variances (divisor n - 1): costs one look.

    Raises
    ------
    DataError
        If all rows are equal.
    """
    total = float(x.var(axis=0, dtype=np.float64, ddof=1).sum()) if len(x) > 1 else 0.0
    if not 0 < total < math.inf or not 0 < (gamma := 1 / (4 * total)) < math.inf:
        raise DataError(
            f"the samples have a variance of {total:g} in all, from which no width of a kernel follows: give samples "
            f"that differ, or {name}"
        )
    return gamma
