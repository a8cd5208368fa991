"""The dual form over a stream against the SVD."""

from __future__ import annotations

import operator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpca.kernels.algebra import integers
from dpca.rules.dual import components as dual
from dpca.rules.dual.components import DualComponents
from dpca.rules.dual.gram import BlockGram, centered_gram, float_gram, is_exact, product_dtype, whole_gram
from dpca.rules.dual.weights import dual_basis, dual_weights
from tests.rules.streams import fit


@pytest.fixture(scope="module")
def known() -> dict[Any, np.ndarray]:
    """Results of earlier cases of a test."""
    return {}


def gram_by(parts: list[np.ndarray], center: bool, size: int) -> np.ndarray:
    """Return the Gram matrix of centered samples, from blocks in turn, in two states that are merged."""
    n, dtype = len(parts[0]), parts[0].dtype
    width = max(part.shape[1] for part in parts)
    rule = BlockGram(n, center, n + 2)
    states = [rule.init(width, dtype) for _ in range(2)]
    stream = [np.pad(part, ((0, 2), (0, width - part.shape[1]))) for part in parts]
    for i, blocks in enumerate((stream[: len(parts) // 2], stream[len(parts) // 2 :])):
        rows = np.concatenate([np.empty((0, width), dtype), *blocks])
        for first in range(0, len(rows), size):
            states[i] = rule.update(states[i], rows[first : first + size])
    gram = whole_gram(rule.finish(rule.merge(*states)))
    assert (gram.dtype == object) == is_exact(n, dtype)
    return float_gram(gram, center)


def dual_pca(x: np.ndarray, k: int, center: bool, cut: int) -> dict[str, np.ndarray]:
    """Both passes, with the attributes cut into two blocks."""
    parts = [np.ascontiguousarray(part) for part in (x[:, :cut], x[:, cut:])]
    gram = gram_by(parts, center, 7)
    found = dual_weights(gram, k, product_dtype(len(x), x.dtype))
    images = [fit(DualComponents(found["weights"], np.dtype(np.float64), center), part, 7) for part in parts]
    image, mean = (np.concatenate([part[name] for part in images], axis=-1) for name in ("image", "mean"))
    inner = sum(part["inner"] for part in images)
    return {**found, "mean": mean, "components": dual_basis(image, k, inner)}


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
@pytest.mark.parametrize(("n", "d", "k"), [(5, 40, 3), (60, 2500, 10), (250, 1100, 4)])
@pytest.mark.parametrize("center", [True, False])
def test_against_the_svd(dtype: type, n: int, d: int, k: int, center: bool) -> None:
    rng = np.random.default_rng(0)
    x = 100 + (rng.normal(size=(n, n)) * 40 * 0.8 ** np.arange(n)) @ rng.normal(size=(n, d)) / 4
    x = np.clip(x, 0, 255).astype(dtype)
    found = dual_pca(x, k, center, d // 3)
    wide = x.astype(float) - (x.mean(0, dtype=float) if center else 0)
    _, s, v = np.linalg.svd(wide, full_matrices=False)
    # The eigensolver computes the captured variance with a relative error of at most 1e-9.
    tolerance = 1e-7 if dtype is np.float64 else 2e-5
    np.testing.assert_allclose(found["mean"], x.mean(0, dtype=float) if center else np.zeros(d), rtol=1e-6)
    np.testing.assert_allclose(found["explained_variance"], s[:k] ** 2 / (n - 1), rtol=tolerance)
    np.testing.assert_allclose(found["total_variance"], (s**2).sum() / (n - 1), rtol=tolerance)
    np.testing.assert_allclose(found["components"] @ found["components"].T, np.eye(k), atol=tolerance)
    np.testing.assert_allclose(np.linalg.svd(found["components"] @ v[:k].T, compute_uv=False), 1, atol=tolerance)
    assert (found["components"][np.arange(k), np.abs(found["components"]).argmax(axis=1)] > 0).all()


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, bool])
@pytest.mark.parametrize("center", [True, False])
def test_products_of_bytes_are_exact_for_any_number_of_samples(
    dtype: type, center: bool, known: dict[Any, np.ndarray]
) -> None:
    rng, n = np.random.default_rng(4), 401
    x = rng.integers(0, 2, (n, 5000)).astype(bool) if dtype is bool else rng.integers(100, 120, (n, 5000)).astype(dtype)
    found = [np.tril(gram_by([x[:, :a], x[:, a:]], center, size)) for a, size in ((2500, 30), (4100, n))]
    np.testing.assert_array_equal(*found)
    products = x.astype(np.int64) @ x.T.astype(np.int64)
    if center:
        products = centered_gram(products.astype(object))
    np.testing.assert_allclose(found[0], np.tril(products).astype(float), rtol=1e-12, atol=1e-7)
    # With and without the kernel.
    np.testing.assert_array_equal(found[0], known.setdefault((dtype, center), found[0]))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, bool])
def test_products_of_pairs_of_bytes_are_exact(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, limits = np.random.default_rng(0), (0, 1) if dtype is bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    for n, d in ((1, 1), (2, 8192), (3, 8193), (2, 70_000), (8, 20_000), (31, 777), (32, 9000)):
        x = rng.choice(limits, (n, d)).astype(dtype)
        x[:, : d // 2] = limits[0] or limits[1]  # the largest sums
        found = []
        for pays in (True, False):
            monkeypatch.setattr(integers, "compiled_pays", lambda _, pays=pays: pays)
            rule = BlockGram(n, center=False)
            found.append(whole_gram(rule.finish(rule.update(rule.init(d, dtype), x))))
        np.testing.assert_array_equal(found[0].astype(np.int64), x.astype(np.int64) @ x.T.astype(np.int64))
        np.testing.assert_array_equal(found[1], found[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_more_weights_than_the_rank(dtype: type) -> None:
    x = np.repeat(np.random.default_rng(2).normal(size=(4, 50)), 3, axis=0).astype(dtype)
    assert dual_pca(x, 9, True, 20)["weights"].shape == (3, 12)
    flat = dual_pca(np.full((6, 50), 7, dtype), 2, True, 20)
    assert flat["weights"].shape == (0, 6)
    assert flat["total_variance"] == 0


def test_rows_beyond_the_rank_complete_the_basis() -> None:
    x = np.arange(12.0).reshape(4, 3)
    weights = np.array([[-3.0, -1, 1, 3]]) / np.sqrt(20 * 27)
    found = fit(DualComponents(weights, np.dtype(np.float64)), x, 2)
    rows = dual_basis(found["image"], 3, found["inner"])
    np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-14)
    np.testing.assert_allclose(rows[0], np.full(3, np.sqrt(1 / 3)), rtol=1e-14)


def test_too_many_and_too_few_samples() -> None:
    with pytest.raises(ValueError, match=r"\b5\b"):
        fit(BlockGram(4), np.ones((5, 2)))
    with pytest.raises(ValueError, match=r"\b3\b"):
        fit(BlockGram(4), np.ones((3, 2)))
    rule = BlockGram(4)
    with pytest.raises(ValueError, match=r"\b3\b"):
        rule.merge(rule.update(rule.init(2, "f4"), np.ones((3, 2), "f4")), rule.init(2, "f4"))
    with pytest.raises(ValueError, match="weights"):
        fit(DualComponents(np.ones((1, 4)), np.dtype(np.float64)), np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"\b2\b"):
        dual_weights(np.ones((1, 1)), 1, np.float32)


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, bool])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("n", [5, 110])
def test_integers_are_exact_for_any_blocks_and_batches(dtype: type, center: bool, n: int) -> None:
    """The reference computes with fractions: the centered Gram matrix is rounded once."""
    rng, d = np.random.default_rng(1), 9_000
    limits = (0, 1) if dtype is bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = rng.choice(limits, (n, d)).astype(dtype)  # the largest products
    x[:, :100] = rng.integers(*limits, (n, 100), endpoint=True)

    def by(cuts: list[int], size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        parts = [np.ascontiguousarray(part) for part in np.split(x, cuts, axis=1)]
        gram = gram_by(parts, center, size)
        weights = dual_weights(gram.copy(), n // 2, np.float64)["weights"]
        images = [fit(DualComponents(weights, np.dtype(np.float64), center), part, size) for part in parts]
        joined = (np.concatenate([part[name] for part in images], axis=-1) for name in ("image", "mean"))
        return gram, *joined

    whole = by([], n)
    for cuts, size in (([1], 1), ([17, 4_500], 2), ([4_096, 8_192], 3)):
        for found, expected in zip(by(cuts, size), whole, strict=True):
            np.testing.assert_array_equal(found, expected)
    exact = [[Fraction(int(value)) for value in row] for row in x[: min(n, 5)]]
    means = [Fraction(int(total), n) for total in x.sum(axis=0, dtype=np.int64)] if center else [Fraction(0)] * d
    exact = [[value - mean for value, mean in zip(row, means, strict=True)] for row in exact]
    truth = [[float(sum(map(operator.mul, a, b))) for b in exact] for a in exact]
    np.testing.assert_array_equal(whole[0][:5, :5], truth)


def test_directions_of_small_variance_are_orthogonal_too() -> None:
    """Their products are float32 for more than 128 samples, and lose the digits of orthogonality."""
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(200, 4)) * np.array([1, 0.1, 0.01, 0.003])) @ rng.normal(size=(4, 3_000))
    rows = dual_pca(x.astype(np.float32), 4, True, 1_000)["components"]
    np.testing.assert_allclose(rows @ rows.T, np.eye(4), atol=1e-9)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_any_weights_are_of_centered_samples(dtype: type) -> None:
    rng = np.random.default_rng(4)
    x, weights = (100 * rng.random((6, 40))).astype(dtype), rng.normal(size=(2, 6))
    found = fit(DualComponents(weights, np.dtype(np.float64)), x, 4)
    centered = x.astype(float) - x.mean(axis=0, dtype=float)
    np.testing.assert_allclose(found["image"], weights @ centered, atol=1e-10)
    np.testing.assert_allclose(found["inner"], weights @ centered @ centered.T @ weights.T, rtol=1e-10)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_all_samples_at_once_give_what_batches_give(dtype: str) -> None:
    rng = np.random.default_rng(3)
    x, weights = rng.integers(0, 90, (7, 9000)).astype(dtype), rng.normal(size=(3, 7))
    sums = dual.DualComponents(weights, np.dtype("f4"))
    results = []
    for rule, sizes in ((sums, (2, 5)), (dual.BlockComponents(sums), (7,)), (dual.BlockComponents(sums), (3, 4))):
        state = rule.init(9000, dtype)
        for part in np.split(x, np.cumsum(sizes)[:-1]):
            state = rule.update(state, part)
        results.append(rule.finish(state))
    expected = weights @ (x - x.astype(float).mean(axis=0))
    for found in results:
        np.testing.assert_allclose(found["image"], expected, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(found["inner"], expected @ expected.T, rtol=1e-9)
        np.testing.assert_allclose(found["mean"], x.astype(float).mean(axis=0), rtol=1e-12)
        if dtype != "float32":
            np.testing.assert_array_equal(found["image"], results[0]["image"])
    with pytest.raises(ValueError, match="n_samples"):
        rule = dual.BlockComponents(sums)
        rule.finish(rule.update(rule.init(9000, dtype), x[:5]))


def test_the_rule_that_holds_less_is_taken() -> None:
    few, many = np.zeros((3, 8)), np.zeros((3, 64))
    assert isinstance(dual.components_rule(few, "u1", np.dtype("f4"), True), dual.BlockComponents)
    assert isinstance(dual.components_rule(many, "f4", np.dtype("f4"), True), dual.DualComponents)


@pytest.mark.parametrize("n", [191, 192, 193, 700])
def test_bands_of_a_large_matrix_are_those_of_numpy(n: int) -> None:
    x = np.random.default_rng(5).normal(size=(n, 1500))
    found = gram_by([x[:, :700], x[:, 700:]], True, 100)
    centered = x - x.mean(axis=0)
    np.testing.assert_allclose(np.tril(found), np.tril(centered @ centered.T), rtol=0, atol=1e-10 * 1500)
    assert fit(BlockGram(n), x)["gram"].size < (0.7 if n > 300 else 1.1) * n * n


def test_sums_of_integers_may_exceed_64_bits() -> None:
    x = np.full((2, 40), 65535, np.uint16)
    rule = BlockGram(2, False)
    state = rule.update(rule.init(40, x.dtype), x)
    for _ in range(28):  # as many attributes as no memory holds
        state = rule.merge(state, state.copy())
    assert (whole_gram(rule.finish(state)) == 40 * 65535**2 * 2**28).all()
