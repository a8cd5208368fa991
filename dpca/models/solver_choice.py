"""Which solver of `PCA` suits a stack: a pure function of shapes and memory."""

from __future__ import annotations

from dpca.rules.covariance import CovariancePCA
from dpca.rules.dual import dual_bytes

#: Largest d of a covariance, or n of a Gram matrix, whose eigenproblem takes seconds.
LARGEST_MATRIX = 4096
# Up to so many attributes the covariance is as cheap as the dual form, however few samples there are.
_FEW_ATTRIBUTES = 512
# Solvers that iterate on a basis lose to a whole eigenproblem when more than this share of all components is wanted.
_SHARE = 0.25


def choose_solver(n: int, d: int, k: int, budget: int, *, dtype: str = "float32", n_least: int = 0) -> tuple[str, str]:
    """Return the solver for ``k`` components of ``n`` samples of ``d`` attributes, and why, in a sentence.

    Exact solvers are chosen where their matrix is small: "covariance" (one pass, d x d) or, for fewer samples than
    attributes, "dual" (n x n); also where most components are wanted and the matrix fits. Otherwise "randomized".

    Parameters
    ----------
    n, d, k : int
    budget : int
        Bytes that one task may take.
    dtype : str
        Of the samples.
    n_least : int
        Least components wanted: only the covariance has them.
    """
    if n_least:
        return "covariance", f"{n_least} least components are wanted, which only the covariance gives"
    dual = n < d and d > _FEW_ATTRIBUTES
    solver, side = ("dual", n) if dual else ("covariance", d)
    name = "the Gram matrix of the samples" if dual else "the covariance"
    need = matrix_bytes(solver, side, k, dtype)
    size = f"{name} is {side:,} x {side:,}"
    if need > budget:
        return "randomized", f"{size} and needs {_mb(need)} where a task may take {_mb(budget)}"
    if side <= LARGEST_MATRIX:
        return solver, f"{size}, no more than {LARGEST_MATRIX:,}, and its {_mb(need)} fit the {_mb(budget)} of a task"
    if k > _SHARE * min(n, d):
        return solver, f"{k:,} components are most of {min(n, d):,}, and {size}: its {_mb(need)} fit {_mb(budget)}"
    return "randomized", f"{size}, more than {LARGEST_MATRIX:,}, of which only {k:,} components are wanted"


def matrix_bytes(solver: str, side: int, k: int, dtype: str = "float32") -> int:
    """Bytes of the matrix of an exact solver and of its eigenproblem."""
    if solver == "dual":
        return dual_bytes(side, 1024, k, dtype) + 8 * (k * (side + 1) + 1)
    rule = CovariancePCA(k)
    return rule.state_bytes(side, dtype) + rule.work_bytes(1024, side, dtype) + rule.result_bytes(side, dtype)


def _mb(n: int) -> str:
    return f"{n / 1e6:,.0f} MB"
