"""What rules share whose update is a sum over the batch: its parts may be summed by different workers."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from dpca.kernels.types import Array
from dpca.rules import centering, ritz
from dpca.rules.basis import UNSETTLED, BasisRule, next_update, product
from dpca.rules.orthonormal import gram
from dpca.rules.state import State

# Variances below this share of the largest are rounding of float32.
RANK = 1e-5


@dataclass(frozen=True)
class SummedRule(BasisRule):
    """A rule that sees a batch only through W X^T X, for centered samples X and the basis W.

    Parts of a batch are centered by means of their own. With W S_a and W S_b for the scatter matrices S of two parts,
    whose n_a and n_b samples have means that differ by the vector u, both together have
    W S = W S_a + W S_b + (n_a n_b / (n_a + n_b)) (W u) u^T (Chan, Golub & LeVeque 1983): of rank one, and nothing is
    subtracted. The running mean, which includes the batch, comes in by one more such term, so that the update is that
    of the whole batch on one worker, up to rounding.

    Parameters and results as in :class:`~dpca.rules.basis.BasisRule`. Not with ``online=True``, where every sample
    meets a basis of its own.
    """

    @property
    def summable(self) -> bool:  # type: ignore[override]
        """Whether parts of a batch can be summed on different workers."""
        return not self.online

    @abstractmethod
    def _move(self, state: State, products: Array, n: int, t: int) -> None:
        """Apply update t, with ``products`` W X^T X (k, d) of n centered samples X, n >= 1; they may be overwritten."""

    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        self._move(state, product(y, x, 1.0), len(x), t)

    def partial(self, state: State, part: Array) -> State:
        """Return the sums over a part (n, d) of a batch, n >= 0: its mean, scatter, and W X^T X about that mean.

        Costs 4 n d k operations, and memory as an update.
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
        """Return the sums over two parts together, in the buffers of ``a``. Costs O(k d)."""
        n_a, n_b = a.counts["n_samples"], b.counts["n_samples"]
        apart = centering.merge(a, b)
        a.arrays["products"] += b.arrays["products"]
        _add_means(a.arrays["products"], state.arrays["components"], apart, n_a * n_b / max(n_a + n_b, 1))
        return a

    def apply(self, state: State, sums: State) -> State:
        """Make one update with the sums over a batch; both states are used up.

        While the basis still moves far, its variances are bounded from below by Nystroem's approximation of the batch's
        covariance, since projections on the new basis would need the samples again. Costs O(k^2 d).
        """
        n, rows, products = sums.counts["n_samples"], state.arrays["components"], sums.arrays["products"]
        if not n:
            return state
        n_before = state.counts["n_samples"]
        # What the batch's own mean is away from the running mean that includes it.
        apart = centering.merge(state, sums) * (n_before / (n_before + n))
        if self.center:
            _add_means(products, rows, apart, n)
        inner = gram(products, rows)
        settled = self._turns(state) >= UNSETTLED
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
