"""Stochastic gradient ascent on the captured variance: the rules of Oja, Sanger and Krasulina."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.rules.base import ritz
from dpca.rules.base.basis import OrthonormalRule, check_converging, product
from dpca.rules.base.options import instance
from dpca.rules.base.scaled import ScaledRule
from dpca.rules.base.state import State, StateLayout
from dpca.rules.base.summing import SummedRule
from dpca.rules.kernel.gains import Gains

# Smallest eigenvalue for gains, as a share of the largest: projections on weaker rows are mostly remainders of other
# rows.
_SMALLEST = 1e-3


@dataclass(frozen=True)
class Oja(SummedRule, ScaledRule, OrthonormalRule):
    """Oja's method, the normalized Hebbian rule, by mini-batches.

    W <- orthonormalize(W + eta_t W X^T X / n) for n samples X (Alakkari 2020, equation 2.16 and section 3.3.1; Amid &
    Warmuth 2020, section "Quadratic program on the Stiefel manifold"). For steps much larger than 1 / variance it is
    the block power method.

    Streams can be averaged in rounds. Several workers can share a batch.

    Costs O(n d k + k^2 d) per update, O(k d) memory. The running mean and all other parameters are those of
    :class:`~dpca.rules.base.basis.OrthonormalRule` and :class:`~dpca.rules.base.scaled.ScaledRule`.
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
    Vishwanathan 2007, equation 8). Nothing is normalized, because W converges to orthonormal rows. The rows are any
    basis of the subspace until ``finish`` rotates them to the components. Streams can be averaged in rounds.

    Costs O(n d k) per update, O(k d) memory. The rule diverges and raises `DivergedError` unless eta_t times the
    largest variance stays below about 1. Parameters are those of :class:`~dpca.rules.base.scaled.ScaledRule`.
    """

    averageable = True

    def _normalize(self, state: State) -> None:
        """Do not change an average, because the rule converges to orthonormal rows."""

    @np.errstate(over="ignore", invalid="ignore")
    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        add_projected_gradient(state.arrays["components"], x, y, self.schedule(t) / self._unit(state, x) ** 2)
        check_converging(state.arrays["components"], 1.0, t, type(self).__name__, self.schedule(t))


@dataclass(frozen=True)
class Sanger(OjaSubspace):
    """Generalized Hebbian algorithm (GHA): the rows converge to the eigenvectors in order.

    W <- W + eta_t (Y^T X - lt(Y^T Y) W) / n with Y = X W^T. lt(A) is the lower triangle of A with its diagonal (Sanger
    1989; Günter, Schraudolph & Vishwanathan 2007, equation 7). Row i learns from the data minus their projections on
    rows 1 ... i. Amid & Warmuth (2020) use the name of Sanger for another rule,
    :class:`~dpca.rules.stochastic.implicit_krasulina.ExplicitKrasulina`.

    Streams can be averaged in rounds. Costs, limits and parameters are those of :class:`OjaSubspace`, and:

    Parameters
    ----------
    gains : Gains, optional
        A step size for each row, as in equations 18 to 37 of Günter et al., instead of ``schedule`` and ``unit``.
        Eigenvalues are variances of recent projections. All rows use their mean until 10 k samples were projected. SMD
        stores k d more numbers and doubles the cost.
    """

    gains: Gains | None = field(
        default=None,
        kw_only=True,
        metadata=instance(Gains | None, "dpca.rules.Gains, or None for the same step for all rows"),
    )

    @property
    def _adapted(self) -> bool:
        return self.gains is not None and self.gains.meta > 0

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        layout = super()._layout(n_features, dtype)
        if not self._adapted:
            return layout
        return {**layout, "derivatives": layout["components"], "log_gains": ((self.rank(n_features),), float)}

    @np.errstate(over="ignore", invalid="ignore")
    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        if self.gains is not None:
            return self._step_of_gains(state, x, y, t, self.gains)
        rows, step = state.arrays["components"], self.schedule(t) / (self._unit(state, x) ** 2 * len(x))
        decay = np.tril((y * y.dtype.type(step)).T @ y)
        moved = product(y, x, step)
        moved -= decay @ rows
        rows += moved
        check_converging(rows, 1.0, t, type(self).__name__, self.schedule(t))
        return None

    def _step_of_gains(self, state: State, x: Array, y: Array, t: int, gains: Gains) -> None:
        rows, step = state.arrays["components"], gains(t, self._eigenvalues(state, y))
        decay = np.tril(y.T @ y) / len(x)
        gradient = product(y, x, 1 / len(x))
        gradient -= decay @ rows
        if gains.meta:
            step = self._adapt(state, x, y, decay, gradient, step, gains)
        gradient *= step.astype(rows.dtype)[:, None]
        rows += gradient
        check_converging(rows, 1.0, t, type(self).__name__, step.max())

    def _adapt(
        self, state: State, x: Array, y: Array, decay: Array, gradient: Array, step: Array, gains: Gains
    ) -> Array:
        """Return the gains after SMD, and update the derivatives (equations 32 and 35)."""
        rows, derivatives, log_gains = (state.arrays[name] for name in ("components", "derivatives", "log_gains"))
        xi = gains.decay
        log_gains += gains.meta * np.einsum("ij,ij->i", gradient, derivatives)
        step = step * np.exp(log_gains)
        z = x @ derivatives.T
        change = z.T @ x
        change -= np.tril(z.T @ y + y.T @ z) @ rows
        change /= len(x)
        change -= decay @ derivatives
        change *= xi
        change += gradient
        change *= step.astype(rows.dtype)[:, None]
        derivatives *= xi
        derivatives += change
        return step

    def _eigenvalues(self, state: State, y: Array) -> Array:
        """Return the estimated variance along each row, before a step with projections y."""
        known, k = state.counts["n_projected"], y.shape[1]
        found: Array = np.asarray(state.arrays["projected"]).diagonal()
        if not known:
            found = np.asarray(np.mean(y**2, axis=0, dtype=np.float64))
        return np.full(k, found.mean()) if known < ritz.LEAST * k else np.maximum(found, _SMALLEST * found.max())

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays in ``update`` and ``finish``."""
        own = working_dtype(dtype).itemsize * (2 * self.rank(n_features) * n_features) if self._adapted else 0
        return super().work_bytes(n_rows, n_features, dtype) + own


@dataclass(frozen=True)
class Krasulina(ScaledRule, OrthonormalRule):
    """Krasulina's update: a gradient step in the tangent space of the Stiefel manifold, and a retraction.

    W <- orthonormalize(W - eta_t Y^T (Y W - X) / n) with Y = X W^T (Amid & Warmuth 2020, equation 9, with steps
    Power(1, 0.9); for k components Tang 2019). Oja's method does not project the gradient onto the tangent space.

    Streams can be averaged in rounds.

    Costs O(n d k + k^2 d) per update, O(k d) memory. The running mean and all other parameters are those of
    :class:`~dpca.rules.base.basis.OrthonormalRule` and :class:`~dpca.rules.base.scaled.ScaledRule`.
    """

    averageable = True

    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        rows = state.arrays["components"]
        add_projected_gradient(rows, x, y, self.schedule(t) / self._unit(state, x) ** 2)
        self._replace(state, rows)


def add_projected_gradient(rows: Array, x: Array, y: Array, step: float) -> None:
    """Add step (y^T x - y^T y rows) / n to ``rows``, in place."""
    # Compute both products before the rows change.
    decay = (y * y.dtype.type(step / len(x))).T @ y
    moved = product(y, x, step / len(x))
    moved -= decay @ rows
    rows += moved
