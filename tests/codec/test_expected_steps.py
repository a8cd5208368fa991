"""The search for a step with an expected error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from dpca.codec.expected import Expectation, ExpectedCost
from dpca.codec.goal import UnreachedError


@dataclass(frozen=True, eq=False)
class Stated(Expectation):
    """An expectation with stated errors."""

    error_of: Callable[[float], float]
    tried: list[float] = field(default_factory=list)

    @property
    def least_error(self) -> float:
        return self.error_of(0.0)

    def at(self, step: float) -> ExpectedCost:
        self.tried.append(step)
        return ExpectedCost(np.array([self.error_of(step)]), np.zeros(1), 1)


def stated(error_of: Callable[[float], float]) -> Stated:
    none = np.zeros((1, 1, 1))
    return Stated(None, none, none[0, 0], 1.0, 1, error_of)  # type: ignore[arg-type]


@pytest.mark.parametrize("guess", [1e-9, 0.01, 0.3, 1.0, 20.0, 1e8])
@pytest.mark.parametrize("error", [0.011, 0.1, 3.0, 70.0])
def test_the_step_has_the_error(error: float, guess: float) -> None:
    """An error as that of scores: a part that no step reduces, that of rounding, and at most the power of scores."""
    of = stated(lambda step: 0.01 + 100 * step**2 / (1 + step**2))
    found = of.step_for(error, guess, 1e12)
    assert 0.01 + 100 * found**2 / (1 + found**2) == pytest.approx(error, rel=0.011)
    assert len(of.tried) < 32


def test_a_good_guess_takes_few_estimates() -> None:
    of = stated(lambda step: step**1.4)
    assert of.step_for(0.1, 0.5, 8.0) == pytest.approx(0.1 ** (1 / 1.4), rel=0.01)
    assert len(of.tried) < 5


@pytest.mark.parametrize("guess", [0.2, 1.0, 3.0])
def test_the_coarsest_step_is_the_end(guess: float) -> None:
    assert stated(lambda step: 1 - math.exp(-step)).step_for(1.5, guess, 2.0) == pytest.approx(2.0)


def test_no_step_has_less_than_the_least_error() -> None:
    with pytest.raises(UnreachedError):
        stated(lambda step: 1 + step).step_for(0.9, 1.0, 8.0)
    with pytest.raises(UnreachedError):  # the error that is expected without any steps can be too small
        stated(lambda step: 1 + step if step else 0.5).step_for(0.9, 1.0, 8.0)


def test_a_search_ends_at_a_jump() -> None:
    of = stated(lambda step: 0.1 * step if step < 0.7 else 2 * step)
    assert of.step_for(0.5, 3.0, 8.0) == pytest.approx(0.7, rel=0.01)
