"""Step sizes and accelerations of the stochastic rules, as functions of the number of the update t = 1, 2, ..."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from dpca.rules.base.options import check_options, count, finite, instance, or_none


@dataclass(frozen=True)
class Schedule(ABC):
    """Step size eta_t, or acceleration alpha_t, of update t, counted from 1. All parameters are positive numbers."""

    def __post_init__(self) -> None:
        check_options(self, finite("a positive, finite number", above=0))

    @abstractmethod
    def __call__(self, t: int) -> float:
        """Return the value of update t."""


@dataclass(frozen=True)
class Harmonic(Schedule):
    """eta_t = c / t (Alakkari 2020, section 2.3.1)."""

    c: float = 1.0

    def __call__(self, t: int) -> float:
        """Return eta_t."""
        return self.c / t


@dataclass(frozen=True)
class Power(Schedule):
    """eta_t = eta / t^gamma (Amid & Warmuth 2020, section Experiments: 0.5 <= gamma < 1)."""

    eta: float = 1.0
    gamma: float = field(default=0.8, metadata=finite("a decay of 0 to 1, above 0.5 for convergence", least=0, most=1))

    def __call__(self, t: int) -> float:
        """Return eta_t."""
        return float(self.eta / t**self.gamma)


@dataclass(frozen=True)
class Constant(Schedule):
    """eta_t = eta: follows drifting data, but converges only to a neighborhood."""

    eta: float = 1.0

    def __call__(self, t: int) -> float:
        """Return eta_t."""
        return self.eta


@dataclass(frozen=True)
class Delayed(Schedule):
    """eta_t = eta tau / (t + tau): nearly constant for the first tau updates, then c / t with c = eta tau.

    This is the schedule of the kernel Hebbian algorithm (Günter, Schraudolph & Vishwanathan 2007, equation 9).
    """

    eta: float = 1.0
    tau: float = 100.0

    def __call__(self, t: int) -> float:
        """Return eta_t."""
        return self.eta * self.tau / (t + self.tau)


@dataclass(frozen=True)
class Increasing(Schedule):
    """alpha_t = slope t (Alakkari 2020, section 3.3.3: slope 1)."""

    slope: float = 1.0

    def __call__(self, t: int) -> float:
        """Return eta_t."""
        return self.slope * t


@dataclass(frozen=True)
class FirstStrategy(Schedule):
    """alpha_t = t / (1 + c z_t), z_t uniform in [0, 1] (Alakkari 2020, section 3.3.3: c = 1).

    With ``seed=None``, an estimator sets the seed of the fit. Without an estimator, None means 0.
    """

    c: float = 1.0
    seed: int | None = field(default=None, metadata=or_none(count("for the random generator", least=0)))

    def __call__(self, t: int) -> float:
        """Return alpha_t."""
        return t / (1 + self.c * self._uniform(t))

    def _uniform(self, t: int) -> float:
        """Return a number that depends only on seed and t, so that a resumed stream draws the same numbers."""
        return float(np.random.default_rng((self.seed or 0, t)).random())


@dataclass(frozen=True)
class SecondStrategy(FirstStrategy):
    """alpha_t = t / (1 + c z_t / t), with z_t and seed of `FirstStrategy` (Alakkari 2020, section 3.3.3: c = 1000)."""

    c: float = 1000.0

    def __call__(self, t: int) -> float:
        """Return alpha_t."""
        return t / (1 + self.c * self._uniform(t) / t)


#: Schedules that stored models support, by name.
SCHEDULES: dict[str, type[Schedule]] = {
    kind.__name__: kind for kind in (Harmonic, Power, Constant, Delayed, Increasing, FirstStrategy, SecondStrategy)
}


SCHEDULE = instance(Schedule, f"a schedule of dpca.rules: {', '.join(SCHEDULES)}")
"""Check of an option that is a schedule."""
