"""Sums of samples that count as often as their weights say, as states that covariances merge."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpca.kernels.algebra.integers import is_exact
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.state import State
from dpca.rules.covariance.shifts import move_shift

# Rows, over all places, of one product.
_ROWS = 1024


def weighted_sums(like: State, batch: Array, weights: Array) -> Iterator[State]:
    """Yield states of the arrays ``shift``, ``sum`` and ``cross`` of blocks of samples with weights.

    With the weighted mean c of a block as shift, ``sum`` = sum w (x - c), ``cross`` = sum w (x - c)(x - c)^T, and the
    number of samples is sum w. Sums are float64. States of integers keep the shift of ``like``, which their exact
    products require.

    Parameters
    ----------
    like : State
        Its arrays have the shapes of the results.
    batch : array (n, d), or (n, n_places, d)
    weights : array (n,), float64, positive
    """
    for rows in blocks(len(batch), max(1, _ROWS // int(np.prod(batch.shape[1:-1])))):
        own, x = weights[rows], batch[rows].astype(np.float64)
        total = float(own.sum())
        near = np.tensordot(own, x, 1) / total
        x -= near
        arrays = {"shift": near, "sum": np.tensordot(own, x, 1)}
        x *= np.sqrt(own).reshape(-1, *(1,) * (x.ndim - 1))
        flat = x.reshape(-1, x.shape[-1])
        state = State({**arrays, "cross": flat.T @ flat}, {"n_samples": total})
        if is_exact(batch.dtype):
            move_shift(state, like.arrays["shift"])
        yield state


def of_weights(rows: State, mean: Array, total: float, shift: Array | None) -> None:
    """Change sums of rows about 0 in place to those of samples with weights and the same variances.

    Parameters
    ----------
    rows : State
        Arrays ``shift``, ``sum`` and ``cross``, as in `weighted_sums`.
    mean : array, shaped like ``sum``
        Weighted mean of the samples.
    total : float
        Sum of their weights.
    shift : array, shaped like ``sum``, optional
        The shift of the result. The default is the mean.
    """
    arrays = rows.arrays
    move_shift(rows, np.zeros_like(mean))
    arrays["cross"] *= (total - 1) / (rows.counts["n_samples"] - 1)
    arrays["shift"][...], arrays["sum"][...] = mean, 0
    rows.counts["n_samples"] = total
    if shift is not None:
        move_shift(rows, shift)
