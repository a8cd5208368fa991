"""The covariance rule against exact integer arithmetic, numpy and scikit-learn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.decomposition import PCA

from dpca.kernels.algebra.integers import center_of_range
from dpca.rules.base.state import State
from dpca.rules.covariance.covariance import BLOCK_ROWS, Covariance, CovariancePCA

pytestmark = pytest.mark.usefixtures("products")


def fold(rule: Covariance, batches: list[np.ndarray]) -> State:
    state = rule.init(batches[0].shape[1], batches[0].dtype)
    for batch in batches:
        state = rule.update(state, batch)
    return state


def exact_covariance(x: np.ndarray) -> np.ndarray:
    """In Python integers, rounded once at the end."""
    columns = [[int(v) for v in column] for column in x.T]
    n = len(x)
    sums = [sum(column) for column in columns]
    d = len(columns)
    result = np.empty((d, d))
    for i in range(d):
        for j in range(d):
            cross = sum(a * b for a, b in zip(columns[i], columns[j], strict=True))
            result[i, j] = (n * cross - sums[i] * sums[j]) / (n * (n - 1))
    return result


def test_two_attributes_by_hand() -> None:
    x = np.array([[1, 2], [3, 6], [5, 4]], np.uint8)
    found = Covariance().finish(fold(Covariance(), [x]))
    np.testing.assert_array_equal(found["mean"], [3, 4])
    np.testing.assert_array_equal(found["covariance"], [[4, 2], [2, 4]])


@given(
    st.sampled_from(["uint8", "uint16", "int16"]).flatmap(
        lambda dtype: hnp.arrays(dtype, st.tuples(st.integers(2, 40), st.integers(1, 6)))
    ),
    st.lists(st.integers(0, 40), max_size=4),
)
@settings(deadline=None, max_examples=120)
def test_integers_are_summed_exactly_in_any_batches(x: np.ndarray, cuts: list[int]) -> None:
    """The stated claim: not close, equal, however the samples come and are merged."""
    edges = [0, *sorted(min(c, len(x)) for c in cuts), len(x)]
    batches = [x[a:b] for a, b in itertools.pairwise(edges)]
    rule = Covariance()
    chained = fold(rule, batches)
    merged = rule.init(x.shape[1], x.dtype)
    for batch in batches:
        merged = rule.merge(merged, fold(rule, [batch]))
    exact = x.astype(np.int64) - center_of_range(x.dtype)
    for state in (chained, merged):
        assert state.counts["n_samples"] == len(x)
        np.testing.assert_array_equal(np.tril(state.arrays["cross"]), np.tril(exact.T @ exact))
        np.testing.assert_array_equal(state.arrays["sum"], exact.sum(0))
    largest = float(np.ptp(x.astype(np.int64)) ** 2)
    found = [rule.finish(state)["covariance"] for state in (chained, merged)]
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], exact_covariance(x), rtol=1e-12, atol=1e-13 * largest + 1e-10)


@pytest.mark.parametrize(("dtype", "offset"), [("uint16", 100), ("uint16", 65_000), ("int16", -32_000)])
def test_16_bit_values_far_from_the_middle_of_their_range(dtype: str, offset: int) -> None:
    """A camera's dark frames: the middle of 16 bits is 30,000 away, and a variance is 4."""
    x = (np.random.default_rng(0).normal(offset, 2, (3000, 5)).round()).astype(dtype)
    rule = CovariancePCA(2, certified=True)
    state = fold(rule, [x[:1000], x[1000:]])
    np.testing.assert_allclose(Covariance().finish(state.copy())["covariance"], exact_covariance(x), rtol=1e-12)
    values = np.linalg.eigvalsh(exact_covariance(x))[::-1]
    found = rule.finish(state)
    np.testing.assert_allclose(found["explained_variance"], values[:2], rtol=1e-9)
    assert 0.999 < found["captured_bound"] <= 1
    np.testing.assert_allclose(found["mean"], x.mean(axis=0), rtol=1e-14)


@pytest.mark.parametrize("extreme", [0, 255])
def test_the_worst_pixels_stay_exact_at_the_longest_block(extreme: int) -> None:
    """1,024 products of 128 x 128 reach 2**24 exactly: the bound behind the claim."""
    x = np.full((3 * BLOCK_ROWS + 7, 3), extreme, np.uint8)
    x[::2, 1] = 255 - extreme
    state = fold(Covariance(), [x])
    exact = x.astype(np.int64) - 128
    np.testing.assert_array_equal(np.tril(state.arrays["cross"]), np.tril(exact.T @ exact))


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int16, np.uint16, np.int32, np.float16, np.float32, np.float64])
def test_every_dtype_against_numpy(dtype: type) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0, 30, (300, 7)) @ rng.normal(0, 0.4, (7, 7))
    x = values > 0 if dtype is bool else values.astype(dtype)
    rule = Covariance()
    a, b = fold(rule, [x[:11], x[11:100]]), fold(rule, [x[100:], x[:0]])
    expected = np.cov(x.astype(np.float64), rowvar=False)
    scale = np.sqrt(np.outer(expected.diagonal(), expected.diagonal()))
    tolerance = 1e-12 if dtype in (np.float64, np.int32) else 3e-6
    assert np.max(np.abs(rule.finish(rule.merge(a, b))["covariance"] - expected) / scale) < tolerance


def test_a_large_mean_does_not_cost_the_variance() -> None:
    """float32 cannot hold sums of squares of 10,000 beside a variance of 1; shifted data can."""
    rng = np.random.default_rng(2)
    x = (10_000 + rng.normal(size=(5_000, 4))).astype(np.float32)
    found = Covariance().finish(fold(Covariance(), [x[:700], x[700:]]))
    np.testing.assert_allclose(found["covariance"], np.cov(x.astype(float), rowvar=False), atol=2e-5)


def test_a_stream_that_drifts_far_from_its_beginning() -> None:
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(6_000, 3)) + np.linspace(0, 1e5, 6_000)[:, None] // 2e4 * 1e5).astype(np.float32)
    found = Covariance().finish(fold(Covariance(), [x[i : i + 500] for i in range(0, 6_000, 500)]))
    np.testing.assert_allclose(found["covariance"], np.cov(x.astype(float), rowvar=False), rtol=1e-6)


@pytest.mark.parametrize(("d", "k"), [(6, 6), (75, 5), (300, 20), (700, 3)])
def test_components_against_scikit_learn(d: int, k: int) -> None:
    """Sizes on both sides of every switch between solvers."""
    rng = np.random.default_rng(4)
    x = (rng.normal(size=(900, 40)) * 0.8 ** np.arange(40)) @ rng.normal(size=(40, d)) + rng.normal(0, 0.1, (900, d))
    x = x.astype(np.float32)
    rule = CovariancePCA(k)
    found = rule.finish(fold(rule, [x[:400], x[400:]]))
    reference = PCA(k, svd_solver="full").fit(x.astype(np.float64))
    np.testing.assert_allclose(found["explained_variance"], reference.explained_variance_, rtol=2e-5)
    np.testing.assert_allclose(found["components"] @ found["components"].T, np.eye(k), atol=1e-6)
    # The same subspace, whatever happens to vectors of close variances. (The twentieth stands out from the
    # next by 2e-5 of the variance here: the 1e-9 that the solver may lack turn it by up to 7e-3, a cosine of 1 - 3e-5.)
    overlap = np.linalg.svd(found["components"] @ reference.components_.T, compute_uv=False)
    assert overlap.min() > 1 - 1e-5
    largest = np.abs(found["components"]).argmax(1)
    assert (found["components"][np.arange(k), largest] > 0).all()
    assert found["total_variance"] == pytest.approx(x.astype(float).var(0, ddof=1).sum(), rel=1e-6)


def test_constant_and_repeated_attributes() -> None:
    x = np.repeat(np.random.default_rng(5).integers(0, 256, (50, 2), dtype=np.uint8), 2, axis=1)
    x = np.hstack([x, np.full((50, 1), 9, np.uint8)])
    found = CovariancePCA(None).finish(fold(CovariancePCA(None), [x]))
    assert found["explained_variance"].shape == (5,)
    np.testing.assert_allclose(found["explained_variance"][2:], 0, atol=1e-9)
    assert np.isfinite(found["components"]).all()


def test_one_sample_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\b2\b"):
        Covariance().finish(fold(Covariance(), [np.ones((1, 3), np.uint8)]))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_about_zero_instead_of_the_mean(dtype: type) -> None:
    x = np.random.default_rng(5).integers(50, 200, (70, 6)).astype(dtype)
    rule = Covariance(center=False)
    a, b = rule.update(rule.init(6, x.dtype), x[:30]), rule.update(rule.init(6, x.dtype), x[30:])
    found = rule.finish(rule.merge(a, b))
    wide = x.astype(float)
    np.testing.assert_allclose(found["covariance"], wide.T @ wide / 69, rtol=1e-12 if dtype is not np.float32 else 1e-6)
    np.testing.assert_array_equal(found["mean"], 0)


def test_the_least_components_come_beside_the_leading_ones() -> None:
    x = np.random.default_rng(6).normal(size=(90, 7)) * [7, 6, 5, 4, 3, 2, 1]
    rule = CovariancePCA(2, n_least=3)
    found = rule.finish(rule.update(rule.init(7, x.dtype), x))
    values, vectors = np.linalg.eigh(np.cov(x, rowvar=False))
    np.testing.assert_allclose(found["explained_variance"], values[::-1][:2], rtol=1e-12)
    np.testing.assert_allclose(found["least_variance"], values[:3], rtol=1e-12)
    for rows, exact in ((found["components"], vectors.T[::-1][:2]), (found["least_components"], vectors.T[:3])):
        np.testing.assert_allclose(np.abs(np.sum(rows * exact, axis=1)), 1, rtol=1e-12)
        assert (rows[np.arange(len(rows)), np.abs(rows).argmax(1)] > 0).all()
