"""Orthonormal rows: orthonormal, of the same flag of subspaces, and never anything but finite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.rules.base.orthonormal import gram, orthonormalize

EPS = {np.float32: 5e-7, np.float64: 1e-14}


def defect(q: np.ndarray) -> float:
    exact = q.astype(float)
    return float(np.abs(exact @ exact.T - np.eye(len(q))).max())


def test_by_hand() -> None:
    q = orthonormalize(np.array([[3.0, 4.0, 0.0], [3.0, 4.0, 5.0]]))
    np.testing.assert_allclose(q, [[0.6, 0.8, 0], [0, 0, 1]], atol=1e-15)


@given(st.integers(1, 12), st.integers(0, 9000), st.sampled_from([np.float32, np.float64]), st.floats(0, 9))
@settings(deadline=None, max_examples=40)
def test_graded_and_dependent_rows(k: int, more: int, dtype: type, decades: float) -> None:
    """From independent to as good as dependent, on both sides of the switch to Householder."""
    rng = np.random.default_rng(k + more)
    common = rng.normal(size=(1, k + more))
    rows = (common + 10**-decades * rng.normal(size=(k, k + more))).astype(dtype)
    rows *= (10.0 ** rng.uniform(-9, 9, (k, 1))).astype(dtype)
    before = rows.copy()
    q = orthonormalize(rows)
    assert q.dtype == dtype
    assert q.shape == rows.shape
    assert defect(q) < EPS[dtype] * max(k, 4)
    # Every row lies in the span of the first ones: the factor is lower triangular, its diagonal positive.
    unit = rows.astype(float) / np.linalg.norm(rows.astype(float), axis=1, keepdims=True)
    factor = unit @ q.T.astype(float)
    assert np.abs(np.triu(factor, 1)).max() < 3 * EPS[dtype] * max(k, 4)
    assert factor.diagonal().min() > -EPS[dtype] * k
    np.testing.assert_allclose(factor @ q, unit, atol=10 * EPS[dtype] * k)
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zero_and_equal_rows_are_completed(dtype: type) -> None:
    rows = np.zeros((4, 6), dtype)
    rows[1:3, 2] = 5
    q = orthonormalize(rows)
    assert defect(q) < EPS[dtype]
    assert abs(q[1, 2]) == pytest.approx(1) or abs(q[0, 2]) == pytest.approx(1)
    assert defect(orthonormalize(np.zeros((6, 6), dtype))) < EPS[dtype]


def test_gram_of_float32_is_exact_in_float64() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 20_000)).astype(np.float32)
    exact = rows.astype(float)
    np.testing.assert_allclose(gram(rows), exact @ exact.T, atol=1e-10)
    np.testing.assert_allclose(gram(rows[:1], rows[1:]), exact[:1] @ exact[1:].T, atol=1e-10)
