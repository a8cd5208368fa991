"""scikit-learn's conventions: its own checks, pipelines, searches over parameters, tables, likelihoods."""

from __future__ import annotations

import math
import warnings
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn import config_context
from sklearn.base import clone
from sklearn.decomposition import PCA as Reference
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import dpca
from dpca import PCA, BandPCA, CellPCA, KernelPCA, PatchPCA, SpectralClustering, StreamingPCA, StreamingRidgeClassifier
from dpca.engine.sources.source import as_source
from dpca.jobs import fit_store, transform_store
from dpca.models.base.store import load_any
from dpca.storage import DataError, open_stack
from dpca.storage.run import Run

SHAPE = (6, 8)
PARTITIONED: dict[str, Any] = {
    "cells": CellPCA(2, cell_shape=(4, 3)),
    "lapped": CellPCA(2, cell_shape=(3, 4), overlap=2),
    "bands": BandPCA(2, band_size=15),
}
every_partitioned = pytest.mark.parametrize("model", [clone(m) for m in PARTITIONED.values()], ids=list(PARTITIONED))


def images(n: int = 120, dtype: Any = np.float64) -> np.ndarray:
    """Images with a few strong directions and noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4)) @ (rng.normal(size=(4, math.prod(SHAPE))) * np.array([[9], [6], [4], [2]]))
    return (x + rng.normal(size=x.shape) + 100).reshape(n, *SHAPE).astype(dtype)


_FOLDS = {"check_sample_weight_equivalence_on_dense_data": "it sets cv to lists of samples, but cv is a number here"}


@pytest.mark.cases(80)
@parametrize_with_checks(
    [
        CellPCA(1, cell_shape=2),
        CellPCA(1, cell_shape=1, flatten=True),
        BandPCA(1, band_size=2),
        PCA(1),
        PCA(1, solver="dual"),
        PCA(1, solver="randomized", random_state=0),
        StreamingPCA(1),
        StreamingPCA(1, method="incremental-svd"),
        StreamingPCA(1, method="ccipca"),
        StreamingPCA(1, method="sanger", shuffle=True),
        KernelPCA(1, random_state=0),
        SpectralClustering(2, random_state=0),
        StreamingRidgeClassifier(),
        PatchPCA(1, patch_shape=1, flatten=True),
    ],
    expected_failed_checks=lambda estimator: _FOLDS if isinstance(estimator, StreamingRidgeClassifier) else {},
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


# -- scores in a single axis


@every_partitioned
def test_flat_scores_are_the_scores_and_come_back(model: Any, tmp_path: Any) -> None:
    x, fitted = images(), clone(model).fit(images())
    flat = clone(fitted).set_params(flatten=True).fit(x)
    scores, rows = fitted.transform(x), flat.transform(x)
    np.testing.assert_array_equal(rows, scores.reshape(len(x), -1))
    assert rows.shape[1] == len(flat.get_feature_names_out())
    back = fitted.inverse_transform(scores)
    np.testing.assert_array_equal(flat.inverse_transform(rows), back)
    np.testing.assert_array_equal(flat.inverse_transform(scores), back)
    first = fitted.inverse_transform(scores, 1)
    np.testing.assert_array_equal(flat.inverse_transform(rows, 1), first)
    np.testing.assert_array_equal(flat.inverse_transform(scores[..., :1].reshape(len(x), -1), 1), first)
    lazy = flat.transform(da.from_array(x, chunks=(50, 3, 8)))
    np.testing.assert_allclose(lazy.compute(), rows)
    again = flat.inverse_transform(lazy.rechunk((50, 3)))
    assert isinstance(again, da.Array)
    np.testing.assert_allclose(again.compute(), back)
    with pytest.raises(DataError, match="n_samples"):
        flat.inverse_transform(rows[:, 1:])
    flat.save(tmp_path / "m")
    np.testing.assert_array_equal(load_any(tmp_path / "m").transform(x), rows)


@every_partitioned
def test_scores_as_a_table(model: Any) -> None:
    x, fitted = images(), clone(model).fit(images())
    expected = fitted.transform(x).reshape(len(x), -1)
    assert fitted.set_output(transform="pandas") is fitted
    for table in (fitted.transform(x), clone(model).set_output(transform="pandas").fit_transform(x)):
        assert isinstance(table, pd.DataFrame)
        assert list(table.columns) == list(fitted.get_feature_names_out())
        np.testing.assert_array_equal(table.to_numpy(), expected)
    np.testing.assert_allclose(fitted.transform(da.from_array(x, chunks=(50, *SHAPE))).to_numpy(), expected)
    np.testing.assert_allclose(fitted.inverse_transform(table), clone(model).fit(x).inverse_transform(expected))
    with config_context(transform_output="pandas"):
        assert clone(model).fit(x).transform(x).shape == expected.shape


def test_a_pipeline_and_a_search_over_it() -> None:
    x = images(200)
    y = x[:, :, :4].mean(axis=(1, 2)) > x[:, :, 4:].mean(axis=(1, 2))
    for model in (CellPCA(1, cell_shape=4, flatten=True), BandPCA(1, band_size=12, flatten=True)):
        name = type(model).__name__.lower()
        steps = make_pipeline(model, LogisticRegression(max_iter=1000))
        search = GridSearchCV(steps, {f"{name}__n_components": [1, 2]}, cv=3).fit(x, y)
        assert search.best_score_ > 0.9
        rows = search.best_estimator_[0].transform(x)
        assert rows.ndim == 2
        assert search.predict(x).shape == y.shape


# -- likelihoods


@pytest.mark.cases(4)
@pytest.mark.parametrize("n", [120, 20])
@pytest.mark.parametrize("k", [1, 4, 15])
@pytest.mark.parametrize("make", [PCA, StreamingPCA])
def test_the_likelihood_is_scikit_learns(make: Any, k: int, n: int) -> None:
    x, others = images(n).reshape(n, -1), images(150)[n:].reshape(150 - n, -1)
    expected = Reference(k, svd_solver="full").fit(x)
    model = make(k).fit(x)
    for rows in (x, others):
        assert model.score(rows) == pytest.approx(expected.score(rows), rel=1e-9)
    assert model.score(da.from_array(others, chunks=(7, 5))) == pytest.approx(expected.score(others), rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.integers(3, 40), st.integers(1, 9), st.sampled_from([np.uint8, np.float32, np.float64]), st.data())
def test_a_likelihood_of_any_shape_and_type(n: int, d: int, dtype: Any, data: Any) -> None:
    k = data.draw(st.integers(1, min(n - 2, d)))  # n - 1 leave no noise
    x = (np.random.default_rng(n * d).normal(size=(n, d)) * 20 + 100).astype(dtype)
    expected = Reference(k, svd_solver="full").fit(x.astype(float)).score(x.astype(float))
    assert PCA(k).fit(x).score(x) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("k", [1, 3, None])
def test_the_likelihood_of_cells_is_that_of_independent_gaussians(k: int | None) -> None:
    x, others = images(), images(150)[120:]
    model = CellPCA(k, cell_shape=(4, 3)).fit(x)
    expected = np.zeros(len(others))
    for box in (np.s_[a:b, c:d] for a, b in ((0, 4), (4, 6)) for c, d in ((0, 3), (3, 6), (6, 8))):
        cell, rows = x[:, *box].reshape(len(x), -1), others[:, *box].reshape(len(others), -1)
        one = Reference(None if k is None else min(k, cell.shape[1]), svd_solver="full").fit(cell)
        expected += multivariate_normal(one.mean_, one.get_covariance()).logpdf(rows)
    assert model.score(others) == pytest.approx(expected.mean(), rel=1e-9)


def test_the_likelihood_of_lapped_cells_is_that_of_the_filtered_samples() -> None:
    """The filter is orthogonal: densities stay as they are."""
    x = images()
    model = CellPCA(2, cell_shape=(3, 4), overlap=2).fit(x)
    filtered = model.grid_.prefilter.apply(x.copy(), (0, 0))
    plain = CellPCA(2, cell_shape=(3, 4)).fit(filtered)
    assert model.score(x) == pytest.approx(plain.score(filtered), rel=1e-9)


def test_a_search_finds_the_number_of_components_that_scikit_learn_finds() -> None:
    x, grid = images(90), {"n_components": [1, 3, 4, 6, 20]}
    flat = x.reshape(len(x), -1)
    expected = GridSearchCV(Reference(svd_solver="full"), grid, cv=3).fit(flat)
    assert expected.best_params_ == {"n_components": 4}
    for model, rows in ((PCA(1), flat), (PCA(1), x), (StreamingPCA(1), x), (CellPCA(1, cell_shape=SHAPE), x)):
        found = GridSearchCV(model, grid, cv=3).fit(rows)
        assert found.best_params_ == expected.best_params_
        np.testing.assert_allclose(
            found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=1e-9
        )


@pytest.mark.parametrize("model", [PCA(None), CellPCA(cell_shape=2), BandPCA(None, band_size=9)], ids=str)
def test_directions_without_variance_leave_a_finite_likelihood(model: Any) -> None:
    x = images(10)
    x[:, 0] = 7
    fitted = clone(model).fit(x)
    assert np.isfinite(fitted.score(x))
    assert fitted.score(x + 1) < fitted.score(x)


# -- whitening, and shares of the variance


@pytest.mark.parametrize("model", [PCA(3, whiten=True), StreamingPCA(3, whiten=True)], ids=str)
def test_whitened_scores_are_scikit_learns(model: Any, tmp_path: Any) -> None:
    x = images()
    flat = x.reshape(len(x), -1)
    expected = Reference(3, whiten=True, svd_solver="full").fit(flat)
    fitted = clone(model).fit(x)
    scores = fitted.transform(x)
    signs = np.sign((fitted.components_ * expected.components_).sum(axis=1))
    np.testing.assert_allclose(scores, signs * expected.transform(flat), atol=1e-9)
    np.testing.assert_allclose(scores.var(axis=0, ddof=1), 1)
    back = expected.inverse_transform(expected.transform(flat))
    np.testing.assert_allclose(fitted.inverse_transform(scores).reshape(len(x), -1), back, rtol=1e-9)
    plain = clone(model).set_params(whiten=False).fit(x)
    np.testing.assert_array_equal(fitted.components_, plain.components_)
    np.testing.assert_array_equal(fitted.score_samples(x), plain.score_samples(x))
    # scikit-learn's own likelihood of a whitened model squares the variances.
    assert fitted.score(x) == plain.score(x) == pytest.approx(expected.set_params(whiten=False).score(flat))
    np.testing.assert_allclose(fitted.inverse_transform(scores, 2), plain.inverse_transform(plain.transform(x), 2))
    np.testing.assert_allclose(fitted.transform(da.from_array(x, chunks=(50, *SHAPE))), scores)
    fitted.save(tmp_path / "m")
    loaded = load_any(tmp_path / "m")
    np.testing.assert_array_equal(loaded.transform(x), scores)
    assert loaded.basis_.fingerprint() != plain.basis_.fingerprint()


def test_scores_of_a_whitened_model_in_a_store_are_read_by_no_other(tmp_path: Any) -> None:
    x = images(40, np.uint8)
    zarr.create_array(str(tmp_path / "x"), data=x, chunks=(11, *SHAPE))
    model = PCA(3, whiten=True).fit(x)
    model.save(tmp_path / "m")
    transform_store(open_stack(tmp_path / "x"), tmp_path / "m", tmp_path / "scores")
    stored = dpca.open_scores(tmp_path / "scores", model=tmp_path / "m")
    np.testing.assert_allclose(stored.scores.compute(), model.transform(x), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(stored.stack().compute(), model.inverse_transform(model.transform(x)), atol=0.51)
    with pytest.raises(DataError, match="another"):
        dpca.open_scores(tmp_path / "scores", model=PCA(3).fit(x))


@pytest.mark.parametrize("n", [150, 30])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9, 0.99, 0.9999999])
def test_a_share_of_the_variance_takes_as_many_components_as_in_scikit_learn(n: int, share: float) -> None:
    x = images(n)
    flat = x.reshape(n, -1)
    expected = Reference(share, svd_solver="full").fit(flat)
    streams = [StreamingPCA(share), StreamingPCA(share, method="covariance", n_passes=2)]
    models = [PCA(share), PCA(share, solver="dual"), PCA(share, solver="covariance", n_least=1), *streams]
    for model in [*(clone(m).fit(x) for m in models), StreamingPCA(share).partial_fit(x[:20]).partial_fit(x[20:])]:
        assert model.n_components_ == len(model.components_) == expected.n_components_, model
        np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-9)
        assert model.transform(x).shape == (n, expected.n_components_)
        if expected.noise_variance_ > 1e-9:
            assert model.score(x) == pytest.approx(expected.score(flat), rel=1e-6)


@pytest.mark.parametrize("model", [PCA(0.9), StreamingPCA(0.9)], ids=str)
def test_a_share_in_stores_and_jobs(model: Any, tmp_path: Any) -> None:
    x = images(150, np.float32)
    zarr.create_array(str(tmp_path / "x"), data=x, chunks=(11, *SHAPE))
    source = as_source(str(tmp_path / "x"))
    basis, known = model.plan_fit(source, ("y", "x"), Run())
    assert (basis.score_shape, known) == ((1,), False)
    assert "90 %" in model.fit_description(("y", "x"))
    model.check_parameters_for(150)
    stored = fit_store(open_stack(tmp_path / "x"), tmp_path / "m", clone(model).set_params(random_state=0)).model
    fitted = clone(model).fit(x)
    np.testing.assert_allclose(stored.explained_variance_, fitted.explained_variance_, rtol=1e-6)
    assert load_any(tmp_path / "m").n_components_ == fitted.n_components_
    again = load_any(tmp_path / "m").fit(x[:100])
    assert again.explained_variance_ratio_.sum() > 0.9
    assert again.explained_variance_ratio_[:-1].sum() <= 0.9


def test_a_share_needs_all_eigenvalues() -> None:
    x = images()
    with pytest.raises(DataError, match=r"n_components=0\.9.*\b48\b"):
        PCA(0.9, solver="randomized").fit(x)
    with pytest.raises(DataError, match="incremental-svd"):
        StreamingPCA(0.9, method="incremental-svd").fit(x)
    for share in (0.0, 1.0, -0.5, 1.5, math.nan):
        for make in (PCA, StreamingPCA):
            with pytest.raises(DataError, match="positive"):
                make(share).fit(x)
    constant = np.full((20, 6), 3.0)
    assert PCA(0.9).fit(constant).n_components_ == StreamingPCA(0.9).fit(constant).n_components_ == 1
