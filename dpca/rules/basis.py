"""What the sequential rules share: a basis of random start that every mini-batch turns a little."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels import linalg
from dpca.kernels.dtypes import working_dtype
from dpca.rules import centering, ritz
from dpca.rules.orthonormal import orthonormalize
from dpca.rules.state import Array, State

# Over so many first updates the basis moves too far for projections on the one before each to tell its variances.
UNSETTLED = 10
# The batch of the source texts' experiments (Alakkari 2020, section 3.4).
_BATCH_ROWS = 100
# Rows so many times as long as they should be will not come back.
_DIVERGED = 1e4


@dataclass(frozen=True)
class SequentialRule(ABC):
    """A rule that keeps k rows and updates them by one mini-batch at a time.

    Parameters
    ----------
    n_components : int
        Components k to find; min(k, d) are kept.
    center : bool
        Subtract the running mean, which includes the batch at hand. Early samples are so centered by a mean that is not
        yet the final one; its error falls as 1 / sqrt(n).
    online : bool
        Take the samples of a batch one by one, each in an update of its own, instead of all in one.
    seed : int
        Of the random orthonormal start.

    Results of ``finish``: ``mean`` (d,) float64; ``components`` (k', d), orthonormal, ordered, k' = min(k, d, n);
    ``explained_variance`` (k',) float64, descending; ``total_variance`` () float64.
    """

    n_components: int
    center: bool = field(default=True, kw_only=True)
    online: bool = field(default=False, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    mergeable: ClassVar[bool] = False
    averageable: ClassVar[bool] = False
    random_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.n_components < 1:
            raise ValueError(f"n_components is {self.n_components}: at least 1 is needed")

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        """Return the state before any sample."""
        k, dtype = self._rank(n_features), working_dtype(dtype)
        start = np.random.default_rng(self.seed).standard_normal((k, n_features), np.float32)
        components = orthonormalize(start.astype(dtype, copy=False))
        return State({**centering.arrays(n_features), "components": components}, {"n_samples": 0, "n_updates": 0})

    @property
    def summable(self) -> bool:
        """Whether parts of a batch can be summed on different workers."""
        return False

    @abstractmethod
    def update(self, state: State, batch: Array) -> State:
        """Take in a batch of shape (n_samples, n_features), n_samples >= 0."""

    @abstractmethod
    def finish(self, state: State) -> dict[str, Array]:
        """Return the mean, the components and their variances."""

    def _rank(self, n_features: int) -> int:
        return min(self.n_components, n_features)

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Samples of a mini-batch in the texts' experiments; any number is taken."""
        return _BATCH_ROWS

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a state."""
        k = self._rank(n_features)
        return centering.state_bytes(n_features) + 8 * k * k + working_dtype(dtype).itemsize * k * n_features

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays in ``update`` and ``finish``."""
        k, working = self._rank(n_features), working_dtype(dtype)
        batch = centering.work_bytes(n_rows, n_features, working) + 12 * n_rows * k
        # A product, its orthonormal form, and what Householder's QR needs where Cholesky's fails.
        return batch + 6 * k * n_features * working.itemsize + 64 * k * k

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of a result."""
        return ritz.result_bytes(n_features, self._rank(n_features), working_dtype(dtype).itemsize)


@dataclass(frozen=True)
class BasisRule(SequentialRule):
    """A sequential rule whose variances come from the running average of :mod:`dpca.rules.ritz`.

    Parameters and results as in :class:`SequentialRule`.
    """

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        """Return the state before any sample."""
        state = super().init(n_features, dtype)
        state.arrays |= ritz.arrays(self._rank(n_features))
        state.counts["n_projected"] = 0
        return state

    def update(self, state: State, batch: Array) -> State:
        """Take in a batch of shape (n_samples, n_features), n_samples >= 0."""
        if not len(batch):
            return state
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
        return state

    def finish(self, state: State) -> dict[str, Array]:
        """Return the mean, the components and their variances."""
        return ritz.finish(state, self._final_rows(state))

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
        """Say whether ``_coordinates`` can tell the projections on ``_final_rows`` now."""
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
        if self.orthonormalize_every < 1:
            raise ValueError(f"orthonormalize_every is {self.orthonormalize_every}: at least 1 update is needed")

    def _replace(self, state: State, rows: Array) -> None:
        """Make ``rows``, orthonormalized if their time has come, the basis after the update at hand."""
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
    """Refuse rows that a too large step has driven far beyond the length that they have in the end."""
    # Written so that NaN is refused too.
    if not (rows.max() < _DIVERGED * length and rows.min() > -_DIVERGED * length):
        raise ValueError(
            f"{rule} diverged at update {t} with step size {step:.3g}: take a schedule that starts below 1 / (largest "
            "variance of a component), or unit=None, which measures that variance"
        )


def next_update(state: State) -> int:
    """Count one more update, and return its number."""
    state.counts["n_updates"] += 1
    return state.counts["n_updates"]
