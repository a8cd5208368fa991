"""Sanger's rule, the generalized Hebbian algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpca.rules.basis import check_converging, product
from dpca.rules.oja import OjaSubspace
from dpca.rules.state import Array, State


@dataclass(frozen=True)
class Sanger(OjaSubspace):
    """Generalized Hebbian algorithm (GHA): the rows become the eigenvectors themselves, in order.

    W <- W + eta_t (Y^T X - lt(Y^T Y) W) / n with Y = X W^T, lt keeping the diagonal and what is below it (Sanger 1989;
    Günter, Schraudolph & Vishwanathan 2007, equation 7): row i sees the data less what rows 1 ... i account for. The
    rule that Amid & Warmuth (2020) call Sanger's is :class:`~dpca.rules.implicit_krasulina.ExplicitKrasulina`.

    Costs, limits and parameters as in :class:`~dpca.rules.oja.OjaSubspace`.
    """

    @np.errstate(over="ignore", invalid="ignore")
    def _step(self, state: State, x: Array, y: Array, t: int) -> None:
        rows, step = state.arrays["components"], self.schedule(t) / (self._unit(state, x) ** 2 * len(x))
        decay = np.tril((y * y.dtype.type(step)).T @ y)
        moved = product(y, x, step)
        moved -= decay @ rows
        rows += moved
        check_converging(rows, 1.0, t, type(self).__name__, self.schedule(t))
