"""The ridge classifier: scikit-learn's coefficients, and the penalty that many passes would choose, from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dpca
from dpca import CellPCA, StreamingRidgeClassifier
from dpca.engine.folds.plan import PlanError
from dpca.jobs import transform_store
from dpca.models.base.store import load_any
from dpca.models.supervised.ridge_classifier import _LABELS_AT_ONCE, _dealt
from dpca.storage import DataError, StoreError, open_stack
from dpca.storage.run import Run
from tests.helpers.traced import traced_peak

ALPHAS = (0.01, 1.0, 30.0, 1e3)


def labelled(n: int, shape: tuple[int, ...], n_classes: int, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Samples far from 0 around a center for each class, one attribute constant; classes unequally many."""
    rng = np.random.default_rng(n + n_classes)
    y = np.minimum(rng.geometric(0.4, n) - 1, n_classes - 1)
    y[:n_classes] = range(n_classes)
    centers = rng.normal(size=(n_classes, *shape))
    x = 100 + 20 * (0.4 * centers[y] + rng.normal(size=(n, *shape)) * rng.uniform(0.1, 1, shape))
    x[(slice(None), *(0,) * len(shape))] = 50
    return np.clip(x, 0, 255).astype(dtype), y


def targets_of(y: np.ndarray) -> np.ndarray:
    found = np.where(y[:, None] == np.unique(y), 1.0, -1.0)
    return found[:, 1:] if found.shape[1] == 2 else found


@settings(max_examples=12, deadline=None)
@given(
    n=st.integers(20, 90),
    shape=st.sampled_from([(5,), (4, 3), (40,)]),
    n_classes=st.sampled_from([2, 3, 5]),
    dtype=st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
    cv=st.integers(2, 5),
    standardize=st.booleans(),
    chunk=st.integers(1, 90),
)
def test_coefficients_and_penalty_are_those_of_brute_force(
    n: int, shape: tuple[int, ...], n_classes: int, dtype: Any, cv: int, standardize: bool, chunk: int
) -> None:
    x, y = labelled(n, shape, n_classes, dtype)
    flat, targets = x.reshape(n, -1).astype(float), targets_of(y)
    model = StreamingRidgeClassifier(ALPHAS, cv=cv, standardize=standardize).fit(x, y)
    steps = [StandardScaler()] if standardize else []
    search = GridSearchCV(
        make_pipeline(*steps, Ridge(solver="cholesky")),
        {"ridge__alpha": ALPHAS},
        cv=PredefinedSplit(model.folds_),
        scoring="neg_mean_squared_error",
    ).fit(flat, targets)
    splits = np.array([search.cv_results_[f"split{f}_test_score"] for f in range(cv)])
    errors = -(splits * np.bincount(model.folds_)[:, None]).sum(axis=0) / n
    np.testing.assert_allclose(model.cv_errors_, errors, rtol=1e-7)
    assert model.alpha_ == ALPHAS[int(errors.argmin())]
    ridge = make_pipeline(*steps, Ridge(model.alpha_, solver="cholesky")).fit(flat, targets)
    decisions = ridge.predict(flat).reshape(n, -1)
    atol = 1e-7 * np.abs(decisions).max()
    np.testing.assert_allclose(model.decision_function(x).reshape(n, -1), decisions, atol=atol)
    if standardize:
        own, expected = model.coef_ * steps[0].fit(flat).scale_, np.atleast_2d(ridge[-1].coef_)
        np.testing.assert_allclose(own, expected, atol=1e-6 * np.abs(expected).max())
    # Whatever the chunks: the same folds and classes, and moments that agree.
    lazy = StreamingRidgeClassifier(ALPHAS, cv=cv, standardize=standardize)
    lazy.fit(da.from_array(x, chunks=(chunk, *shape)), y)
    np.testing.assert_array_equal(lazy.folds_, model.folds_)
    assert lazy.alpha_ == model.alpha_
    np.testing.assert_array_equal(lazy.predict(x), model.predict(x))
    if dtype == np.uint8:
        np.testing.assert_array_equal(lazy.coef_, model.coef_)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_predictions_are_those_of_scikit_learns_classifier(n_classes: int) -> None:
    x, y = labelled(150, (6, 7), n_classes)
    names = np.array(["ann", "bo", "cy", "dee"])[y]
    model = StreamingRidgeClassifier(3.0).fit(x[:100], names[:100])
    flat = x.reshape(150, -1)
    expected = make_pipeline(StandardScaler(), RidgeClassifier(3.0)).fit(flat[:100], names[:100])
    np.testing.assert_array_equal(model.predict(x), expected.predict(flat))
    np.testing.assert_allclose(model.decision_function(x), expected.decision_function(flat), atol=1e-9)
    assert model.score(x[100:], names[100:]) == expected.score(flat[100:], names[100:])
    assert (model.alpha_, model.cv_errors_.tolist()) == (3.0, [0.0])
    plain = StreamingRidgeClassifier(3.0, standardize=False).fit(x, y)
    expected = RidgeClassifier(3.0, solver="cholesky").fit(flat, y)
    np.testing.assert_allclose(plain.coef_.ravel(), expected.coef_.ravel(), atol=1e-9 * np.abs(plain.coef_).max())


def test_looks_are_classifiers_of_the_samples_so_far() -> None:
    x, y = labelled(300, (5, 4), 3, np.uint8)
    told: list[dpca.Progress] = []
    model = StreamingRidgeClassifier(3.0).fit(x, y, callback=told.append)
    assert [one.n_samples_seen for one in told] == [16, 64, 256, 300]
    assert (told[-1].model, told[-1].finished) == (model, True)
    flat = x.reshape(300, -1).astype(float)
    for one in told:
        n = one.n_samples_seen
        expected = make_pipeline(StandardScaler(), RidgeClassifier(3.0)).fit(flat[:n], y[:n])
        np.testing.assert_allclose(one.model.decision_function(x), expected.decision_function(flat), atol=1e-9)
        assert np.isnan([one.captured_variance, one.captured_bound]).all()
    part = StreamingRidgeClassifier(3.0).fit(x, y, max_samples=64)
    np.testing.assert_array_equal(part.coef_, told[1].model.coef_)
    chosen = StreamingRidgeClassifier(ALPHAS).fit(x, y, callback=told.append)
    np.testing.assert_array_equal(chosen.coef_, StreamingRidgeClassifier(ALPHAS).fit(x, y).coef_)
    with pytest.raises(ZeroDivisionError):
        StreamingRidgeClassifier().fit(x, y, callback=lambda one: 1 // 0)


def test_each_class_is_dealt_to_the_folds_in_turn() -> None:
    x, y = labelled(83, (5,), 4)
    folds = StreamingRidgeClassifier(ALPHAS, cv=4).fit(x, y).folds_
    assert np.ptp(np.bincount(folds)) <= 1
    for c in range(4):
        assert np.ptp(np.bincount(folds[y == c], minlength=4)) <= 1


@pytest.mark.parametrize("kind", [np.int64, np.str_, object])
def test_labels_are_looked_at_some_at_a_time(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    x, y = labelled(83, (5,), 4)
    labels = y if kind is np.int64 else np.array(["ann", "bo", "cy", "dee"])[y].astype(kind)
    whole = StreamingRidgeClassifier(ALPHAS, cv=4).fit(x, labels)
    expected = np.empty(83, np.int32)
    expected[np.argsort(y, kind="stable")] = np.arange(83) % 4
    np.testing.assert_array_equal(whole.folds_, expected)
    monkeypatch.setattr("dpca.models.supervised.ridge_classifier._LABELS_AT_ONCE", 7)
    parts = StreamingRidgeClassifier(ALPHAS, cv=4).fit(x, labels)
    np.testing.assert_array_equal(parts.folds_, whole.folds_)
    np.testing.assert_array_equal(parts.classes_, whole.classes_)
    np.testing.assert_array_equal(parts.coef_, whole.coef_)


def test_labels_take_four_bytes_a_sample_which_are_planned() -> None:
    n = 2_000_000
    x, y = np.zeros((n, 1), np.uint8), np.zeros(n, np.uint8)
    x[1::2], y[::3] = 1, 1
    one = StreamingRidgeClassifier(1.0)
    peak, _ = traced_peak(lambda: np.unique(y), lambda classes: _dealt(y, classes, 5), 4 * n)
    assert peak < 4 * n + 40 * _LABELS_AT_ONCE + 2**20
    assert one.fit(x, y).fit_report_.plan.held_bytes == 4 * n


def test_stores_scores_workers_and_names(tmp_path: Path, scheduler: str) -> None:
    from distributed import Client

    x, y = labelled(120, (12, 8), 3, np.uint8)
    names = np.array([b"a", b"b", b"c"]).astype(str)[y]
    model = StreamingRidgeClassifier(ALPHAS).fit(x, names)
    zarr.create_array(str(tmp_path / "x"), data=x, chunks=(7, 12, 8))
    stack = open_stack(tmp_path / "x")
    for client in (None, Client(scheduler)):
        other = StreamingRidgeClassifier(ALPHAS).fit(stack, names, run=Run(client=client))
        np.testing.assert_array_equal(other.coef_, model.coef_)
        if client is not None:
            client.close()
    lazy = model.predict(tmp_path / "x")
    assert isinstance(lazy, da.Array)
    np.testing.assert_array_equal(lazy.compute(scheduler="threads"), model.predict(x))
    field = xarray.DataArray(x, dims=("time", "y", "x"), coords={"time": np.arange(120)})
    labelled_model = StreamingRidgeClassifier(ALPHAS).fit(field, names)
    found = labelled_model.predict(field)
    assert found.dims == ("time",)
    np.testing.assert_array_equal(found, model.predict(x))
    cells = CellPCA(3, cell_shape=4).fit(x)
    cells.save(tmp_path / "m")
    transform_store(stack, tmp_path / "m", tmp_path / "s")
    scores = dpca.open_scores(tmp_path / "s", model=cells)
    of_scores = StreamingRidgeClassifier(ALPHAS).fit(scores, names)
    assert of_scores.sample_shape_ == (3, 2, 3)
    in_memory = StreamingRidgeClassifier(ALPHAS).fit(cells.transform(x), names)
    np.testing.assert_allclose(of_scores.coef_, in_memory.coef_, rtol=1e-3, atol=1e-6)
    assert (of_scores.predict(scores).compute(scheduler="threads") == in_memory.predict(cells.transform(x))).all()


@pytest.mark.parametrize("classes", [["no", "yes"], [3, 7, 9], [False, True], np.array(["x", "yy", "z"], object)])
def test_models_are_saved_and_loaded(classes: Any, tmp_path: Path) -> None:
    x, y = labelled(60, (4, 3), len(classes))
    labels = np.array(classes)[y]
    model = StreamingRidgeClassifier(ALPHAS, cv=3, standardize=False).fit(x, labels)
    model.save(tmp_path / "m")
    loaded = StreamingRidgeClassifier.load(tmp_path / "m")
    assert repr(loaded) == repr(model)
    for name in ("coef_", "intercept_", "cv_errors_", "classes_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
        assert getattr(loaded, name).dtype == getattr(model, name).dtype
    assert (loaded.alpha_, loaded.n_samples_seen_, loaded.n_features_in_) == (model.alpha_, 60, 12)
    np.testing.assert_array_equal(load_any(tmp_path / "m").predict(x), model.predict(x))
    with pytest.raises(StoreError, match="cell-pca"):
        CellPCA.load(tmp_path / "m")


def test_what_cannot_be_learned_ends_with_a_sentence() -> None:
    x, y = labelled(30, (4, 3), 3)
    wrong: list[tuple[dict[str, Any], Any, Any, str]] = [
        ({}, x, None, "requires y to be passed, but the target y is None"),
        ({}, x, np.zeros(30), r"y holds 1 class, .*0.0.*at least 2 classes"),
        ({}, x, y[:20], "y holds 20 labels"),
        ({}, x, y + 0.5, "y does not hold classes"),
        ({}, x, np.ma.masked_equal(y, 0), "some labels are masked"),
        ({"alphas": 1e-30}, np.tile(x, 2), y, "alpha is 1e-30.* give a larger alpha$"),
        ({}, x, np.stack([y, y], axis=1), "y does not hold classes"),
        ({}, x, np.where(y, np.nan, 1), "y does not hold classes"),
        ({}, x[:3], y[:3], "cv is 5"),
        ({"cv": 1}, x, y, "cv is 1: give an integer of at least 2"),
        ({"alphas": 0}, x, y, "alphas is 0"),
        ({"alphas": ()}, x, y, r"alphas is \(\)"),
        ({"alphas": "all"}, x, y, "alphas is 'all'"),
        ({"standardize": "yes"}, x, y, "standardize is 'yes'"),
        ({}, np.where(x > 100, np.nan, x), y, "not finite"),
    ]
    for parameters, samples, labels, words in wrong:
        with pytest.raises(DataError, match=words):
            StreamingRidgeClassifier(**parameters).fit(samples, labels)
    for n_alphas, words in ((1, "components$"), (2, "components, or use one alpha")):
        small = StreamingRidgeClassifier(ALPHAS[:n_alphas], memory_budget=30_000_000)
        with pytest.raises(PlanError, match=rf"\b900\b.*\b30.MB.*{words}") as refused:
            small.fit(np.zeros((30, 900)), y)
        fits = int(str(refused.value).split("at most ")[1].split()[0])
        assert small.fit(np.zeros((30, fits)), y).n_features_in_ == fits > 100
        with pytest.raises(PlanError, match=r"\b30.MB"):
            small.fit(np.zeros((30, fits + 1)), y)
    model = StreamingRidgeClassifier(ALPHAS).fit(x, y)
    names = np.array(["a", "bb", "c"], np.dtypes.StringDType())
    of_names = StreamingRidgeClassifier(ALPHAS).fit(x, names[y])
    assert of_names.predict(x).tolist() == names[model.predict(x)].tolist()
    with pytest.raises(DataError, match=r"\(3,.4\).*\(4,.3\)"):
        model.predict(x.transpose(0, 2, 1))
    assert repr(clone(model)) == repr(model)
