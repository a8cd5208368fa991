"""Step sizes in units of the data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.types import Array
from dpca.rules.basis import BasisRule
from dpca.rules.orthonormal import gram
from dpca.rules.rule import check_number
from dpca.rules.schedules import Delayed, Schedule, check_schedule
from dpca.rules.state import Layout, State

# Power iterations on each batch, of the direction that the batches before it led to.
_ITERATIONS = 3
# Variances beyond this, or below its inverse, are no step sizes that float32 holds.
_LARGEST = 1e30


@dataclass(frozen=True)
class ScaledRule(BasisRule):
    """A rule whose step sizes are relative to a unit of the data.

    Parameters as in :class:`~dpca.rules.basis.BasisRule`, and:

    Parameters
    ----------
    schedule : Schedule
        Step sizes eta_t. The default, for an unknown unit, was the best of seven on MNIST.
    unit : float or None
        Value of the data that counts as 1 in the step size: 255 for 8-bit pixels that the schedule sees as [0, 1], 1
        to take the schedule literally. None measures it: the largest standard deviation of a batch along any direction
        so far, so that eta_t times the largest variance is at most about eta_t whatever the scale of the data.
        (Günter, Schraudolph & Vishwanathan 2007, equation 19, divide by eigenvalue estimates too, each row's step by
        its own.)
    """

    schedule: Schedule = field(default=Delayed(0.5, 50.0))
    unit: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_schedule("schedule", self.schedule)
        if self.unit is not None:
            check_number(
                "unit", self.unit, "a positive number, such as 255 for 8-bit pixels, or None to measure", above=0
            )

    def _layout(self, n_features: int, dtype: DTypeLike) -> Layout:
        measured = {} if self.unit is not None else {"heading": ((n_features,), float), "largest": ((), float)}
        return {**super()._layout(n_features, dtype), **measured}

    def _unit(self, state: State, x: Array) -> float:
        """Return the unit for a step with centered samples x (n, d), n >= 1; 1 as long as nothing varies."""
        if self.unit is not None:
            return self.unit
        return _grown(state, _largest_variance(x, state.arrays["heading"]), x.dtype)

    def _unit_of(self, state: State, products: Array, n: int) -> float:
        """Return the unit for a step that sees n samples X only through W X^T X (k, d), W orthonormal or nearly so.

        Measured in the span of W alone, it is too small at first: a long step of a rule that orthonormalizes is one of
        the power method.
        """
        if self.unit is not None:
            return self.unit
        squares = gram(products)
        if not np.isfinite(squares).all():
            return _grown(state, math.inf, products.dtype)
        return _grown(state, math.sqrt(max(float(np.linalg.eigvalsh(squares)[-1]), 0.0)) / n, products.dtype)


def _grown(state: State, variance: float, dtype: np.dtype[Any]) -> float:
    """Return the unit once a batch with this largest variance was seen."""
    largest = state.arrays["largest"]
    largest[...] = max(float(largest), variance)
    if largest and dtype == np.float32 and not 1 / _LARGEST < largest < _LARGEST:
        raise ValueError(
            f"samples are too large or too small for float32: their largest variance is {float(largest):.0e} "
            f"and must lie within {1 / _LARGEST:.0e} and {_LARGEST:.0e}: divide them by a constant"
        )
    return math.sqrt(largest) or 1.0


def _largest_variance(x: Array, heading: Array) -> float:
    """Return about the largest eigenvalue of x^T x / n; ``heading`` becomes its eigenvector."""
    norms = np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64))  # squares may leave float32
    longest = int(norms.argmax())
    if not norms[longest] > 0:
        return 0.0
    # A sample beside the direction so far: a batch may vary in a new one.
    v = heading + x[longest] / norms[longest]
    value = 0.0
    for _ in range(_ITERATIONS):
        v /= np.linalg.norm(v) or 1.0
        y = (x @ v.astype(x.dtype)).astype(np.float64)
        length = float(np.linalg.norm(y))
        if not length > 0:
            return value
        value = max(value, length**2 / len(x))
        v = ((y / length).astype(x.dtype) @ x).astype(np.float64)
    np.divide(v, np.linalg.norm(v) or 1.0, out=heading)
    return value
