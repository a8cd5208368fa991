"""Step sizes relative to a unit of the data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array
from dpca.rules.base.basis import BasisRule
from dpca.rules.base.options import finite, or_none
from dpca.rules.base.orthonormal import gram
from dpca.rules.base.schedules import SCHEDULE, Delayed, Schedule
from dpca.rules.base.state import State, StateLayout

# Number of power iterations per batch, which start from the direction of the previous batches.
_ITERATIONS = 3
# Variances above this, or below its inverse, lead to step sizes outside the range of float32.
_LARGEST = 1e30


@dataclass(frozen=True)
class ScaledRule(BasisRule):
    """Base class of rules with step sizes relative to a unit of the data.

    Parameters are those of :class:`~dpca.rules.base.basis.BasisRule`, and:

    Parameters
    ----------
    schedule : Schedule
        Step sizes eta_t. The default is for an unknown unit. It was the best of seven on MNIST.
    unit : float or None
        Value of the data that corresponds to 1 in the schedule: 255 if the schedule is for 8-bit pixels scaled to
        [0, 1], 1 if it is for the data themselves. None measures the unit: the largest standard deviation so far of any
        batch along any direction. Then eta_t times the largest variance is at most about eta_t, for any scale of the
        data. (Günter, Schraudolph & Vishwanathan 2007, equation 19, divide the step of each row by its own eigenvalue
        estimate.)
    """

    schedule: Schedule = field(default=Delayed(0.5, 50.0), metadata=SCHEDULE)
    unit: float | None = field(
        default=None,
        kw_only=True,
        metadata=or_none(finite("a positive number, such as 255 for 8-bit pixels, or None to measure it", above=0)),
    )

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        measured = {} if self.unit is not None else {"heading": ((n_features,), float), "largest": ((), float)}
        return {**super()._layout(n_features, dtype), **measured}

    def _unit(self, state: State, x: Array) -> float:
        """Return the unit for a step with centered samples x (n, d), n >= 1; 1 if nothing has varied so far."""
        if self.unit is not None:
            return self.unit
        return _grown(state, _largest_variance(x, state.arrays["heading"]), x.dtype)

    def _unit_of(self, state: State, products: Array, n: int) -> float:
        """Return the unit for a step that only receives W X^T X (k, d) of n samples X, with nearly orthonormal W.

        The measured unit only covers the span of W. It is too small at first, which makes steps longer. A long step of
        a rule that orthonormalizes is a step of the power method.
        """
        if self.unit is not None:
            return self.unit
        squares = gram(products)
        if not np.isfinite(squares).all():
            return _grown(state, math.inf, products.dtype)
        return _grown(state, math.sqrt(max(float(np.linalg.eigvalsh(squares)[-1]), 0.0)) / n, products.dtype)


def _grown(state: State, variance: float, dtype: np.dtype[Any]) -> float:
    """Return the unit after a batch with this largest variance."""
    largest = state.arrays["largest"]
    largest[...] = max(float(largest), variance)
    if largest and dtype == np.float32 and not 1 / _LARGEST < largest < _LARGEST:
        raise ValueError(
            f"the largest variance of the samples is {float(largest):.0e}, but float32 requires {1 / _LARGEST:.0e} to "
            f"{_LARGEST:.0e}: divide the samples by a constant"
        )
    return math.sqrt(largest) or 1.0


def _largest_variance(x: Array, heading: Array) -> float:
    """Return approximately the largest eigenvalue of x^T x / n, and set ``heading`` to its eigenvector."""
    norms = np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64))  # squares may exceed float32
    longest = int(norms.argmax())
    if not norms[longest] > 0:
        return 0.0
    # Add a sample to the previous direction, because a batch may vary along a new one.
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
