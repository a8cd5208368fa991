"""Step sizes against their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from dpca.rules.base.schedules import Constant, Delayed, Harmonic, Power, Schedule


@pytest.mark.parametrize(
    ("schedule", "at_1", "at_4"),
    [
        (Harmonic(2.0), 2.0, 0.5),
        (Power(3.0, 0.5), 3.0, 1.5),
        (Power(3.0, 0.0), 3.0, 3.0),
        (Constant(0.25), 0.25, 0.25),
        (Delayed(2.0, 4.0), 1.6, 1.0),
    ],
)
def test_values(schedule: Schedule, at_1: float, at_4: float) -> None:
    assert schedule(1) == pytest.approx(at_1)
    assert schedule(4) == pytest.approx(at_4)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("kind", [Harmonic, Power, Constant, Delayed, lambda tau: Delayed(1.0, tau)])
def test_a_step_that_is_no_step(kind: Callable[[float], Schedule], bad: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        kind(bad)


@pytest.mark.parametrize("gamma", [-0.1, 1.5, math.nan])
def test_a_decay_out_of_range(gamma: float) -> None:
    with pytest.raises(ValueError, match="gamma"):
        Power(1.0, gamma)
