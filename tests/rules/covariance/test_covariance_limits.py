"""Where covariances are easily wrong: order, offsets, units, memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

from dpca.kernels.algebra import linalg
from dpca.rules.base.state import State
from dpca.rules.covariance.covariance import BLOCK_ROWS, Covariance, CovariancePCA
from dpca.rules.covariance.moments import Moments


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """As in every task; BLAS threads beside a busy neighbor spin more than they compute."""
    with threadpool_limits(1, user_api="blas"):
        yield


DTYPES = [bool, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.float16, np.float32, np.float64, ">f8"]


def fold(rule: Any, batches: Sequence[np.ndarray]) -> State:
    state: State = rule.init(batches[0].shape[1], batches[0].dtype)
    for batch in batches:
        state = rule.update(state, batch)
    return state


def split(x: np.ndarray, cuts: Sequence[int]) -> list[np.ndarray]:
    edges = [0, *sorted(min(c, len(x)) for c in cuts), len(x)]
    return [x[a:b] for a, b in pairwise(edges)]


def content(result: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in result.items()}


def relative_error(found: np.ndarray, x: np.ndarray) -> float:
    """Largest error beside the standard deviations, in extended precision."""
    wide = x.astype(np.longdouble)
    centered = wide - wide.mean(axis=0)
    expected = centered.T @ centered / (len(x) - 1)
    deviations = np.sqrt(expected.diagonal())
    return float(np.max(np.abs(found - expected) / np.outer(deviations, deviations)))


@pytest.mark.usefixtures("products")
@given(
    st.sampled_from([np.uint8, np.int8, bool]),
    st.integers(2, 3 * BLOCK_ROWS),
    st.integers(1, 5),
    st.lists(st.integers(0, 3 * BLOCK_ROWS), max_size=5),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=40, derandomize=True)
def test_the_result_of_8_bit_samples_is_the_same_to_the_last_bit(
    dtype: type, n: int, d: int, cuts: list[int], random: Any
) -> None:
    """Any batches, empty ones too, merged in any tree: not only sums, the finished components are equal."""
    low, high = (0, 1) if dtype is bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = np.random.default_rng(n * d).integers(low, high, (n, d), endpoint=True).astype(dtype)
    rule = CovariancePCA(None)
    states = [fold(rule, [batch]) for batch in split(x, cuts)]
    while len(states) > 1:
        i = random.randrange(len(states) - 1)
        states[i : i + 2] = [rule.merge(states[i], states[i + 1])]
    assert content(rule.finish(states[0])) == content(rule.finish(fold(rule, [x])))


@given(
    st.sampled_from(DTYPES),
    st.integers(2, 70),
    st.integers(1, 6),
    st.lists(st.integers(0, 70), max_size=5),
    st.booleans(),
)
@settings(deadline=None, max_examples=40, derandomize=True)
def test_every_dtype_in_any_batches_and_merges(dtype: Any, n: int, d: int, cuts: list[int], backwards: bool) -> None:
    rng = np.random.default_rng(n + d)
    values = rng.normal(40, 25, (n, d))
    x = values > 40 if dtype is bool else values.astype(dtype)
    x[0] = 1 - x[-1] if dtype is bool else x[-1] + x.dtype.type(3)  # no attribute is constant
    rule, moments = Covariance(), Moments()
    parts = split(x, cuts)[:: -1 if backwards else 1]
    states = [(fold(rule, [part]), fold(moments, [part])) for part in parts]
    covariance, mean = rule.init(d, x.dtype), moments.init(d, x.dtype)
    for a, b in states:
        covariance, mean = rule.merge(covariance, a), moments.merge(mean, b)
    chained, merged, means = rule.finish(fold(rule, parts)), rule.finish(covariance), moments.finish(mean)
    tolerance = 1e-11 if x.dtype.itemsize == 8 or dtype == np.int32 else 2e-6
    for found in (chained, merged):
        assert relative_error(found["covariance"], x) < tolerance
        np.testing.assert_array_equal(found["covariance"], found["covariance"].T)
        np.testing.assert_allclose(found["mean"], x.astype(float).mean(0), rtol=1e-6, atol=1e-6)
    wide = x.astype(float)
    np.testing.assert_allclose(means["mean"], wide.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(means["variance"], wide.var(0, ddof=1), rtol=1e-10)


@pytest.mark.parametrize("d", [3, 600])
def test_merging_neither_changes_the_second_state_nor_loses_an_empty_one(d: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(1000, 1, (90, d)).astype(np.float32)
    x[40:] += 77
    rule = Covariance()
    b = fold(rule, [x[40:]])
    kept = {name: array.copy() for name, array in b.arrays.items()}
    empty = rule.init(d, x.dtype)
    merged = rule.merge(rule.merge(empty, fold(rule, [x[:40]])), b)
    assert merged is empty  # its buffers are reused
    merged = rule.merge(merged, rule.init(d, x.dtype))
    for name, array in b.arrays.items():
        np.testing.assert_array_equal(np.tril(np.atleast_2d(array)), np.tril(np.atleast_2d(kept[name])))
    assert b.counts == {"n_samples": 50}
    assert merged.counts == {"n_samples": 90}
    assert relative_error(rule.finish(merged)["covariance"], x) < 1e-6


def test_a_batch_is_left_as_it_was() -> None:
    for dtype in (np.uint8, np.float32, np.float64):
        x = np.arange(30, dtype=dtype).reshape(10, 3)
        x.flags.writeable = False
        fold(CovariancePCA(2), [x[:4], x[4:]])
        fold(Moments(), [x])


@pytest.mark.parametrize("rows", [1, 50, 1024, 1500])
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_a_first_batch_unlike_all_others_does_not_spoil_the_small_variances(rows: int, dtype: type) -> None:
    """Images come sorted: products around the mean of the first batch alone would lose these to rounding."""
    rng = np.random.default_rng(1)
    x = 1000 + 5 * rng.standard_normal((6000, 6)) * np.array([1, 1, 1, 1, 4, 9])
    x[rows:] += 20_000
    x = x.astype(dtype)
    found = Covariance().finish(fold(Covariance(), [x[i : i + rows] for i in range(0, len(x), rows)]))
    expected = np.cov(x.astype(float), rowvar=False)
    np.testing.assert_allclose(np.linalg.eigvalsh(found["covariance"]), np.linalg.eigvalsh(expected), rtol=2e-5)


@pytest.mark.parametrize("unit", [1e-38, 1e-26, 1e-12, 1e15, 1e20, 3e37])
@pytest.mark.parametrize("d", [5, 600])
def test_units_whose_squares_float32_cannot_hold(unit: float, d: int) -> None:
    """Fluxes of 1e-26 and densities of 1e20 are stored as float32 every day."""
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((300, d)) * unit).astype(np.float32)
    rule = Covariance()
    a, b = fold(rule, [x[:100], x[100:150]]), fold(rule, [x[150:]])
    found = rule.finish(rule.merge(a, b))["covariance"] / unit**2
    np.testing.assert_allclose(found, np.cov(x.astype(float) / unit, rowvar=False), atol=3e-6)


def test_what_float64_cannot_hold_is_refused() -> None:
    x = np.random.default_rng(0).standard_normal((20, 3)) * 1e200
    with pytest.raises(ValueError, match="divide"):
        Covariance().finish(fold(Covariance(), [x[:9], x[9:]]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_constant_has_no_variance_at_all(dtype: Any) -> None:
    x = np.full((2000, 4), 1, np.dtype(dtype)) if dtype is bool else np.full((2000, 4), 101.7).astype(dtype)
    found = CovariancePCA(2).finish(fold(CovariancePCA(2), [x[:3], x[3:1100], x[1100:]]))
    assert found["total_variance"] == 0
    np.testing.assert_array_equal(found["explained_variance"], 0)
    np.testing.assert_allclose(found["components"] @ found["components"].T, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(found["mean"], float(x[0, 0]), rtol=1e-15)


def test_float64_stays_float64() -> None:
    """Float32 products would show in the eighth digit."""
    x = 1e6 + np.random.default_rng(3).normal(size=(400, 5))
    assert relative_error(Covariance().finish(fold(Covariance(), [x[:150], x[150:]]))["covariance"], x) < 1e-13


@pytest.mark.parametrize("n", [2, 3, 30])
def test_fewer_samples_than_components(n: int) -> None:
    x = np.random.default_rng(4).integers(0, 256, (n, 40), dtype=np.uint8)
    found = CovariancePCA(None).finish(fold(CovariancePCA(None), [x]))
    reference = PCA(n - 1, svd_solver="full").fit(x.astype(float))
    np.testing.assert_allclose(found["explained_variance"][: n - 1], reference.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(found["explained_variance"][n - 1 :], 0, atol=1e-9)
    np.testing.assert_allclose(found["components"] @ found["components"].T, np.eye(40), atol=1e-12)
    assert found["total_variance"] == pytest.approx(x.astype(float).var(0, ddof=1).sum(), rel=1e-12)


def test_the_same_few_samples_again_and_again() -> None:
    """Rank 2, and 50 components asked for."""
    base = np.random.default_rng(5).integers(0, 256, (3, 300), dtype=np.uint8)
    x = base[np.arange(400) % 3]
    found = CovariancePCA(50).finish(fold(CovariancePCA(50), [x]))
    np.testing.assert_allclose(found["components"] @ found["components"].T, np.eye(50), atol=1e-9)
    assert found["explained_variance"][:2].sum() == pytest.approx(float(found["total_variance"]), rel=1e-12)


@pytest.mark.parametrize(
    ("rule", "d"),
    [(CovariancePCA(20), 300), (CovariancePCA(None), 300), (CovariancePCA(200), 401), (CovariancePCA(9), 700)],
)
@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_covariances_take_no_more_memory_than_they_say(rule: CovariancePCA, d: int, dtype: type) -> None:
    x = np.random.default_rng(6).integers(0, 256, (1500, d)).astype(dtype)
    x[700:] //= 2
    linalg.release_scratch()
    tracemalloc.start()
    state = rule.init(d, x.dtype)
    for start in range(0, 1500, 500):
        state = rule.update(state, x[start : start + 500])
    states = state.nbytes
    result = rule.finish(state)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    linalg.release_scratch()
    assert states == rule.state_bytes(d, x.dtype)
    assert sum(array.nbytes for array in result.values()) == rule.result_bytes(d, x.dtype)
    promised = rule.state_bytes(d, x.dtype) + rule.work_bytes(500, d, x.dtype) + rule.result_bytes(d, x.dtype)
    assert peak <= promised + 300_000
    assert promised < 4 * peak


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_moments_take_no_more_memory_than_they_say(dtype: type) -> None:
    rule, x = Moments(), np.ones((2000, 500), dtype)
    tracemalloc.start()
    state = rule.update(rule.init(500, x.dtype), x)
    result = rule.finish(state)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert state.nbytes == rule.state_bytes(500, x.dtype)
    assert sum(array.nbytes for array in result.values()) == rule.result_bytes(500, x.dtype)
    assert peak <= rule.state_bytes(500, x.dtype) + rule.work_bytes(2000, 500, x.dtype) + 2_000_000


def test_merging_large_states_takes_no_third_matrix() -> None:
    """The planner counts the two states and their result; temporaries of the same size would come on top."""
    rule, d = Covariance(), 700
    rng = np.random.default_rng(7)
    a, b = (fold(rule, [rng.normal(mean, 1, (5, d)).astype(np.float32)]) for mean in (0, 50))
    tracemalloc.start()
    rule.merge(a, b)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.3 * 8 * d * d
