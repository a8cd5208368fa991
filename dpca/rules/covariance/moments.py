"""Running mean and variance of every attribute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.integers import is_byte
from dpca.kernels.algebra.namespace import cast, dtype_of, empty, is_numpy, namespace
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State, StateLayout

# Copies of blocks of this size stay in the cache of one core. Sums of squares of 256 8-bit integers are below 2^24,
# where float32 is exact.
_BLOCK_ROWS, _BLOCK_BYTES = 256, 2**20


@dataclass(frozen=True)
class Moments(Rule):
    """Mean and variance in one pass.

    Pairwise update of Chan, Golub & LeVeque (1983), equations 1.5a and 1.5b. Every 256 samples are centered with their
    own mean in float64, so that large sums are never subtracted. Sums of 256 samples of 8-bit integers are exact.
    Costs O(n d) time and O(d) memory. Supports arrays of other libraries and stacked states, like
    :class:`~dpca.rules.covariance.covariance.Covariance`.

    Results of ``finish``: ``mean`` and ``variance`` (divisor n - 1), float64, shape (n_features,).
    """

    mergeable = True
    stackable = True
    least_samples = 2

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return {"mean": ((n_features,), float), "m2": ((n_features,), float)}

    def _take(self, state: State, batch: Array) -> None:
        for few in blocks(batch.shape[-2], _BLOCK_ROWS):
            rows = batch[..., few, :]
            mean, m2 = _moments(rows)
            self.merge(state, State({"mean": mean, "m2": m2}, {"n_samples": rows.shape[-2]}))

    def merge(self, a: State, b: State) -> State:
        """Return the moments of both streams."""
        n_a, n_b = a.counts["n_samples"], b.counts["n_samples"]
        n = n_a + n_b
        if n_b == 0:
            return a
        a.move_to(b.arrays["mean"])
        delta = b.arrays["mean"] - a.arrays["mean"]
        a.arrays["mean"] += delta * (n_b / n)
        a.arrays["m2"] += b.arrays["m2"] + delta**2 * (n_a * n_b / n)
        a.counts["n_samples"] = n
        return a

    def _finish(self, state: State) -> dict[str, Array]:
        return {"mean": state.arrays["mean"], "variance": state.arrays["m2"] / (state.counts["n_samples"] - 1)}

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays in an update."""
        return 8 * (4 * n_features + min(n_rows, _BLOCK_ROWS) * min(n_features, _BLOCK_BYTES // (8 * _BLOCK_ROWS)))


def _moments(rows: Array) -> tuple[Array, Array]:
    """Return the mean (d,) of rows (n, d), and the sum of their squared deviations (d,)."""
    xp, (*stack, n, d) = namespace(rows), rows.shape
    mean, m2 = (empty((*stack, d), np.float64, rows) for _ in range(2))
    exact = is_byte(dtype_of(rows))
    dtype = np.dtype(np.float32 if exact else np.float64)
    # Blocks of columns only help the cache of a processor; accelerators need none.
    width = _BLOCK_BYTES // (_BLOCK_ROWS * dtype.itemsize) if is_numpy(rows) else d
    for columns in blocks(d, width):
        part = rows[..., columns]
        x = linalg.workspace("moments", part.shape, dtype, rows)
        linalg.copy_into(x, part)
        if exact:
            total = cast(xp.sum(x, axis=-2), np.float64)
            mean[..., columns] = total / n
            m2[..., columns] = (n * cast(linalg.column_squares(x), np.float64) - total * total) / n
        else:
            mean[..., columns] = xp.mean(x, axis=-2)
            x -= mean[..., None, columns]
            m2[..., columns] = linalg.column_squares(x)
    return mean, m2
