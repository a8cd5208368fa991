"""Inverses of many small symmetric matrices, against LAPACK and closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.kernels.gaps import unpaired
from dpca.kernels.symmetric import solve_and_invert
from dpca.rules.gaps.expectation import turned_pairs


@pytest.mark.parametrize(("k", "n"), [(1, 1), (1, 9), (2, 3), (3, 64), (7, 33), (20, 130)])
def test_inverses_and_solutions_are_those_of_lapack(k: int, n: int) -> None:
    rng = np.random.default_rng(k)
    factors = rng.standard_normal((n, k, 2 * k))
    matrices, vectors = factors @ factors.transpose(0, 2, 1), rng.standard_normal((n, k))
    triangles = matrices[:, *np.triu_indices(k)].T.copy()
    solved = vectors.T.copy()
    solve_and_invert(triangles, np.full(k, 1e-15), solved)
    np.testing.assert_allclose(unpaired(triangles.T, k), np.linalg.inv(matrices), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(solved.T, np.linalg.solve(matrices, vectors[..., None])[..., 0], rtol=1e-9, atol=1e-12)


def test_a_pivot_is_at_least_its_bound() -> None:
    # [[1, 1], [1, 1 + rounding error]] with a second pivot that is at least 1e-3: the factors are 1, 1 and 1e-3.
    triangles = np.array([[1.0], [1.0], [1 - 1e-16]])
    solved = np.array([[1.0], [0.0]])
    solve_and_invert(triangles, np.array([1e-6, 1e-3]), solved)
    np.testing.assert_allclose(triangles[:, 0], [1 + 1e3, -1e3, 1e3], rtol=1e-12)
    np.testing.assert_allclose(solved[:, 0], [1 + 1e3, -1e3], rtol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_upper_triangles_are_turned_as_their_matrices(k: int) -> None:
    rng = np.random.default_rng(k)
    turn, factor = np.linalg.qr(rng.standard_normal((k, k)))[0], rng.standard_normal((k, k))
    triangles = (factor @ factor.T)[np.triu_indices(k)]
    turned = turn @ factor @ factor.T @ turn.T
    np.testing.assert_allclose(turned_pairs(turn) @ triangles, turned[np.triu_indices(k)], atol=1e-12)
