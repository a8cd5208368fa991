"""The lowest and the highest value of all samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State, StateLayout


@dataclass(frozen=True)
class Extremes(Rule):
    """Lowest and highest value in one pass, without NaN: O(n d) time, two numbers of memory.

    Parameters
    ----------
    finite : bool
        Whether infinities are left out, too.

    Results of ``finish``: ``low`` and ``high``, float64, shape (1,).
    """

    finite: bool = False

    mergeable = True

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return {"low": ((1,), float), "high": ((1,), float)}

    def _start(self, state: State, dtype: DTypeLike) -> None:
        state.arrays["low"][...], state.arrays["high"][...] = np.inf, -np.inf

    def _take(self, state: State, batch: Array) -> None:
        batch = np.where(np.isinf(batch), np.nan, batch) if self.finite else batch
        low, high = batch.min(), batch.max()
        if np.isnan(low):  # of a source with missing values
            low, high = np.fmin.reduce(batch, None, initial=np.inf), np.fmax.reduce(batch, None, initial=-np.inf)
        extremes = {"low": np.array([low], float), "high": np.array([high], float)}
        self.merge(state, State(extremes, {"n_samples": len(batch)}))

    def merge(self, a: State, b: State) -> State:
        """Return the extremes of both streams."""
        np.minimum(a.arrays["low"], b.arrays["low"], out=a.arrays["low"])
        np.maximum(a.arrays["high"], b.arrays["high"], out=a.arrays["high"])
        a.counts["n_samples"] += b.counts["n_samples"]
        return a

    def is_batch_invariant(self, dtype: DTypeLike) -> bool:
        """Return True, because the order of values does not matter."""
        return True

    def _finish(self, state: State) -> dict[str, Array]:
        return dict(state.arrays)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a copy without infinities, 0 if there is none."""
        return n_rows * n_features * (np.dtype(dtype).itemsize + 1) if self.finite else 0
