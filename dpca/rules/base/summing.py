"""Base class of rules with updates that are sums over the batch. Different workers can sum its parts."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.rules.base import centering, ritz
from dpca.rules.base.basis import WARM_UP_UPDATES, BasisRule, next_update, product
from dpca.rules.base.orthonormal import gram
from dpca.rules.base.state import State

# Variances below this share of the largest are rounding errors of float32.
RANK = 1e-5


@dataclass(frozen=True)
class SummedRule(BasisRule):
    """Base class of rules that only need W X^T X of a batch, for centered samples X and the basis W.

    Each part of a batch is centered by its own mean. Two parts with n_a and n_b samples have the products W S_a and
    W S_b with their scatter matrices. If their means differ by u, the product of both parts is
    W S = W S_a + W S_b + (n_a n_b / (n_a + n_b)) (W u) u^T (Chan, Golub & LeVeque 1983). The correction has rank one,
    and nothing is subtracted. One more such term accounts for the running mean, which includes the batch. Up to
    rounding error, the update is that of the whole batch on one worker.

    Parameters and results are those of :class:`~dpca.rules.base.basis.BasisRule`. With ``online=True`` batches cannot
    be summed, because the basis changes after each sample.
    """

    @property
    def summable(self) -> bool:  # type: ignore[override]
        """Whether parts of a batch can be summed on different workers."""
        return not self.online

    @abstractmethod
    def _move(self, state: State, products: Array, n: int, t: int) -> None:
        """Apply update t with ``products`` W X^T X (k, d) of n >= 1 centered samples X. It may overwrite them."""

    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        self._move(state, product(y, x, 1.0), len(x), t)

    def partial_sums(self, state: State, part: Array) -> State:
        """Return the sums over a part (n, d) of a batch, n >= 0: its mean, scatter, and W X^T X about that mean.

        Costs 4 n d k operations, and as much memory as an update.
        """
        rows = state.arrays["components"]
        sums = State.zeros(centering.layout(rows.shape[1]))
        if len(part):
            x = centering.take(sums, part, self.center, rows.dtype)
            sums.arrays["products"] = (x @ rows.T).T @ x
        else:
            sums.arrays["products"] = np.zeros_like(rows)
        return sums

    def combine(self, state: State, a: State, b: State) -> State:
        """Return the sums over both parts, in the buffers of ``a``. Costs O(k d)."""
        n_a, n_b = a.counts["n_samples"], b.counts["n_samples"]
        apart = centering.merge(a, b)
        a.arrays["products"] += b.arrays["products"]
        _add_means(a.arrays["products"], state.arrays["components"], apart, n_a * n_b / max(n_a + n_b, 1))
        return a

    def apply(self, state: State, sums: State) -> State:
        """Make one update with the sums over a batch. Neither state must be used afterwards.

        During the first updates, the Nystroem approximation of the covariance of the batch bounds the variances from
        below, because projections on the new basis would require the samples again. Costs O(k^2 d).
        """
        n, rows, products = sums.counts["n_samples"], state.arrays["components"], sums.arrays["products"]
        if not n:
            return state
        n_before = state.counts["n_samples"]
        # Distance of the mean of the batch from the running mean, which includes the batch.
        apart = centering.merge(state, sums) * (n_before / (n_before + n))
        if self.center:
            _add_means(products, rows, apart, n)
        inner = gram(products, rows)
        settled = self._turns(state) >= WARM_UP_UPDATES
        if settled and self._comparable(state):
            ritz.observe_products(state, inner, n)
        kept = None if settled else products.copy()
        self._move(state, products, n, next_update(state))
        if kept is not None and self._turns(state):
            seen = gram(kept, self._final_rows(state))
            inverse = np.linalg.pinv((inner + inner.T) / 2, rcond=RANK, hermitian=True)
            ritz.observe_products(state, seen.T @ inverse @ seen, n)
        return state


def _add_means(products: Array, rows: Array, apart: Array, weight: float) -> None:
    """Add weight (W u) u^T to W X^T X, in place, for u = ``apart`` (d,)."""
    u = apart.astype(products.dtype)
    products += np.outer((rows @ u) * u.dtype.type(weight), u)
