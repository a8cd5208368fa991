"""Oja's rules against their formulas, the power method, and each other."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.rules.base.schedules import Constant, Delayed, Harmonic, Power
from dpca.rules.stochastic.oja import Oja, OjaSubspace
from tests.rules.streams import fit, fold, lost_variance, planted, same_span

X = np.array([[3.0, 0.0], [0.0, 1.0], [-3.0, 0.0], [0.0, -1.0]])  # mean 0, second moments 4.5 and 0.5


def started(rule, rows):
    state = rule.init(len(rows[0]), np.dtype(float))
    state.arrays["components"][...] = rows
    return state


def test_one_step_by_hand() -> None:
    """(0.6, 0.8) + 0.5 (4.5 x 0.6, 0.5 x 0.8) = (1.95, 1), divided by its length."""
    rule = Oja(1, Constant(0.5), unit=1.0)
    state = rule.update(started(rule, [[0.6, 0.8]]), X)
    expected = np.array([1.95, 1.0]) / np.hypot(1.95, 1)
    np.testing.assert_allclose(state.arrays["components"][0], expected, rtol=1e-14)


def test_two_components_by_gram_schmidt() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 5))
    x -= x.mean(0)
    rows = np.linalg.qr(rng.normal(size=(5, 2)))[0].T
    rule = Oja(2, Harmonic(0.3), unit=1.0)
    state = rule.update(started(rule, rows), x)
    moved = rows + 0.3 / 20 * rows @ x.T @ x
    first = moved[0] / np.linalg.norm(moved[0])
    second = moved[1] - (moved[1] @ first) * first
    np.testing.assert_allclose(state.arrays["components"], [first, second / np.linalg.norm(second)], rtol=1e-12)


def test_a_huge_step_is_a_power_iteration() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50, 6)) * np.arange(1, 7)
    x -= x.mean(0)
    rule = Oja(3, Constant(1e12), unit=1.0)
    state = rule.init(6, x.dtype)
    start = state.arrays["components"].copy()
    state = rule.update(state, x)
    assert same_span(state.arrays["components"], start @ x.T @ x, 1e-9)


def test_the_step_number_counts_updates() -> None:
    """Power(eta, gamma) at t = 2, in the second batch."""
    rule = Oja(1, Power(0.4, 0.5), unit=1.0)
    state = rule.update(rule.update(started(rule, [[0.6, 0.8]]), X), X)
    w = np.array([0.6, 0.8])
    for eta in (0.4, 0.4 / np.sqrt(2)):
        w = w + eta * w * [4.5, 0.5]
        w /= np.linalg.norm(w)
    np.testing.assert_allclose(state.arrays["components"][0], w, rtol=1e-14)


def test_orthonormalizing_less_often_changes_nothing_but_rounding() -> None:
    """The update is linear in W but for the orthonormalization, which keeps the span of every leading part."""
    x = planted(3000)
    always = fit(Oja(3, Harmonic(0.5), unit=1.0), x)
    for m in (2, 7, 1000):
        state = fold(Oja(3, Harmonic(0.5), orthonormalize_every=m, unit=1.0), x)
        seldom = Oja(3, Harmonic(0.5), orthonormalize_every=m, unit=1.0).finish(state)
        assert same_span(always["components"], seldom["components"], 1e-8)
        if 30 % m:
            assert np.abs(state.arrays["components"] @ state.arrays["components"].T - np.eye(3)).max() > 1e-6
        np.testing.assert_allclose(np.linalg.norm(state.arrays["components"], axis=1), 1)


def test_the_unit_is_that_of_the_step() -> None:
    x = planted(1000)
    a = fit(Oja(2, Harmonic(0.5), unit=1.0), x)
    b = fit(Oja(2, Harmonic(0.5), unit=255.0), 255 * x)
    np.testing.assert_allclose(a["components"], b["components"], atol=1e-9)
    np.testing.assert_allclose(b["explained_variance"], 255**2 * a["explained_variance"])


def test_online_is_batches_of_one() -> None:
    """But for the running mean, which a batch takes at its end."""
    x = planted(300)
    together = fit(Oja(2, Harmonic(0.5), online=True, center=False, unit=1.0), x, 60)
    single = fit(Oja(2, Harmonic(0.5), center=False, unit=1.0), x, 1)
    assert same_span(together["components"], single["components"])


def test_linearized_step_by_hand() -> None:
    """w + eta (C w - (w C w) w): w C w = 4.5 x 0.36 + 0.5 x 0.64 = 1.94."""
    rule = OjaSubspace(1, Constant(0.1), unit=1.0)
    state = rule.update(started(rule, [[0.6, 0.8]]), X)
    expected = [0.6 + 0.1 * (2.7 - 1.94 * 0.6), 0.8 + 0.1 * (0.4 - 1.94 * 0.8)]
    np.testing.assert_allclose(state.arrays["components"][0], expected, rtol=1e-14)


def test_subspace_step_couples_all_rows() -> None:
    """W + eta (W C - W C W^T W), the full product where Sanger's rule takes its lower triangle."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(10, 4))
    x -= x.mean(0)
    rows = rng.normal(size=(2, 4))
    covariance = x.T @ x / 10
    rule = OjaSubspace(2, Constant(0.2), unit=1.0)
    state = rule.update(started(rule, rows), x)
    expected = rows + 0.2 * (rows @ covariance - rows @ covariance @ rows.T @ rows)
    np.testing.assert_allclose(state.arrays["components"], expected, rtol=1e-12)


def test_the_linearized_rule_becomes_orthonormal_by_itself() -> None:
    x = planted(6000)
    rule = OjaSubspace(3, Delayed(0.1, 20), unit=1.0)
    state = rule.init(30, x.dtype)
    state.arrays["components"] *= 1.5
    for i in range(0, 6000, 50):
        state = rule.update(state, x[i : i + 50])
    rows = state.arrays["components"]
    assert np.abs(rows @ rows.T - np.eye(3)).max() < 0.02
    assert lost_variance(rows, x) < 2e-3


def test_too_large_a_step_is_said() -> None:
    with pytest.raises(ValueError, match=r"OjaSubspace.*\b100\b"):
        fit(OjaSubspace(2, Constant(100.0), unit=1.0), planted(5000))


def test_orthonormalizing_never_is_refused() -> None:
    with pytest.raises(ValueError, match="orthonormalize_every"):
        Oja(2, orthonormalize_every=0)
