"""Steps of residuals that follow the noise of each attribute, so that all lose the same share of its variance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpca.kernels.algebra.types import Array

# Steps have so many significant bits, which changes the lost variance by at most 0.4 %, and takes half of the bytes.
_BITS = 9
# The variance that is expected to be lost, as a share of what may be lost. The errors of few values differ from it.
_EXPECTED = 0.995
# A step that is lossless for integers, whatever is predicted: decoded values are not near the middle of two integers.
_LOSSLESS = 31 / 32
# The smallest step, and the inverse of the largest one.
_LEAST = 1e-36


@dataclass(frozen=True, eq=False)
class NoiseSteps:
    """Quantization steps of residuals.

    Parameters
    ----------
    steps : array (*sample_shape), float32
    share : float
        The mean squared error of each attribute, as a share of the variance of its noise. This is the expected share:
        errors of residuals are spread evenly over a step.
    whole : bool
        Whether values are integers, so that decoded values are rounded.
    """

    steps: Array
    share: float
    whole: bool

    @classmethod
    def of(cls, sigma: Array, share: float, *, whole: bool) -> NoiseSteps:
        """Return the steps that lose at most a share of the variance of noise.

        Integers without noise, or with so little that any rounding loses more, are lossless. Other values without noise
        have the smallest step of the others.

        Parameters
        ----------
        sigma : array (*sample_shape)
            Standard deviation of the noise, not all zero if values are no integers.
        share : float
        whole : bool

        Raises
        ------
        ValueError
            If a step is out of the range of float32.
        """
        share, wide = share * _EXPECTED, np.asarray(sigma, np.float64)
        if not whole:
            wide = np.where(wide > 0, wide, wide[wide > 0].min())
        steps = step_of_integers(share * np.square(wide)) if whole else math.sqrt(12 * share) * wide
        mantissa, exponent = np.frexp(steps)
        digits = np.ldexp(mantissa, _BITS)
        # Of integers, steps near 1 lose nearly nothing, and a little more loses several times as much.
        digits = np.where(steps < 2, np.floor(digits), np.rint(digits)) if whole else np.rint(digits)
        steps = np.ldexp(digits, exponent - _BITS)
        if whole:
            steps = np.where(steps > 1, steps, _LOSSLESS)
        if not (steps.min() >= _LEAST and steps.max() <= 1 / _LEAST):
            raise ValueError(
                f"the noise is between {wide.min():g} and {wide.max():g}: multiply all values by a constant"
            )
        return cls(steps.astype(np.float32), share, whole)

    @cached_property
    def variance(self) -> Array:
        """Variance of the noise of each attribute, 0 if it is lossless."""
        found: Array = lost_variance(self.steps.astype(np.float64), whole=self.whole) / self.share
        return found

    def shares(self, x: Array, y: Array, missing: Array | None = None) -> Array:
        """Return the share of the variance of the noise that each decoded sample (n, *sample_shape) has lost.

        It is the mean over the attributes that are not lossless, without missing values.
        """
        lossy = self.variance > 0
        weight = np.divide(1, self.variance, out=np.zeros_like(self.variance), where=lossy)
        found = np.zeros(len(x))
        for i, (one, other) in enumerate(zip(x, y, strict=True)):
            there = lossy if missing is None else lossy & ~missing[i]
            if count := np.count_nonzero(there):
                squares = np.square(np.subtract(one, other, dtype=np.float64))
                found[i] = (squares * weight).sum(where=there) / count
        return found


def lost_variance(steps: Array, *, whole: bool) -> Array:
    """Return the mean squared error of values rounded to multiples of steps, of integers after another rounding.

    The multiples begin at any number, since they are added to predictions. So errors before the last rounding are
    spread evenly over a step.
    """
    if not whole:
        return np.square(steps) / 12
    half = steps / 2
    largest = np.floor(half + 0.5)
    smaller = (largest - 1) * largest * (2 * largest - 1) / 6  # the sum of squares of the smaller errors
    found: Array = (smaller + np.square(largest) * (half - largest + 0.5)) / half
    return found


def step_of_integers(variance: Array) -> Array:
    """Return the largest steps by which integers lose at most this variance, the inverse of `lost_variance`."""
    largest = np.maximum(np.ceil((np.sqrt(1 + 12 * variance) - 1) / 2), 1.0)
    smaller = (largest - 1) * largest * (2 * largest - 1) / 3
    found: Array = (2 * largest**3 - np.square(largest) - smaller) / (np.square(largest) - variance)
    return found
