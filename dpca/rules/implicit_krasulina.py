"""The implicit Krasulina update, and its explicit form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.types import Array
from dpca.rules.basis import check_converging, product
from dpca.rules.oja import add_projected_gradient
from dpca.rules.orthonormal import gram, orthonormalize
from dpca.rules.scaled import ScaledRule
from dpca.rules.schedules import Power, Schedule
from dpca.rules.state import Layout, State

# Rank-one updates of the pseudo-inverse between two exact ones, which take away what rounding has added up.
_RANK_ONE_UPDATES = 500
# What keeps the Cholesky factor of a Gram matrix that rounding has made singular.
_JITTER = 1e-14


@dataclass(frozen=True)
class ImplicitKrasulina(ScaledRule):
    """Implicit Krasulina update without the orthonormality constraint.

    With C (k, d) of any full rank and Y = X C^+ (C^+ its pseudo-inverse, d x k),
    C <- (Y^T Y / n + I / eta_t)^-1 (Y^T X / n + C / eta_t) (Amid & Warmuth 2020, equation 12). With ``online=True``,
    sample by sample, C <- C - eta_t / (1 + eta_t |y|^2) y (y C - x), and C^+ follows by a rank-one update (their
    equation 13 and algorithm 1; Meyer 1973), in O(k d). No orthonormalization, and little sensitivity to the step size,
    because y grows as C shrinks.

    Streams can be averaged in rounds (equation 18): C as it is, without an orthonormalization, and C^+ anew.

    Costs O(n d k + k^2 d) an update of n samples, O(k d) a sample online, O(k d) memory. The running mean and the
    parameters not named here are those of :class:`~dpca.rules.basis.BasisRule`.

    Parameters
    ----------
    schedule : Schedule
        Step sizes eta_t; t counts updates, which online are samples. The source takes Power(1, 0.8) for MNIST, whose
        largest variance is 5.
    unit : float or None
        Length of the rows of C at the start; 255 for 8-bit pixels gives what 1 gives for pixels in [0, 1]. None takes
        the largest standard deviation of the first batch along any direction.
    """

    schedule: Schedule = field(default=Power(5.0, 0.8))
    averageable = True

    def _layout(self, n_features: int, dtype: DTypeLike) -> Layout:
        arrays, k = super()._layout(n_features, dtype), self.rank(n_features)
        return {**arrays, "inverse": arrays["components"], "gram": ((k, k), float)}

    def _start(self, state: State, dtype: DTypeLike) -> None:
        super()._start(state, dtype)
        rows = state.arrays["components"]
        # The transposed pseudo-inverse, kept as rows (k, d).
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
        # y C = y L Q, with the Cholesky factor L of C C^T and the orthonormal Q of _final_rows: unlike y, independent
        # of how long the rows of C are at the time.
        products = state.arrays["gram"]
        jitter = _JITTER * np.trace(products) * np.eye(len(products))
        lower: Array = scipy.linalg.cholesky(products + jitter, lower=True, check_finite=False)
        turned: Array = y @ lower.astype(y.dtype)
        return turned

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
        """Give C its length where the first step has to measure it; return the projections on the C^+ that results."""
        if self.unit is not None or t > 1:
            return y
        unit = self._unit(state, x)
        _lengthen(state, unit)
        scaled: Array = y / y.dtype.type(unit)
        return scaled

    def _one_sample(self, state: State, x: Array, y: Array, t: int) -> None:
        rows, inverse = state.arrays["components"], state.arrays["inverse"]
        step = self._fraction(self.schedule(t), float(y @ y))
        # rows + outer(y, w), w being orthogonal to the rows.
        w = x - y @ rows
        w *= w.dtype.type(step)
        rows += np.outer(y, w)
        w_squared = float(w @ w)
        # No other terms: w is orthogonal to the rows.
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
    """Explicit form of the implicit Krasulina update, which its authors call Sanger's rule.

    C <- C - eta_t Y^T (Y C - X) / n with Y = X C^+ (Amid & Warmuth 2020, below equation 12): the step size is not
    damped by |y|^2, so it has to be chosen well. Not the triangular rule of :class:`~dpca.rules.sanger.Sanger`.
    Parameters and costs as in :class:`ImplicitKrasulina`.
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
