"""The implicit Krasulina update, and its explicit form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array
from dpca.rules.base.basis import check_converging, product
from dpca.rules.base.orthonormal import gram, orthonormalize
from dpca.rules.base.scaled import ScaledRule
from dpca.rules.base.schedules import SCHEDULE, Power, Schedule
from dpca.rules.base.state import State, StateLayout
from dpca.rules.stochastic.oja import add_projected_gradient

# Number of rank-one updates of the pseudo-inverse before it is computed exactly, which removes accumulated rounding.
_RANK_ONE_UPDATES = 500
# Relative shift of a Gram matrix, so that its Cholesky factor exists even if rounding makes it singular.
_JITTER = 1e-14


@dataclass(frozen=True)
class ImplicitKrasulina(ScaledRule):
    """Implicit Krasulina update without the orthonormality constraint.

    With C (k, d) of any full rank and Y = X C^+ (C^+ its pseudo-inverse, d x k),
    C <- (Y^T Y / n + I / eta_t)^-1 (Y^T X / n + C / eta_t) (Amid & Warmuth 2020, equation 12). With ``online=True``,
    each sample updates C <- C - eta_t / (1 + eta_t |y|^2) y (y C - x), and a rank-one update of C^+ follows (their
    equation 13 and algorithm 1; Meyer 1973), in O(k d). The rule needs no orthonormalization. It is not sensitive to
    the step size, because y grows as C shrinks.

    Streams can be averaged in rounds (equation 18): C is averaged without an orthonormalization, and C^+ is recomputed.

    Costs O(n d k + k^2 d) per update of n samples, O(k d) per sample with ``online``, O(k d) memory. The running mean
    and all other parameters are those of :class:`~dpca.rules.base.basis.BasisRule`.

    Parameters
    ----------
    schedule : Schedule
        Step sizes eta_t; t counts updates, which are samples with ``online``. The source uses Power(1, 0.8) for MNIST,
        with a largest variance of 5.
    unit : float or None
        Length of the rows of C at the start. For 8-bit pixels, 255 is equivalent to 1 for pixels in [0, 1]. None uses
        the largest standard deviation of the first batch along any direction.
    """

    schedule: Schedule = field(default=Power(5.0, 0.8), metadata=SCHEDULE)
    averageable = True

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        arrays, k = super()._layout(n_features, dtype), self.rank(n_features)
        return {**arrays, "inverse": arrays["components"], "gram": ((k, k), float)}

    def _start(self, state: State, dtype: DTypeLike) -> None:
        super()._start(state, dtype)
        rows = state.arrays["components"]
        # The transposed pseudo-inverse, stored as rows (k, d).
        state.arrays["inverse"] = rows.copy()
        state.arrays["gram"] = gram(rows)
        _lengthen(state, self.unit or 1.0)

    def _normalize(self, state: State) -> None:
        _invert(state)

    def _rows(self, state: State) -> Array:
        return state.arrays["inverse"]

    def _final_rows(self, state: State) -> Array:
        return orthonormalize(state.arrays["components"])

    def _coordinates(self, state: State, y: Array) -> Array:
        # y C = y L Q, with the Cholesky factor L of C C^T and the orthonormal Q of _final_rows. Unlike y, y L does not
        # depend on the current length of the rows of C.
        products = state.arrays["gram"]
        jitter = _JITTER * np.trace(products) * np.eye(len(products))
        lower: Array = scipy.linalg.cholesky(products + jitter, lower=True, check_finite=False)
        return y @ lower.astype(y.dtype)

    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        y = self._scaled(state, x, y, t)
        if self.online:
            self._one_sample(state, x[0], y[0], t)
            return
        rows, k = state.arrays["components"], y.shape[1]
        eta, n = self.schedule(t), len(x)
        moved = product(y, x, eta / n)
        moved += rows
        exact = y.astype(np.float64, copy=False)
        system = exact.T @ exact * (eta / n) + np.eye(k)
        inverse = scipy.linalg.inv(system, check_finite=False)
        np.matmul(inverse.astype(rows.dtype), moved, out=rows)
        _invert(state)

    def _scaled(self, state: State, x: Array, y: Array, t: int) -> Array:
        """Scale C if the first step must measure its length, and return the projections on the resulting C^+."""
        if self.unit is not None or t > 1:
            return y
        unit = self._unit(state, x)
        _lengthen(state, unit)
        return y / y.dtype.type(unit)

    def _one_sample(self, state: State, x: Array, y: Array, t: int) -> None:
        rows, inverse = state.arrays["components"], state.arrays["inverse"]
        step = self._fraction(self.schedule(t), float(y @ y))
        # The update is rows + outer(y, w), with w orthogonal to the rows.
        w = x - y @ rows
        w *= w.dtype.type(step)
        rows += np.outer(y, w)
        w_squared = float(w @ w)
        # There are no other terms, because w is orthogonal to the rows.
        state.arrays["gram"] += w_squared * np.outer(y, y)
        if t % _RANK_ONE_UPDATES == 0:
            _invert(state)
            return
        n = y @ inverse
        u = inverse @ n
        w -= w.dtype.type(w_squared) * n
        w /= w.dtype.type(1 + float(n @ n) * w_squared)
        inverse += np.outer(u, w)

    def _fraction(self, eta: float, y_squared: float) -> float:
        return eta / (1 + eta * y_squared)


@dataclass(frozen=True)
class ExplicitKrasulina(ImplicitKrasulina):
    """Explicit form of the implicit Krasulina update. Its authors call it Sanger's rule.

    C <- C - eta_t Y^T (Y C - X) / n with Y = X C^+ (Amid & Warmuth 2020, below equation 12). |y|^2 does not damp the
    step size, so that it must be tuned. The triangular rule is :class:`~dpca.rules.stochastic.oja.Sanger`. Parameters
    and costs are those of :class:`ImplicitKrasulina`.
    """

    @np.errstate(over="ignore", invalid="ignore")
    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        y, eta = self._scaled(state, x, y, t), self.schedule(t)
        if self.online:
            self._one_sample(state, x[0], y[0], t)
        else:
            add_projected_gradient(state.arrays["components"], x, y, eta)
        length = self.unit or math.sqrt(state.arrays["largest"]) or 1.0
        check_converging(state.arrays["components"], length, t, type(self).__name__, eta)
        if not self.online:
            _invert(state)

    def _fraction(self, eta: float, y_squared: float) -> float:
        return eta


def _lengthen(state: State, factor: float) -> None:
    """Multiply C by a factor."""
    state.arrays["components"] *= state.arrays["components"].dtype.type(factor)
    state.arrays["inverse"] *= state.arrays["inverse"].dtype.type(1 / factor)
    state.arrays["gram"] *= factor**2


def _invert(state: State) -> None:
    """Set ``gram`` to C C^T, and ``inverse`` to the transposed pseudo-inverse of C, (C C^T)^-1 C."""
    rows = state.arrays["components"]
    state.arrays["gram"] = gram(rows)
    inverse = np.linalg.pinv(state.arrays["gram"], hermitian=True)
    np.matmul(inverse.astype(rows.dtype), rows, out=state.arrays["inverse"])
