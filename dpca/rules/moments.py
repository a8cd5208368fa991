"""Running mean and variance of every attribute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.rules.state import Array, State


@dataclass(frozen=True)
class Moments:
    """Mean and variance in one pass.

    Pairwise update of Chan, Golub & LeVeque (1983), equations 1.5a and 1.5b: each batch is centered with its own
    mean, in float64, so no large sums are ever subtracted. Costs O(n d) time and O(d) memory.

    Results of ``finish``: ``mean`` and ``variance`` (divisor n - 1), float64, shape (n_features,).
    """

    mergeable: ClassVar[bool] = True

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        """Return the state before any sample."""
        zero = np.zeros(n_features)
        return State({"mean": zero, "m2": zero.copy()}, {"n_samples": 0})

    def update(self, state: State, batch: Array) -> State:
        """Take in a batch of shape (n_samples, n_features), n_samples >= 0."""
        if not len(batch):
            return state
        mean = batch.mean(axis=0, dtype=np.float64)
        centered = np.subtract(batch, mean, dtype=np.float64)
        m2 = np.einsum("ij,ij->j", centered, centered)
        return self.merge(state, State({"mean": mean, "m2": m2}, {"n_samples": len(batch)}))

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
        return 8 * n_features * (n_rows + 4)
