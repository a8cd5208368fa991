"""Running mean and variance against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.rules.covariance.moments import Moments


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.sampled_from([np.uint8, np.int16, np.float32, float]))
@settings(deadline=None, max_examples=40)
def test_any_batches_and_merges(sizes: list[int], dtype: type) -> None:
    rng = np.random.default_rng(sum(sizes))
    x = (rng.normal(100, 20, (sum(sizes) + 2, 3))).astype(dtype)
    rule = Moments()
    state = rule.update(rule.init(3, dtype), x[:2])
    start = 2
    for turn, size in enumerate(sizes):
        batch = x[start : start + size]
        start += size
        other = rule.update(rule.init(3, dtype), batch)
        state = rule.merge(state, other) if turn % 2 else rule.update(state, batch)
    found = rule.finish(state)
    np.testing.assert_allclose(found["mean"], x.astype(float).mean(0), rtol=1e-12)
    np.testing.assert_allclose(found["variance"], x.astype(float).var(0, ddof=1), rtol=1e-10, atol=1e-10)


def test_float32_pixels_do_not_lose_the_mean() -> None:
    """Summing these in float32 gives a mean that is off by gray levels."""
    x = np.tile(np.array([[180.0, 220.0]], np.float32), (200_000, 1))
    rule = Moments()
    state = rule.init(2, np.float32)
    for start in range(0, len(x), 50_000):
        state = rule.update(state, x[start : start + 50_000])
    found = rule.finish(state)
    np.testing.assert_array_equal(found["mean"], [180, 220])
    np.testing.assert_array_equal(found["variance"], [0, 0])


@pytest.mark.parametrize(("dtype", "most", "next_to_it"), [(np.uint8, 255, 254), (np.int8, -128, -127)])
def test_bytes_are_exact(dtype: type, most: int, next_to_it: int) -> None:
    """Sums of squares as large as they get, and one value in 512 that differs: integers tell."""
    x = np.full((512, 3), most, dtype)
    x[300, 1] = next_to_it
    x[::2, 2] = 0
    rule = Moments()
    found = rule.finish(rule.update(rule.init(3, dtype), x))
    for j, column in enumerate(x.T.tolist()):
        total, squares = sum(column), sum(value**2 for value in column)
        assert found["mean"][j] == total / 512
        assert found["variance"][j] == pytest.approx((512 * squares - total**2) / 512 / 511, rel=1e-14, abs=0)


def test_one_sample_is_refused() -> None:
    rule = Moments()
    with pytest.raises(ValueError, match=r"\b2\b"):
        rule.finish(rule.update(rule.init(2, float), np.ones((1, 2))))
