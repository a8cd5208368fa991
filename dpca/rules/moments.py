"""Running mean and variance of every attribute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca import linalg
from dpca.rules.state import Array, State

# float64 copies of so many samples and attributes stay in a core's own cache.
_BLOCK_ROWS, _BLOCK_COLUMNS = 256, 512


@dataclass(frozen=True)
class Moments:
    """Mean and variance in one pass.

    Pairwise update of Chan, Golub & LeVeque (1983), equations 1.5a and 1.5b: every 256 samples are centered with their
    own mean, in float64, so no large sums are ever subtracted. Costs O(n d) time and O(d) memory.

    Results of ``finish``: ``mean`` and ``variance`` (divisor n - 1), float64, shape (n_features,).
    """

    mergeable: ClassVar[bool] = True

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        """Return the state before any sample."""
        zero = np.zeros(n_features)
        return State({"mean": zero, "m2": zero.copy()}, {"n_samples": 0})

    def update(self, state: State, batch: Array) -> State:
        """Take in a batch of shape (n_samples, n_features), n_samples >= 0."""
        for start in range(0, len(batch), _BLOCK_ROWS):
            rows = batch[start : start + _BLOCK_ROWS]
            mean, m2 = np.empty((2, rows.shape[1]))
            for first in range(0, rows.shape[1], _BLOCK_COLUMNS):
                columns = slice(first, first + _BLOCK_COLUMNS)
                part = rows[:, columns]
                x = linalg.scratch("moments", part.shape, np.float64)
                np.copyto(x, part)
                x.mean(axis=0, out=mean[columns])
                x -= mean[columns]
                np.einsum("ij,ij->j", x, x, out=m2[columns])
            state = self.merge(state, State({"mean": mean, "m2": m2}, {"n_samples": len(rows)}))
        return state

    def merge(self, a: State, b: State) -> State:
        """Return the moments of both streams together."""
        n_a, n_b = a.counts["n_samples"], b.counts["n_samples"]
        n = n_a + n_b
        if n_b == 0:
            return a
        delta = b.arrays["mean"] - a.arrays["mean"]
        a.arrays["mean"] += delta * (n_b / n)
        a.arrays["m2"] += b.arrays["m2"] + delta**2 * (n_a * n_b / n)
        a.counts["n_samples"] = n
        return a

    def finish(self, state: State) -> dict[str, Array]:
        """Return ``mean`` and ``variance``."""
        n = state.counts["n_samples"]
        if n < 2:
            raise ValueError(f"{n} sample(s) have no variance: at least 2 are needed")
        return {"mean": state.arrays["mean"], "variance": state.arrays["m2"] / (n - 1)}

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Samples that an update does best with."""
        return 1024

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a state."""
        return 16 * n_features

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a result."""
        return 16 * n_features

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays in an update."""
        return 8 * (4 * n_features + min(n_rows, _BLOCK_ROWS) * min(n_features, _BLOCK_COLUMNS))
