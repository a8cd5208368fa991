"""Running mean and total variance of a stream, and its batches less that mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpca.kernels import linalg
from dpca.kernels.types import Array
from dpca.rules.state import Layout, State

# Rows of one float32 sum. 8-bit integers less 128 stay within 2**24 over so many, where float32 holds every integer.
_BLOCK_ROWS = 1024


def layout(n_features: int) -> Layout:
    """Return the layout of what :func:`take` keeps in a state beside the count "n_samples"."""
    return {"mean": ((n_features,), float), "scatter": ((), float)}


def take(state: State, batch: Array, center: bool, dtype: np.dtype[Any]) -> Array:
    """Count a batch in, and return it less the running mean (which includes it) in the working dtype.

    The mean and the sum of squared deviations are exact up to rounding for any batches (Chan, Golub & LeVeque 1983,
    equations 1.5a, 1.5b, in the form that subtracts nothing): with mean a of n earlier samples and new mean m,
    ``scatter`` grows by n |m - a|^2 + sum |x - m|^2. What is returned is centered by a mean that is not yet the final
    one: the approximation that every sequential rule makes.

    Parameters
    ----------
    state : State
        Its "mean" (d,), "scatter" () and count "n_samples" are updated in place.
    batch : array (n, d), n >= 1, any real dtype
        Not changed.
    center : bool
        False only casts: the mean stays 0 and ``scatter`` is about 0.
    dtype : float32 or float64

    Returns
    -------
    array (n, d) of ``dtype``
        A scratch array that may be overwritten, good until the next call in this thread.
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
    state.arrays["scatter"] += moved + _sum_of_squares(x)
    state.counts["n_samples"] = n_seen + n
    return x


def merge(a: State, b: State) -> Array:
    """Count the samples of ``b`` into ``a``, and return mean of b - mean of a (d,) before that.

    Chan, Golub & LeVeque (1983), equations 2.1a and 2.1b: exact up to rounding. ``b`` is not changed.
    """
    n_a, n_b = a.counts["n_samples"], b.counts["n_samples"]
    apart: Array = b.arrays["mean"] - a.arrays["mean"]
    n = max(n_a + n_b, 1)
    a.arrays["mean"] += apart * (n_b / n)
    a.arrays["scatter"] += b.arrays["scatter"] + float(apart @ apart) * (n_a * n_b / n)
    a.counts["n_samples"] = n_a + n_b
    return apart


def joined(before: State, states: Sequence[State]) -> tuple[Array, Array]:
    """Return mean (d,) and scatter () of all samples of streams that went on from one state, each counted once.

    The samples that a stream took in itself have a mean and a scatter that follow from its own and those of
    ``before``, by the same equations as in :func:`merge`.

    Parameters
    ----------
    before : State
        What all streams began with.
    states : sequence of State
        What they ended with; each counts the samples of ``before`` too.
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
    """Bytes of temporary arrays of :func:`take`, its result included."""
    return n_rows * n_features * (dtype.itemsize + 1) + 32 * n_features


def _subtract_shift(x: Array, batch: Array, mean: Array | None) -> Array:
    """Write batch - shift into x; return the shift, numbers near the mean that x's dtype holds exactly."""
    if batch.dtype == np.uint8:
        # Flipping the top bit subtracts 128 without leaving 8 bits: cheaper than subtracting floats.
        flipped = np.bitwise_xor(batch, np.uint8(128), out=linalg.scratch("flipped", batch.shape, np.uint8))
        np.copyto(x, flipped.view(np.int8))
        return np.full(x.shape[1], 128.0)
    shift = (batch[0] if mean is None else mean).astype(x.dtype)
    np.subtract(batch, shift, out=x, dtype=x.dtype, casting="unsafe")
    return shift.astype(np.float64)


def _column_sums(x: Array) -> Array:
    total = np.zeros(x.shape[1])
    for start in range(0, len(x), _BLOCK_ROWS):
        block = x[start : start + _BLOCK_ROWS]
        total += np.ones(len(block), x.dtype) @ block
    return total


def _sum_of_squares(x: Array) -> float:
    # Rows are short enough for float32, the sum over them is not.
    return float(np.einsum("ij,ij->i", x, x).sum(dtype=np.float64))
