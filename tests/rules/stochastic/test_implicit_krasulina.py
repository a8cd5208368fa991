"""The implicit Krasulina update against its equations, the batch EM algorithm, and an exact pseudo-inverse."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.rules.base.schedules import Constant, Power
from dpca.rules.stochastic.implicit_krasulina import ExplicitKrasulina, ImplicitKrasulina
from tests.rules.streams import fit, fold, lost_variance, planted, same_span


def started(rule, rows):
    state = rule.init(len(rows[0]), np.dtype(float))
    state.arrays["components"][...] = rows
    state.arrays["inverse"][...] = np.linalg.pinv(np.asarray(rows, float)).T
    state.arrays["gram"][...] = state.arrays["components"] @ state.arrays["components"].T
    return state


def centered(n: int, d: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(n, d)) * np.arange(1, d + 1)
    return x - x.mean(0)


def test_one_sample_by_hand() -> None:
    """C = (2, 0), x = (2, 6): y = 1, residual (0, 6), step 3 / (1 + 3) = 0.75: C = (2, 4.5)."""
    rule = ImplicitKrasulina(1, Constant(3.0), online=True, center=False, unit=1.0)
    state = rule.update(started(rule, [[2.0, 0.0]]), np.array([[2.0, 6.0]]))
    np.testing.assert_allclose(state.arrays["components"], [[2, 4.5]], rtol=1e-14)
    np.testing.assert_allclose(state.arrays["inverse"], [[2, 4.5]] / np.float64(4 + 4.5**2), rtol=1e-14)


def test_a_batch_is_equation_12() -> None:
    """In the source's own orientation: columns are samples."""
    x, rows, eta = centered(15, 6), np.random.default_rng(1).normal(size=(3, 6)), 0.7
    big_c, big_y = rows.T, x.T
    big_x = np.linalg.pinv(big_c) @ big_y
    right = np.linalg.inv(big_x @ big_x.T / 15 + np.eye(3) / eta)
    expected = (big_y @ big_x.T / 15 + big_c / eta) @ right
    rule = ImplicitKrasulina(3, Constant(eta), unit=1.0)
    state = rule.update(started(rule, rows), x)
    np.testing.assert_allclose(state.arrays["components"], expected.T, rtol=1e-11)
    np.testing.assert_allclose(state.arrays["inverse"], np.linalg.pinv(expected), rtol=1e-9)


def test_a_batch_of_one_is_the_one_sample_update() -> None:
    """Sherman and Morrison: equation 13 is equation 12 with N = 1."""
    x, rows = centered(12, 6), np.random.default_rng(2).normal(size=(3, 6))
    states = []
    for online in (False, True):
        rule = ImplicitKrasulina(3, Power(2.0, 0.8), online=online, center=False, unit=1.0)
        state = started(rule, rows)
        for sample in x:
            state = rule.update(state, sample[None])
        states.append(state)
    for key in ("components", "inverse"):
        np.testing.assert_allclose(states[0].arrays[key], states[1].arrays[key], rtol=1e-8, atol=1e-12)


def test_an_infinite_step_is_a_batch_em_step() -> None:
    """Below equation 17: C = Y X^+, whose span is that of a power iteration."""
    x, rows = centered(40, 5), np.random.default_rng(3).normal(size=(2, 5))
    rule = ImplicitKrasulina(2, Constant(1e12), unit=1.0)
    found = rule.update(started(rule, rows), x).arrays["components"]
    scores = x @ np.linalg.pinv(rows)
    np.testing.assert_allclose(found, np.linalg.lstsq(scores, x, rcond=None)[0], rtol=1e-8)
    assert same_span(found, rows @ x.T @ x, 1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_pseudo_inverse_stays_one(dtype: type) -> None:
    """Over many rank-one updates, more than lie between two exact ones."""
    x = planted(1300).astype(dtype)
    state = fold(ImplicitKrasulina(4, online=True), x, 130)
    rows, inverse = state.arrays["components"].astype(float), state.arrays["inverse"].astype(float)
    np.testing.assert_allclose(rows @ inverse.T, np.eye(4), atol=3e-5 if dtype == np.float32 else 1e-12)
    # In the row space of C, and so the pseudo-inverse and no other.
    assert same_span(rows, inverse, 3e-5 if dtype == np.float32 else 1e-10)


def test_online_converges_whatever_the_step_size() -> None:
    """Table 1 of the source: scales of 0.1 and 10 change little."""
    x = planted(4000)
    for eta in (0.3, 3.0, 30.0):
        found = fit(ImplicitKrasulina(3, Power(eta, 0.8), online=True, unit=1.0), x)
        assert lost_variance(found["components"], x) < 5e-3


@pytest.mark.parametrize("online", [False, True])
def test_variances_do_not_depend_on_the_length_of_the_rows(online: bool) -> None:
    """Which is still on its way from 0.1 or 3 to where it goes: they are those of the subspace found."""
    x = planted(4000)
    for unit in (0.1, 3.0):
        state = fold(ImplicitKrasulina(3, unit=unit, online=online), x)
        rows = state.arrays["components"]
        np.testing.assert_allclose(state.arrays["gram"], rows @ rows.T, rtol=1e-8)
        found = ImplicitKrasulina(3, unit=unit).finish(state)
        projected = np.cov(x @ found["components"].T, rowvar=False)
        np.testing.assert_allclose(found["explained_variance"], np.linalg.eigvalsh(projected)[::-1], rtol=0.12)


def test_the_unit_scales_the_data() -> None:
    x = planted(800)
    for online in (False, True):
        a = fit(ImplicitKrasulina(2, unit=1.0, online=online), x)
        b = fit(ImplicitKrasulina(2, unit=255.0, online=online), 255 * x)
        assert same_span(a["components"], b["components"], 1e-8)


@pytest.mark.parametrize("online", [False, True])
def test_explicit_step(online: bool) -> None:
    """C - eta Y^T (Y C - X) / N, with the pseudo-inverse and not the transpose."""
    x, rows = centered(1 if online else 9, 6), np.random.default_rng(4).normal(size=(3, 6))
    x = x + 1
    rule = ExplicitKrasulina(3, Constant(0.3), online=online, center=False, unit=1.0)
    state = rule.update(started(rule, rows), x)
    y = x @ np.linalg.pinv(rows)
    expected = rows - 0.3 / len(x) * y.T @ (y @ rows - x)
    np.testing.assert_allclose(state.arrays["components"], expected, rtol=1e-10)
    np.testing.assert_allclose(state.arrays["inverse"], np.linalg.pinv(expected).T, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("online", [False, True])
def test_the_explicit_form_can_diverge_and_says_so(online: bool) -> None:
    with pytest.raises(ValueError, match="ExplicitKrasulina"):
        fit(ExplicitKrasulina(2, Constant(1e9), online=online, unit=1.0), planted(300).astype(np.float32))
