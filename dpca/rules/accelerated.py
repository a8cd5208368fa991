"""Accelerated block power and accelerated Oja: updates drawn towards the basis before them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dpca.rules.averaging import AveragedRule
from dpca.rules.basis import unit_rows
from dpca.rules.block_power import BlockPower
from dpca.rules.orthonormal import orthonormalize
from dpca.rules.scaled import ScaledRule
from dpca.rules.schedules import Constant, Harmonic, Schedule
from dpca.rules.state import Array, State
from dpca.rules.summing import SummedRule


@dataclass(frozen=True)
class Increasing:
    """alpha_t = slope t (Alakkari 2020, section 3.3.3: slope 1)."""

    slope: float = 1.0

    def __post_init__(self) -> None:
        Constant(self.slope)

    def __call__(self, t: int) -> float:
        """Return alpha_t."""
        return self.slope * t


@dataclass(frozen=True)
class FirstStrategy:
    """alpha_t = t / (1 + c z_t), z_t uniform in [0, 1] (Alakkari 2020, section 3.3.3: c = 1)."""

    c: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        Constant(self.c)

    def __call__(self, t: int) -> float:
        """Return alpha_t, always the same for the same seed and t."""
        return t / (1 + self.c * _uniform(self.seed, t))


@dataclass(frozen=True)
class SecondStrategy:
    """alpha_t = t / (1 + c z_t / t), z_t uniform in [0, 1] (Alakkari 2020, section 3.3.3: c = 1000)."""

    c: float = 1000.0
    seed: int = 0

    def __post_init__(self) -> None:
        Constant(self.c)

    def __call__(self, t: int) -> float:
        """Return alpha_t, always the same for the same seed and t."""
        return t / (1 + self.c * _uniform(self.seed, t) / t)


@dataclass(frozen=True)
class AcceleratedBlockPower(BlockPower):
    """Accelerated block power method (Alakkari 2020, algorithm 3.1).

    For a block X: V = W X^T X with rows brought to unit length, then W <- orthonormalize(V + alpha_t V W^T W). The
    second term raises the agreement (v^T w)^2 of successive bases (equations 3.1 to 3.3): later blocks move the
    basis less and less. Blocks, centering, costs and other parameters are those of
    :class:`~dpca.rules.block_power.BlockPower`; every block ends with an orthonormalization.

    Parameters
    ----------
    acceleration : Schedule
        alpha_t of block t: ``Harmonic(1)``, ``Constant(1)``, ``Increasing()``, ``FirstStrategy()`` or
        ``SecondStrategy()``, the five of the source, of which the last did best there.
    per_component : bool
        Draw each row towards its own predecessor only, v + alpha_t (v w^T) w, which is equation 3.3 for each component,
        where algorithm 3.1 has all of W. Of ten readings tried on MNIST this came nearest to the source's results, on
        fresh trials by less than their spread.
    """

    acceleration: Schedule = field(default=SecondStrategy())
    per_component: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.orthonormalize_every != 1 or self.momentum:
            raise ValueError(
                "accelerated block power is defined with an orthonormalization after every block and no momentum: "
                "leave orthonormalize_every and momentum as they are"
            )

    def _turn(self, state: State, block: Array) -> None:
        state.arrays["components"][...] = accelerate(
            block, state.arrays["components"], self.acceleration(self._turns(state)), self.per_component
        )


@dataclass(frozen=True)
class AcceleratedOja(AveragedRule, SummedRule, ScaledRule):
    """Accelerated Oja method (Alakkari 2020, algorithm 3.2).

    V = W + eta_t W X^T X / n with rows brought to unit length, then W <- orthonormalize(V + alpha_t V W^T W). The
    source advises a large first step, so that small steps are not mistaken for convergence. Streams can be averaged
    in rounds, and a batch can be spread over workers.

    Costs O(n d k + k^2 d) an update, O(k d) memory. The running mean and the parameters not named here are those of
    :class:`~dpca.rules.scaled.ScaledRule`.

    Parameters
    ----------
    schedule : Schedule
        Step sizes eta_t.
    acceleration : Schedule
        alpha_t, as in :class:`AcceleratedBlockPower`.
    per_component : bool
        As in :class:`AcceleratedBlockPower`.
    """

    schedule: Schedule = field(default=Harmonic(100.0))
    acceleration: Schedule = field(default=SecondStrategy())
    per_component: bool = field(default=False, kw_only=True)

    def _move(self, state: State, products: Array, n: int, t: int) -> None:
        rows = state.arrays["components"]
        products *= products.dtype.type(self.schedule(t) / (self._unit_of(state, products, n) ** 2 * n))
        products += rows
        rows[...] = accelerate(products, rows, self.acceleration(t), self.per_component)


def accelerate(moved: Array, rows: Array, alpha: float, per_component: bool = False) -> Array:
    """Return orthonormalize(v + alpha v rows^T rows), v being ``moved`` with rows of unit length.

    With ``per_component``, only the diagonal of v rows^T counts.
    """
    v = unit_rows(moved)
    if per_component:
        v += (v.dtype.type(alpha) * np.einsum("ij,ij->i", v, rows))[:, None] * rows
    else:
        v += (v.dtype.type(alpha) * (v @ rows.T)) @ rows
    return orthonormalize(v)


def _uniform(seed: int, t: int) -> float:
    """Return a uniform number that depends on its arguments only, so that a resumed stream draws the same ones."""
    return float(np.random.default_rng((seed, t)).random())
