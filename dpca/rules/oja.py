"""Oja's rules: stochastic gradient ascent on the captured variance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpca.rules.basis import BasisRule, OrthonormalRule, check_converging, product
from dpca.rules.schedules import Harmonic, Schedule
from dpca.rules.state import Array, State


@dataclass(frozen=True)
class Oja(OrthonormalRule):
    """Oja's method, the normalized Hebbian rule, by mini-batches.

    W <- orthonormalize(W + eta_t W X^T X / n) for n samples X (Alakkari 2020, equation 2.16 and section 3.3.1; Amid &
    Warmuth 2020, section "Quadratic program on the Stiefel manifold"). With steps that are large beside 1 / variance
    it becomes the block power method.

    Costs O(n d k + k^2 d) an update, O(k d) memory. The running mean and the parameters not named here are those of
    :class:`~dpca.rules.basis.OrthonormalRule`.

    Parameters
    ----------
    schedule : Schedule
        Step sizes eta_t.
    unit : float
        Value of the data that counts as 1 in the step size: 255 for 8-bit pixels that the schedule sees as [0, 1].
    """

    schedule: Schedule = field(default=Harmonic(1.0))
    unit: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_unit(self.unit)

    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        moved = product(y, x, self.schedule(t) / (self.unit**2 * len(x)))
        moved += state.arrays["components"]
        self._replace(state, moved)


@dataclass(frozen=True)
class OjaSubspace(BasisRule):
    """Oja's linearized rule and, for more than one component, the Oja-Karhunen subspace rule.

    W <- W + eta_t (Y^T X - Y^T Y W) / n with Y = X W^T (Alakkari 2020, equation 2.28; Günter, Schraudolph &
    Vishwanathan 2007, equation 8): nothing is normalized, W becomes orthonormal by itself, and the single rows are
    any basis of the subspace until ``finish`` turns them.

    Costs O(n d k) an update, O(k d) memory. Diverges (and says so) unless eta_t times the largest variance stays below
    about 1. Parameters as in :class:`Oja`.
    """

    schedule: Schedule = field(default=Harmonic(1.0))
    unit: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_unit(self.unit)

    @np.errstate(over="ignore", invalid="ignore")
    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        add_projected_gradient(state.arrays["components"], x, y, self.schedule(t) / self.unit**2)
        check_converging(state.arrays["components"], 1.0, t, type(self).__name__, self.schedule(t))


def add_projected_gradient(rows: Array, x: Array, y: Array, step: float) -> None:
    """Add step (y^T x - y^T y rows) / n to ``rows``, in place."""
    # Products of projections first: it must see the rows before they change.
    decay = (y * y.dtype.type(step / len(x))).T @ y
    moved = product(y, x, step / len(x))
    moved -= decay @ rows
    rows += moved


def check_unit(unit: Any) -> None:
    """Refuse a unit that is no positive number."""
    if not 0 < unit < np.inf:
        raise ValueError(f"unit is {unit!r}: a positive number is needed, such as 255 for 8-bit pixels")
