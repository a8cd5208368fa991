"""Similarity matching with Hebbian and anti-Hebbian learning."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array
from dpca.rules.base.basis import BasisRule, product
from dpca.rules.base.options import count, finite, or_none
from dpca.rules.base.rule import check_products
from dpca.rules.base.schedules import SCHEDULE, Delayed, Schedule
from dpca.rules.base.state import State, StateLayout

# Largest weight of the new batch in an average. The rest keeps the lateral weights positive definite.
_LARGEST_GAIN = 0.9


@dataclass(frozen=True)
class SimilarityMatching(BasisRule):
    """Online similarity matching: a network with feed-forward weights W (k, d) and lateral weights M (k, k).

    For samples X with outputs Y = X W^T M^-1, W <- W + 2 eta_t (Y^T X / n - W) and
    M <- M + (eta_t / tau) (Y^T Y / n - M) (Pehlevan, Sengupta & Chklovskii 2018; Alakkari 2020, from equation 2.22).
    The result is the span of M^-1 W. Its rows converge to orthonormal rows, but not to eigenvectors. ``finish``
    orthonormalizes and rotates them. Both weights start at the scale of the first batch.

    Costs O(n d k + n k^2 + k^3) per update, O(k d) memory. The running mean and all other parameters are those of
    :class:`~dpca.rules.base.basis.BasisRule`.

    Parameters
    ----------
    schedule : Schedule
        eta_t. The source states none. The default, 2 / (t + 5), was the better of two on MNIST. The other one,
        Delayed(0.2, 2.5) or 1 / (2 t + 5), reproduces the results of the source. The gains 2 eta_t and eta_t / tau are
        limited to 0.9.
    tau : float
        Ratio of the two time scales, 0 < tau <= 1/2 for convergence.
    neural_steps : int or None
        None solves for Y. A number makes so many steps Y <- Y + gamma (X W^T - Y M) from 0, like the neurons. They
        converge with gamma = 1 / (largest row sum of abs(M)).
    """

    schedule: Schedule = field(default=Delayed(0.4, 5.0), metadata=SCHEDULE)
    tau: float = field(
        default=0.5, kw_only=True, metadata=finite("a positive number, up to 1/2 for convergence", above=0)
    )
    neural_steps: int | None = field(
        default=None, kw_only=True, metadata=or_none(count("steps, or None to solve for y"))
    )

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        k = self.rank(n_features)
        return {**super()._layout(n_features, dtype), "lateral": ((k, k), float)}

    def _start(self, state: State, dtype: DTypeLike) -> None:
        super()._start(state, dtype)
        np.fill_diagonal(state.arrays["lateral"], 1)

    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        weights, lateral = state.arrays["components"], state.arrays["lateral"]
        if t == 1 and y.any():
            scale = float(np.mean(y**2, dtype=np.float64))
            weights *= weights.dtype.type(scale)
            lateral *= scale
            y = y * y.dtype.type(scale)
        outputs = self._outputs(lateral, y)
        gain = min(2 * self.schedule(t), _LARGEST_GAIN)
        weights *= weights.dtype.type(1 - gain)
        weights += product(outputs.astype(x.dtype), x, gain / len(x))
        gain = min(self.schedule(t) / self.tau, _LARGEST_GAIN)
        lateral *= 1 - gain
        lateral += outputs.T @ outputs * (gain / len(x))

    def _outputs(self, lateral: Array, driven: Array) -> Array:
        """Return Y (n, k), float64, for X W^T."""
        if self.neural_steps is None:
            return _solve(lateral, driven)
        gamma = 1 / np.abs(lateral).sum(axis=1).max()
        y = np.zeros(driven.shape)
        for _ in range(self.neural_steps):
            y += gamma * (driven - y @ lateral)
        return y

    def _coordinates(self, state: State, y: Array) -> Array:
        return _solve(state.arrays["lateral"], y)

    def _final_rows(self, state: State) -> Array:
        lateral, weights = state.arrays["lateral"], state.arrays["components"]
        inverse = scipy.linalg.inv(lateral, check_finite=False)
        return inverse.astype(weights.dtype) @ weights


def _solve(lateral: Array, driven: Array) -> Array:
    check_products(np.isfinite(driven).all(), driven.dtype, "third powers")
    solved: Array = scipy.linalg.solve(lateral, driven.T, assume_a="sym", check_finite=False)
    return solved.T
