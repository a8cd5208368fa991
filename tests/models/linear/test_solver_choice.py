"""The ladder of solvers, rung by rung."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca import PCA
from dpca.engine.folds.plan import PlanError
from dpca.models.linear import pca_solvers
from dpca.models.linear.pca_solvers import LARGEST_MATRIX, SOLVERS, choose_solver, matrix_bytes

GIB = 2**30


@pytest.mark.parametrize(
    ("n", "d", "k", "budget", "solver", "words"),
    [
        (60_000, 784, 50, 4 * GIB, "covariance", "784 x 784"),
        (100, 300, 5, 4 * GIB, "covariance", "300 x 300"),
        (1_000, 187_500, 50, 4 * GIB, "dual", "Gram matrix of the samples is 1,000 x 1,000"),
        (LARGEST_MATRIX, 187_500, 50, 4 * GIB, "dual", "at most 4,096"),
        (LARGEST_MATRIX + 1, 187_500, 50, 4 * GIB, "randomized", "more than 4,096"),
        (3_000_000, 196_608, 50, 4 * GIB, "randomized", "requires 620,718 MB"),
        (100_000, LARGEST_MATRIX, 50, 4 * GIB, "covariance", "at most"),
        (100_000, LARGEST_MATRIX, 50, GIB // 8, "randomized", "more than the memory budget"),
        (100_000, 6_000, 50, 4 * GIB, "randomized", "only 50 components"),
        (100_000, 6_000, 5_000, 4 * GIB, "covariance", "5,000 of 6,000 components"),
        (5_000, 187_500, 4_000, 4 * GIB, "dual", "4,000 of 5,000 components"),
        (5_000, 187_500, 4_000, GIB // 8, "randomized", "memory budget"),
    ],
)
def test_the_ladder(n: int, d: int, k: int, budget: int, solver: str, words: str) -> None:
    found, reason = choose_solver(n, d, k, budget)
    assert found == solver
    assert words in reason


def test_least_components_are_the_covariance_s() -> None:
    assert choose_solver(10, 10**6, 5, GIB, n_least=2)[0] == "covariance"


@given(n=st.integers(2, 10**7), d=st.integers(1, 10**7), share=st.floats(0, 1), budget=st.integers(10**6, 10**12))
def test_an_exact_solver_is_chosen_only_where_it_fits(n: int, d: int, share: float, budget: int) -> None:
    k = max(1, int(share * min(n, d)))
    solver, reason = choose_solver(n, d, k, budget)
    assert solver in SOLVERS
    if solver != "randomized":
        assert matrix_bytes(solver, n if solver == "dual" else d, k) <= budget
    assert "\n" not in reason


def test_the_gram_matrix_replaces_a_basis_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix of 200 samples counts as large here, so that the choice is quick to try."""
    monkeypatch.setattr(pca_solvers, "LARGEST_MATRIX", 100)
    rng = np.random.default_rng(0)
    x = (9 * rng.normal(size=(200, 40)) @ rng.normal(size=(40, 30_000)) + rng.normal(size=(200, 30_000))).astype("f4")
    for budget, solver in ((2**30, "randomized"), (36 * 2**20, "dual")):
        model = PCA(40, memory_budget=budget, random_state=0).fit(x)
        assert model.solver_ == solver
        assert ("50 rows" in model.solver_reason_) is (solver == "dual")
    values = np.linalg.svd(x - x.mean(axis=0, dtype=float), compute_uv=False)
    np.testing.assert_allclose(model.explained_variance_, values[:40] ** 2 / 199, rtol=1e-5)
    with pytest.raises(PlanError, match="allow"):
        PCA(40, solver="randomized", memory_budget=36 * 2**20).fit(x)
    with pytest.raises(PlanError, match="allow"):
        PCA(40, memory_budget=25 * 2**20).fit(x)
