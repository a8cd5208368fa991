"""The error and bits that an encoding is expected to have, from scores alone: nothing is encoded or decoded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dpca.codec.cells import Components
from dpca.codec.goal import UnreachedError
from dpca.codec.quantized import rows_kept
from dpca.kernels.algebra.types import Array

# A share of the squares of samples that is less than this is a rounding error of the scores. The least error.
_ROUNDED, _TINY = 1e-6, float(np.finfo(float).tiny)
# Relative tolerance of an error.
_CLOSE = 0.01
# By one doubling of the step, the logarithm of the error grows about so much. Where it hardly grows, a search moves by
# the most doublings. It ends so many below the first step.
_SLOPE, _FLAT, _FAR, _MOST_DOUBLINGS = 0.9, 0.2, 4.0, 40
# A search ends if the steps next to a jump of the error differ by fewer doublings.
_NEAR = 1 / 256


class ExpectedCost(NamedTuple):
    """What an encoding with some step is expected to cost.

    Attributes
    ----------
    errors : array (n_cells,)
        Squared error of each cell in a sample, in units of the squared width of the data range.
    bits : array (n_cells,)
        Bits of each cell in all samples, with its share of its components.
    rank : int
        The most components of a cell.
    """

    errors: Array
    bits: Array
    rank: int

    @property
    def error(self) -> float:
        """Squared error of a sample."""
        return max(float(self.errors.sum()), _TINY)


@dataclass(frozen=True, eq=False)
class Expectation:
    """Estimates errors and bits for any step.

    Filters and components are orthonormal: errors of scores are errors of values.

    Parameters
    ----------
    components : Components
    scores : array (n_cells, k, n)
        Of some samples.
    squares : array (n_cells,)
        Sums of squares of the cells in these samples, in units of the squared width.
    width : float
        Width of the data range.
    n_samples : int
        Number of all samples.
    """

    components: Components
    scores: Array
    squares: Array
    width: float
    n_samples: int

    @cached_property
    def _beyond(self) -> Array:
        """Squares that no component holds."""
        held = [np.square(scores / self.width).sum(dtype=np.float64) for scores in self.scores]
        beyond = self.squares - np.array(held)
        beyond[beyond < _ROUNDED * self.squares] = 0
        return beyond

    @cached_property
    def _seen(self) -> dict[float, ExpectedCost]:
        """Estimates so far. Searches come back to the same steps."""
        return {}

    def at(self, step: float) -> ExpectedCost:
        """Estimate the errors and bits with a step."""
        if step not in self._seen:
            self._seen[step] = self._estimated(step)
        return self._seen[step]

    def _estimated(self, step: float) -> ExpectedCost:
        found, square = rows_kept(self.components, self.scores, step, self.n_samples), (step / self.width) ** 2
        saved = np.where(found.kept, found.saved - found.power * found.error[self.components.group], 0)
        errors = self._beyond + (found.power - saved).sum(axis=1) * square
        rank = 1 + np.flatnonzero(found.kept.any(axis=0)).max(initial=-1)
        return ExpectedCost(errors / self.scores.shape[2], np.where(found.kept, found.bits, 0).sum(axis=1), int(rank))

    @property
    def least_error(self) -> float:
        """Squared error of a sample with all components."""
        return float(self._beyond.sum()) / self.scores.shape[2]

    def step_for(self, error: float, guess: float, end: float) -> float:
        """Return a step with nearly this squared error of a sample.

        The secant method: the logarithm of the error is nearly linear in that of the step. Steps between which the
        error lies are kept, so that it ends.

        Parameters
        ----------
        error : float
        guess : float
            The first step to try.
        end : float
            The coarsest step.

        Raises
        ------
        UnreachedError
            If no step has so small an error.
        """
        if self.least_error > error:
            raise UnreachedError
        last = math.log2(end / guess)
        at, low, high = min(0.0, last), -math.inf, math.inf
        before: tuple[float, float] | None = None
        slope = _SLOPE
        while at >= -_MOST_DOUBLINGS:
            step = guess * 2.0**at
            margin = math.log(max(error, _TINY) / self.at(step).error)
            if abs(margin) < _CLOSE or (margin > 0 and at == last) or high - low < _NEAR:
                return step
            low, high = (at, high) if margin > 0 else (low, at)
            if before is not None:
                slope = (before[1] - margin) / (at - before[0])
            before = at, margin
            far = slope < _FLAT or abs(margin) > _FAR * slope
            at = min(at + (math.copysign(_FAR, margin) if far else margin / slope), last)
            if not low < at < high:
                at = (low + high) / 2
        raise UnreachedError
