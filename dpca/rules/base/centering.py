"""Running mean and total variance of a stream, and centered batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.state import State, StateLayout

# Rows of one float32 sum. Sums of 8-bit integers minus 128 stay within 2**24, where float32 holds every integer.
_BLOCK_ROWS = 1024


def layout(n_features: int) -> StateLayout:
    """Return the layout of the arrays that :func:`take` updates besides the count "n_samples"."""
    return {"mean": ((n_features,), float), "scatter": ((), float)}


def take(state: State, batch: Array, center: bool, dtype: np.dtype[Any]) -> Array:
    """Add a batch to the running mean, and return the batch minus this mean in the working dtype.

    The mean and the sum of squared deviations are exact up to rounding for any batches (Chan, Golub & LeVeque 1983,
    equations 1.5a and 1.5b, in the form without subtractions). With mean a of n earlier samples and new mean m,
    ``scatter`` grows by n |m - a|^2 + sum |x - m|^2. The batch is centered by a preliminary mean. Every sequential rule
    makes this approximation.

    Parameters
    ----------
    state : State
        Its "mean" (d,), "scatter" () and count "n_samples" are updated in place.
    batch : array (n, d), n >= 1, any real dtype
        Not changed.
    center : bool
        If false, the batch is only cast: the mean stays 0, and ``scatter`` is about 0.
    dtype : float32 or float64

    Returns
    -------
    array (n, d) of ``dtype``
        A scratch array, which the caller may overwrite. It is valid until the next call in this thread.
    """
    x = linalg.scratch("centered", batch.shape, dtype)
    n_seen, n = state.counts["n_samples"], len(batch)
    mean = state.arrays["mean"]
    moved = 0.0
    if center:
        shift = _subtract_shift(x, batch, mean if n_seen else None)
        before = mean.copy()
        mean += (shift + _column_sums(x) / n - mean) * (n / (n_seen + n))
        x -= (mean - shift).astype(dtype)
        moved = n_seen * float(np.sum((mean - before) ** 2))
    else:
        np.copyto(x, batch, casting="unsafe")
    # float32 is accurate enough for each row, but not for the sum over rows.
    state.arrays["scatter"] += moved + float(np.einsum("ij,ij->i", x, x).sum(dtype=np.float64))
    state.counts["n_samples"] = n_seen + n
    return x


def merge(a: State, b: State) -> Array:
    """Merge the samples of ``b`` into ``a``, and return the previous difference of means, b - a (d,).

    Exact up to rounding error (Chan, Golub & LeVeque 1983, equations 2.1a and 2.1b). ``b`` is not changed.
    """
    n_a, n_b = a.counts["n_samples"], b.counts["n_samples"]
    apart: Array = b.arrays["mean"] - a.arrays["mean"]
    n = max(n_a + n_b, 1)
    a.arrays["mean"] += apart * (n_b / n)
    a.arrays["scatter"] += b.arrays["scatter"] + float(apart @ apart) * (n_a * n_b / n)
    a.counts["n_samples"] = n_a + n_b
    return apart


def joined(before: State, states: Sequence[State]) -> tuple[Array, Array]:
    """Return mean (d,) and scatter () of all samples of streams that started from one state, each counted once.

    The equations of :func:`merge` yield the mean and scatter of the new samples of each stream, from its final state
    and ``before``.

    Parameters
    ----------
    before : State
        Common start of all streams.
    states : sequence of State
        Final states of the streams. Each includes the samples of ``before``.
    """
    n_before, old = before.counts["n_samples"], before.arrays["mean"]
    together = State({"mean": old.copy(), "scatter": before.arrays["scatter"].copy()}, {"n_samples": n_before})
    for state in states:
        n_all = state.counts["n_samples"]
        n = n_all - n_before
        if n:
            moved = (state.arrays["mean"] - old) * (n_all / n)
            between = float(moved @ moved) * (n_before * n / n_all)
            scatter = state.arrays["scatter"] - before.arrays["scatter"] - between
            merge(together, State({"mean": old + moved, "scatter": scatter}, {"n_samples": n}))
    return together.arrays["mean"], together.arrays["scatter"]


def total_variance(state: State) -> Array:
    """Return the total variance () so far, divisor n - 1; 0 for a single sample."""
    return np.asarray(state.arrays["scatter"] / max(state.counts["n_samples"] - 1, 1))


def work_bytes(n_rows: int, n_features: int, dtype: np.dtype[Any]) -> int:
    """Return the bytes of temporary arrays of :func:`take`, including its result."""
    return n_rows * n_features * (dtype.itemsize + 1) + 32 * n_features


def _subtract_shift(x: Array, batch: Array, mean: Array | None) -> Array:
    """Write batch - shift into x, and return the shift: numbers near the mean that are exact in the dtype of x."""
    if batch.dtype == np.uint8:
        np.copyto(x, linalg.signed_bytes(batch))
        return np.full(x.shape[1], 128.0)
    shift = (batch[0] if mean is None else mean).astype(x.dtype)
    np.subtract(batch, shift, out=x, dtype=x.dtype, casting="unsafe")
    return shift.astype(np.float64)


def _column_sums(x: Array) -> Array:
    total = np.zeros(x.shape[1])
    for block in (x[rows] for rows in blocks(len(x), _BLOCK_ROWS)):
        total += np.ones(len(block), x.dtype) @ block
    return total
