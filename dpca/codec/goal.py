"""What a compressed store is to reach, and the search for the step that reaches it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.optimize import brentq

from dpca.choices import GOALS

# Doublings, to either side, after which a search for a step that meets a goal is given up.
_MOST = 40
# Doublings after which finer steps that change nothing tell that none will.
_FINE = 12
#: Steps that differ by fewer doublings, .3 %, change nothing that could be measured on a few hundred samples.
NEAR = 0.004


@dataclass(frozen=True)
class Goal:
    """One of `GOALS`, and its value.

    ``ratio``: bytes of the stack by bytes of the store, at least. ``psnr`` (decibels), ``mse`` (in units of the data
    range squared) and ``ssim``: of the mean error, and of the mean over the samples. ``max_error``: a promise for every
    single value, in units of the values; ``max_relative_error``: in units of the data range.
    """

    name: str
    value: float

    @classmethod
    def of(cls, **given: float | None) -> Goal:
        """Return the one goal that is given.

        Raises
        ------
        ValueError
            If there is none, or several, or its value makes no sense.
        """
        asked = {name: value for name, value in given.items() if value is not None}
        if unknown := asked.keys() - set(GOALS):
            raise ValueError(f"{min(unknown)} is no goal: give one of {', '.join(GOALS)}")
        if len(asked) != 1:
            raise ValueError(f"{' and '.join(asked) or 'no goal'} given: give exactly one of {', '.join(GOALS)}")
        ((name, value),) = asked.items()
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value!r}: give a positive number")
        if name == "ssim" and value >= 1:
            raise ValueError(f"ssim is {value!r}: give a number below 1, which only what is exact has")
        return cls(name, float(value))

    @property
    def is_promise(self) -> bool:
        """Whether the goal holds for every single value."""
        return self.name in ("max_error", "max_relative_error")


class UnreachedError(Exception):
    """No step meets a goal."""


def search_step(
    margin: Callable[[float], float], guess: float, *, coarse: bool, first: float = 1.0, near: float = NEAR
) -> float:
    """Return a step that meets a goal: nearly the coarsest one, or nearly the finest.

    Parameters
    ----------
    margin : callable
        By how much a step meets the goal, negative if it does not. It falls as steps grow if ``coarse``, else it rises.
    guess : float
        A step to begin with.
    coarse : bool
        Whether the coarsest step is wanted.
    first : float
        Doublings from the guess to the next step that is tried, 1 at most; those between the others grow to 1.
    near : float
        Doublings by which the step may miss the best one.

    Raises
    ------
    UnreachedError
        If no step is found that meets the goal.
    """
    sign = 1 if coarse else -1
    seen: dict[float, float] = {}

    def of(x: float) -> float:
        if x not in seen:
            seen[x] = margin(guess * 2.0 ** (sign * x))
        return seen[x]

    low, high, stride = 0.0, 0.0, first
    while of(low) < 0:
        if low <= -_MOST or (low <= -_FINE and math.isclose(of(low), of(high), rel_tol=1e-3)):
            raise UnreachedError
        high, low, stride = low, low - stride, min(1.0, 2 * stride)
    while of(high) >= 0 and high < _MOST:
        low, high, stride = high, high + stride, min(1.0, 2 * stride)
    if of(high) < 0:
        # The search may end on the side that misses the goal; and what is kept, or not, makes margins jump.
        root, back = brentq(of, low, high, xtol=near / 2), 0.0
        while of(max(low, root - back)) < 0:
            back = 2 * back or near / 2
    return float(guess * 2.0 ** (sign * max(x for x, value in seen.items() if value >= 0)))
