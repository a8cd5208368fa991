"""The solvers of `PCA`, each made of a few passes of rules over the data, and the choice of a solver."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from dpca.engine.folds.plan import PlanError
from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array
from dpca.models.base.parameters import no_values
from dpca.models.base.passes import Passes
from dpca.models.linear.dual_solver import dual, plan_dual
from dpca.models.linear.solver_problem import Found, SolverProblem
from dpca.partition.whole import Whole
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.orthonormal import orthonormalize
from dpca.rules.base.state import State
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.rules.covariance.covariance_product import CovarianceProduct, Refinement
from dpca.rules.covariance.measured import half_step, measured_bound, next_iterate, rayleigh_ritz
from dpca.rules.covariance.power_iteration import PowerIteration
from dpca.rules.covariance.vr_pca import VRPCA
from dpca.rules.dual.gram import dual_bytes

# Largest number of samples of one step of VR-PCA. The root of all samples is also a limit: the rate is too large
# beyond it.
_MOST_ROWS = 256
#: Largest d of a covariance, or n of a Gram matrix, whose eigenproblem takes seconds.
LARGEST_MATRIX = 4096
# Up to this number of attributes the covariance is as cheap as the dual form for any number of samples.
_FEW_ATTRIBUTES = 512
# If more than this share of all components is requested, a complete eigenproblem is faster than iteration on a basis.
_SHARE = 0.25


def covariance(problem: SolverProblem, passes: Passes) -> Found:
    """Eigendecomposition of the covariance, one pass (Alakkari 2020, section 2.1; Arora 2015, section 5.1)."""
    precise = problem.dtype == np.float64
    rule = CovariancePCA(problem.k, n_least=problem.n_least, center=problem.center, precise=precise, certified=True)
    return passes(rule, result_so_far=lambda states: rule.finish(states[0]))


def randomized(problem: SolverProblem, passes: Passes) -> Found:
    """Range of C^(q + 1) on random vectors, then Rayleigh-Ritz (Halko, Martinsson & Tropp 2011, algorithm 4.4)."""
    rows, mean = problem.start(problem.q), _first_mean(problem, passes)
    for _ in range(problem.n_iter + 1):
        result_so_far = partial(_sketched, problem, CovarianceProduct(rows, mean, problem.center))
        found = passes(Refinement(rows, mean, problem.center), result_so_far=result_so_far)
        rows, mean = found["components"], found["mean"]
    return _ritz_pass(problem, passes, rows, mean)[0]


def orthogonal_iteration(problem: SolverProblem, passes: Passes) -> Found:
    """Orthogonal iteration with Rayleigh-Ritz from a random start (Arora 2015, section 5.3) to small residuals."""
    rows, mean = problem.start(problem.q), _first_mean(problem, passes)
    for turn in range(problem.n_iter):
        measured, ritz = _ritz_pass(problem, passes, rows, mean)
        if problem.error(ritz) <= problem.tol or turn + 1 == problem.n_iter:
            break
        passes.show(measured)
        rows, mean = next_iterate(ritz["product"], ritz["components"]).astype(problem.dtype), ritz["mean"]
    return measured


def power(problem: SolverProblem, passes: Passes) -> Found:
    """Power iteration with deflation (Arora 2015, section 5.2), at most ``n_iter`` passes for each component."""
    mean = _first_mean(problem, passes)
    found, variances = np.empty((0, problem.d)), np.empty(0)
    starts = problem.start(problem.k)
    for j in range(problem.k):
        row = starts[j : j + 1]
        for _ in range(problem.n_iter):
            rule = PowerIteration(row, mean, problem.center, found=found, variances=variances)
            step = passes(rule)
            row, mean, value = step["components"].astype(problem.dtype), step["mean"], step["explained_variance"]
            # The sum of all residuals, and hence the coupling, remains below tol of the captured variance.
            if step["residual_norms"][0] <= problem.tol / problem.k * (variances.sum() + value[0]):
                break
        found = orthonormalize(np.concatenate([found, row]))
        variances = np.append(variances, value)
    return _ritz_pass(problem, passes, found.astype(problem.dtype), mean)[0]


def vr_pca(problem: SolverProblem, passes: Passes) -> Found:
    """Variance-reduced PCA (Alakkari 2020, algorithm 2.1; Shamir 2016): a product and a stochastic pass per epoch."""
    rows, mean = problem.start(problem.k), _first_mean(problem, passes)
    size = min(math.isqrt(problem.n), _MOST_ROWS)
    for epoch in range(problem.n_iter + 1):
        measured, ritz = _ritz_pass(problem, passes, rows, mean)
        total = float(ritz["total_variance"])
        if problem.error(ritz) <= problem.tol or epoch == problem.n_iter or total == 0:
            break
        passes.show(measured)
        mean = ritz["mean"]
        share = (problem.n - 1) / problem.n
        rule = VRPCA(
            ritz["components"].astype(problem.dtype),
            (share * ritz["product"]).astype(problem.dtype),
            mean,
            # Shamir's rate for single samples, times the samples of a step: the same noise and progress per epoch.
            size / (share * total * math.sqrt(problem.n)),
        )
        rows = passes(InBatches(rule, size))["components"]
    return measured


Solver = Callable[[SolverProblem, Passes], Found]
SOLVERS: dict[str, Solver] = {
    "covariance": covariance,
    "dual": dual,
    "randomized": randomized,
    "orthogonal-iteration": orthogonal_iteration,
    "power": power,
    "vr-pca": vr_pca,
}
#: Default number of iterations of each iterative solver.
DEFAULT_ITERATIONS = {"randomized": 4, "orthogonal-iteration": 100, "power": 100, "vr-pca": 50}
#: Default tolerance of the error of the captured variance, as a share of it; a larger error gives a warning.
DEFAULT_TOLERANCE = {"randomized": 1e-2, "orthogonal-iteration": 1e-4, "power": 1e-4, "vr-pca": 1e-4}


def choose_solver(n: int, d: int, k: int, budget: int, *, dtype: str = "float32", n_least: int = 0) -> tuple[str, str]:
    """Return the solver for ``k`` components of ``n`` samples of ``d`` attributes, and the reason for its choice.

    The reason is stored with the model. It does not state the budget, which depends on the free memory. An exact
    solver is chosen if its matrix is small: "covariance" (one pass, d x d) or, for fewer samples than attributes,
    "dual" (n x n). It is also chosen if most components are requested and the matrix fits. Otherwise the solver is
    "randomized": for 6,000 samples in a local store it took .4 of the time of "dual" for 10 components, and .7 for 300.

    Parameters
    ----------
    n, d, k : int
    budget : int
        Bytes that one task may use.
    dtype : str
        Type of the samples.
    n_least : int
        Number of least components; they require "covariance".
    """
    if n_least:
        return "covariance", f"{n_least} least components were requested, and only the covariance has them"
    dual = n < d and d > _FEW_ATTRIBUTES
    solver, side = ("dual", n) if dual else ("covariance", d)
    name = "the Gram matrix of the samples" if dual else "the covariance"
    need = matrix_bytes(solver, side, k, dtype)
    size = f"{name} is {side:,} x {side:,}"
    if need > budget:
        return "randomized", f"{size} and requires {_mb(need)}, more than the memory budget of a task"
    if side <= LARGEST_MATRIX:
        return solver, f"{size}, at most {LARGEST_MATRIX:,}, and its {_mb(need)} fit into the budget of a task"
    if k > _SHARE * min(n, d):
        return solver, f"{k:,} of {min(n, d):,} components were requested, and {size}: its {_mb(need)} fit into a task"
    return "randomized", f"{size}, more than {LARGEST_MATRIX:,}, and only {k:,} components were requested"


def matrix_bytes(solver: str, side: int, k: int, dtype: str = "float32") -> int:
    """Return the bytes of the matrix of an exact solver and of its eigenproblem."""
    if solver == "dual":
        return dual_bytes(side, k, dtype) + 8 * (k * (side + 1) + 1)
    rule = CovariancePCA(k)
    return rule.state_bytes(side, dtype) + rule.work_bytes(1024, side, dtype) + rule.result_bytes(side, dtype)


def instead_of_basis(problem: SolverProblem, passes: Passes) -> str:
    """Return the reason for "dual" instead of "randomized" if only the Gram matrix fits into memory, else ""."""
    if problem.n >= problem.d:
        return ""
    try:
        plan_first_pass("randomized", problem, passes)
    except PlanError:
        try:
            plan_first_pass("dual", problem, passes)
        except PlanError:
            return ""
        return (
            f"the Gram matrix of the samples is {problem.n:,} x {problem.n:,} and fits into the budget of a task, but "
            f"a basis of {problem.q:,} rows of {problem.d:,} attributes does not"
        )
    return ""


def plan_first_pass(solver: str, problem: SolverProblem, passes: Passes) -> None:
    """Plan the pass of a solver with the largest memory.

    Raises
    ------
    PlanError
        If it does not fit into the budget.
    """
    if solver == "dual":
        plan_dual(problem, passes)
        return
    q = problem.k if solver in ("power", "vr-pca") else problem.q
    rows, mean = no_values((q, problem.d), problem.dtype), no_values((problem.d,), np.float64)
    exact = CovariancePCA(problem.k, n_least=problem.n_least, center=problem.center)
    passes.plan(Whole(tuple(passes.source.shape[1:])), exact if solver == "covariance" else problem.ritz(rows, mean))


def _first_mean(problem: SolverProblem, passes: Passes) -> Array:
    return passes.first_mean() if problem.center else np.zeros(problem.d)


def _ritz_pass(problem: SolverProblem, passes: Passes, rows: Array, mean: Array) -> tuple[Found, Found]:
    """Measure a basis in a pass, and return the requested components and the results of the rule."""
    rule = problem.ritz(rows, mean)
    ritz = passes(rule, result_so_far=lambda states: _measured(problem, rule.finish(states[0])))
    return _measured(problem, ritz), ritz


def _sketched(problem: SolverProblem, rule: CovarianceProduct, states: list[State]) -> Found:
    """Return the components in the range of a product with the covariance of the samples so far; see `refined`."""
    found = rule.finish(states[0])
    values, rows, product, _ = rayleigh_ritz(rule.components.astype(np.float64), found["product"])
    better, rows, _ = half_step(values, rows, product)
    dtype = rule.components.dtype
    return {
        "components": linalg.fix_signs(rows[: problem.k].astype(dtype)),
        "explained_variance": better[: problem.k],
        "mean": found["mean"],
        "total_variance": np.asarray(max(float(found["total_variance"]), float(values.sum()))),
    }


def _measured(problem: SolverProblem, ritz: Found) -> Found:
    """Return the requested components of a measured basis, with the bounds of their error."""
    k = problem.k
    values = ritz["explained_variance"][:k]
    return {
        "mean": ritz["mean"],
        "components": linalg.fix_signs(ritz["components"][:k].copy()),
        "explained_variance": values,
        "residual_norms": ritz["residual_norms"][:k],
        "total_variance": ritz["total_variance"],
        "captured_bound": np.asarray(measured_bound(ritz, k, problem.dtype)),
        "error": np.asarray(problem.error(ritz)),
    }


def _mb(n: int) -> str:
    return f"{n / 1e6:,.0f} MB"
