"""The ten rules of Alakkari 2020, in the order of its tables, and open points of the thesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpca.pipelines.studies.reproduction.trials import Make, Rules
from dpca.rules import (
    CCIPCA,
    IPCA,
    AcceleratedBlockPower,
    AcceleratedOja,
    BlockPower,
    Delayed,
    FirstStrategy,
    Harmonic,
    SecondStrategy,
    SimilarityMatching,
)

SCHEDULE_OF_SM = "The thesis states no step size for similarity matching; here 1 / (2 t + 5)."
ACCELERATION = (
    "Algorithms 3.1 and 3.2 are implemented literally. Of ten other readings the nearest, per_component, changes the "
    "result by less than its spread."
)
#: Step size of similarity matching.
STEP_OF_SM = Delayed(0.2, 2.5)
STRATEGIES: tuple[tuple[str, Any], ...] = (("1st strategy", FirstStrategy), ("2nd strategy", SecondStrategy))

Numbers = Sequence[tuple[float, float]]
"""Published values and standard deviations, in the order of `thesis_rules`."""


def accelerated_oja(k: int, strategy: Any) -> Make:
    """Return a function that makes accelerated Oja with a strategy."""
    return lambda seed: AcceleratedOja(k, Harmonic(100.0), strategy(seed=seed), seed=seed, unit=1.0)


def accelerated_power(k: int, strategy: Any) -> Make:
    """Return a function that makes the accelerated block power method with a strategy."""
    return lambda seed: AcceleratedBlockPower(k, strategy(seed=seed), seed=seed)


def thesis_rules(k: int) -> Rules:
    """Return the rules of Alakkari 2020, tables 3.4 and 3.7."""
    return [
        ("block power", lambda seed: BlockPower(k, seed=seed), ""),
        ("CCIPCA", lambda seed: CCIPCA(k, online=True, seed=seed), ""),
        ("mini-batch CCIPCA", lambda seed: CCIPCA(k, seed=seed), ""),
        ("IPCA", lambda seed: IPCA(k), ""),
        ("SM", lambda seed: SimilarityMatching(k, STEP_OF_SM, online=True, seed=seed), SCHEDULE_OF_SM),
        ("mini-batch SM", lambda seed: SimilarityMatching(k, STEP_OF_SM, seed=seed), SCHEDULE_OF_SM),
        *(
            (f"accelerated {name}, {which}", make(k, strategy), ACCELERATION)
            for name, make in (("Oja", accelerated_oja), ("block power", accelerated_power))
            for which, strategy in STRATEGIES
        ),
    ]
