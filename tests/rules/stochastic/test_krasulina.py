"""Krasulina's rule against its formula, and the directions in which it differs from Oja's."""

from __future__ import annotations

import numpy as np

from dpca.rules.base.schedules import Constant, Power
from dpca.rules.stochastic.oja import Krasulina, OjaSubspace
from tests.rules.streams import fit, lost_variance, planted, same_span


def started(rule, rows):
    state = rule.init(len(rows[0]), np.dtype(float))
    state.arrays["components"][...] = rows
    return state


def test_one_step_by_hand() -> None:
    """x = +-(1, 2), w = (1, 0): y = +-1, residual (0, 2), step 0.5: (1, 0) + 0.5 (0, 2) = (1, 1)."""
    rule = Krasulina(1, Constant(0.5), unit=1.0)
    state = rule.update(started(rule, [[1.0, 0.0]]), np.array([[1.0, 2.0], [-1.0, -2.0]]))
    np.testing.assert_allclose(state.arrays["components"][0], np.array([1, 1]) / np.sqrt(2), rtol=1e-14)


def test_the_gradient_is_tangent_and_retracted() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 6))
    x -= x.mean(0)
    rows = np.linalg.qr(rng.normal(size=(6, 3)))[0].T
    y = x @ rows.T
    moved = rows - 0.2 / 30 * y.T @ (y @ rows - x)
    np.testing.assert_allclose(rows @ (moved - rows).T, 0, atol=1e-14)
    rule = Krasulina(3, Constant(0.2), unit=1.0)
    found = rule.update(started(rule, rows), x).arrays["components"]
    assert same_span(found, moved)
    assert same_span(found[:1], moved[:1])
    np.testing.assert_allclose(found @ found.T, np.eye(3), atol=1e-14)


def test_between_orthonormalizations_it_is_the_subspace_rule_of_unit_rows() -> None:
    x = planted(50)
    start = np.linalg.qr(np.random.default_rng(1).normal(size=(30, 2)))[0].T
    rule, other = (
        Krasulina(2, Constant(0.02), orthonormalize_every=2, unit=1.0),
        OjaSubspace(2, Constant(0.02), unit=1.0),
    )
    a = rule.update(started(rule, start), x).arrays["components"]
    b = other.update(started(other, start), x).arrays["components"]
    np.testing.assert_allclose(a, b / np.linalg.norm(b, axis=1, keepdims=True))


def test_orthonormalizing_every_third_update_still_converges() -> None:
    x = planted()
    assert (
        lost_variance(fit(Krasulina(3, Power(1.0, 0.9), orthonormalize_every=3, unit=1.0), x)["components"], x) < 2e-3
    )


def test_it_stays_where_it_has_arrived() -> None:
    """Of data in the span of the basis nothing is left over, whatever the step."""
    x = np.zeros((40, 5))
    x[:, :2] = np.random.default_rng(2).normal(size=(40, 2))
    rule = Krasulina(2, Constant(7.0), unit=1.0)
    start = np.eye(5)[:2]
    np.testing.assert_allclose(rule.update(started(rule, start), x).arrays["components"], start, atol=1e-14)
