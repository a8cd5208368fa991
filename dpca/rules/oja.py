"""Stochastic gradient ascent on the captured variance: the rules of Oja, Sanger and Krasulina."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpca.kernels.types import Array
from dpca.rules.basis import OrthonormalRule, check_converging, product
from dpca.rules.scaled import ScaledRule
from dpca.rules.state import State
from dpca.rules.summing import SummedRule


@dataclass(frozen=True)
class Oja(SummedRule, ScaledRule, OrthonormalRule):
    """Oja's method, the normalized Hebbian rule, by mini-batches.

    W <- orthonormalize(W + eta_t W X^T X / n) for n samples X (Alakkari 2020, equation 2.16 and section 3.3.1; Amid &
    Warmuth 2020, section "Quadratic program on the Stiefel manifold"). With steps that are large beside 1 / variance
    it becomes the block power method.

    Streams can be averaged in rounds, and a batch can be spread over workers.

    Costs O(n d k + k^2 d) an update, O(k d) memory. The running mean and the parameters not named here are those of
    :class:`~dpca.rules.basis.OrthonormalRule` and :class:`~dpca.rules.scaled.ScaledRule`.
    """

    averageable = True

    def _move(self, state: State, products: Array, n: int, t: int) -> None:
        products *= products.dtype.type(self.schedule(t) / (self._unit_of(state, products, n) ** 2 * n))
        products += state.arrays["components"]
        self._replace(state, products)


@dataclass(frozen=True)
class OjaSubspace(ScaledRule):
    """Oja's linearized rule and, for more than one component, the Oja-Karhunen subspace rule.

    W <- W + eta_t (Y^T X - Y^T Y W) / n with Y = X W^T (Alakkari 2020, equation 2.28; Günter, Schraudolph &
    Vishwanathan 2007, equation 8): nothing is normalized, W becomes orthonormal by itself, and the single rows are
    any basis of the subspace until ``finish`` turns them. Streams can be averaged in rounds.

    Costs O(n d k) an update, O(k d) memory. Diverges (and says so) unless eta_t times the largest variance stays below
    about 1. Parameters as in :class:`Oja`.
    """

    averageable = True

    def _normalize(self, state: State) -> None:
        """Leave an average as it is: the rule finds back to orthonormal rows by itself."""

    @np.errstate(over="ignore", invalid="ignore")
    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        add_projected_gradient(state.arrays["components"], x, y, self.schedule(t) / self._unit(state, x) ** 2)
        check_converging(state.arrays["components"], 1.0, t, type(self).__name__, self.schedule(t))


@dataclass(frozen=True)
class Sanger(OjaSubspace):
    """Generalized Hebbian algorithm (GHA): the rows become the eigenvectors themselves, in order.

    W <- W + eta_t (Y^T X - lt(Y^T Y) W) / n with Y = X W^T, lt keeping the diagonal and what is below it (Sanger 1989;
    Günter, Schraudolph & Vishwanathan 2007, equation 7): row i sees the data less what rows 1 ... i account for. The
    rule that Amid & Warmuth (2020) call Sanger's is :class:`~dpca.rules.implicit_krasulina.ExplicitKrasulina`.

    Costs, limits and parameters as in :class:`OjaSubspace`.
    """

    @np.errstate(over="ignore", invalid="ignore")
    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        rows, step = state.arrays["components"], self.schedule(t) / (self._unit(state, x) ** 2 * len(x))
        decay = np.tril((y * y.dtype.type(step)).T @ y)
        moved = product(y, x, step)
        moved -= decay @ rows
        rows += moved
        check_converging(rows, 1.0, t, type(self).__name__, self.schedule(t))


@dataclass(frozen=True)
class Krasulina(ScaledRule, OrthonormalRule):
    """Krasulina's update: a gradient step along the Stiefel manifold, and back onto it.

    W <- orthonormalize(W - eta_t Y^T (Y W - X) / n) with Y = X W^T (Amid & Warmuth 2020, equation 9, with steps
    Power(1, 0.9); for k components Tang 2019). Oja's method is the same with the gradient not projected onto the
    tangent space.

    Streams can be averaged in rounds.

    Costs O(n d k + k^2 d) an update, O(k d) memory. The running mean and the parameters not named here are those of
    :class:`~dpca.rules.basis.OrthonormalRule` and :class:`~dpca.rules.scaled.ScaledRule`.
    """

    averageable = True

    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        rows = state.arrays["components"]
        add_projected_gradient(rows, x, y, self.schedule(t) / self._unit(state, x) ** 2)
        self._replace(state, rows)


def add_projected_gradient(rows: Array, x: Array, y: Array, step: float) -> None:
    """Add step (y^T x - y^T y rows) / n to ``rows``, in place."""
    # Products of projections first: it must see the rows before they change.
    decay = (y * y.dtype.type(step / len(x))).T @ y
    moved = product(y, x, step / len(x))
    moved -= decay @ rows
    rows += moved
