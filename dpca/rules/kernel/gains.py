"""Gains of Hebbian rules: a step size for each row, from a schedule, its eigenvalue, and its history."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.rules.base.options import FLAG, check_options, finite
from dpca.rules.base.rule import DivergedError
from dpca.rules.base.schedules import SCHEDULE, Constant, Delayed, Schedule


@dataclass(frozen=True)
class Gains:
    """Step size of each row of a Hebbian rule at update t, counted from 1.

    It has three optional factors (Günter, Schraudolph & Vishwanathan 2007): eta_t, which decreases with time (equation
    9); 1 / lambda_i, with the estimated eigenvalue of the row (equation 19), or |lambda| / lambda_i (equation 22); and
    exp(rho_i), which stochastic meta-descent (SMD) adapts (equation 32).

    Parameters
    ----------
    eta : Schedule
        eta_t.
    by_eigenvalue : bool
        Divide by the eigenvalues.
    by_length : bool
        Also multiply by the length of the vector of eigenvalues. Its growth delays the decay.
    meta : float
        mu, the step size of the logarithms rho. With 0, rho stays 0. The source starts rho at 1, but its runs then
        diverge. It means gains of 1, so that rho starts at 0 here.
    decay : float
        xi in [0, 1], the decay factor of the history of SMD per step.
    """

    eta: Schedule = field(metadata=SCHEDULE)
    by_eigenvalue: bool = field(default=False, metadata=FLAG)
    by_length: bool = field(default=False, metadata=FLAG)
    meta: float = field(default=0.0, metadata=finite("0 for no adaptation, or a positive number", least=0))
    decay: float = field(default=0.99, metadata=finite("a number from 0 to 1", least=0, most=1))

    def __post_init__(self) -> None:
        check_options(self)

    def __call__(self, t: int, eigenvalues: Array) -> Array:
        """Return the step size of each row (r,) before SMD, from the eigenvalues (r,).

        With ``by_eigenvalue``, rows with eigenvalue 0 have step size 0.
        """
        gains = np.full(len(eigenvalues), self.eta(t))
        if self.by_eigenvalue:
            gains = np.divide(gains, eigenvalues, out=np.zeros_like(gains), where=eigenvalues > 0)
        return gains * np.linalg.norm(eigenvalues) if self.by_length else gains


#: Variants by the names of Günter, Schraudolph & Vishwanathan (2007). The flags: eta decays; gains are multiplied by
#: |lambda|; gains are divided by eigenvalues; SMD adapts gains. The last three names are those of their figure 8.
VARIANTS: dict[str, tuple[bool, bool, bool, bool]] = {
    "constant": (False, False, False, False),
    "t": (True, False, False, False),
    "et*": (True, False, True, False),
    "et": (True, True, True, False),
    "smd*": (True, False, True, True),
    "smd": (True, True, True, True),
    "s": (False, False, False, True),
    "ts": (True, False, False, True),
    "es": (False, False, True, True),
}


def gains_of(variant: str, eta: float, tau: float, meta: float = 0.0) -> Gains:
    """Return the gains of one of `VARIANTS`.

    Parameters
    ----------
    variant : str
    eta : float
        eta_0 of equation 9.
    tau : float
        tau of equation 9, in updates. For "et" and "smd", give the number of samples (equation 22). Variants without
        decay ignore it.
    meta : float
        mu of equation 32. Variants without SMD ignore it.

    Raises
    ------
    ValueError
        For an unknown variant, or a number out of range.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}: give one of {', '.join(VARIANTS)}")
    decays, by_length, by_eigenvalue, adapted = VARIANTS[variant]
    schedule = Delayed(eta, tau) if decays else Constant(eta)
    return Gains(schedule, by_eigenvalue, by_length, meta if adapted else 0.0)


def tune(run: Callable[[float], object], largest: float = 500.0, least: float = 1e-9) -> float:
    """Return the largest gain among ..., 1, 2, 5, 10, 20, 50, ... without divergence.

    Günter, Schraudolph & Vishwanathan 2007, algorithm 2: mostly, the best gain was the largest one without divergence,
    and divergence appeared early.

    Parameters
    ----------
    run : callable
        Runs the rule with a gain from the start and raises `DivergedError` if it diverges. It must make enough updates
        to detect divergence. In the source, divergence appeared within 1 % of 60,000 samples, or never.
    largest, least : float
        Range of the gains, from the first to the last one tried.

    Raises
    ------
    DivergedError
        If the rule diverges with every gain.
    """
    for power in range(math.ceil(math.log10(largest)), math.floor(math.log10(least)) - 1, -1):
        for gain in (float(f"{digit}e{power}") for digit in (5, 2, 1)):
            if least <= gain <= largest:
                try:
                    run(gain)
                except DivergedError:
                    continue
                return gain
    raise DivergedError(f"the rule diverged with every gain from {largest:g} down to {least:g}: scale the data")
