"""The methods of `KernelPCA`: each finds components in the span of landmarks of a source."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.joined import JoinedSource
from dpca.engine.sources.sampling import chosen_samples
from dpca.engine.sources.source import Source, as_source
from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array
from dpca.kernels.inner_products import Kernel, KernelMap
from dpca.models.base.parameters import no_values
from dpca.models.base.passes import Passes
from dpca.models.kernel.landmarks import (
    HELD_OUT,
    OUT_OF_RANGE,
    chosen_of,
    default_gamma,
    draw,
    gamma_of,
    pool_size,
)
from dpca.models.kernel.large_samples import StoredLandmarks, inner_products, planned_blocks
from dpca.models.linear.weighted import require_sum
from dpca.partition.cells import CellGrid
from dpca.partition.whole import Whole
from dpca.rules.base.state import State
from dpca.rules.covariance.covariance import Covariance
from dpca.rules.kernel.gains import Gains
from dpca.rules.kernel.kernel_covariance import KernelComponents, degree_weights, degrees, likely_share
from dpca.storage.errors import DataError

# Limits of rounding errors, relative to the largest entry or eigenvalue: the asymmetry of a kernel matrix, and negative
# eigenvalues of the kernels of landmarks.
_ASYMMETRY, _NEGATIVE = 1e-5, 1e-4
# Limit of the rounding error of kernels, relative to their variation: eigenvalues then have two digits.
_ROUNDED = 1e-3
# Rounding error of float64, not of float32.
_PRECISE = 1e-10

#: The choice of all samples as landmarks.
ALL_SAMPLES = "all"


@dataclass(frozen=True)
class KernelProblem:
    """The parameters of a fit, checked against the data."""

    k: int
    n_landmarks: int
    kernel: str
    gamma: float | None
    """None for the default."""
    degree: int
    coef0: float
    landmarks: str | Array
    """The method of choice, or the landmarks (m, d)."""
    dtype: np.dtype[Any]
    """The dtype of the landmarks."""
    seed: int
    center: bool = True
    gains: Gains | None = None
    """The gains of Hebbian steps; None for KHA/et* with a tuned first step."""
    n_passes: int = 1

    def kernel_on(self, x: Array, weights: Array | None = None) -> Kernel:
        """Return the kernel; the default of gamma is computed from the rows."""
        default = self.gamma is None and self.kernel in ("rbf", "poly")
        gamma = default_gamma(x, weights=weights) if default else float(self.gamma or 1)
        return Kernel(self.kernel, gamma, self.degree, self.coef0)

    def landmarks_of(self, pool: Array, rng: np.random.Generator, weights: Array | None = None) -> KernelMap:
        """Return the map to the given landmarks, or to landmarks chosen from a pool (n, d).

        Weights (n,) of the pool change only the default of gamma.
        """
        kernel = self.kernel_on(pool, weights)
        if not isinstance(self.landmarks, str):
            return KernelMap(kernel, self.landmarks)
        return KernelMap(kernel, chosen_of(pool, kernel, self.landmarks, self.n_landmarks, rng))

    def rule(self, to_landmarks: KernelMap, held_out: Array | None = None) -> KernelComponents:
        """Return the rule that finds the components in the span of landmarks."""
        return KernelComponents(Covariance(center=self.center), to_landmarks, self.k, held_out=held_out)


class Found(NamedTuple):
    """The map to the landmarks, the results of `KernelComponents`, and landmarks that stay in their source.

    Weights (n,) are those of the landmarks if these are the samples of the fit.
    """

    to_landmarks: KernelMap
    results: dict[str, Array]
    stored: StoredLandmarks | None = None
    weights: Array | None = None


def nystrom(problem: KernelProblem, passes: Passes) -> Found:
    """Fold the kernels with landmarks in one pass, after the landmarks are chosen."""
    to_landmarks, rng = choose_landmarks(problem, passes)
    # A random sample is one of samples without weights.
    held_out = draw(passes.source, HELD_OUT, rng) if passes.source.weights is None else None
    return fold_kernels(problem, passes, to_landmarks, held_out)


def by_degrees(problem: KernelProblem, passes: Passes) -> Found:
    """Find components of the kernels divided by the square roots of the degrees, which take an additional pass."""
    to_landmarks, _ = choose_landmarks(problem, passes)
    source = with_weights(passes.source)
    rule = degrees(to_landmarks, weighted=source is not passes.source)
    (found,) = passes.over(Whole(tuple(source.shape[1:])), rule, source=source)
    weights = degree_weights(to_landmarks, found["mean"], source.shape[0])
    to_landmarks = replace(to_landmarks, degrees=weights)
    return fold_kernels(problem, passes, to_landmarks)


def fold_kernels(
    problem: KernelProblem, passes: Passes, to_landmarks: KernelMap, held_out: Array | None = None
) -> Found:
    """Find the components in the span of landmarks, in one pass."""
    source = with_weights(passes.source)
    rule = replace(problem.rule(to_landmarks, held_out), weighted=source is not passes.source)
    of_samples = isinstance(problem.landmarks, str) and problem.landmarks == ALL_SAMPLES
    weights = passes.source.weights if of_samples else None

    def found(states: list[State]) -> Found:
        return Found(to_landmarks, rule.finish(states[0]), weights=weights)

    (results,) = passes.over(Whole(tuple(source.shape[1:])), rule, source=source, result_so_far=found)
    return Found(to_landmarks, results, weights=weights)


def with_weights(source: Source) -> Source:
    """Return a source with the weights of its samples as a last attribute, or as it is if it has none."""
    if source.weights is None:
        return source
    require_sum(np.asarray(source.weights))
    return JoinedSource(source, as_source(np.asarray(source.weights)[:, None]))


def choose_landmarks(problem: KernelProblem, passes: Passes) -> tuple[KernelMap, np.random.Generator]:
    """Plan the pass, then choose landmarks; return these and the random generator."""
    plan(problem, passes)
    source, rng = passes.source, np.random.default_rng(problem.seed)
    pool = draw(
        with_weights(source), pool_size(source, problem.n_landmarks, problem.dtype.itemsize, passes.budget), rng
    )
    if source.weights is None:
        return problem.landmarks_of(pool, rng), rng
    return problem.landmarks_of(pool[:, :-1].astype(source.dtype), rng, pool[:, -1]), rng


def exact(problem: KernelProblem, passes: Passes) -> Found:
    """Fold the kernels with all samples in float64: exact kernel PCA.

    If all samples do not fit into a task, their kernels follow from inner products, see `of_large_samples`.
    """
    if problem.kernel == "precomputed" and passes.source.weights is not None:
        raise DataError("kernel='precomputed' requires whole numbers in sample_weight: round the weights")
    if (grid := plan_exact(problem, passes)) is not None:
        return of_large_samples(problem, passes, grid)
    x = chosen_samples(passes.source, np.arange(passes.source.shape[0]))
    x = x.reshape(len(x), -1).astype(np.float64)
    if problem.kernel == "precomputed":
        _check_kernels(x)
        x = (x + x.T) / 2
    to_landmarks = KernelMap(problem.kernel_on(x, passes.source.weights), x)
    return fold_kernels(problem, passes, to_landmarks)


def plan_exact(problem: KernelProblem, passes: Passes) -> CellGrid | None:
    """Plan the pass of `exact`: None if all samples fit into a task, else the blocks of attributes.

    Raises
    ------
    PlanError
        If neither fits into memory.
    """
    try:
        plan(problem, passes)
    except PlanError:
        if problem.kernel == "precomputed":
            raise
        if (grid := planned_blocks(passes, problem.kernel)) is None:
            raise
        return grid
    return None


def of_large_samples(problem: KernelProblem, passes: Passes, grid: CellGrid) -> Found:
    """Find the components from the kernel matrix, in one pass over blocks of attributes (Schölkopf et al. 1998).

    No task holds a sample. This process holds two matrices (n, n) and the eigensolver's. Costs n^2 d operations. With
    weights D, the eigenproblem is that of D^(1/2) K D^(1/2), with kernels K about the weighted mean.
    """
    given = passes.source.weights
    weights = np.ones(passes.source.shape[0]) if given is None else np.asarray(given)
    total_weight = float(weights.sum()) if given is None else require_sum(weights)
    kernels, precision = inner_products(passes, grid, problem.kernel)
    squares, n, d = kernels.diagonal().copy(), len(kernels), math.prod(passes.source.shape[1:])
    gamma = problem.gamma
    if gamma is None and problem.kernel in ("rbf", "poly"):
        # The sum of all variances; for inner products that are not centered, their mean is that of the mean.
        gamma = gamma_of(float(weights @ squares - weights @ kernels @ weights / total_weight) / (total_weight - 1))
    kernel = Kernel(problem.kernel, float(gamma or 1), problem.degree, problem.coef0)
    kernel.of_products(kernels, squares, squares)
    if problem.kernel == "rbf":
        np.fill_diagonal(kernels, 1)
    mean, trace = weights @ kernels / total_weight, float(weights @ kernels.diagonal())
    kernels -= mean[:, None]
    kernels -= mean - weights @ mean / total_weight
    roots = np.sqrt(weights)
    if given is not None:
        kernels *= roots[:, None]
        kernels *= roots
    total = float(kernels.trace())
    values, rows = linalg.leading_eigh(kernels, problem.k, precise=precision < _PRECISE)
    kept = values > float(np.finfo(np.float64).eps) * max(total, 0.0)
    values, vectors = values[kept], rows[kept].T
    coefficients, stored = roots[:, None] * vectors / np.sqrt(values), StoredLandmarks(passes.source, squares)
    rounding = precision * trace
    points = KernelMap(kernel, no_values((n, d), np.float64))
    results = {
        "eigenvalues": values,
        "coefficients": coefficients,
        "offset": mean @ coefficients,
        "mean_coefficients": weights / total_weight,
        "landmark_scores": vectors * np.sqrt(values) / roots[:, None],
        "total": np.asarray(total),
        "residual": np.asarray(0.0),
        "captured_bound": np.asarray(likely_share(float(values.sum()), 0.0, rounding, points)),
        "least": np.asarray(0.0),
        "rounding": np.asarray(rounding / total if total > 0 else 0.0),
    }
    lazy: Any = stored.rows()
    return Found(replace(points, points=lazy), results, stored, given)


def plan(problem: KernelProblem, passes: Passes) -> None:
    """Plan the pass without reading samples.

    Raises
    ------
    PlanError
        If the pass does not fit into memory. The message states the largest number of landmarks that does.
    """
    shape = tuple(passes.source.shape[1:])
    d = math.prod(shape)

    held_out = no_values((min(HELD_OUT, passes.source.shape[0]), d), passes.source.dtype)

    def plan_error(m: int) -> PlanError | None:
        points = KernelMap(Kernel(problem.kernel), no_values((m, d), problem.dtype))
        try:
            passes.plan(Whole(shape), problem.rule(points, held_out))
        except PlanError as error:
            return error
        return None

    if (error := plan_error(problem.n_landmarks)) is not None:
        fits = bisect_left(range(1, problem.n_landmarks), True, key=lambda m: plan_error(m) is not None)
        if fits < problem.k and problem.kernel != "precomputed" and planned_blocks(passes, problem.kernel) is not None:
            raise PlanError(
                f"{problem.k} landmarks of {d:,} attributes do not fit into the {passes.budget / 1e6:,.0f} MB of a "
                f"task: use method='exact', which reads blocks of attributes, or a larger memory_budget"
            ) from error
        if fits < problem.k:
            raise error
        raise PlanError(
            f"{problem.n_landmarks:,} landmarks do not fit into the {passes.budget / 1e6:,.0f} MB of a task: use "
            f"method='nystrom' with n_landmarks={fits}, which fits, or a larger memory_budget"
        ) from error


def check_found(results: dict[str, Array], k: int) -> None:
    """Check the results of `KernelComponents`.

    Raises
    ------
    DataError
        If the kernels are not positive semi-definite, results are not finite or lost to rounding, or there are fewer
        than k components.
    """
    if (least := float(results["least"])) < -_NEGATIVE:
        raise DataError(
            f"the kernel matrix has an eigenvalue of {least:.3g} times its largest: give a positive semi-definite "
            f"matrix, such as a matrix of inner products"
        )
    if not all(np.isfinite(array).all() for array in results.values()):
        raise DataError(OUT_OF_RANGE)
    if float(results["eigenvalues"][0]) > 0 and (rounded := float(results["rounding"])) > _ROUNDED:
        raise DataError(
            f"the rounding error is {rounded:.1e} times the variation of the kernels: subtract the mean of all "
            f"samples, or give samples in float64"
        )
    rank = int(np.count_nonzero(results["eigenvalues"] > float(np.finfo(np.float32).eps) * float(results["total"])))
    if rank < k:
        raise DataError(
            f"n_components is {k} but the samples vary along only {rank} directions of feature space: give at most "
            f"that many components, or samples that differ more"
        )


def _check_kernels(kernels: Array) -> None:
    largest = float(np.abs(kernels).max())
    if len(kernels) != kernels.shape[1]:
        raise DataError(f"the kernel matrix has shape {kernels.shape}: give a square matrix, (n_samples, n_samples)")
    if not float(np.abs(kernels - kernels.T).max()) <= _ASYMMETRY * largest:
        i, j = np.unravel_index(np.abs(kernels - kernels.T).argmax(), kernels.shape)
        raise DataError(
            f"the kernel matrix has {kernels[i, j]:g} at ({i}, {j}) and {kernels[j, i]:g} at ({j}, {i}): give a "
            f"symmetric matrix"
        )
