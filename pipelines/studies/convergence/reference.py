"""The exact principal components of a source, and the convergence of other bases to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpca import metrics
from dpca.engine.folds.fold import fold
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import Source
from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array
from dpca.models.base.passes import Passes
from dpca.models.linear.dual_solver import dual
from dpca.models.linear.solver_problem import SolverProblem
from dpca.partition.whole import Whole
from dpca.pipelines.studies.captured import captured_by
from dpca.rules.covariance.covariance import Covariance
from dpca.storage.errors import DataError
from dpca.storage.remote.memory import usable_bytes
from dpca.storage.run import Run


@dataclass(frozen=True, eq=False)
class Reference:
    """The best k components of a source, from its exact second moments.

    Attributes
    ----------
    source : Source
    solver : str
        "covariance" or "dual".
    components : array (k, d), float64
    mean : array (d,), float64
    explained_variance : array (k,), float64
    total_variance : float
    covariance : array (d, d) or None
        If that was the solver.
    """

    source: Source
    solver: str
    components: Array
    mean: Array
    explained_variance: Array
    total_variance: float
    covariance: Array | None = None

    def first(self, k: int) -> Reference:
        """Return the reference of the first k components."""
        return replace(self, components=self.components[:k], explained_variance=self.explained_variance[:k])

    def convergence(self, bases: Sequence[Array], *, run: Run = Run()) -> list[float]:
        """Return the convergence of Alakkari 2020, equation 2.24 of each basis (k, d), in float64; lower is better.

        It is computed from the covariance if that was the solver; otherwise in one pass over the source, which costs
        2 n d operations for every row of every basis.
        """
        if self.covariance is not None:
            return [metrics.convergence(basis, self.components, covariance=self.covariance) for basis in bases]
        captured, _ = self.captured([self.components, *bases], run=run)
        best = captured[0]
        return [math.log10(1 - found / best) if found < best else -math.inf for found in captured[1:]]

    def captured(self, bases: Sequence[Array], *, run: Run = Run()) -> tuple[list[float], float]:
        """Return the variance that each basis captures, measured in float64 in one pass, and the total variance."""
        captured, total = captured_by(self.source, bases, self.mean, run=run, stage="measure")
        return captured.tolist(), total


def exact_reference(source: Source, n_components: int, *, run: Run = Run()) -> Reference:
    """Compute the best components of a source from its covariance, or from its dual if there are fewer samples.

    Parameters
    ----------
    source : Source
        n samples with d attributes.
    n_components : int
    run : Run

    Raises
    ------
    DataError
        If there are fewer samples or attributes than components, or a value that is not finite.
    PlanError
        If min(n, d)^2 numbers do not fit into memory.

    Notes
    -----
    Costs n d min(n, d) operations and min(n, d)^2 numbers of memory, in this process.
    """
    n, shape = source.shape[0], tuple(source.shape[1:])
    d = math.prod(shape)
    if not 1 <= n_components <= min(n - 1, d):
        raise DataError(
            f"{n_components} components of {n:,} samples with {d:,} attributes were requested: use at most "
            f"{max(min(n - 1, d), 0):,}"
        )
    need, room = 16 * min(n, d) ** 2, usable_bytes()
    if need > room:
        raise PlanError(
            f"the exact components of {n:,} samples with {d:,} attributes need {need / 1e6:,.0f} MB, but this process "
            f"may use {room / 1e6:,.0f} MB: use fewer samples, or smaller ones (--resize)"
        )
    if d <= n:
        (found,), _ = fold(Covariance(), source, Whole(shape), run=run, stage="reference")
        covariance = found["covariance"]
        values, rows = linalg.leading_eigh(covariance.copy(), n_components)
        total = float(np.trace(covariance))
        return Reference(source, "covariance", rows, found["mean"], values, total, covariance)
    found = dual(SolverProblem(n, d, n_components, np.dtype(np.float64)), Passes(source, run))
    values = found["explained_variance"]
    if (rank := int(np.count_nonzero(values))) < n_components:
        raise DataError(
            f"{source.name} varies in {rank} directions only, but {n_components} components were requested: request "
            f"fewer"
        )
    return Reference(source, "dual", found["components"], found["mean"], values, float(found["total_variance"]))
