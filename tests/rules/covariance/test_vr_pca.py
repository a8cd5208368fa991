"""Variance-reduced PCA against its algorithm, written out."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.rules.base.minibatch import InBatches
from dpca.rules.covariance.covariance_product import CovarianceProduct
from dpca.rules.covariance.vr_pca import VRPCA
from tests.rules.streams import fit, leading, lost_variance, planted


def test_one_component_sample_by_sample_is_algorithm_2_1():
    x = np.array([[2.0, 0.0], [1.0, 1.0], [0.0, -1.0]])
    anchor, eta = np.array([0.6, 0.8]), 0.25
    product = x.T @ x @ anchor / 3
    w = anchor.copy()
    for row in x:  # lines 5 to 8
        w = w + eta * (row * (row @ (w - anchor)) + product)
        w = w / np.sqrt(w @ w)
    rule = InBatches(VRPCA(anchor[None], product[None], np.zeros(2), eta), 1)
    np.testing.assert_allclose(fit(rule, x)["components"][0], w, rtol=1e-14)


def test_the_first_step_is_by_hand():
    # U~ = (1, 0), W = W~: only the exact product moves W, to (1, 0.5) before it is normalized.
    rule = VRPCA(np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]), np.zeros(2), 2.0)
    found = fit(rule, np.array([[3.0, 4.0]]))["components"]
    np.testing.assert_allclose(found, [[2 / np.sqrt(5), 1 / np.sqrt(5)]], rtol=1e-15)


def test_several_components_step_by_step():
    rng = np.random.default_rng(0)
    x, mean = rng.normal(2, 1, (12, 6)), np.full(6, 2.0)
    anchor = np.linalg.qr(rng.normal(size=(6, 2)))[0].T
    y = x - mean
    product = anchor @ y.T @ y / 12
    w = anchor
    for batch in (y[:5], y[5:10], y[10:]):
        u, _, vt = np.linalg.svd(w @ anchor.T)
        aligned = u @ vt @ anchor
        w = w + 0.1 * ((w - aligned) @ batch.T @ batch / len(batch) + u @ vt @ product)
        w = np.linalg.qr(w.T)[0].T
    found = fit(InBatches(VRPCA(anchor, product, mean, 0.1), 5), x)["components"]
    np.testing.assert_allclose(found @ found.T, np.eye(2), atol=1e-14)
    np.testing.assert_allclose(found.T @ found, w.T @ w, atol=1e-13)


def test_the_best_components_stay_and_others_come_closer():
    x = planted(n=500)
    best = leading(x, 3)[1]
    product = CovarianceProduct(best, x.mean(0))
    exact = fit(product, x)["product"] * 499 / 500
    # Without variance reduction single samples would move them.
    rule = VRPCA(best, exact, x.mean(0), 0.01)
    assert lost_variance(fit(InBatches(rule, 1), x)["components"], x) < 1e-12
    start = np.linalg.qr(np.random.default_rng(1).normal(size=(30, 3)))[0].T
    for _ in range(3):
        at = fit(CovarianceProduct(start, x.mean(0)), x)["product"] * 499 / 500
        start = fit(InBatches(VRPCA(start, at, x.mean(0), 0.05), 5), x)["components"]
    assert lost_variance(start, x) < 1e-4


def test_an_empty_batch_is_no_step_and_a_rate_is_positive():
    rule = VRPCA(np.eye(2, 5), np.eye(2, 5), np.zeros(5), 0.1)
    state = rule.update(rule.init(5, np.float32), np.zeros((0, 5), np.float32))
    np.testing.assert_array_equal(rule.finish(state)["components"], np.eye(2, 5))
    assert state.nbytes == rule.state_bytes(5, np.float32)
    with pytest.raises(ValueError, match="rate"):
        VRPCA(np.eye(2, 5), np.eye(2, 5), np.zeros(5), 0)
