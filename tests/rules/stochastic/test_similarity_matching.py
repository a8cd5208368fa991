"""Similarity matching against its recursion, and the neural outputs against the exact ones."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.rules.base.schedules import Constant, Delayed
from dpca.rules.stochastic.similarity_matching import SimilarityMatching
from tests.rules.streams import fit, fold, lost_variance, planted


def started(rule, weights, lateral):
    """In the middle of a stream: the first update alone sets the scale."""
    state = rule.init(len(weights[0]), np.dtype(float))
    state.arrays["components"][...] = weights
    state.arrays["lateral"][...] = lateral
    state.counts["n_updates"] = 1
    return state


def test_one_step_by_hand() -> None:
    """W = (2, 0), M = 4, x = (2, 1): y = 4 / 4 = 1; 2 eta = 0.2, eta / tau = 0.4."""
    rule = SimilarityMatching(1, Constant(0.1), tau=0.25, center=False)
    state = rule.update(started(rule, [[2.0, 0.0]], [[4.0]]), np.array([[2.0, 1.0]]))
    np.testing.assert_allclose(state.arrays["components"], [[0.8 * 2 + 0.2 * 2, 0.2]])
    np.testing.assert_allclose(state.arrays["lateral"], [[0.6 * 4 + 0.4]])


@pytest.mark.parametrize("online", [False, True])
def test_the_recursion(online: bool) -> None:
    """Section 2.3.4 with samples in columns and W (d, k), from t = 2 on."""
    rng = np.random.default_rng(0)
    x = planted(40, 6)
    weights, root = rng.normal(size=(3, 6)), rng.normal(size=(3, 3))
    lateral = root @ root.T + np.eye(3)
    rule = SimilarityMatching(3, Delayed(0.3, 10), tau=0.4, center=False, online=online)
    state = started(rule, weights, lateral)
    w, m = weights.T.copy(), lateral.copy()
    t = 1
    for batch in np.split(x, 2):
        state = rule.update(state, batch)
        for part in np.split(batch, len(batch)) if online else [batch]:
            t += 1
            eta, n = 0.3 * 10 / (t + 10), len(part)
            y = np.linalg.inv(m) @ w.T @ part.T
            w = w + 2 * eta * (part.T @ y.T / n - w)
            m = m + eta / 0.4 * (y @ y.T / n - m)
    np.testing.assert_allclose(state.arrays["components"], w.T, rtol=1e-10)
    np.testing.assert_allclose(state.arrays["lateral"], m, rtol=1e-10)
    found = rule.finish(state)["components"]
    np.testing.assert_allclose(found.T @ found, np.linalg.qr(w)[0] @ np.linalg.qr(w)[0].T, atol=1e-10)


@pytest.mark.parametrize("neural_steps", [None, 50])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_it_converges_at_any_scale(neural_steps: int | None, scale: float) -> None:
    x = planted(6000)
    rule = SimilarityMatching(3, neural_steps=neural_steps)
    found = fit(rule, scale * x)
    assert lost_variance(found["components"], x) < 0.01
    np.testing.assert_allclose(found["explained_variance"] / scale**2, [9, 4, 2.25], rtol=0.15)


def test_the_rows_become_orthonormal_by_themselves() -> None:
    """M^-1 W, at the fixed point of both averages."""
    state = fold(SimilarityMatching(3), planted(20_000))
    rows = np.linalg.solve(state.arrays["lateral"], state.arrays["components"])
    assert np.abs(rows @ rows.T - np.eye(3)).max() < 0.05


def test_enough_neural_steps_are_the_exact_outputs() -> None:
    rng = np.random.default_rng(1)
    root = rng.normal(size=(4, 4))
    lateral, driven = root @ root.T + np.eye(4), rng.normal(size=(10, 4))
    exact = np.linalg.solve(lateral, driven.T).T
    error = [
        np.abs(SimilarityMatching(4, neural_steps=n)._outputs(lateral, driven) - exact).max() for n in (1, 10, 1000)
    ]
    assert error[0] > error[1] > error[2]
    assert error[2] < 1e-10
    gamma = 1 / np.abs(lateral).sum(axis=1).max()
    np.testing.assert_allclose(SimilarityMatching(4, neural_steps=1)._outputs(lateral, driven), gamma * driven)


@pytest.mark.parametrize("options", [{"tau": 0.0}, {"tau": np.nan}, {"neural_steps": 0}])
def test_refused_options(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="give"):
        SimilarityMatching(2, **options)
