"""Gains of Hebbian rules: a step size for each row, from a schedule, the row's eigenvalue, and its own past."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpca.kernels.types import Array
from dpca.rules.rule import DivergedError, check_number
from dpca.rules.schedules import Constant, Delayed, Schedule, check_schedule


@dataclass(frozen=True)
class Gains:
    """Step size of each row of a Hebbian rule at update t, counted from 1.

    Günter, Schraudolph & Vishwanathan (2007) build it of three factors, each of which may be left out: eta_t, which
    falls with time (equation 9); 1 / lambda_i, the row's estimated eigenvalue (equation 19), or |lambda| / lambda_i
    (equation 22); and exp(rho_i), which stochastic meta-descent (SMD) adapts (equation 32).

    Parameters
    ----------
    eta : Schedule
        eta_t.
    by_eigenvalue : bool
        Divide by the eigenvalues.
    by_length : bool
        Multiply by the length of the vector of eigenvalues, too, whose growth delays the decay.
    meta : float
        mu, the step size of the logarithms rho; 0 keeps them at 0. The source says that they begin with ones, with
        which its runs diverge; gains of one are meant.
    decay : float
        xi in [0, 1], the share of the past that SMD remembers from step to step.
    """

    eta: Schedule
    by_eigenvalue: bool = False
    by_length: bool = False
    meta: float = 0.0
    decay: float = 0.99

    def __post_init__(self) -> None:
        check_schedule("eta", self.eta)
        for name in ("by_eigenvalue", "by_length"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}: give True or False")
        check_number("meta", self.meta, "0 to leave the gains alone, or a positive number", least=0)
        check_number("decay", self.decay, "a share of 0 to 1", least=0, most=1)

    def __call__(self, t: int, eigenvalues: Array) -> Array:
        """Return eta_t of each row, shape (r,) as the eigenvalues have it, without what SMD makes of it.

        Rows whose eigenvalue is 0 stay where they are.
        """
        gains = np.full(len(eigenvalues), self.eta(t))
        if self.by_eigenvalue:
            gains = np.divide(gains, eigenvalues, out=np.zeros_like(gains), where=eigenvalues > 0)
        return gains * np.linalg.norm(eigenvalues) if self.by_length else gains


#: Variants by the names of Günter, Schraudolph & Vishwanathan (2007): whether eta decays, with |lambda| in place of
#: tau, is divided by eigenvalues, and is adapted by SMD. The last three have letters for names, as in their figure 8.
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
    """Return the gains of one of `VARIANTS`, with eta_0 and tau of equation 9, and mu of equation 32.

    Parameters
    ----------
    variant : str
    eta : float
    tau : float
        In updates; the number of samples for "et" and "smd" (equation 22). Those that do not decay leave it alone.
    meta : float
        Those without SMD leave it alone.

    Raises
    ------
    ValueError
        For a variant that does not exist, or a number that makes no sense.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}: give one of {', '.join(VARIANTS)}")
    decays, by_length, by_eigenvalue, adapted = VARIANTS[variant]
    schedule = Delayed(eta, tau) if decays else Constant(eta)
    return Gains(schedule, by_eigenvalue, by_length, meta if adapted else 0.0)


def tune(run: Callable[[float], object], largest: float = 500.0, least: float = 1e-9) -> float:
    """Return the largest of ..., 1, 2, 5, 10, 20, 50, ... with which a rule does not diverge.

    Günter, Schraudolph & Vishwanathan 2007, algorithm 2: the best gains were mostly the largest that did not diverge,
    and those that do diverge show it early.

    Parameters
    ----------
    run : callable
        Runs the rule with a gain, from the start, for as many updates as divergence takes to show (there 1 % of 60,000
        samples, or never), and lets its `DivergedError` pass.
    largest, least : float
        The first that is tried, if it is one of these, and the last.

    Raises
    ------
    DivergedError
        If it diverges with every gain.
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
