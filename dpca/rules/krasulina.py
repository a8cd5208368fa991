"""Krasulina's rule for several components."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpca.rules.basis import OrthonormalRule
from dpca.rules.oja import add_projected_gradient, check_unit
from dpca.rules.schedules import Power, Schedule
from dpca.rules.state import Array, State


@dataclass(frozen=True)
class Krasulina(OrthonormalRule):
    """Krasulina's update: a gradient step along the Stiefel manifold, and back onto it.

    W <- orthonormalize(W - eta_t Y^T (Y W - X) / n) with Y = X W^T (Amid & Warmuth 2020, equation 9; for k components
    Tang 2019). Oja's method is the same with the gradient not projected onto the tangent space.

    Costs O(n d k + k^2 d) an update, O(k d) memory. The running mean and the parameters not named here are those of
    :class:`~dpca.rules.basis.OrthonormalRule`.

    Parameters
    ----------
    schedule : Schedule
        Step sizes eta_t; the source decays with gamma = 0.9.
    unit : float
        Value of the data that counts as 1 in the step size: 255 for 8-bit pixels that the schedule sees as [0, 1].
    """

    schedule: Schedule = field(default=Power(1.0, 0.9))
    unit: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_unit(self.unit)

    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        rows = state.arrays["components"]
        add_projected_gradient(rows, x, y, self.schedule(t) / self.unit**2)
        self._replace(state, rows)
