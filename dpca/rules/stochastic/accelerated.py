"""Accelerated block power and accelerated Oja: updates that are drawn towards the previous basis."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.rules.base.basis import unit_rows
from dpca.rules.base.options import FLAG
from dpca.rules.base.orthonormal import orthonormalize
from dpca.rules.base.scaled import ScaledRule
from dpca.rules.base.schedules import SCHEDULE, Harmonic, Schedule, SecondStrategy
from dpca.rules.base.state import State
from dpca.rules.base.summing import SummedRule
from dpca.rules.stochastic.block_power import BlockPower


@dataclass(frozen=True)
class AcceleratedRule(SummedRule):
    """Base class of accelerated rules.

    An update maps the basis W to V with rows of unit length. The new basis is orthonormalize(V + alpha_t V W^T W). The
    second term raises the agreement (v^T w)^2 of successive bases (Alakkari 2020, equations 3.1 to 3.3). Later batches
    change the basis less and less.

    Parameters
    ----------
    acceleration : Schedule
        alpha_t: ``Harmonic(1)``, ``Constant(1)``, ``Increasing()``, ``FirstStrategy()`` or ``SecondStrategy()``. These
        are the five schedules of the source. The last one had the best results there.
    per_component : bool
        Draw each row only towards its own predecessor, v + alpha_t (v w^T) w. This is equation 3.3 for each component;
        algorithm 3.1 uses all of W. Of ten interpretations tested on MNIST, this one came closest to the results of the
        source. On new trials the difference was smaller than their spread.
    """

    acceleration: Schedule = field(default=SecondStrategy(), metadata=SCHEDULE)
    per_component: bool = field(default=False, kw_only=True, metadata=FLAG)

    def _accelerate(self, moved: Array, rows: Array, t: int) -> Array:
        """Return the new basis from the previous one, ``rows``, and its update, ``moved``."""
        v, alpha = unit_rows(moved), moved.dtype.type(self.acceleration(t))
        if self.per_component:
            v += (alpha * np.einsum("ij,ij->i", v, rows))[:, None] * rows
        else:
            v += (alpha * (v @ rows.T)) @ rows
        return orthonormalize(v)


@dataclass(frozen=True)
class AcceleratedBlockPower(AcceleratedRule, BlockPower):
    """Accelerated block power method (Alakkari 2020, algorithm 3.1): V = W X^T X for a block X.

    Blocks, centering, costs and other parameters are those of :class:`~dpca.rules.stochastic.block_power.BlockPower`
    and :class:`AcceleratedRule`. Every block ends with an orthonormalization, and t counts blocks. Several workers can
    share a batch.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.orthonormalize_every != 1 or self.momentum:
            raise ValueError(
                "accelerated block power orthonormalizes after every block and has no momentum: leave "
                "orthonormalize_every and momentum at their defaults"
            )

    def _turn(self, state: State, block: Array) -> None:
        rows = state.arrays["components"]
        rows[...] = self._accelerate(block, rows, self._turns(state))


@dataclass(frozen=True)
class AcceleratedOja(AcceleratedRule, ScaledRule):
    """Accelerated Oja method (Alakkari 2020, algorithm 3.2): V = W + eta_t W X^T X / n.

    The source recommends a large first step, because small steps can look like convergence. It uses Harmonic(100) for
    MNIST, with a largest variance of 5. Streams can be averaged in rounds. Several workers can share a batch.

    Costs O(n d k + k^2 d) per update, O(k d) memory. Parameters are those of
    :class:`~dpca.rules.base.scaled.ScaledRule` and
    :class:`AcceleratedRule`.
    """

    schedule: Schedule = field(default=Harmonic(500.0), metadata=SCHEDULE)
    averageable = True

    def _move(self, state: State, products: Array, n: int, t: int) -> None:
        rows = state.arrays["components"]
        products *= products.dtype.type(self.schedule(t) / (self._unit_of(state, products, n) ** 2 * n))
        products += rows
        rows[...] = self._accelerate(products, rows, t)
