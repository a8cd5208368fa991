"""A second pass against the covariance itself."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.rules.covariance.covariance_product import Refinement


def problem(n=300, d=12, k=3, dtype=np.float64):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(n, d)) * 0.7 ** np.arange(d) + rng.normal(size=d)).astype(dtype)
    given = np.linalg.qr(rng.normal(size=(d, k)))[0].T
    return x, given, np.cov(x.astype(float), rowvar=False)


def run(rule, parts):
    states = [rule.update(rule.init(part.shape[1], part.dtype), part) for part in parts]
    total = states[0]
    for state in states[1:]:
        total = rule.merge(total, state)
    return rule.finish(total)


@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_ritz_values_residuals_and_the_next_iterate(offset):
    x, given, covariance = problem()
    found = run(Refinement(given, x.mean(0) + offset), [x[:10], x[10:200], x[200:]])
    values, turn = np.linalg.eigh(given @ covariance @ given.T)
    ritz = turn[:, ::-1].T @ given
    np.testing.assert_allclose(found["explained_variance"], values[::-1], rtol=1e-10)
    residuals = np.linalg.norm(ritz @ covariance - values[::-1, None] * ritz, axis=1)
    np.testing.assert_allclose(found["residual_norms"], residuals, rtol=1e-9)
    np.testing.assert_allclose(found["mean"], x.mean(0), rtol=1e-12)
    assert found["total_variance"] == pytest.approx(np.trace(covariance), rel=1e-12)
    rows = found["components"]
    np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-12)
    # The same span as C V^T, which captures more.
    image = np.linalg.qr(covariance @ given.T)[0]
    np.testing.assert_allclose(rows.T @ rows, image @ image.T, atol=1e-10)
    assert np.trace(rows @ covariance @ rows.T) >= values.sum()


def test_the_exact_components_stay():
    x, _, covariance = problem()
    values, vectors = np.linalg.eigh(covariance)
    found = run(Refinement(vectors[:, ::-1][:, :3].T, x.mean(0)), [x])
    np.testing.assert_allclose(found["explained_variance"], values[::-1][:3], rtol=1e-12)
    np.testing.assert_allclose(found["residual_norms"], 0, atol=1e-12)


def test_without_centering_everything_is_about_zero():
    x, given, _ = problem()
    found = run(Refinement(given, np.zeros(12), center=False), [x])
    moment = x.T @ x / (len(x) - 1)
    np.testing.assert_allclose(
        found["explained_variance"], np.linalg.eigvalsh(given @ moment @ given.T)[::-1], rtol=1e-10
    )


def test_data_of_lower_rank_leaves_as_many_orthonormal_rows():
    x = np.outer(np.arange(20.0), np.ones(6))
    given = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 3)))[0].T
    rows = run(Refinement(given, x.mean(0)), [x])["components"]
    np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(np.abs(rows[0]), np.sqrt(1 / 6), rtol=1e-10)
    constant = run(Refinement(given, np.ones(6)), [np.ones((5, 6))])
    assert constant["total_variance"] == 0
    np.testing.assert_allclose(constant["components"] @ constant["components"].T, np.eye(3), atol=1e-12)


def test_one_sample_has_no_variance():
    x, given, _ = problem()
    with pytest.raises(ValueError, match=r"\b2\b"):
        run(Refinement(given, x.mean(0)), [x[:1]])


def test_pixels_in_float32_agree_with_float64():
    rng = np.random.default_rng(2)
    x = rng.integers(0, 256, (3000, 40)).astype(np.uint8)
    given = np.linalg.qr(rng.normal(size=(40, 4)))[0].T.astype(np.float32)
    found = run(Refinement(given, x.mean(0)), [x[:1500], x[1500:]])
    covariance = np.cov(x.astype(float), rowvar=False)
    exact = np.linalg.eigvalsh(given.astype(float) @ covariance @ given.T.astype(float))[::-1]
    np.testing.assert_allclose(found["explained_variance"], exact, rtol=1e-5)
    assert found["components"].dtype == np.float32


def test_neither_the_memory_order_nor_the_alignment_of_the_components_changes_a_byte() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 60)).astype(np.float32)
    rows = np.linalg.qr(rng.normal(size=(60, 3)))[0].T.astype(np.float32).copy()
    shipped = np.empty(rows.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(rows.shape)
    shipped[...] = rows
    found = []
    for components in (rows, np.asfortranarray(rows), shipped):
        rule = Refinement(components, np.zeros(60))
        found.append(rule.update(rule.init(60, np.float32), x).arrays["image"])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
