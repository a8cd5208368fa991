"""Components that places share, against the average of the places' covariances."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.rules.base.state import State
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.rules.covariance.pooled_covariance import PooledBlocks, PooledCovariancePCA

pytestmark = pytest.mark.usefixtures("products")


def fold(rule: PooledCovariancePCA, batches: Sequence[np.ndarray]) -> State:
    state = rule.init(batches[0].shape[1], batches[0].dtype)
    for batch in batches:
        state = rule.update(state, batch)
    return state


def within(x: np.ndarray, groups: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Average covariance of each group's places, one place after the other."""
    wide, start, found = x.astype(np.float64), 0, []
    for n_places, d in groups:
        covariances = [np.cov(wide[:, start + p * d : start + (p + 1) * d], rowvar=False) for p in range(n_places)]
        found.append(np.mean(covariances, axis=0).reshape(d, d))
        start += n_places * d
    return found


def covariance_of(found: dict[str, np.ndarray]) -> np.ndarray:
    """What all components and their variances put together again."""
    rows: np.ndarray = found["components"]
    return (rows.T * found["explained_variance"]) @ rows


def test_two_places_by_hand() -> None:
    """Places vary along (1, 1) and along (1, -1), the second one twice as much; their means do not count."""
    x = np.array([[1, 1, 50, 50], [3, 3, 46, 54]], np.uint8)
    rule = PooledCovariancePCA(None, ((2, 2),))
    (found,) = rule.unpack(rule.finish(fold(rule, [x])))
    np.testing.assert_array_equal(found["mean"], [[2, 2], [48, 52]])
    # ([[2, 2], [2, 2]] + [[8, -8], [-8, 8]]) / 2: eigenvalues 8 and 2, their sum half of 4 + 16.
    np.testing.assert_allclose(found["explained_variance"], [8, 2], rtol=1e-14)
    np.testing.assert_allclose(found["total_variance"], 10, rtol=1e-14)
    np.testing.assert_allclose(np.abs(found["components"]), np.sqrt(0.5), rtol=1e-14)


def test_sums_of_many_16_bit_values_of_one_batch() -> None:
    x = np.full((40_000, 2), 65_535, np.uint16)
    x[::2] -= 2
    rule = PooledCovariancePCA(1, ((2, 1),))
    (found,) = rule.unpack(rule.finish(fold(rule, [x])))
    np.testing.assert_array_equal(found["mean"], 65_534)
    np.testing.assert_allclose(found["explained_variance"], 40_000 / 39_999)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=4),
    st.sampled_from(
        [bool, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.float16, np.float32, np.float64, ">f8"]
    ),
    st.integers(2, 40),
    st.lists(st.integers(0, 40), max_size=3),
)
@settings(deadline=None, max_examples=60)
def test_every_dtype_in_any_batches_and_merges(
    groups: list[tuple[int, int]], dtype: type, n: int, cuts: list[int]
) -> None:
    d = sum(places * size for places, size in groups)
    values = np.random.default_rng(n + d).normal(40, 25, (n, d)) + np.arange(d)
    x = values > 50 if dtype is bool else values.astype(dtype)
    rule = PooledCovariancePCA(None, tuple(groups))
    parts = [x[a:b] for a, b in itertools.pairwise([0, *sorted(min(c, n) for c in cuts), n])]
    merged = rule.init(d, x.dtype)
    for part in parts:
        merged = rule.merge(merged, fold(rule, [part]))
    tolerance = 1e-10 if x.dtype.itemsize == 8 or dtype == np.int32 else 3e-6
    for state in (fold(rule, parts), merged):
        result = rule.finish(state)
        np.testing.assert_allclose(result["mean"], x.astype(float).mean(0), rtol=1e-6, atol=1e-6)
        for found, expected in zip(rule.unpack(result), within(x, groups), strict=True):
            scale = max(expected.diagonal().max(), 1e-3)
            np.testing.assert_allclose(covariance_of(found) / scale, expected / scale, atol=tolerance)
            assert found["total_variance"] == pytest.approx(np.trace(expected), rel=tolerance, abs=scale * tolerance)


@given(st.integers(2, 300), st.lists(st.integers(0, 300), max_size=4), st.sampled_from([np.uint8, np.int8, bool]))
@settings(deadline=None, max_examples=25)
def test_8_bit_samples_give_the_same_result_to_the_last_bit(n: int, cuts: list[int], dtype: type) -> None:
    groups = ((7, 5), (1, 3), (30, 2))
    low, high = (0, 1) if dtype is bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = np.random.default_rng(n).integers(low, high, (n, 98), endpoint=True).astype(dtype)
    rule = PooledCovariancePCA(2, groups)
    parts = [x[a:b] for a, b in itertools.pairwise([0, *sorted(min(c, n) for c in cuts), n])]
    states = [fold(rule, [part]) for part in parts]
    while len(states) > 1:
        states[-2:] = [rule.merge(states[-2], states[-1])]
    once, merged = rule.finish(fold(rule, [x])), rule.finish(states[0])
    for name, values in once.items():
        np.testing.assert_array_equal(merged[name], values)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_one_place_is_the_analysis_of_its_attributes(dtype: type) -> None:
    x = np.random.default_rng(0).integers(0, 256, (1500, 6)).astype(dtype)
    rule, plain = PooledCovariancePCA(3, ((1, 6),)), CovariancePCA(3)
    (found,) = rule.unpack(rule.finish(fold(rule, [x[:700], x[700:]])))
    expected = plain.finish(plain.update(plain.update(plain.init(6, dtype), x[:700]), x[700:]))
    for name, values in expected.items():
        tolerance = 0 if dtype is np.uint8 else 1e-5
        np.testing.assert_allclose(found[name].reshape(values.shape), values, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rows", [1, 3, 200, 1500])
def test_places_that_lie_far_apart_and_drift_each_its_own_way(rows: int) -> None:
    """Products about any common point, or about where the first samples lay, would lose these variances in float32."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3000, 4, 5)) * np.array([1, 1, 2, 3, 5])
    x += 10_000 * np.arange(4)[:, None]
    x[rows:] += rng.normal(0, 20_000, (4, 5))
    x = x.reshape(3000, 20).astype(np.float32)
    rule = PooledCovariancePCA(None, ((4, 5),))
    (found,) = rule.unpack(rule.finish(fold(rule, [x[i : i + rows] for i in range(0, 3000, rows)])))
    (expected,) = within(x, rule.groups)
    np.testing.assert_allclose(found["explained_variance"][::-1], np.linalg.eigvalsh(expected), rtol=3e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("n", [2, 5])
def test_more_places_than_one_product_has_rows(n: int, dtype: type) -> None:
    x = np.random.default_rng(2).integers(0, 256, (n, 20_000 * 3)).astype(dtype)
    rule = PooledCovariancePCA(None, ((20_000, 3),))
    a, b = fold(rule, [x[:1]]), fold(rule, [x[1:]])
    (found,) = rule.unpack(rule.finish(rule.merge(a, b)))
    y = x.reshape(n, -1, 3).astype(float)
    y -= y.mean(0)
    expected = np.einsum("npi,npj->ij", y, y) / (n - 1) / 20_000
    np.testing.assert_allclose(covariance_of(found), expected, rtol=1e-6, atol=1e-6 * expected.max())


@pytest.mark.parametrize("unit", [1e-38, 1e-26, 1e20, 3e37])
def test_units_whose_squares_float32_cannot_hold(unit: float) -> None:
    x = (np.random.default_rng(3).standard_normal((300, 6)) * unit).astype(np.float32)
    rule = PooledCovariancePCA(None, ((2, 3),))
    (found,) = rule.unpack(rule.finish(fold(rule, [x[:100], x[100:]])))
    (expected,) = within(x.astype(float) / unit, rule.groups)
    found["explained_variance"] /= unit**2
    np.testing.assert_allclose(covariance_of(found), expected, atol=3e-6)


def test_a_batch_is_left_as_it_was_and_a_merged_state_too() -> None:
    rule = PooledCovariancePCA(1, ((2, 3), (1, 2)))
    for dtype in (np.uint8, np.float32):
        x = np.arange(80, dtype=dtype).reshape(10, 8)
        x.flags.writeable = False
        b = fold(rule, [x[5:]])
        kept = b.copy()
        rule.merge(fold(rule, [x[:5]]), b)
        assert b.counts == kept.counts
        for name, values in kept.arrays.items():
            np.testing.assert_array_equal(b.arrays[name], values)


def test_what_makes_no_sense() -> None:
    for groups in ((), ((0, 3),), ((2, 0),)):
        with pytest.raises(ValueError, match="place"):
            PooledCovariancePCA(1, groups)
    rule = PooledCovariancePCA(1, ((2, 3),))
    with pytest.raises(ValueError, match=r"\b7\b"):
        rule.init(7, np.uint8)
    with pytest.raises(ValueError, match=r"\b2$"):
        rule.finish(fold(rule, [np.ones((1, 6), np.uint8)]))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
@pytest.mark.parametrize("split", [2, 5])
def test_blocks_of_places_add_up_to_all_places(dtype: type, split: int) -> None:
    """Seven places of 3 attributes and two of 2; the first block has some of the seven, in reverse, and one more."""
    x = np.random.default_rng(0).normal(1000, 30, (50, 25))
    x = (x + np.arange(25) * 200 + np.arange(50)[:, None]).astype(dtype)
    groups = ((7, 3), (2, 2))
    whole = PooledCovariancePCA(None, groups)
    expected = whole.finish(fold(whole, [x]))
    first, last = list(range(split))[::-1], list(range(split, 7))
    members = [[(0, first), (1, [1])], [(1, [0]), (0, last)]]
    blocks = PooledBlocks(tuple(tuple((len(at), groups[g][1]) for g, at in one) for one in members))
    state = whole.init(25, dtype)
    for part, places in enumerate(members):
        columns = [groups[g][1] * p + 21 * g + j for g, at in places for p in at for j in range(groups[g][1])]
        own = blocks.of_part(part).init(len(columns), dtype)
        for batch in (x[:20, columns], x[20:, columns]):
            own = blocks.update(own, np.ascontiguousarray(batch))
        assert own.nbytes == blocks.state_bytes(len(columns), dtype)
        whole.add_block(state, blocks.finish(own), places)
    found = whole.finish(state)
    for name, value in expected.items():
        if dtype in (np.uint8, np.int16):
            np.testing.assert_array_equal(found[name], value)
        else:
            tolerance = 1e-4 if dtype is np.float32 else 1e-9
            np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance)
