"""The running mean and scatter against numpy in float64, and what is returned against its definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.kernels.algebra.dtypes import working_dtype
from dpca.rules.base import centering
from dpca.rules.base.state import State


def fold(batches: list[np.ndarray], center: bool = True) -> tuple[State, list[np.ndarray]]:
    state = State.zeros(centering.layout(batches[0].shape[1]))
    taken = [centering.take(state, b, center, working_dtype(b.dtype)).copy() for b in batches]
    return state, taken


def test_two_batches_by_hand() -> None:
    state, (a, b) = fold([np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [5.0, 0.0]])])
    np.testing.assert_array_equal(state.arrays["mean"], [3, 2])
    assert state.arrays["scatter"] == 4 + 0 + 4 + 4 + 0 + 4
    np.testing.assert_array_equal(a, [[0, 0]])  # less the mean of the first sample alone
    np.testing.assert_array_equal(b, [[0, 2], [2, -2]])
    assert centering.total_variance(state) == 8
    assert state.counts == {"n_samples": 3}


@given(
    st.sampled_from([bool, np.uint8, np.int8, np.int16, np.uint16, np.int32, np.float16, np.float32, np.float64]),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=40)
def test_any_batches_of_any_dtype(dtype: type, lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(60, 25, (sum(lengths), 4)).clip(0, 120)
    x = values > 60 if dtype is bool else values.astype(dtype)
    edges = [0, *np.cumsum(lengths)]
    batches = [x[a:b] for a, b in itertools.pairwise(edges)]
    before = x.copy()
    state, taken = fold(batches)
    exact = x.astype(float)
    tolerance = 1e-12 if dtype in (np.float64, np.int32) else 2e-6
    np.testing.assert_allclose(state.arrays["mean"], exact.mean(0), rtol=tolerance)
    np.testing.assert_allclose(
        state.arrays["scatter"], ((exact - exact.mean(0)) ** 2).sum(), rtol=tolerance, atol=1e-4 * tolerance
    )
    for stop, batch, got in zip(edges[1:], batches, taken, strict=True):
        assert got.dtype == working_dtype(dtype)
        np.testing.assert_allclose(got, batch - exact[:stop].mean(0), atol=120 * tolerance)
    np.testing.assert_array_equal(x, before)


def test_the_mean_of_pixels_is_exact() -> None:
    x = np.random.default_rng(1).integers(0, 256, (5000, 7), dtype=np.uint8)
    state, _ = fold([x])
    np.testing.assert_array_equal(state.arrays["mean"], x.astype(np.int64).sum(0) / 5000)


@pytest.mark.parametrize("jump", [0.0, 3e4])
def test_a_large_mean_costs_neither_scatter_nor_samples(jump: float) -> None:
    """float32 holds 1e5 to 0.008: an offset of that size in all of 50 attributes would be a component of its own."""
    rng = np.random.default_rng(2)
    x = (1e5 + rng.normal(size=(4000, 50))).astype(np.float32)
    x[2000:] += np.float32(jump)
    state, taken = fold([x[i : i + 500] for i in range(0, 4000, 500)])
    exact = x.astype(float)
    np.testing.assert_allclose(state.arrays["mean"], exact.mean(0), rtol=1e-8, atol=2e-7 * jump)
    np.testing.assert_allclose(state.arrays["scatter"], ((exact - exact.mean(0)) ** 2).sum(), rtol=1e-6)
    error = taken[-1] - (exact[-500:] - exact.mean(0))
    assert np.abs(error.mean(0)).max() < 1e-5 + 1e-6 * jump


def test_without_centering() -> None:
    x = np.array([[3, 200], [1, 0]], np.uint8)
    state, (got,) = fold([x], center=False)
    np.testing.assert_array_equal(got, x)
    assert state.arrays["mean"].tolist() == [0, 0]
    assert state.arrays["scatter"] == 9 + 1 + 40_000


def test_a_constant_has_no_scatter() -> None:
    for value in (np.uint8(7), np.float32(0.1), 1e9):
        x = np.full((50, 3), value)
        state, taken = fold([x[:20], x[20:21], x[21:]])
        assert state.arrays["scatter"] == 0
        assert not np.any([t.any() for t in taken])
