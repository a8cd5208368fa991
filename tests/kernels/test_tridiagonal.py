"""Eigenpairs by a tridiagonal matrix, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.kernels.algebra.tridiagonal import Tridiagonal


@pytest.mark.parametrize(("n", "m"), [(2, 1), (3, 3), (40, 0), (65, 7), (130, 130), (257, 20)])
def test_values_and_vectors_are_those_of_numpy(n: int, m: int) -> None:
    x = np.random.default_rng(n).normal(size=(n, n + 3))
    gram = x @ x.T
    kept = gram.copy()
    reduced = Tridiagonal(gram)
    values, vectors = np.linalg.eigh(kept)
    np.testing.assert_array_equal(gram, kept)
    np.testing.assert_allclose(reduced.values(), values, rtol=0, atol=1e-12 * values[-1])
    found = reduced.vectors(m)
    assert found.shape == (n, m)
    np.testing.assert_allclose(np.abs((found * vectors[:, n - m :]).sum(axis=0)), 1, rtol=1e-9)


@pytest.mark.parametrize(("common", "m"), [(1e-11, 210), (1e-14, 100)])
def test_many_nearly_equal_values(common: float, m: int) -> None:
    """Matrices of Wilkinson with little in common, on which LAPACK's fastest method fails."""
    one = np.diag(np.abs(np.arange(21) - 10.0)) + np.diag(np.ones(20), 1) + np.diag(np.ones(20), -1)
    glued = np.kron(np.eye(10), one)
    for i in range(20, 200, 21):
        glued[i, i + 1] = glued[i + 1, i] = common
    vectors = Tridiagonal(glued).vectors(m)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(m), atol=1e-10)
    np.testing.assert_allclose(glued @ vectors, vectors * np.linalg.eigvalsh(glued)[-m:], atol=1e-10)
