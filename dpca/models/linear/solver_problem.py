"""The problem that a solver of `PCA` solves, and results of solvers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.rules.base.orthonormal import orthonormalize
from dpca.rules.covariance.covariance_product import RayleighRitz

Found = dict[str, Array]


@dataclass(frozen=True)
class SolverProblem:
    """The checked parameters of a fit."""

    n: int
    d: int
    k: int
    dtype: np.dtype[Any]
    """Type of the components."""
    center: bool = True
    oversampling: int = 0
    n_iter: int = 0
    tol: float = 0.0
    seed: int = 0
    n_least: int = 0
    share: float | None = None
    """Share of the variance that the components explain, if that is requested; ``k`` is then the number of all."""

    @property
    def q(self) -> int:
        """Rows of the basis of the iterative solvers."""
        return min(self.k + self.oversampling, self.n, self.d)

    def start(self, rows: int) -> Array:
        """Random orthonormal rows (rows, d)."""
        drawn = np.random.default_rng(self.seed).standard_normal((rows, self.d), self.dtype.type)
        return orthonormalize(drawn)

    def ritz(self, rows: Array, mean: Array) -> RayleighRitz:
        """Rule that measures a basis."""
        return RayleighRitz(rows, mean, self.center, n_components=self.k)

    def error(self, ritz: Found) -> float:
        """Proven bound on the error of the captured variance of the requested components, as a share of it."""
        captured = float(ritz["explained_variance"][: self.k].sum())
        return float(ritz["coupling"]) / captured if captured > 0 else 0.0
