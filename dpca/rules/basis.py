"""What the sequential rules share: a basis of random start that every mini-batch turns a little."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels import linalg
from dpca.kernels.dtypes import working_dtype
from dpca.kernels.types import Array
from dpca.rules import centering, ritz
from dpca.rules.orthonormal import orthonormalize
from dpca.rules.rule import DivergedError, Rule, check_count
from dpca.rules.state import Layout, State

# Over so many first updates the basis moves too far for projections on the one before each to tell its variances.
UNSETTLED = 10
# Rows so many times as long as they should be will not come back.
_DIVERGED = 1e4


@dataclass(frozen=True)
class StreamingRule(Rule):
    """A rule that finds principal components in one pass, in memory for some rows.

    Parameters
    ----------
    n_components : int or None
        Components k to find; min(k, d) are kept. None where an estimator gives the number.
    center : bool
        Subtract the mean.

    Results of ``finish``: ``mean`` (d,) float64; ``components`` (k', d) of the working dtype, orthonormal, ordered,
    k' = min(k, d, n); ``explained_variance`` (k',) float64, descending; ``total_variance`` () float64.
    """

    n_components: int | None = None
    center: bool = field(default=True, kw_only=True)
    random_order = True

    def __post_init__(self) -> None:
        if self.n_components is not None:
            check_count("n_components", self.n_components, "components")
        if not isinstance(self.center, bool | np.bool_):
            raise ValueError(f"center is {self.center!r}: give True or False")

    def rank(self, n_features: int) -> int:
        """Return how many components are kept of so many attributes."""
        if self.n_components is None:
            raise ValueError("n_components is None: give the rule a number, or an estimator that fills it in")
        return min(self.n_components, n_features)

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Samples of a mini-batch in the experiments of Alakkari (2020), section 3.4; any number is taken."""
        return 100

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a result."""
        k = self.rank(n_features)
        return 8 * (n_features + k + 1) + working_dtype(dtype).itemsize * k * n_features


@dataclass(frozen=True)
class SequentialRule(StreamingRule):
    """A rule that keeps k rows and updates them by one mini-batch at a time.

    Parameters
    ----------
    n_components
        As in `StreamingRule`.
    center : bool
        Subtract the running mean, which includes the batch at hand. Early samples are so centered by a mean that is not
        yet the final one; its error falls as 1 / sqrt(n).
    online : bool
        Take the samples of a batch one by one, each in an update of its own, instead of all in one.
    seed : int
        Of the random orthonormal start.
    """

    online: bool = field(default=False, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    counts: ClassVar[Sequence[str]] = ("n_samples", "n_updates")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("seed", self.seed, "a random generator", least=0)
        if not isinstance(self.online, bool):
            raise ValueError(f"online is {self.online!r}: give True or False")

    def _layout(self, n_features: int, dtype: DTypeLike) -> Layout:
        rows = {"components": ((self.rank(n_features), n_features), working_dtype(dtype))}
        return {**centering.layout(n_features), **rows}

    def _start(self, state: State, dtype: DTypeLike) -> None:
        rows = state.arrays["components"]
        start = np.random.default_rng(self.seed).standard_normal(rows.shape, np.float32)
        state.arrays["components"] = orthonormalize(start.astype(rows.dtype, copy=False))

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays in ``update`` and ``finish``."""
        k, working = self.rank(n_features), working_dtype(dtype)
        batch = centering.work_bytes(n_rows, n_features, working) + 12 * n_rows * k
        # A product, its orthonormal form, and what Householder's QR needs where Cholesky's fails.
        return batch + 6 * k * n_features * working.itemsize + 64 * k * k


@dataclass(frozen=True)
class BasisRule(SequentialRule):
    """A sequential rule whose variances come from the running average of :mod:`dpca.rules.ritz`.

    Those that say that they are ``averageable`` may be averaged after rounds of samples (Amid & Warmuth 2020, section
    "Distributed Setting").
    """

    counts = (*SequentialRule.counts, "n_projected")

    def _layout(self, n_features: int, dtype: DTypeLike) -> Layout:
        k = self.rank(n_features)
        return {**super()._layout(n_features, dtype), "projected": ((k, k), float)}

    def _take(self, state: State, batch: Array) -> None:
        x = centering.take(state, batch, self.center, state.arrays["components"].dtype)
        y = x @ self._rows(state).T
        settled = self._turns(state) >= UNSETTLED
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
        """Return one state for streams that went on from ``before`` (Amid & Warmuth 2020, equation 18).

        Bases, and what is known of their variances, are averaged with the samples that each stream took in since as
        weights; where the rule keeps orthonormal rows, the average is orthonormalized, as in the source. Mean, total
        variance and the number of samples are those of all samples, each counted once. The numbers of updates and of
        projections, on which step sizes and gains depend, are those of the longest stream: streams of a round share
        their step sizes, as in the source. A single stream stays as it is to the last bit.

        Costs O(m k d) for m states; changes neither them nor ``before``.
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
                # As differences from the first, so that equal states stay equal to the last bit.
                array += (state.arrays[name] - states[0].arrays[name]) * array.dtype.type(weight / sum(weights))
        averaged.arrays["mean"], averaged.arrays["scatter"] = centering.joined(before, states)
        averaged.counts["n_samples"] = before.counts["n_samples"] + sum(weights)
        for name in ("n_updates", "n_projected"):
            averaged.counts[name] = max(state.counts[name] for state in states)
        self._normalize(averaged)
        return averaged

    def _normalize(self, state: State) -> None:
        """Give an average of bases the form that the rule keeps its basis in."""
        state.arrays["components"] = orthonormalize(state.arrays["components"])

    @abstractmethod
    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        """Apply update t, with centered samples x (n, d), n >= 1, and their projections y (n, k) on ``_rows``."""

    def _rows(self, state: State) -> Array:
        """Return the rows (k, d) that samples are projected on."""
        return state.arrays["components"]

    def _final_rows(self, state: State) -> Array:
        """Return the rows whose span is the answer, and projections on which are averaged."""
        return self._rows(state)

    def _comparable(self, state: State) -> bool:
        """Return whether ``_coordinates`` gives projections on ``_final_rows`` at this update."""
        return True

    def _coordinates(self, state: State, y: Array) -> Array:
        """Return projections on ``_final_rows``, given those on ``_rows``."""
        return y

    def _turns(self, state: State) -> int:
        """Return how often the rows have changed."""
        return state.counts["n_updates"]


@dataclass(frozen=True)
class OrthonormalRule(BasisRule):
    """A rule that orthonormalizes its rows.

    Parameters
    ----------
    orthonormalize_every : int
        Updates between two orthonormalizations; in between rows are only brought to unit length. The subspace found is
        that of orthonormalizing always (Alakkari 2020, section 2.3.1) up to rounding, which wins when the updates
        amplify the first component over the last by more than the working dtype resolves.
    """

    orthonormalize_every: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("orthonormalize_every", self.orthonormalize_every, "updates")

    def _replace(self, state: State, rows: Array) -> None:
        """Make ``rows`` the basis after this update, orthonormalized where that is due."""
        normal = orthonormalize(rows) if self._comparable(state) else unit_rows(rows)
        state.arrays["components"][...] = normal

    def _comparable(self, state: State) -> bool:
        return self._turns(state) % self.orthonormalize_every == 0

    def _final_rows(self, state: State) -> Array:
        rows = self._rows(state)
        return rows if self._comparable(state) else orthonormalize(rows)


def unit_rows(rows: Array) -> Array:
    """Return rows of length 1; zero rows stay."""
    # By the largest entry first: squares of float32 may leave its range.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scaled: Array = rows / np.where(largest > 0, largest, 1)
    norms = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
    scaled /= np.where(norms > 0, norms, 1)
    return scaled


def product(y: Array, x: Array, scale: float) -> Array:
    """Return scale * y.T @ x, shape (k, d), in a scratch array of this thread."""
    out = linalg.scratch("product", (y.shape[1], x.shape[1]), x.dtype)
    return np.matmul((y * y.dtype.type(scale)).T, x, out=out)


def check_converging(rows: Array, length: float, t: int, rule: str, step: float) -> None:
    """Refuse rows that are far longer than they are after convergence: a step was too large."""
    # Written so that NaN is refused too.
    if not (rows.max() < _DIVERGED * length and rows.min() > -_DIVERGED * length):
        raise DivergedError(
            f"{rule} diverged at update {t} with step size {step:.3g}: take a schedule that starts below 1 / (largest "
            "variance of a component), or leave unit out, so that the rule measures that variance"
        )


def next_update(state: State) -> int:
    """Count one more update, and return its number."""
    state.counts["n_updates"] += 1
    return state.counts["n_updates"]
