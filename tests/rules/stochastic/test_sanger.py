"""Sanger's rule against its formula; it finds the eigenvectors, not only their span."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.pipelines.studies.kernel.courses import passes
from dpca.rules.base.schedules import Constant, Delayed
from dpca.rules.kernel.gains import gains_of
from dpca.rules.stochastic.oja import OjaSubspace, Sanger
from tests.rules.streams import fit, fold, leading, planted


def started(rule, rows):
    state = rule.init(len(rows[0]), np.dtype(float))
    state.arrays["components"][...] = rows
    return state


def test_one_step_by_hand() -> None:
    """x = +-(1, 2), W = I: y y^T = [[1, 2], [2, 4]], lt = [[1, 0], [2, 4]], Y^T X - lt = [[0, 2], [0, 0]]."""
    rule = Sanger(2, Constant(0.1), unit=1.0)
    state = rule.update(started(rule, np.eye(2)), np.array([[1.0, 2.0], [-1.0, -2.0]]))
    np.testing.assert_allclose(state.arrays["components"], [[1, 0.2], [0, 1]], rtol=1e-14)


def test_the_triangle_is_applied_before_the_rows_change() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 5))
    x -= x.mean(0)
    rows = rng.normal(size=(3, 5))
    covariance = x.T @ x / 20
    rule = Sanger(3, Constant(0.1), unit=1.0)
    found = rule.update(started(rule, rows), x).arrays["components"]
    expected = rows + 0.1 * (rows @ covariance - np.tril(rows @ covariance @ rows.T) @ rows)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_one_component_is_oja_linearized() -> None:
    x = planted(500)
    a, b = (fit(rule(1, Delayed(0.05, 50), unit=1.0), x)["components"] for rule in (Sanger, OjaSubspace))
    np.testing.assert_array_equal(a, b)


def test_rows_become_the_ordered_eigenvectors() -> None:
    """Of the state, before finish turns anything; the subspace rule's rows are no eigenvectors."""
    x = planted(20_000)
    components = leading(x, 3)[1]
    agreement = {}
    for kind in (Sanger, OjaSubspace):
        rows = fold(kind(3, Delayed(0.1, 100), unit=1.0), x).arrays["components"]
        agreement[kind] = np.abs(np.sum(rows * components, axis=1)).min()
    assert agreement[Sanger] > 0.99
    assert agreement[OjaSubspace] < 0.9


def test_too_large_a_step_is_said() -> None:
    with pytest.raises(ValueError, match="Sanger"):
        fit(Sanger(2, Constant(100.0), unit=1.0), planted(5000))


@pytest.mark.parametrize("variant", ["t", "ts"])
def test_gains_are_those_of_the_kernel_rule(variant) -> None:
    """With a linear kernel, sample by sample, both are algorithm 1 of Günter, Schraudolph & Vishwanathan (2007)."""
    rng = np.random.default_rng(0)
    x, expansion = rng.normal(size=(40, 5)), rng.normal(0, 0.1, (3, 40))
    gains = gains_of(variant, 0.02, 40.0, 0.1)
    expected = next(passes(x @ x.T, gains, expansion, 1, each_step=True))["expansion"] @ x
    rule = Sanger(3, online=True, center=False, gains=gains)
    found = rule.update(started(rule, expansion @ x), x[np.random.default_rng(1).permutation(40)]).arrays["components"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert np.abs(found - expansion @ x).max() > 0.01


@pytest.mark.parametrize("variant", ["et*", "smd*"])
def test_gains_by_eigenvalues_need_no_unit(variant) -> None:
    """Eigenvectors, too, whatever the scale of the data."""
    x = planted(4000)
    components = leading(x, 3)[1]
    for scale in (1e-3, 1e3):
        rule = Sanger(3, gains=gains_of(variant, 0.3, 100.0, 0.01 / scale**2))
        rows = fold(rule, x * scale, 20).arrays["components"]
        assert np.abs(np.sum(rows * components, axis=1)).min() > 0.99
