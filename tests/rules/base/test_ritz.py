"""The running Rayleigh-Ritz step against a projection of the whole sample covariance."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.rules.base import centering, ritz
from dpca.rules.base.state import State


def state_of(x: np.ndarray, k: int) -> State:
    state = State.zeros({**centering.layout(x.shape[1]), "projected": ((k, k), float)}, ("n_samples", "n_projected"))
    centering.take(state, x, True, np.dtype(float))
    return state


@pytest.mark.parametrize("orthonormal", [True, False])
def test_one_batch_is_rayleigh_ritz(orthonormal: bool) -> None:
    """Of a basis with any lengths and angles: the result depends on its span only."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 9)) * np.arange(1, 10)
    rows = rng.normal(size=(3, 9))
    if orthonormal:
        rows = np.linalg.qr(rows.T)[0].T
    state = state_of(x, 3)
    ritz.observe(state, (x - x.mean(0)) @ rows.T)
    found = ritz.finish(state, rows)
    basis = np.linalg.qr(rows.T)[0]
    values, vectors = np.linalg.eigh(basis.T @ np.cov(x, rowvar=False) @ basis)
    np.testing.assert_allclose(found["explained_variance"], values[::-1])
    expected = (basis @ vectors[:, ::-1]).T
    np.testing.assert_allclose(np.abs(np.sum(expected * found["components"], axis=1)), 1)
    assert found["total_variance"] == pytest.approx(x.var(0, ddof=1).sum())
    np.testing.assert_allclose(found["mean"], x.mean(0))


def test_weights_by_hand() -> None:
    """k = 1: a window of 10 samples, then of a tenth of all."""
    state = State.zeros({"projected": ((1, 1), float)}, ("n_projected",))
    ritz.observe(state, np.full((5, 1), 2.0))
    assert state.arrays["projected"] == pytest.approx(4)
    ritz.observe(state, np.full((5, 1), 4.0))
    assert state.arrays["projected"] == pytest.approx((4 + 16) / 2)
    ritz.observe(state, np.full((5, 1), 0.0))
    assert state.arrays["projected"] == pytest.approx(10 / 2)
    ritz.observe(state, np.full((985, 1), 1.0))
    assert state.arrays["projected"] == pytest.approx(1)
    ritz.observe(state, np.full((10, 1), 3.0))
    assert state.arrays["projected"] == pytest.approx(1 + 8 * 10 / 101)
    ritz.observe(state, np.empty((0, 1)))
    assert state.counts["n_projected"] == 1010


def test_fewer_samples_than_components() -> None:
    x = np.array([[1.0, 0, 0, 0], [0, 3, 0, 0]])
    rows = np.eye(4)[:3]
    state = state_of(x, 3)
    ritz.observe(state, (x - x.mean(0)) @ rows.T)
    found = ritz.finish(state, rows)
    assert found["components"].shape == (2, 4)
    np.testing.assert_allclose(found["explained_variance"], [5, 0], atol=1e-12)
