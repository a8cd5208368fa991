"""Base classes of the sequential rules: each mini-batch updates a basis with a random start."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.rules.base import centering, ritz
from dpca.rules.base.options import FLAG, count, or_none
from dpca.rules.base.orthonormal import orthonormalize
from dpca.rules.base.rule import DivergedError, Rule
from dpca.rules.base.state import State, StateLayout

# During so many first updates the basis changes too much: projections on the previous basis do not give its variances.
WARM_UP_UPDATES = 10
# Rows that are longer than expected by this factor have diverged.
_DIVERGED = 1e4


@dataclass(frozen=True)
class StreamingRule(Rule):
    """Base class of rules that compute principal components in one pass, with memory for a few rows.

    Parameters
    ----------
    n_components : int or None
        Number of components k; min(k, d) are retained. None if an estimator sets it later.
    center : bool
        Subtract the mean.

    Results of ``finish``: ``mean`` (d,) float64; ``components`` (k', d) of the working dtype, orthonormal, ordered,
    k' = min(k, d, n); ``explained_variance`` (k',) float64, descending; ``total_variance`` () float64.
    """

    n_components: int | None = field(default=None, metadata=or_none(count("components")))
    center: bool = field(default=True, kw_only=True, metadata=FLAG)
    random_order = True

    def rank(self, n_features: int) -> int:
        """Return the number of components that are retained for a number of attributes."""
        if self.n_components is None:
            raise ValueError("n_components is None: give the rule a number, or use an estimator, which sets it")
        return min(self.n_components, n_features)

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the samples of a mini-batch as in Alakkari (2020), section 3.4. Any number is supported."""
        return 100

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        k = self.rank(n_features)
        return 8 * (n_features + k + 1) + working_dtype(dtype).itemsize * k * n_features


@dataclass(frozen=True)
class SequentialRule(StreamingRule):
    """Base class of rules that update k rows by one mini-batch at a time.

    Parameters
    ----------
    n_components
        See `StreamingRule`.
    center : bool
        Subtract the running mean, which includes the current batch. Early samples are centered by a preliminary mean.
        Its error decreases as 1 / sqrt(n).
    online : bool
        Make one update per sample of a batch, instead of one update per batch.
    seed : int
        Seed of the random orthonormal start.
    """

    online: bool = field(default=False, kw_only=True, metadata=FLAG)
    seed: int = field(default=0, kw_only=True, metadata=count("for the random generator", least=0))
    counts: ClassVar[Sequence[str]] = ("n_samples", "n_updates")

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        rows = {"components": ((self.rank(n_features), n_features), working_dtype(dtype))}
        return {**centering.layout(n_features), **rows}

    def _start(self, state: State, dtype: DTypeLike) -> None:
        rows = state.arrays["components"]
        start = np.random.default_rng(self.seed).standard_normal(rows.shape, np.float32)
        state.arrays["components"] = orthonormalize(start.astype(rows.dtype, copy=False))

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays in ``update`` and ``finish``."""
        k, working = self.rank(n_features), working_dtype(dtype)
        batch = centering.work_bytes(n_rows, n_features, working) + 12 * n_rows * k
        # A product, its orthonormal form, and the workspace of Householder QR, which runs if Cholesky QR fails.
        return batch + 6 * k * n_features * working.itemsize + 64 * k * k


@dataclass(frozen=True)
class BasisRule(SequentialRule):
    """Base class of sequential rules with variances from the running average of :mod:`dpca.rules.base.ritz`.

    States of rules with ``averageable`` may be averaged after rounds of samples (Amid & Warmuth 2020, section
    "Distributed Setting").
    """

    counts = (*SequentialRule.counts, "n_projected")

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        k = self.rank(n_features)
        return {**super()._layout(n_features, dtype), "projected": ((k, k), float)}

    def _take(self, state: State, batch: Array) -> None:
        x = centering.take(state, batch, self.center, state.arrays["components"].dtype)
        y = x @ self._rows(state).T
        settled = self._turns(state) >= WARM_UP_UPDATES
        if settled and self._comparable(state):
            ritz.observe(state, self._coordinates(state, y))
        if self.online:
            for sample in np.split(x, len(x)):
                self._step(state, sample, sample @ self._rows(state).T, next_update(state))
        else:
            self._step(state, x, y, next_update(state))
        if not settled and self._turns(state):
            ritz.observe(state, x @ self._final_rows(state).T)

    def _finish(self, state: State) -> dict[str, Array]:
        return ritz.finish(state, self._final_rows(state))

    def average(self, before: State, states: Sequence[State]) -> State:
        """Return one state for streams that started from ``before`` (Amid & Warmuth 2020, equation 18).

        Bases and their variances are averaged. The weights are the numbers of new samples of each stream. If the rule
        has orthonormal rows, the average is orthonormalized, as in the source. Mean, total variance and number of
        samples are those of all samples, each counted once. Step sizes and gains depend on the numbers of updates and
        projections. These are those of the longest stream, so that the streams of a round share their step sizes, as in
        the source. A single stream is returned bit-identical.

        Costs O(m k d) for m states. Neither the states nor ``before`` change.
        """
        if not self.averageable:
            return super().average(before, states)
        if len(states) == 1:
            return states[0]
        weights = [state.counts["n_samples"] - before.counts["n_samples"] for state in states]
        if not sum(weights):
            return before.copy()
        averaged = states[0].copy()
        for name, array in averaged.arrays.items():
            for state, weight in zip(states[1:], weights[1:], strict=True):
                # Average differences from the first state, so that equal states stay bit-identical.
                array += (state.arrays[name] - states[0].arrays[name]) * array.dtype.type(weight / sum(weights))
        averaged.arrays["mean"], averaged.arrays["scatter"] = centering.joined(before, states)
        averaged.counts["n_samples"] = before.counts["n_samples"] + sum(weights)
        for name in ("n_updates", "n_projected"):
            averaged.counts[name] = max(state.counts[name] for state in states)
        self._normalize(averaged)
        return averaged

    def _normalize(self, state: State) -> None:
        """Convert an average of bases to the form of the rule's basis."""
        state.arrays["components"] = orthonormalize(state.arrays["components"])

    @abstractmethod
    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        """Apply update t for centered samples x (n, d), n >= 1, and their projections y (n, k) on ``_rows``."""

    def _rows(self, state: State) -> Array:
        """Return the rows (k, d) of the projection of samples."""
        return state.arrays["components"]

    def _final_rows(self, state: State) -> Array:
        """Return rows that span the result. The variances are averages of projections on them."""
        return self._rows(state)

    def _comparable(self, state: State) -> bool:
        """Return whether ``_coordinates`` gives projections on ``_final_rows`` at this update."""
        return True

    def _coordinates(self, state: State, y: Array) -> Array:
        """Convert projections on ``_rows`` to projections on ``_final_rows``."""
        return y

    def _turns(self, state: State) -> int:
        """Return the number of changes of the rows."""
        return state.counts["n_updates"]


@dataclass(frozen=True)
class OrthonormalRule(BasisRule):
    """Base class of rules that orthonormalize their rows.

    Parameters
    ----------
    orthonormalize_every : int
        Number of updates between two orthonormalizations. Other updates only scale the rows to unit length. Up to
        rounding error, the subspace is the same as with an orthonormalization after every update (Alakkari 2020,
        section 2.3.1). Rounding dominates if the updates amplify the first component over the last one by more than
        the precision of the working dtype.
    """

    orthonormalize_every: int = field(default=1, kw_only=True, metadata=count("updates"))

    def _replace(self, state: State, rows: Array) -> None:
        """Set the basis after this update to ``rows``, and orthonormalize it if that is due."""
        normal = orthonormalize(rows) if self._comparable(state) else unit_rows(rows)
        state.arrays["components"][...] = normal

    def _comparable(self, state: State) -> bool:
        return self._turns(state) % self.orthonormalize_every == 0

    def _final_rows(self, state: State) -> Array:
        rows = self._rows(state)
        return rows if self._comparable(state) else orthonormalize(rows)


def unit_rows(rows: Array) -> Array:
    """Return rows of length 1. Zero rows stay zero."""
    # Divide by the largest entry first, because squares may exceed the range of float32.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scaled: Array = rows / np.where(largest > 0, largest, 1)
    norms = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
    scaled /= np.where(norms > 0, norms, 1)
    return scaled


def product(y: Array, x: Array, scale: float) -> Array:
    """Return scale * y.T @ x (k, d), in a scratch array of this thread."""
    out = linalg.scratch("product", (y.shape[1], x.shape[1]), x.dtype)
    return np.matmul((y * y.dtype.type(scale)).T, x, out=out)


def check_converging(rows: Array, length: float, t: int, rule: str, step: float) -> None:
    """Raise `DivergedError` if rows are far longer than after convergence: a step was too large."""
    # This form of the condition also rejects NaN.
    if not (rows.max() < _DIVERGED * length and rows.min() > -_DIVERGED * length):
        raise DivergedError(
            f"{rule} diverged at update {t} with step size {step:.3g}: use a schedule that starts below 1 / (largest "
            "variance of a component), or leave unit out, so that the rule measures that variance"
        )


def next_update(state: State) -> int:
    """Count an update, and return its number."""
    state.counts["n_updates"] += 1
    return state.counts["n_updates"]
