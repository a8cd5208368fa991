"""Products with the covariance, and power iteration with deflation, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.rules.covariance.covariance_product import CovarianceProduct
from dpca.rules.covariance.power_iteration import PowerIteration
from tests.rules.streams import fit, leading, planted


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(2, 60),
    d=st.integers(1, 12),
    k=st.integers(1, 4),
    rows=st.integers(1, 70),
    dtype=st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
    center=st.booleans(),
)
def test_the_product_is_that_of_the_covariance(n, d, k, rows, dtype, center):
    rng = np.random.default_rng(n + 100 * d)
    x, v = rng.integers(0, 200, (n, d)).astype(dtype), rng.normal(size=(k, d))
    wide = x.astype(float) - (x.mean(0, dtype=float) if center else 0)
    covariance = wide.T @ wide / (n - 1)
    found = fit(CovarianceProduct(v, np.full(d, 90.0 if center else 0.0), center), x, rows)
    tolerance = 1e-10 if dtype is np.float64 else 1e-4
    np.testing.assert_allclose(found["product"], v @ covariance, atol=tolerance * max(1, np.trace(covariance)))
    assert found["total_variance"] == pytest.approx(np.trace(covariance), rel=tolerance, abs=tolerance)
    np.testing.assert_allclose(found["mean"], x.mean(0, dtype=float) if center else 0, atol=1e-3)


def test_one_step_by_hand():
    # Covariance diag(4, 1): C w = (2.4, 0.8) for w = (0.6, 0.8).
    x = np.array([[2.0, 0], [-2, 0], [0, 1], [0, -1]]) * np.sqrt(3 / 2)
    step = PowerIteration(np.array([[0.6, 0.8]]), np.zeros(2), found=np.empty((0, 2)), variances=np.empty(0))
    found = fit(step, x)
    np.testing.assert_allclose(found["components"], np.array([[2.4, 0.8]]) / np.sqrt(6.4), rtol=1e-14)
    np.testing.assert_allclose(found["explained_variance"], [0.6 * 2.4 + 0.8 * 0.8], rtol=1e-14)
    residual = np.array([2.4, 0.8]) - 2.08 * np.array([0.6, 0.8])
    np.testing.assert_allclose(found["residual_norms"], [np.linalg.norm(residual)], rtol=1e-13)


def test_what_was_found_is_taken_out():
    x = planted()
    values, best = leading(x, 3)
    # From the first component itself, with both others added a little: the second one must win.
    w = best[0] + 0.1 * best[1] + 0.1 * best[2]
    w /= np.linalg.norm(w)
    for _ in range(30):
        rule = PowerIteration(w[None], x.mean(0), found=best[:1], variances=values[:1])
        step = fit(rule, x)
        w = step["components"][0]
    assert abs(w @ best[1]) > 1 - 1e-10
    assert step["explained_variance"][0] == pytest.approx(values[1], rel=1e-10)
    # The first component has no variance left: it stays where it is.
    still = fit(PowerIteration(best[:1], x.mean(0), found=best[:1], variances=values[:1]), x)
    assert still["explained_variance"][0] == pytest.approx(0, abs=1e-12)


def test_no_variance_and_wrong_shapes():
    rule = PowerIteration(np.eye(1, 3), np.ones(3), found=np.empty((0, 3)), variances=np.empty(0))
    np.testing.assert_array_equal(fit(rule, np.ones((5, 3)))["components"], np.eye(1, 3))
    with pytest.raises(ValueError, match=r"\b2$"):
        fit(rule, np.ones((1, 3)))
    with pytest.raises(ValueError, match="variances"):
        PowerIteration(np.eye(2, 3), np.ones(3), found=np.empty((0, 3)), variances=np.empty(0))
