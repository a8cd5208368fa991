"""Krasulina's rule for several components."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpca.rules.averaging import AveragedRule
from dpca.rules.basis import OrthonormalRule
from dpca.rules.oja import add_projected_gradient
from dpca.rules.scaled import ScaledRule
from dpca.rules.schedules import Power, Schedule
from dpca.rules.state import Array, State


@dataclass(frozen=True)
class Krasulina(AveragedRule, ScaledRule, OrthonormalRule):
    """Krasulina's update: a gradient step along the Stiefel manifold, and back onto it.

    W <- orthonormalize(W - eta_t Y^T (Y W - X) / n) with Y = X W^T (Amid & Warmuth 2020, equation 9; for k components
    Tang 2019). Oja's method is the same with the gradient not projected onto the tangent space.

    Streams can be averaged in rounds.

    Costs O(n d k + k^2 d) an update, O(k d) memory. The running mean and the parameters not named here are those of
    :class:`~dpca.rules.basis.OrthonormalRule` and :class:`~dpca.rules.scaled.ScaledRule`.

    Parameters
    ----------
    schedule : Schedule
        Step sizes eta_t; the source decays with gamma = 0.9.
    """

    schedule: Schedule = field(default=Power(1.0, 0.9))

    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        rows = state.arrays["components"]
        add_projected_gradient(rows, x, y, self.schedule(t) / self._unit(state, x) ** 2)
        self._replace(state, rows)
