"""The small eigenproblem, and bounds on the largest eigenvalues, against LAPACK."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpca.rules.incremental.truncation import iterated, largest, largest_sum, truncate


def with_eigenvalues(values: list[float] | np.ndarray, seed: int = 0) -> np.ndarray:
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))[0]
    return (turn * np.asarray(values)) @ turn.T


def test_the_leading_part_stays_and_the_largest_of_the_rest_are_counted() -> None:
    gram = with_eigenvalues([9, 7, 4, 3, 2, 1])
    found = truncate(gram, 2, n_counted=3, floor=0.0)
    np.testing.assert_allclose(found.values, [9, 7])
    np.testing.assert_allclose(gram @ found.vectors, found.vectors * [9, 7], atol=1e-12)
    np.testing.assert_allclose(found.discarded, 4 + 3 + 2)


def test_a_small_part_of_a_large_problem() -> None:
    """Only that part is computed, and it is the part of all eigenpairs."""
    values = np.linspace(0, 10, 600) ** 3
    gram = with_eigenvalues(values)
    found = truncate(gram, 20, n_counted=5, floor=0.0)
    np.testing.assert_allclose(found.values, values[::-1][:20])
    np.testing.assert_allclose(gram @ found.vectors, found.vectors * found.values, atol=1e-9)
    np.testing.assert_allclose(found.discarded, values[::-1][20:25].sum())
    np.testing.assert_allclose(found.largest, values[::-1][20])


@pytest.mark.parametrize("values", [np.zeros(600), np.ones(600), np.eye(600)[0], np.repeat([3.0, 1e-12], 300)])
def test_a_small_part_of_equal_eigenvalues(values: np.ndarray) -> None:
    gram = with_eigenvalues(values)
    found = truncate(gram, 50, n_counted=20, floor=1e-9)
    expected = np.sort(values)[::-1]
    kept = int((expected[:50] > 1e-9).sum())
    np.testing.assert_allclose(found.values, expected[:kept], atol=1e-12)
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(kept), atol=1e-12)
    np.testing.assert_allclose(gram @ found.vectors, found.vectors * found.values, atol=1e-12)
    np.testing.assert_allclose(found.discarded, expected[kept : kept + 20].sum(), atol=1e-9)


@pytest.mark.parametrize("scale", [1e-60, 1e9, 1e60])
@pytest.mark.parametrize(
    ("n", "q", "k"), [(600, 40, 15), (600, 40, 30), (600, 40, 40), (520, 130, 100), (1024, 110, 50)]
)
def test_iterations_find_the_leading_part_of_a_decaying_spectrum(n: int, q: int, k: int, scale: float) -> None:
    values = np.exp(-np.arange(n) / 15) * scale
    gram = with_eigenvalues(values)
    found = iterated(gram, q, n_counted=k)
    if k == q:  # no value is known to be less
        assert found is None
        return
    assert found is not None
    lost = values[:k].sum() - found.values[:k].sum()
    assert -1e-9 * values[0] <= lost <= 1e-6 * values[:k].sum()
    assert (np.diff(found.values) <= 0).all()
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(q), atol=1e-12)
    apart = np.eye(n) - found.vectors @ found.vectors.T
    rest = np.linalg.eigvalsh(apart @ gram @ apart)[::-1]
    assert rest[:k].sum() <= found.discarded * (1 + 1e-9)
    assert rest[0] <= found.largest * (1 + 1e-9)
    assert found.discarded <= 1.5 * rest[:k].sum() + 1e-6 * values[0]


def test_iterations_give_up_where_they_do_not_pay_or_converge() -> None:
    assert iterated(with_eigenvalues(np.exp(-np.arange(400) / 15)), 40, n_counted=15) is None  # fast at once
    assert iterated(with_eigenvalues(1 + np.exp(-np.arange(600) / 300)), 40, n_counted=15) is None
    assert iterated(np.zeros((600, 600)), 40, n_counted=15) is None
    assert iterated(np.eye(600), 40, n_counted=15) is None


def test_what_is_below_the_floor_is_given_up() -> None:
    found = truncate(np.diag([4.0, 3.0, 0.5, 0.25, 0.0]), 4, n_counted=2, floor=1.0)
    np.testing.assert_array_equal(found.values, [4, 3])
    assert found.vectors.shape == (5, 2)
    assert found.discarded == 0.75


@given(hnp.arrays(float, st.integers(1, 12), elements=st.floats(0, 1e3)), st.integers(0, 14), st.integers(0, 9))
@settings(deadline=None)
def test_the_bounds_on_the_largest_eigenvalues(values: np.ndarray, k: int, seed: int) -> None:
    gram = with_eigenvalues(values, seed)
    bound = largest_sum(gram, k)
    assert np.sort(values)[::-1][:k].sum() <= bound * (1 + 1e-6) + 1e-4
    assert bound <= values.sum() * (1 + 1e-12)
    assert values.max() <= largest(gram) * (1 + 1e-12) + 1e-9
    assert largest(gram) <= len(values) ** (1 / 8) * values.max() * (1 + 1e-5) + 1e-9


def test_the_bounds_are_exact_for_two_levels_and_for_one_direction() -> None:
    np.testing.assert_allclose(largest_sum(with_eigenvalues([5.0, 5, 1, 1, 1]), 2), 10)
    np.testing.assert_allclose(largest_sum(with_eigenvalues([0.5] * 100), 30), 15)
    np.testing.assert_allclose(largest(with_eigenvalues([3.0, 0, 0, 0])), 3, rtol=1e-6)
    assert largest(with_eigenvalues([3.0, 0, 0, 0])) >= 3


def test_bounds_of_numbers_whose_squares_overflow() -> None:
    """float64 samples of 1e100: the trace still bounds what was left out."""
    gram = np.diag([1e200, 2e200])
    with np.errstate(all="ignore"):
        assert largest_sum(gram, 1) == 3e200
