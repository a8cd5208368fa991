"""CCIPCA against its recursion, its average, and its deflation."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.rules.incremental.ccipca import CCIPCA
from tests.rules.streams import fit, fold, leading, lost_variance, planted


def started(rule, rows, eigenvalues):
    state = rule.init(len(rows[0]), np.dtype(float))
    state.arrays["components"][...] = rows
    state.arrays["eigenvalues"][...] = eigenvalues
    return state


def test_one_step_by_hand() -> None:
    """After 3 samples l v = (4, 0); x = (1, 2): y = 1, l v = 3/4 (4, 0) + 1/4 (1, 2) = (3.25, 0.5)."""
    rule = CCIPCA(1, center=False)
    state = started(rule, [[1.0, 0.0]], [4.0])
    state.counts["n_samples"] = 3
    state = rule.update(state, np.array([[1.0, 2.0]]))
    np.testing.assert_allclose(state.arrays["eigenvalues"], np.hypot(3.25, 0.5), rtol=1e-14)
    np.testing.assert_allclose(state.arrays["components"][0], np.array([3.25, 0.5]) / np.hypot(3.25, 0.5), rtol=1e-14)


@pytest.mark.parametrize("online", [False, True])
def test_amnesic_zero_is_the_average(online: bool) -> None:
    """Equation 2.17: l v = 1/n sum x x^T v_i, the v_i being those each sample (or batch of 10) met."""
    x = planted(60, 5)
    rule = CCIPCA(1, center=False, online=online)
    state = rule.init(5, x.dtype)
    total = np.zeros(5)
    rows = 1 if online else 10
    for i in range(0, 60, rows):
        v = state.arrays["components"][0].copy()
        total += x[i : i + rows].T @ (x[i : i + rows] @ v)
        state = rule.update(state, x[i : i + rows])
    np.testing.assert_allclose(state.arrays["eigenvalues"] * state.arrays["components"][0], total / 60, rtol=1e-10)


def test_amnesic_gain_by_hand() -> None:
    """Fourth sample, a = 1: (1 + 1) / 4 = 1/2 of it, 1/2 of the rest."""
    rule = CCIPCA(1, amnesic=1.0, center=False)
    state = started(rule, [[1.0, 0.0]], [4.0])
    state.counts["n_samples"] = 3
    state = rule.update(state, np.array([[1.0, 2.0]]))
    np.testing.assert_allclose(state.arrays["eigenvalues"] * state.arrays["components"][0], [2.5, 1.0], rtol=1e-14)


def test_the_next_component_sees_the_rest() -> None:
    """x = (3, 4) along v1 = (1, 0), l = 0: v1 becomes (0.6, 0.8), nothing is left, v2 stays."""
    rule = CCIPCA(2, center=False)
    rows = np.array([[1.0, 0, 0], [0, 1.0, 0]])
    state = rule.update(started(rule, rows, [0, 0]), np.array([[3.0, 4.0, 0.0]]))
    np.testing.assert_allclose(state.arrays["components"][0], [0.6, 0.8, 0])
    assert state.arrays["eigenvalues"][1] < 1e-12
    # A second sample (0, 0, 2): y1 = 0 halves l1 = 15 and leaves v1, so all of the sample reaches v2 = (0, 0, 1).
    state.arrays["components"][1] = [0, 0, 1.0]
    state = rule.update(state, np.array([[0.0, 0.0, 2.0]]))
    np.testing.assert_allclose(state.arrays["eigenvalues"], [7.5, 2.0])


def test_batches_of_one_are_online() -> None:
    x = planted(200)
    a = fold(CCIPCA(3, center=False), x, 1).arrays
    b = fold(CCIPCA(3, center=False, online=True), x, 50).arrays
    for key in ("components", "eigenvalues"):
        np.testing.assert_allclose(a[key], b[key], rtol=1e-12)


@pytest.mark.parametrize("online", [False, True])
def test_eigenvalues_and_ordered_eigenvectors(online: bool) -> None:
    x = planted(6000)
    found = fit(CCIPCA(3, online=online), x)
    values, components = leading(x, 3)
    np.testing.assert_allclose(found["explained_variance"], values, rtol=0.1)
    assert np.abs(np.sum(found["components"] * components, axis=1)).min() > 0.97
    assert lost_variance(found["components"], x) < 5e-3


def test_an_amnesic_factor_follows_a_change() -> None:
    """The same variances along other directions, after half of the stream."""
    old, new = planted(2000, seed=1), planted(2000, seed=2)
    x = np.vstack([old, new])
    lost = [lost_variance(fit(CCIPCA(3, amnesic=a), x)["components"], new) for a in (0.0, 4.0)]
    assert lost[0] > 0.1
    assert lost[1] < lost[0] / 5


@pytest.mark.parametrize("amnesic", [-0.5, np.inf, np.nan])
def test_refused_amnesic_factors(amnesic: float) -> None:
    with pytest.raises(ValueError, match="amnesic"):
        CCIPCA(2, amnesic=amnesic)
