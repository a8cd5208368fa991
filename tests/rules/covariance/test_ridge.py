"""Moments of folds beside scikit-learn's ridge regression, where rounding or an empty fold could show."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from dpca.rules.base.codes import written_codes
from dpca.rules.base.state import State
from dpca.rules.covariance.ridge import RidgeMoments
from tests.helpers.traced import traced_peak

ALPHAS = (0.1, 10.0, 300.0)


def fold(rule: RidgeMoments, x: np.ndarray, classes: np.ndarray, folds: np.ndarray, step: int = 7) -> State:
    rows = np.hstack([x, written_codes(folds * rule.n_classes + classes, x.dtype)])
    state = rule.init(rows.shape[1], rows.dtype)
    for start in range(0, len(rows), step):
        state = rule.update(state, rows[start : start + step])
    return state


def expected(x: np.ndarray, y: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients for attributes as they are, and the decisions."""
    scaler = StandardScaler().fit(x)
    ridge = Ridge(alpha, solver="cholesky").fit(scaler.transform(x), y)
    return ridge.coef_ / scaler.scale_, ridge.predict(scaler.transform(x))


def samples(n: int = 60, d: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    classes = np.arange(n) % 2
    return rng.normal(size=(n, d)) + classes[:, None] * np.linspace(-1, 1, d), classes


@pytest.mark.parametrize("empty", [0, 2])
def test_a_fold_without_samples_changes_nothing_far_from_0(empty: int) -> None:
    x, classes = samples()
    x += 1e7
    others = [i for i in range(3) if i != empty]
    rule = RidgeMoments(2, ALPHAS, n_folds=3)
    found = rule.finish(fold(rule, x, classes, np.array(others)[np.arange(60) // 2 % 2]))
    coefficients, decisions = expected(x, 2.0 * classes - 1, float(found["alpha"]))
    np.testing.assert_allclose(found["coefficients"][0], coefficients, rtol=1e-6)
    np.testing.assert_allclose((x @ found["coefficients"].T + found["intercept"])[:, 0], decisions, atol=1e-6)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 7.7, -12345.678, 1e8 + 0.1])
def test_an_attribute_that_is_constant_up_to_rounding_has_no_coefficient(value: float, standardize: bool) -> None:
    x, classes = samples()
    x[:, 1] = value
    rule = RidgeMoments(2, (1.0,), standardize=standardize)
    parts = [fold(rule, x[a:b], classes[a:b], np.zeros(b - a, int)) for a, b in ((0, 7), (7, 41), (41, 60))]
    found = rule.finish(rule.merge(rule.merge(*parts[:2]), parts[2]))
    x[:, 1] = 0  # scikit-learn multiplies the rounding errors of the mean, too
    y = 2.0 * classes - 1
    coefficients = expected(x, y, 1.0)[0] if standardize else Ridge(1.0, solver="cholesky").fit(x, y).coef_
    np.testing.assert_allclose(found["coefficients"][0], coefficients, rtol=1e-9, atol=1e-12)
    assert found["coefficients"][0, 1] == 0


@pytest.mark.parametrize(("spread", "is_constant"), [(1e-15, True), (1e-12, False)])
def test_a_spread_above_the_rounding_of_its_values_is_variance(spread: float, is_constant: bool) -> None:
    x, classes = samples(400)
    x[:, 1] = 1e3 * (1 + spread * np.sign(x[:, 1]))
    rule = RidgeMoments(2, (1.0,))
    found = rule.finish(fold(rule, x, classes, np.zeros(400, int)))
    assert (found["coefficients"][0, 1] == 0) == is_constant


@pytest.mark.parametrize("value", [1 / 3, 3.3, 5.55, 7.7, 0.1, -2.2])
def test_an_attribute_that_is_constant_without_a_fold_has_no_coefficient_there(value: float) -> None:
    """The shift comes from the fold in which the attribute varies, far from its constant value in the other one.

    Whether rounding leaves a variance above 0 depends on the value.
    """
    x, classes = samples(60)
    folds = np.repeat([0, 1], [40, 20])
    x[:, 1] = np.where(folds == 0, 1e5 * (1 + x[:, 1]), value)
    rule = RidgeMoments(2, ALPHAS, n_folds=2)
    found = rule.finish(fold(rule, x, classes, folds, 40))
    y, errors = 2.0 * classes - 1, np.zeros(3)
    for i, alpha in enumerate(ALPHAS):
        for f in range(2):
            rest, own = x[folds != f].copy(), x[folds == f].copy()
            if f == 0:
                rest[:, 1] = own[:, 1] = 0
            scaler = StandardScaler().fit(rest)
            ridge = Ridge(alpha, solver="cholesky").fit(scaler.transform(rest), y[folds != f])
            errors[i] += ((ridge.predict(scaler.transform(own)) - y[folds == f]) ** 2).sum() / 60
    np.testing.assert_allclose(found["errors"], errors, rtol=1e-6)


def test_little_variance_is_variance() -> None:
    """An attribute far from where the first samples had it; a millionth of its mean square is scaled to 1."""
    x, classes = samples(2000)
    x[:, 2] = 1e5 + x[:, 2]
    x[0, 2] = 0
    rule = RidgeMoments(2, ALPHAS, n_folds=2)
    folds = np.arange(2000) // 2 % 2
    found = rule.finish(fold(rule, x, classes, folds))
    y, errors = 2.0 * classes - 1, np.zeros(3)
    for i, alpha in enumerate(ALPHAS):
        for f in range(2):
            scaler = StandardScaler().fit(x[folds != f])
            ridge = Ridge(alpha, solver="cholesky").fit(scaler.transform(x[folds != f]), y[folds != f])
            errors[i] += ((ridge.predict(scaler.transform(x[folds == f])) - y[folds == f]) ** 2).sum() / 2000
    np.testing.assert_allclose(found["errors"], errors, rtol=1e-4)


@pytest.mark.parametrize(("unit", "words"), [(1e160, "exceeds the range of float64"), (1e-170, "underflow in float64")])
def test_values_whose_squares_float64_does_not_hold(unit: float, words: str) -> None:
    x, classes = samples()
    rule = RidgeMoments(2, (1.0,))
    with pytest.raises(ValueError, match=words), np.errstate(all="ignore"):
        rule.finish(fold(rule, x * unit, classes, np.zeros(60, int)))


def test_merged_states_count_all_samples() -> None:
    x, classes = samples()
    rule = RidgeMoments(2, ALPHAS, n_folds=2)
    folds = np.arange(60) // 2 % 2
    merged = rule.merge(fold(rule, x[:20], classes[:20], folds[:20]), fold(rule, x[20:], classes[20:], folds[20:]))
    assert merged.counts["n_samples"] == 60
    whole = rule.finish(fold(rule, x, classes, folds))
    for name, values in rule.finish(merged).items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-10)


@pytest.mark.parametrize(("n_classes", "n_folds", "d"), [(2, 1, 300), (3, 4, 300), (40, 2, 60)])
def test_an_end_takes_the_memory_that_is_planned(n_classes: int, n_folds: int, d: int) -> None:
    x = np.random.default_rng(0).normal(size=(400, d))
    classes, folds = np.arange(400) % n_classes, np.arange(400) // n_classes % n_folds
    rule = RidgeMoments(n_classes, ALPHAS if n_folds > 1 else (1.0,), n_folds=n_folds)
    limit = rule.work_bytes(0, d, x.dtype) + rule.result_bytes(d, x.dtype) + 50_000
    peak, found = traced_peak(lambda: fold(rule, x, classes, folds, 400), rule.finish, limit)
    assert peak <= limit
    assert sum(array.nbytes for array in found.values()) <= rule.result_bytes(d, x.dtype)


def test_a_fold_that_holds_all_samples_leaves_none_to_learn_from() -> None:
    """Nothing is known of its targets then: the decision is 0, and each squared error 1."""
    x, classes = samples()
    found = RidgeMoments(2, ALPHAS, n_folds=2).finish(
        fold(RidgeMoments(2, ALPHAS, n_folds=2), x, classes, np.zeros(60, int))
    )
    np.testing.assert_allclose(found["errors"], 1)
    np.testing.assert_allclose(found["coefficients"][0], expected(x, 2.0 * classes - 1, ALPHAS[0])[0], rtol=1e-9)
