"""The small eigenproblem: the shortcut against LAPACK, and what it says of what it gives up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpca.rules import truncation
from dpca.rules.truncation import largest_sum, truncate


def settled(q: int, n_rows: int, weight: float, seed: int = 0) -> np.ndarray:
    """Gram matrix of a basis of falling energy and a batch that looks like it, with noise."""
    rng = np.random.default_rng(seed)
    energy = weight * 0.9 ** np.arange(q)
    rows = np.hstack([rng.normal(size=(n_rows, q)) * np.sqrt(energy / weight), 0.1 * rng.normal(size=(n_rows, 3 * q))])
    stack = np.vstack([np.hstack([np.diag(np.sqrt(energy)), np.zeros((q, 3 * q))]), rows])
    return stack @ stack.T


def test_the_shortcut_finds_the_leading_subspace(monkeypatch: pytest.MonkeyPatch) -> None:
    gram = settled(30, 50, 5_000.0)
    exact = np.linalg.eigvalsh(gram)[::-1]
    monkeypatch.setattr(truncation.scipy.linalg, "eigh", _only_small(truncation.scipy.linalg.eigh, 30))
    found = truncate(gram, 30, n_known=30, n_counted=10, floor=0.0)
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(30), atol=1e-11)
    np.testing.assert_allclose(found.vectors.T @ gram @ found.vectors, np.diag(found.values), atol=1e-9 * exact[0])
    np.testing.assert_allclose(found.values[:10], exact[:10], rtol=1e-7)
    assert exact[:30].sum() - found.values.sum() < 1e-3 * exact[30:].sum()
    assert exact[30:40].sum() <= found.discarded <= exact[30:].sum() * 1.001


def _only_small(eigh: object, n: int) -> object:
    def small(matrix: np.ndarray, **options: object) -> object:
        assert len(matrix) == n, "the whole problem was solved"
        return eigh(matrix, **options)  # type: ignore[operator]

    return small


@pytest.mark.parametrize("gram", [settled(30, 50, 1.0), np.diag(np.r_[np.ones(30), 9 * np.ones(5), np.zeros(45)])])
def test_what_has_not_settled_is_solved_exactly(gram: np.ndarray) -> None:
    exact = np.linalg.eigvalsh(gram)[::-1]
    found = truncate(gram, 30, n_known=30, n_counted=4, floor=0.0)
    np.testing.assert_allclose(found.values, exact[:30])
    np.testing.assert_allclose(found.discarded, exact[30:34].sum())


def test_what_is_below_the_floor_is_given_up() -> None:
    found = truncate(np.diag([4.0, 3.0, 0.5, 0.25, 0.0]), 4, n_known=0, n_counted=2, floor=1.0)
    np.testing.assert_array_equal(found.values, [4, 3])
    assert found.vectors.shape == (5, 2)
    assert found.discarded == 0.75


@given(hnp.arrays(float, st.integers(1, 12), elements=st.floats(0, 1e3)), st.integers(0, 14))
@settings(deadline=None)
def test_the_bound_on_the_largest_eigenvalues(values: np.ndarray, k: int) -> None:
    bound = largest_sum(values.sum(), (values**2).sum(), len(values), k)
    assert np.sort(values)[::-1][:k].sum() <= bound * (1 + 1e-6) + 1e-4
    assert bound <= values.sum()


def test_the_bound_is_exact_for_two_levels() -> None:
    np.testing.assert_allclose(largest_sum(2 * 5 + 3 * 1, 2 * 25 + 3 * 1, 5, 2), 10)
    np.testing.assert_allclose(largest_sum(50.0, 100 * 0.25, 100, 30), 15)
