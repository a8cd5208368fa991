"""Weights of samples in the ridge classifier: repeated samples, and scikit-learn's ridge regression with weights."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn
import zarr
from sklearn.base import clone
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.preprocessing import StandardScaler

from dpca import StreamingRidgeClassifier
from dpca.storage import DataError
from tests.models.supervised.test_ridge_classifier import ALPHAS, labelled, targets_of

N, SHAPE = 70, (4, 3)
COUNTS = np.random.default_rng(0).integers(0, 4, N)
SHARES = np.where(np.arange(N) % 5 == 3, 0, np.random.default_rng(1).random(N))
every_number = pytest.mark.parametrize("n_classes", [2, 4])


@every_number
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_weight_of_2_is_a_sample_twice(n_classes: int, dtype: Any) -> None:
    x, y = labelled(N, SHAPE, n_classes, dtype)
    model = StreamingRidgeClassifier(ALPHAS, cv=3)
    known = clone(model).fit(x.repeat(COUNTS, axis=0), y.repeat(COUNTS))
    for stack in (x, da.from_array(x, chunks=(9, 2, 3)), zarr.create_array({}, data=x, chunks=(7, 4, 3))):
        found = clone(model).fit(stack, y, sample_weight=COUNTS)
        np.testing.assert_array_equal(found.folds_, known.folds_)
        assert found.alpha_ == known.alpha_
        assert found.n_samples_seen_ == known.n_samples_seen_ == COUNTS.sum()
        for name in ("coef_", "intercept_", "cv_errors_"):
            if dtype == np.uint8 or stack is x:
                np.testing.assert_array_equal(getattr(found, name), getattr(known, name))
            np.testing.assert_allclose(getattr(found, name), getattr(known, name), rtol=1e-6, atol=1e-9)


@every_number
@pytest.mark.parametrize("standardize", [True, False])
def test_any_weights_are_those_of_scikit_learn(n_classes: int, standardize: bool) -> None:
    x, y = labelled(N, SHAPE, n_classes)
    flat = x.reshape(N, -1)
    for alpha in (0.1, 3.0):
        rows = StandardScaler().fit(flat, sample_weight=SHARES).transform(flat) if standardize else flat
        expected = RidgeClassifier(alpha, solver="cholesky").fit(rows, y, sample_weight=SHARES)
        found = StreamingRidgeClassifier(alpha, standardize=standardize).fit(x, y, sample_weight=SHARES)
        np.testing.assert_allclose(found.decision_function(x), expected.decision_function(rows), atol=1e-9)
        np.testing.assert_array_equal(found.predict(x), expected.predict(rows))
    assert found.n_samples_seen_ == (SHARES > 0).sum()


@pytest.mark.parametrize("weights", [COUNTS, SHARES])
def test_a_sample_of_weight_0_may_hold_any_value(weights: np.ndarray) -> None:
    x, y = labelled(N, SHAPE, 3, np.float32)
    gappy = x.copy()
    gappy[weights == 0] = np.nan
    known = StreamingRidgeClassifier(ALPHAS, cv=3).fit(x, y, sample_weight=weights)
    for stack in (gappy, da.from_array(gappy, chunks=(9, 2, 3))):
        found = StreamingRidgeClassifier(ALPHAS, cv=3).fit(stack, y, sample_weight=weights)
        np.testing.assert_allclose(found.coef_, known.coef_, rtol=1e-6, atol=1e-9)
    with pytest.raises(DataError, match="finite"):
        StreamingRidgeClassifier(ALPHAS, cv=3).fit(gappy, y)


@pytest.mark.parametrize("scale", [1, 1e-3, 1e5])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_the_penalty_has_the_least_weighted_error(dtype: Any, scale: float) -> None:
    x, y = labelled(N, SHAPE, 3, dtype)
    used, weights, alphas = SHARES > 0, scale * SHARES[SHARES > 0], tuple(scale * alpha for alpha in ALPHAS)
    flat, targets = x.reshape(N, -1)[used].astype(float), targets_of(y)[used]
    model = StreamingRidgeClassifier(alphas, cv=4).fit(x, y, sample_weight=scale * SHARES)
    errors = np.zeros(len(alphas))
    for fold in range(4):
        rest, own = model.folds_ != fold, model.folds_ == fold
        mean = np.average(flat[rest], axis=0, weights=weights[rest])
        deviation = np.sqrt(np.average((flat[rest] - mean) ** 2, axis=0, weights=weights[rest]))
        rows = (flat - mean) / np.where(deviation > 1e-9, deviation, 1)
        for i, alpha in enumerate(alphas):
            ridge = Ridge(alpha, solver="cholesky")
            ridge.fit(rows[rest], targets[rest], sample_weight=weights[rest])
            missed = ridge.predict(rows[own]) - targets[own]
            errors[i] += (weights[own] @ missed**2).mean()
    np.testing.assert_allclose(model.cv_errors_, errors / weights.sum(), rtol=1e-7)
    assert model.alpha_ == alphas[int(errors.argmin())]
    lazy = clone(model).fit(da.from_array(x, chunks=(9, 4, 2)), y, sample_weight=list(scale * SHARES))
    np.testing.assert_allclose(lazy.coef_, model.coef_, atol=1e-9 * np.abs(model.coef_).max())


def test_samples_that_drift_keep_their_accuracy() -> None:
    x, y = labelled(N, SHAPE, 2)
    x = x + 1e4 * (np.arange(N) > 40)[:, None, None]
    found = StreamingRidgeClassifier(0.1).fit(da.from_array(x, chunks=(9, 4, 3)), y, sample_weight=SHARES)
    rows = StandardScaler().fit(x.reshape(N, -1), sample_weight=SHARES).transform(x.reshape(N, -1))
    expected = RidgeClassifier(0.1, solver="cholesky").fit(rows, y, sample_weight=SHARES)
    np.testing.assert_allclose(found.decision_function(x), expected.decision_function(rows), atol=1e-5)


@pytest.mark.parametrize("weight", [1, 0.5])
def test_a_class_of_weight_0_is_left_out(weight: float) -> None:
    x, y = labelled(N, SHAPE, 3)
    weights = weight * (y != 1)
    found = StreamingRidgeClassifier().fit(x, y, sample_weight=weights)
    assert found.classes_.tolist() == [0, 2]
    with pytest.raises(DataError, match="class"):
        StreamingRidgeClassifier().fit(x, y, sample_weight=weight * (y == 0))


@pytest.mark.parametrize(
    ("weights", "word"), [(np.ones(N - 1), f"{N}"), (np.full(N, np.nan), "nan"), (np.zeros(N), "positive")]
)
def test_weights_that_are_rejected(weights: Any, word: str) -> None:
    x, y = labelled(N, SHAPE, 2)
    with pytest.raises(DataError, match=word):
        StreamingRidgeClassifier().fit(x, y, sample_weight=weights)


def test_scikit_learn_routes_weights_to_the_classifier() -> None:
    x, y = labelled(N, SHAPE, 2)
    with sklearn.config_context(enable_metadata_routing=True):
        model = StreamingRidgeClassifier().set_fit_request(sample_weight=True)
        assert model.get_metadata_routing().fit.requests["sample_weight"] is True
    assert model.fit(x, y, sample_weight=np.ones(N)).alpha_ == StreamingRidgeClassifier().fit(x, y).alpha_
