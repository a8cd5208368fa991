"""The solver of `PCA` for few samples of any size: two passes over blocks of attributes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dpca.engine.folds.plan import PlanError
from dpca.engine.folds.rehearsal import rehearsal
from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.rounding import unit_roundoff
from dpca.kernels.algebra.types import Array
from dpca.models.base.attribute_blocks import attribute_blocks, gram_blocks, gram_of
from dpca.models.base.parameters import no_values
from dpca.models.base.passes import Passes
from dpca.models.cells.rank import ranks_by_threshold
from dpca.models.linear.component_store import MOST_BYTES, ComponentStore, folder_for
from dpca.models.linear.solver_problem import Found, SolverProblem
from dpca.models.linear.window_solver import WholeSamples
from dpca.partition.cells import CellGrid
from dpca.rules.base.rule import Rule
from dpca.rules.dual.components import DualComponents
from dpca.rules.dual.gram import product_dtype
from dpca.rules.dual.weights import dual_basis, dual_share, dual_weights, orthonormal_weights
from dpca.storage.errors import DataError
from dpca.storage.remote.memory import usable_bytes

# Components on disk are computed again if their products deviate from those of orthonormal rows by more roundings.
_ORTHONORMAL = 16


def dual(problem: SolverProblem, passes: Passes) -> Found:
    """Eigendecomposition of the Gram matrix (Arora 2015, section 6.1), then the components in one more pass.

    Both passes read blocks of attributes of all samples, so that no task holds a component.
    """
    samples = WholeSamples.of(passes.source)
    read = samples.passes(passes)
    gram, trace = samples.gram(gram_of(read, _gram_blocks(read, problem), problem.center), problem.center)
    products = product_dtype(read.source.shape[0], read.source.dtype)
    found = dual_weights(gram, problem.k, products)
    problem = replace(problem, k=_number_of(found, problem))
    for name in ("weights", "explained_variance", "errors"):
        found[name] = found[name][: problem.k]
    values = found["explained_variance"]
    if _on_disk(problem):
        if len(values) < problem.k < min(problem.n, problem.d):
            raise DataError(
                f"n_components is {problem.k}, but the samples have only {len(values)} directions with variance: use "
                f"at most that many"
            )
        components = _components_on_disk(found["weights"], samples, read, problem)
    else:
        components = _dual_components(found["weights"], samples, read, problem)
        values = np.concatenate([values, np.zeros(problem.k - len(values))])
    passes.count, passes.report = read.count, read.report
    # Rounding errors are relative to this variance.
    rounded = {} if trace is None else {"total_variance": np.asarray(2 * trace / (problem.n - 1))}
    bound = dual_share(
        found | rounded,
        float(components.pop("mean_square")),
        len(values),
        problem.d,
        problem.dtype,
        products=products,
        deviation=float(components.pop("deviation", 0.0)),
    )
    return {
        **components,
        "explained_variance": values,
        "total_variance": found["total_variance"],
        "captured_bound": np.asarray(bound),
    }


def plan_dual(problem: SolverProblem, passes: Passes) -> None:
    """Plan both passes.

    Raises
    ------
    PlanError
        If blocks of attributes, or the results in this process, do not fit into memory.
    """
    samples = WholeSamples.of(passes.source)
    read = samples.passes(passes)
    _gram_blocks(read, problem)
    k = 1 if problem.share is not None else problem.k
    rule = samples.rule(no_values((k, problem.n), np.float64), problem.dtype, problem.center)
    dual_blocks(rule, read, replace(problem, k=k))


def _number_of(found: Found, problem: SolverProblem) -> int:
    """Return the number of components: the fewest that explain a share of the variance, if that is requested."""
    if problem.share is None:
        return problem.k
    values, total = found["explained_variance"], np.atleast_1d(found["total_variance"])
    return max(1, int(ranks_by_threshold(values[None], total, problem.share, max_components=len(values))[0]))


def _on_disk(problem: SolverProblem) -> bool:
    """Return whether the components are written to a store: if they are large, or memory is small."""
    size = problem.d * problem.k * problem.dtype.itemsize
    # They are in memory twice while they become orthonormal, with the mean.
    return size > MOST_BYTES or 2 * size + 16 * problem.d > usable_bytes()


def _dual_components(weights: Array, samples: WholeSamples, passes: Passes, problem: SolverProblem) -> Found:
    """Return the components and the mean, from a pass over blocks of attributes."""
    rule = samples.rule(weights, problem.dtype, problem.center)
    grid = dual_blocks(rule, passes, problem)
    image, mean, inner = _joined(samples, rule, grid, passes, problem.dtype)
    components = dual_basis(image, problem.k, inner)
    return {"components": components, "mean": mean, "mean_square": np.asarray(mean @ mean)}


def dual_rows(weights: Array, passes: Passes, dtype: np.dtype[Any], *, center: bool) -> tuple[Array, Array]:
    """Return weights (k, n) times the samples, (k, d), and the mean (d,), from a pass by blocks of attributes.

    With ``center``, the samples are without their mean; otherwise the mean is 0.

    Raises
    ------
    PlanError
        If no blocks fit into the budget of a task, or the result does not fit into this process.
    """
    samples = WholeSamples(passes.source)
    rule = samples.rule(weights, dtype, center)
    grid = attribute_blocks(rule, passes, moved=16 * len(weights) if isinstance(rule, DualComponents) else 0)
    return _joined(samples, rule, grid, passes, dtype)[:2]


def _joined(
    samples: WholeSamples, rule: Rule, grid: CellGrid, passes: Passes, dtype: np.dtype[Any]
) -> tuple[Array, Array, Array]:
    """Return image (k, d), mean (d,) and inner products (k, k) from a pass of a rule over blocks of attributes."""
    results = passes.over(grid, rule)
    k = len(results[0]["image"])
    grid = samples.grid(grid)
    shape = (k, *grid.sample_shape)
    mean = grid.join(((i, part["mean"][None, None]) for i, part in enumerate(results)), np.empty((1, *shape[1:])))
    # Results are freed one by one.
    parts = ((i, part.pop("image")[None]) for i, part in enumerate(results))
    image = np.empty(shape, dtype)
    image = grid.join(parts, image) if k else image
    return image.reshape(k, mean.size), mean.ravel(), np.sum([part["inner"] for part in results], axis=0)


def _components_on_disk(weights: Array, samples: WholeSamples, passes: Passes, problem: SolverProblem) -> Found:
    """Return the components and the mean in a store, from a pass over blocks of attributes.

    The largest weight of each component is positive, because no task knows its largest entry. If rounding errors of
    small eigenvalues require it, another pass makes the components orthonormal.
    """
    weights = linalg.fix_signs(weights.copy())
    for is_last in (False, True):
        rule = samples.rule(weights, problem.dtype, problem.center)
        grid = dual_blocks(rule, passes, problem)
        folder, owner = folder_for(passes.run, rule, grid, passes.source)
        store = ComponentStore(folder, samples.grid(grid), len(weights), problem.dtype)
        is_rehearsal = rehearsal() is not None
        if not is_rehearsal:
            store.create()
        parts = passes.over(grid, rule, writer=store)
        inner = np.sum([part["inner"] for part in parts], axis=0)
        deviation = float(np.abs(inner - np.eye(len(inner))).max())
        if is_last or is_rehearsal or deviation <= _ORTHONORMAL * unit_roundoff(problem.dtype):
            break
        store.remove()
        weights = orthonormal_weights(weights, inner)
    shape = (len(weights), problem.d)
    nothing = {"components": no_values(shape, problem.dtype), "mean": no_values(shape[1:], np.float64)}
    return {
        **(nothing if is_rehearsal else store.arrays(owner)),
        "mean_largest": np.max([part["mean_largest"] for part in parts]),
        "mean_square": np.sum([part["mean_square"] for part in parts]),
        "deviation": np.asarray(deviation),
    }


def _gram_blocks(passes: Passes, problem: SolverProblem) -> CellGrid:
    """Return the blocks of attributes of the first pass, see `gram_blocks`."""
    try:
        return gram_blocks(passes, problem.center, problem.k)
    except PlanError as error:
        raise _refused(passes, problem) from error


def dual_blocks(rule: Rule, passes: Passes, problem: SolverProblem) -> CellGrid:
    """Return the blocks of attributes of the second pass, see `attribute_blocks`.

    Raises
    ------
    PlanError
        If no blocks fit into the budget of a task, or their results do not fit into this process.
    """
    shape = tuple(passes.source.shape[1:])
    writer = ComponentStore("", CellGrid(shape, shape), problem.k, problem.dtype) if _on_disk(problem) else None
    # The sums of a batch are read and written.
    moved = 16 * len(rule.weights) if isinstance(rule, DualComponents) else 0
    try:
        return attribute_blocks(rule, passes, writer=writer, moved=moved)
    except PlanError as error:
        raise _refused(passes, problem) from error


def _refused(passes: Passes, problem: SolverProblem) -> PlanError:
    return PlanError(
        f"the dual form of {problem.n:,} samples does not fit into {passes.budget / 1e6:,.0f} MB, the memory budget of "
        f"a task, even in small blocks of attributes: increase memory_budget, or use solver='randomized'"
    )
