"""What a compressed store is to reach, and the search for the step that reaches it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq

from dpca.choices import GOALS
from dpca.kernels.types import Array

# Doublings, to either side, after which a search for a step that meets a goal is given up.
_MOST = 40
# Doublings after which finer steps that change nothing tell that none will.
_FINE = 12
#: Steps that differ by fewer doublings, .3 %, change nothing that could be measured on a few hundred samples.
NEAR = 0.004
# What is made of the value of a goal to have an error, which is less where more is reached.
_ERRORS: dict[str, Callable[[float], float]] = {
    "ratio": lambda value: 1 / value,
    "psnr": lambda value: 10 ** (-value / 10),
    "mse": lambda value: value,
    "ssim": lambda value: 1 - value,
}
_VALUES: dict[str, Callable[[float], float]] = {
    "ratio": lambda error: 1 / error if error else math.inf,
    "psnr": lambda error: -10 * math.log10(error) if error else math.inf,
    "mse": lambda error: error,
    "ssim": lambda error: 1 - error,
}
# Measures of samples are stored in float32; and SSIM is measured in that. So much may be wrong of an error, or of SSIM.
_ROUNDED, _ROUNDED_SSIM = 1e-6, 2e-6
# A search that is made again, as too much error was left, asks for so much less than what should be enough.
_STRICTER = 0.998
# Decibels of what has no error, for a search.
_EXACT = 1e6


@dataclass(frozen=True)
class Goal:
    """One of `GOALS`, and its value.

    ``ratio``: bytes of the stack by bytes of the store, at least. ``psnr`` (decibels), ``mse`` (in units of the data
    range squared) and ``ssim``: of the mean error, and of the mean over the samples, or of every sample.
    ``max_error``: a promise for every single value, in units of the values; ``max_relative_error``: in units of the
    data range.
    """

    name: str
    value: float
    every_sample: bool = False

    @classmethod
    def of(cls, *, every_sample: bool = False, **given: float | None) -> Goal:
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
        goal = cls(name, float(value), bool(every_sample))
        if every_sample and not goal.is_of_samples:
            raise ValueError(f"every_sample is asked for with {name}: give psnr, mse or ssim, which samples have")
        return goal

    @property
    def is_promise(self) -> bool:
        """Whether the goal holds for every single value."""
        return self.name in ("max_error", "max_relative_error")

    @property
    def is_of_samples(self) -> bool:
        """Whether the quality of samples tells if it is met."""
        return self.name in ("psnr", "mse", "ssim")

    @property
    def measure(self) -> str:
        """Which measure of samples tells."""
        return "ssim" if self.name == "ssim" else "mse"

    @property
    def allowed(self) -> float:
        """The error that meets it, in the unit of `errors`; of a ratio, the share of bytes."""
        error = _ERRORS[self.name](self.value)
        if self.name == "ssim":
            return error - _ROUNDED_SSIM
        return error if self.name == "ratio" else error * (1 - _ROUNDED)

    def errors(self, quality: Mapping[str, Array]) -> Array:
        """Return the errors (n,), float64, of samples of which ``mse`` and ``ssim`` are known."""
        found = quality[self.measure].astype(np.float64)
        return 1 - found if self.name == "ssim" else found

    def error(self, errors: Array) -> float:
        """Return the error of samples together: the largest one, if each is to meet the goal, or the mean."""
        return float(errors.max() if self.every_sample else errors.mean())

    def value_of(self, error: float) -> float:
        """Return what is reached with an error, in the unit of the goal."""
        return _VALUES[self.name](error)

    def margin(self, errors: Array) -> float:
        """Return by how much the errors of samples meet the goal, negative where they do not."""
        error = self.error(errors)
        if self.name == "psnr":
            return min(self.value_of(error), _EXACT) - min(self.value_of(self.allowed), _EXACT)
        return (self.allowed - error) / (self.allowed if self.name == "mse" and self.allowed else 1)

    def stricter(self, error: float, wanted: Goal, attempt: int) -> Goal:
        """Return what to ask of a few samples, where this came to an error of all that another goal does not allow.

        Each attempt goes twice as far as the one before, as the errors of few and of all need not fall alike.
        """
        share = (_STRICTER * wanted.allowed / error) ** 2**attempt
        return replace(self, value=self.value_of(_ERRORS[self.name](self.value) * share))


class UnreachedError(Exception):
    """No step meets a goal."""


def search_step(
    margin: Callable[[float], float],
    guess: float,
    *,
    coarse: bool,
    first: float = 1.0,
    near: float = NEAR,
    end: float | None = None,
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
    end : float, optional
        No step is coarser than this if ``coarse``, else finer.

    Raises
    ------
    UnreachedError
        If no step is found that meets the goal.
    """
    sign = 1 if coarse else -1
    if end is not None:
        guess = min(guess, end) if coarse else max(guess, end)
    farthest = _MOST if end is None else sign * math.log2(end / guess)
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
    while of(high) >= 0 and high < farthest:
        low, high, stride = high, min(high + stride, farthest), min(1.0, 2 * stride)
    if of(high) < 0:
        # The search may end on the side that misses the goal; and what is kept, or not, makes margins jump.
        root, back = brentq(of, low, high, xtol=near / 2), 0.0
        while of(max(low, root - back)) < 0:
            back = 2 * back or near / 2
    return float(guess * 2.0 ** (sign * max(x for x, value in seen.items() if value >= 0)))
