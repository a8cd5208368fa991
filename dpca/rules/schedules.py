"""Step sizes of the stochastic rules as functions of the update's number t = 1, 2, ..."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """Step size eta_t of update t, counted from 1."""

    def __call__(self, t: int) -> float:
        """Return eta_t."""


@dataclass(frozen=True)
class Harmonic:
    """eta_t = c / t (Alakkari 2020, section 2.3.1)."""

    c: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("c", self.c)

    def __call__(self, t: int) -> float:
        """Return eta_t."""
        return self.c / t


@dataclass(frozen=True)
class Power:
    """eta_t = eta / t^gamma (Amid & Warmuth 2020, section Experiments: 0.5 <= gamma < 1)."""

    eta: float = 1.0
    gamma: float = 0.8

    def __post_init__(self) -> None:
        _check_positive("eta", self.eta)
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma is {self.gamma!r}: a decay must lie in [0, 1], and above 0.5 for convergence")

    def __call__(self, t: int) -> float:
        """Return eta_t."""
        return float(self.eta / t**self.gamma)


@dataclass(frozen=True)
class Constant:
    """eta_t = eta: follows data that drift, converges to a neighborhood only."""

    eta: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("eta", self.eta)

    def __call__(self, t: int) -> float:
        """Return eta_t."""
        return self.eta


@dataclass(frozen=True)
class Delayed:
    """eta_t = eta tau / (t + tau): nearly constant for the first tau updates, then c / t with c = eta tau.

    The schedule of the kernel Hebbian algorithm in Günter, Schraudolph & Vishwanathan (2007), equation 9.
    """

    eta: float = 1.0
    tau: float = 100.0

    def __post_init__(self) -> None:
        _check_positive("eta", self.eta)
        _check_positive("tau", self.tau)

    def __call__(self, t: int) -> float:
        """Return eta_t."""
        return self.eta * self.tau / (t + self.tau)


def _check_positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value!r}: a step size must be positive and finite")
