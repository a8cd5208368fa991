"""Count, mean and variance of every attribute over the values that are there, and the first model from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array, blocks
from dpca.kernels.gaps import LEAST_NOISE, LowRank, is_present
from dpca.rules.base.orthonormal import orthonormalize
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State, StateLayout

_BLOCK_ROWS = 64


@dataclass(frozen=True)
class PresentMoments(Rule):
    """Count, mean and variance of every attribute over the values that are there, in one pass.

    The moments of blocks of samples are merged by the update of Chan, Golub & LeVeque (1983), equations 1.5a and 1.5b,
    with a count for each attribute.

    Parameters
    ----------
    missing : number, optional
        Marks a missing value, in addition to NaN.

    Results of ``finish``: ``count`` (d,), int64; ``mean`` and ``variance`` (d,), float64, divisor ``count``, 0 for
    attributes without values; ``complete`` (), whether no value is missing. Costs O(n d) time; state 3 d numbers.
    """

    missing: Any = None

    mergeable = True

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return {"count": ((n_features,), np.int64), "mean": ((n_features,), float), "m2": ((n_features,), float)}

    def _take(self, state: State, batch: Array) -> None:
        for few in blocks(len(batch), _BLOCK_ROWS):
            rows = batch[few]
            here = is_present(rows, self.missing)
            count = here.sum(axis=0)
            divisor = np.maximum(count, 1)
            mean = np.where(here, rows, 0).sum(axis=0, dtype=np.float64) / divisor
            deviations = np.where(here, rows - mean, 0)
            m2 = np.einsum("ij,ij->j", deviations, deviations)
            self.merge(state, State({"count": count, "mean": mean, "m2": m2}, {"n_samples": len(rows)}))

    def merge(self, a: State, b: State) -> State:
        """Return the moments of both streams."""
        ours, theirs = a.arrays, b.arrays
        n = np.maximum(ours["count"] + theirs["count"], 1)
        delta = theirs["mean"] - ours["mean"]
        ours["m2"] += theirs["m2"] + delta**2 * (ours["count"] / n * theirs["count"])
        ours["mean"] += delta * (theirs["count"] / n)
        ours["count"] += theirs["count"]
        a.counts["n_samples"] += b.counts["n_samples"]
        return a

    def _finish(self, state: State) -> dict[str, Array]:
        count = state.arrays["count"]
        complete = np.asarray(bool((count == state.counts["n_samples"]).all()))
        return {
            "count": count,
            "mean": state.arrays["mean"],
            "variance": state.arrays["m2"] / np.maximum(count, 1),
            "complete": complete,
        }

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays in an update."""
        return (26 * min(n_rows, _BLOCK_ROWS) + 64) * n_features


def first_model(moments: dict[str, Array], k: int, dtype: np.dtype[Any], seed: Sequence[int]) -> LowRank:
    """Return the model before the first pass: random components, in proportion to the deviations.

    Parameters
    ----------
    moments : dict
        Result of `PresentMoments`.
    k : int
        Largest number of components; there are no more than attributes with values, but at least one.
    dtype : dtype
        That of the components.
    seed : sequence of int
    """
    variance, some = moments["variance"], moments["count"] > 0
    rank, total = min(k, max(int(some.sum()), 1)), float(variance.sum())
    drawn = np.random.default_rng(seed).standard_normal((rank, len(variance))) * np.sqrt(variance)
    rows = orthonormalize(drawn) if total else np.eye(rank, len(variance))
    noise = max(total / max(int(some.sum()), 1), LEAST_NOISE)
    return LowRank(rows.astype(dtype), np.full(rank, total / rank), moments["mean"], noise)
