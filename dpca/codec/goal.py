"""The goal of a compressed store, and the search for a step that meets it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import DTypeLike
from scipy.optimize import brentq

from dpca.choices import GOALS, MEAN_GOALS, NOISE_SHARE
from dpca.codec.noise import NoiseSteps
from dpca.kernels.algebra.types import Array

# A search for a step fails after so many doublings to either side.
_MOST_DOUBLINGS = 40
# If this many doublings change nothing, finer steps will not change anything either.
_FINE_DOUBLINGS = 12
#: Steps that differ by fewer doublings, 0.3 %, have no measurable effect on a few hundred samples.
NEAR = 0.004
# Convert the value of a goal to an error. A smaller error is a stricter goal.
_ERRORS: dict[str, Callable[[float], float]] = {
    "ratio": lambda value: 1 / value,
    "psnr": lambda value: 10 ** (-value / 10),
    "mse": lambda value: value,
    "ssim": lambda value: 1 - value,
    NOISE_SHARE: lambda value: value,
}
_VALUES: dict[str, Callable[[float], float]] = {
    "ratio": lambda error: 1 / error if error else math.inf,
    "psnr": lambda error: -10 * math.log10(error) if error else math.inf,
    "mse": lambda error: error,
    "ssim": lambda error: 1 - error,
    NOISE_SHARE: lambda error: error,
}
# Rounding errors in float32: the relative error of a stored measure, and the absolute error of a computed SSIM.
_ROUNDED, _ROUNDED_SSIM = 1e-6, 2e-6
# A repeated search allows this share of the error that should suffice, because the first one left too much error.
_STRICTER = 0.998
# PSNR in decibels that a search uses for exact samples.
_EXACT = 1e6


@dataclass(frozen=True)
class Goal:
    """One of `GOALS`, and its value.

    ``ratio``: the least ratio of bytes of the stack to bytes of the store. ``psnr`` (decibels) of the mean error,
    ``mse`` (in units of the data range squared) and ``ssim`` of the mean over the samples; or each of them for every
    sample. ``max_error``: an error bound for every value, in units of the values. ``max_relative_error``: an error
    bound in units of the data range. ``noise_share``: the mean squared error of all values, each in units of the
    variance of its noise. ``sigma`` (*sample_shape) is the standard deviation of the noise; only this goal has it.
    """

    name: str
    value: float
    every_sample: bool = False
    sigma: Array | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, *, every_sample: bool = False, **given: float | None) -> Goal:
        """Return the goal that is not None.

        Raises
        ------
        ValueError
            If there is no goal or more than one, or if its value is out of range.
        """
        asked = {name: value for name, value in given.items() if value is not None}
        if unknown := asked.keys() - set(GOALS):
            raise ValueError(f"{min(unknown)} is not a goal: give one of {', '.join(GOALS)}")
        if len(asked) != 1:
            raise ValueError(f"got {' and '.join(asked) or 'no goal'}: give exactly one of {', '.join(GOALS)}")
        ((name, value),) = asked.items()
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value!r}: give a positive number")
        if name == "ssim" and value >= 1:
            raise ValueError(f"ssim is {value!r}: give a number below 1; only an exact copy has an SSIM of 1")
        goal = cls(name, float(value), bool(every_sample))
        if every_sample and (goal.has_residual or not goal.is_of_samples):
            raise ValueError(f"every_sample is given with {name}: it requires psnr, mse or ssim")
        return goal

    @property
    def words(self) -> str:
        """The goal in words, such as "36 dB"."""
        return f"{self.value:g} dB" if self.name == "psnr" else f"{self.name.replace('_', ' ')} {self.value:g}"

    @property
    def is_error_bound(self) -> bool:
        """Whether the goal is an error bound for every value."""
        return self.name in ("max_error", "max_relative_error")

    @property
    def has_residual(self) -> bool:
        """Whether residuals meet the goal, with whatever step of the scores."""
        return self.is_error_bound or self.name == NOISE_SHARE

    @property
    def is_of_samples(self) -> bool:
        """Whether the goal is a quality of samples."""
        return self.name in MEAN_GOALS

    @property
    def measure(self) -> str:
        """Name of the quality measure."""
        return self.name if self.name in ("ssim", NOISE_SHARE) else "mse"

    def noise_steps(self, dtype: DTypeLike) -> NoiseSteps | None:
        """Return the steps of residuals that meet a share of noise for values of a type, None for other goals."""
        whole = np.dtype(dtype).kind != "f"
        return None if self.sigma is None else NoiseSteps.of(self.sigma, self.value, whole=whole)

    @property
    def allowed(self) -> float:
        """The largest error that meets the goal, in the unit of `errors`. For a ratio, the largest share of bytes."""
        error = _ERRORS[self.name](self.value)
        if self.name == "ssim":
            return error - _ROUNDED_SSIM
        return error if self.name == "ratio" else error * (1 - _ROUNDED)

    def errors(self, quality: Mapping[str, Array]) -> Array:
        """Return the errors (n,), float64, of samples from their ``mse`` or ``ssim``."""
        found = quality[self.measure].astype(np.float64)
        return 1 - found if self.name == "ssim" else found

    def error(self, errors: Array) -> float:
        """Return the largest error of samples if every sample must meet the goal, else the mean error."""
        return float(errors.max() if self.every_sample else errors.mean())

    def value_of(self, error: float) -> float:
        """Convert an error to the unit of the goal."""
        return _VALUES[self.name](error)

    def margin(self, errors: Array) -> float:
        """Return the distance of the errors of samples from the goal, negative if they miss it."""
        error = self.error(errors)
        if self.name == "psnr":
            return min(self.value_of(error), _EXACT) - min(self.value_of(self.allowed), _EXACT)
        return (self.allowed - error) / (self.allowed if self.name == "mse" and self.allowed else 1)

    def stricter(self, error: float, wanted: Goal, attempt: int) -> Goal:
        """Return a stricter goal for the few samples of the search.

        This goal led to an error of all samples that ``wanted`` does not allow. Each attempt tightens twice as much as
        the last one, because the errors of few and of all samples may fall differently.
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
    """Search a step that meets a goal: nearly the coarsest one, or nearly the finest one.

    Parameters
    ----------
    margin : callable
        Returns the distance of a step from the goal, negative if the step misses it. With ``coarse`` it must fall as
        steps grow, else rise.
    guess : float
        The first step to try.
    coarse : bool
        Whether to return the coarsest step, else the finest.
    first : float
        Doublings from the guess to the second step, at most 1. Further distances grow to 1.
    near : float
        Tolerance of the search, in doublings.
    end : float, optional
        Limit of the search: the coarsest step if ``coarse``, else the finest.

    Raises
    ------
    UnreachedError
        If no step meets the goal.
    """
    sign = 1 if coarse else -1
    if end is not None:
        guess = min(guess, end) if coarse else max(guess, end)
    farthest = _MOST_DOUBLINGS if end is None else sign * math.log2(end / guess)
    seen: dict[float, float] = {}

    def of(x: float) -> float:
        if x not in seen:
            seen[x] = margin(guess * 2.0 ** (sign * x))
        return seen[x]

    low, high, stride = 0.0, 0.0, first
    while of(low) < 0:
        if low <= -_MOST_DOUBLINGS or (low <= -_FINE_DOUBLINGS and math.isclose(of(low), of(high), rel_tol=1e-3)):
            raise UnreachedError
        high, low, stride = low, low - stride, min(1.0, 2 * stride)
    while of(high) >= 0 and high < farthest:
        low, high, stride = high, min(high + stride, farthest), min(1.0, 2 * stride)
    if of(high) < 0:
        # The root may lie on the side that misses the goal. Margins jump when a component is discarded.
        root, back = brentq(of, low, high, xtol=near / 2), 0.0
        while of(max(low, root - back)) < 0:
            back = 2 * back or near / 2
    return float(guess * 2.0 ** (sign * max(x for x, value in seen.items() if value >= 0)))
