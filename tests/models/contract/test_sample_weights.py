"""Weights of samples: a weight of 2 is a sample twice, and 0 leaves it out."""

from __future__ import annotations

import inspect
from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn
import xarray
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpca import PCA, BandPCA, CellPCA, KernelPCA, PatchPCA, SpectralClustering, StreamingPCA, TrajectoryPCA
from dpca.models.base.store import ESTIMATORS, load_any
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.storage import DataError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

MODELS: dict[str, Any] = {
    "covariance": PCA(3, n_least=2),
    "dual": PCA(3, solver="dual"),
    "randomized": PCA(3, solver="randomized", tol=0.9, random_state=0),
    "cells": CellPCA(3, cell_shape=4),
    "lapped cells": CellPCA(3, cell_shape=4, overlap=2),
    "shared cells": CellPCA(3, cell_shape=4, shared=True),
    "cells that meet a target": CellPCA(cell_shape=4, target_psnr=20),
    "validated cells": CellPCA(cell_shape=4, target_psnr=20, validation_fraction=0.3, random_state=0),
    "bands": BandPCA(3, band_size=20, mapping="random", random_state=0),
    "incremental SVD": StreamingPCA(3, method="incremental-svd", random_state=0),
    "shuffled": StreamingPCA(3, method="oja", shuffle=True, random_state=0),
    "passes": StreamingPCA(3, method="incremental-svd", n_passes=2, random_state=0),
    "kernels": KernelPCA(3, random_state=0),
    "patches": PatchPCA(3, patch_shape=3),
    "frames": TrajectoryPCA(3, random_state=0),
}
STREAMS = ("cells", "shared cells", "bands", "incremental SVD", "kernels")
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
every_stream = pytest.mark.parametrize("model", [MODELS[name] for name in STREAMS], ids=STREAMS)


def weighted_samples(model: Any, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Samples of bytes for a model, and weights from 0 to 3."""
    rng = np.random.default_rng(0)
    shape = (8, 3) if isinstance(model, TrajectoryPCA) else (8, 9)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.integers(0, 4, n)


def assert_same_model(a: Any, b: Any) -> None:
    """Fitted attributes are the same bytes, except those of a run."""
    names = {name for name in vars(b) if name.endswith("_") and not name.startswith("_")} - {"fit_report_"}
    assert names
    for name in names:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


@every_model
def test_a_weight_is_how_often_a_sample_counts(model: Any) -> None:
    x, weights = weighted_samples(model)
    expected = clone(model).fit(x.repeat(weights, axis=0))
    found = clone(model).fit(x, sample_weight=weights)
    assert found.n_samples_seen_ == expected.n_samples_seen_
    assert_same_model(found, expected)
    np.testing.assert_array_equal(found.transform(x), expected.transform(x))
    assert_same_model(clone(model).fit(x, sample_weight=np.ones(len(x))), clone(model).fit(x))


@every_model
def test_weights_of_float_lists_stacks_and_arrays_of_xarray(model: Any, tmp_path: Any) -> None:
    x, weights = weighted_samples(model)
    expected = clone(model).fit(x, sample_weight=weights)
    array = xarray.DataArray(x, dims=("time", "y", "x"))
    assert_same_model(clone(model).fit(array, sample_weight=[*map(float, weights)]), expected)
    zarr.create_array(str(tmp_path / "x"), data=x, chunks=(len(x), *x.shape[1:]))
    found = clone(model).fit(str(tmp_path / "x"), sample_weight=xarray.DataArray(weights, dims="time"))
    np.testing.assert_allclose(found.transform(x), expected.transform(x), rtol=1e-4, atol=1e-2)


def with_left_out(model: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples, the same with values that are not finite where a weight is 0, and weights."""
    x, weights = weighted_samples(model)
    weights[14:21] = 0  # a chunk that is not read
    kept, x = x.astype("float32"), x.astype("float32")
    x[weights == 0] = np.nan
    x[np.flatnonzero(weights == 0)[1::2]] = -np.inf
    return kept, x, weights


@every_model
@pytest.mark.parametrize("source", ["array", "store", "dask"])
def test_a_sample_of_weight_0_may_hold_any_value(model: Any, source: str, tmp_path: Any) -> None:
    kept, x, weights = with_left_out(model)

    def given(values: np.ndarray, name: str) -> Any:
        if source == "store":
            zarr.create_array(str(tmp_path / name), data=values, chunks=(7, *values.shape[1:]))
            return str(tmp_path / name)
        return da.from_array(values, chunks=(7, 4, 9)) if source == "dask" else values

    found = clone(model).fit(given(x, "x"), sample_weight=weights)
    assert_same_model(found, clone(model).fit(given(kept, "kept"), sample_weight=weights))
    used = int(np.flatnonzero(weights == 3)[4])
    x[used, 2, 1] = np.nan
    with pytest.raises(DataError, match=f"sample.{used}.of"):
        clone(model).fit(given(x, "wrong"), sample_weight=weights)


@every_stream
def test_a_sample_of_weight_0_in_a_batch_may_hold_any_value(model: Any) -> None:
    kept, x, weights = with_left_out(model)
    found, expected = (clone(model).partial_fit(values, sample_weight=weights) for values in (x, kept))
    assert_same_model(found, expected)
    with pytest.raises(DataError, match="sample"):
        clone(model).partial_fit(x, sample_weight=weights + 1)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_moments_of_bytes_are_exact_for_any_chunks_and_order(data: Any) -> None:
    n = data.draw(st.integers(2, 40))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    dtype = data.draw(st.sampled_from([np.uint8, np.int16]))
    x, weights = rng.integers(0, 100, (n, 4, 3)).astype(dtype), rng.integers(0, 3, n)
    weights[rng.integers(n)] += 2
    model = data.draw(st.sampled_from([PCA(2), CellPCA(2, cell_shape=2), BandPCA(2, band_size=5)]))
    model = clone(model).set_params(**({"solver": "covariance"} if isinstance(model, PCA) else {"keep_state": True}))
    order, chunks = rng.permutation(n), data.draw(st.integers(1, n))
    expected = clone(model).fit(x.repeat(weights, axis=0))
    store = zarr.create_array({}, data=x[order], chunks=(chunks, 3, 2))
    for stack in (x[order], da.from_array(x[order], chunks=(chunks, 2, 3)), store):
        assert_same_model(clone(model).fit(stack, sample_weight=weights[order]), expected)


@every_stream
def test_weights_of_batches(model: Any) -> None:
    x, weights = weighted_samples(model, 90)
    weights[0] = 1
    found, expected = clone(model), clone(model)
    for rows in (slice(0, 40), slice(40, 90)):
        found.partial_fit(x[rows], sample_weight=weights[rows])
        expected.partial_fit(x[rows].repeat(weights[rows], axis=0))
    assert_same_model(found, expected)
    np.testing.assert_array_equal(found.transform(x), expected.transform(x))


def test_the_covariance_is_that_of_numpy() -> None:
    x, weights = weighted_samples(None, 200)
    rows = x.reshape(len(x), -1).astype(float)
    covariance = np.cov(rows, rowvar=False, fweights=weights)
    model = PCA(None, solver="covariance").fit(x, sample_weight=weights)
    np.testing.assert_allclose(model.mean_, np.average(rows, axis=0, weights=weights), rtol=1e-12)
    np.testing.assert_allclose(model.explained_variance_, np.linalg.eigvalsh(covariance)[::-1], rtol=1e-6)
    found = (model.components_.T * model.explained_variance_) @ model.components_
    np.testing.assert_allclose(found, covariance, atol=1e-6 * covariance.max())


SOLVERS = ("covariance", "dual", "randomized", "orthogonal-iteration")


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
def test_any_weights_are_those_of_numpys_covariance(dtype: Any, solver: str, center: bool) -> None:
    """A large mean costs no accuracy."""
    rng = np.random.default_rng(0)
    offset = 128 if dtype == np.uint8 else 10_001
    x = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 72)) * 5 + rng.normal(size=(300, 72)) + offset
    x, weights = np.rint(x).astype(dtype).reshape(300, 8, 9), rng.random(300) * 3
    weights[::7] = 0
    rows, total = x.reshape(300, -1).astype(float), weights.sum()
    mean = np.average(rows, axis=0, weights=weights) * center
    covariance = (rows - mean).T @ ((rows - mean) * weights[:, None]) / (total - 1)
    if center:
        known = np.cov(rows, rowvar=False, aweights=weights, ddof=0) * total / (total - 1)
        np.testing.assert_allclose(covariance, known, atol=1e-9)
    values, vectors = np.linalg.eigh(covariance)
    chosen: dict[str, Any] = {} if solver in ("covariance", "dual") else {"n_iter": 30, "random_state": 0}
    k = 3 if center else 1  # about 0, the mean hides the others in rounding errors
    for stack in (x, da.from_array(x, chunks=(37, 8, 5)), zarr.create_array({}, data=x, chunks=(50, 3, 9))):
        model = PCA(k, solver=solver, center=center, **chosen).fit(stack, sample_weight=weights)
        np.testing.assert_allclose(model.mean_.ravel(), mean, atol=1e-6, rtol=1e-9)
        np.testing.assert_allclose(model.explained_variance_, values[: -k - 1 : -1], rtol=1e-6)
        np.testing.assert_allclose(model.total_variance_, values.sum(), rtol=1e-6)
        np.testing.assert_allclose(np.abs((model.components_ @ vectors[:, : -k - 1 : -1]).diagonal()), 1, rtol=1e-6)
        assert model.n_samples_seen_ == (weights > 0).sum()


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_whole_weights_and_a_fraction_are_close_for_any_chunks_and_order(data: Any) -> None:
    n = data.draw(st.integers(4, 40))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, weights = rng.integers(0, 256, (n, 4, 3), dtype=np.uint8), rng.integers(0, 3, n).astype(float)
    weights[:3] = 1, 2, 3
    expected = PCA(None, solver="covariance").fit(x, sample_weight=weights)
    weights[0] += 1e-9
    order, chunks = rng.permutation(n), data.draw(st.integers(1, n))
    stack = data.draw(st.sampled_from([da.from_array, lambda x, chunks: zarr.create_array({}, data=x, chunks=chunks)]))
    found = PCA(None, solver="covariance").fit(stack(x[order], chunks=(chunks, 2, 3)), sample_weight=weights[order])
    largest = expected.explained_variance_[0]
    least = min(len(found.explained_variance_), len(expected.explained_variance_))
    np.testing.assert_allclose(
        found.explained_variance_[:least], expected.explained_variance_[:least], atol=1e-6 * largest
    )
    np.testing.assert_allclose(found.mean_, expected.mean_, rtol=1e-6)


def test_any_weights_resume_and_show_their_progress(tmp_path: Any) -> None:
    x, weights = weighted_samples(None)
    seen: list[Any] = []
    model = PCA(3, solver="covariance", random_state=0)
    run = Run(checkpoints=Checkpoints(str(tmp_path / "kept")))
    runs = [clone(model).fit(x, sample_weight=w, run=run) for w in (weights / 2, weights / 4)]
    for w, found in zip((weights / 2, weights / 4), runs, strict=True):
        assert_same_model(found, clone(model).fit(x, sample_weight=w, callback=seen.append))
    assert all(np.array_equal(progress.model.mean_, runs[0].mean_) for progress in seen[: len(seen) // 2])
    assert runs[0].n_passes_ == 2


@pytest.mark.parametrize("model", [CellPCA(3, cell_shape=(4, 9)), BandPCA(3, band_size=36, mapping="raster")], ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_any_weights_of_cells_and_bands(model: Any, dtype: Any) -> None:
    rng, kept = np.random.default_rng(0), list[Any]()
    x, weights = rng.integers(0, 256, (120, 8, 9)).astype(dtype), rng.random(120) * 3
    weights[::7] = 0
    total = weights.sum()
    for stack in (x, da.from_array(x, chunks=(37, 8, 5)), zarr.create_array({}, data=x, chunks=(50, 3, 9))):
        found = clone(model).fit(stack, sample_weight=weights, callback=kept.append)
        np.testing.assert_allclose(found.mean_, np.average(x.astype(float), axis=0, weights=weights), rtol=1e-6)
        for i, part in enumerate((x[:, :4], x[:, 4:])):
            rows = part.reshape(len(x), -1).astype(float)
            covariance = np.cov(rows, rowvar=False, aweights=weights, ddof=0) * total / (total - 1)
            values = np.linalg.eigvalsh(covariance)[::-1]
            np.testing.assert_allclose(found.explained_variance_.reshape(2, 3)[i], values[:3], rtol=1e-6)
            np.testing.assert_allclose(found.total_variance_.ravel()[i], values.sum(), rtol=1e-6)
        np.testing.assert_array_equal(kept[0].model.mean_, found.mean_)


STREAMED = (
    *({"method": "covariance"}, {"method": "incremental-svd", "oversampling": 60}),
    *({"method": "incremental-svd", "oversampling": 5, "n_passes": 6}, {"method": "covariance", "shuffle": True}),
    {"method": "incremental-svd", "oversampling": 60, "forgetting": 1},
)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("options", STREAMED, ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_any_weights_of_streams(dtype: Any, options: dict[str, Any], center: bool) -> None:
    """Five directions and noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 5)) @ rng.normal(size=(5, 72)) * 5 + rng.normal(size=(900, 72)) + 128
    x, weights = np.rint(x).astype(dtype).reshape(900, 8, 9), rng.random(900) * 3
    weights[::7] = 0
    rows, total = x.reshape(900, -1).astype(float), weights.sum()
    mean = np.average(rows, axis=0, weights=weights) * center
    covariance = (rows - mean).T @ ((rows - mean) * weights[:, None]) / (total - 1)
    values = np.linalg.eigvalsh(covariance)[::-1]
    k = 3 if center else 1
    for stack in (x, da.from_array(x, chunks=(137, 8, 5)), zarr.create_array({}, data=x, chunks=(50, 3, 9))):
        model = StreamingPCA(k, center=center, random_state=0, **options).fit(stack, sample_weight=weights)
        np.testing.assert_allclose(model.mean_.ravel(), mean, atol=1e-6, rtol=1e-9)
        np.testing.assert_allclose(model.explained_variance_, values[:k], rtol=1e-5)
        np.testing.assert_allclose(model.total_variance_, values.sum(), rtol=1e-5)
        assert model.n_samples_seen_ == (weights > 0).sum()
        assert np.all(model.captured_bound_ <= 1)
        scores = model.transform(x)
        np.testing.assert_allclose(scores, (rows - mean) @ model.components_.T, atol=1e-2)


CELLS = (CellPCA(3, cell_shape=4, overlap=2), CellPCA(cell_shape=4, target_mse=2000), CellPCA(cell_shape=4))


@pytest.mark.parametrize("model", CELLS, ids=str)
def test_any_weights_close_to_whole_numbers(model: Any) -> None:
    x, weights = weighted_samples(None)
    expected, weights = clone(model).fit(x, sample_weight=weights), weights.astype(float)
    weights[weights.argmax()] += 1e-9
    found = clone(model).fit(x, sample_weight=weights)
    np.testing.assert_array_equal(found.ranks_, expected.ranks_)
    np.testing.assert_allclose(found.mean_, expected.mean_, rtol=1e-6)
    largest = expected.explained_variance_.max()
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, atol=1e-6 * largest)


COUNTING = (
    *(KernelPCA(3, method="kha"), PCA(3, gaps="iterate"), CellPCA(3, cell_shape=4, gaps="iterate")),
    *(StreamingPCA(3, gaps="iterate"), StreamingPCA(3, forgetting=0.9)),
    *(StreamingPCA(3, method=IncrementalSVD(forgetting=0.9)), StreamingPCA(3, method="oja", keep_state=True)),
    CellPCA(cell_shape=4, target_psnr=20, validation_fraction=0.3, data_range=(0, 255)),
)


@pytest.mark.parametrize("model", COUNTING, ids=str)
def test_weights_that_are_not_whole_are_rejected_where_they_have_no_meaning(model: Any) -> None:
    x, weights = weighted_samples(None)
    x = x.astype(np.float32)
    with pytest.raises(DataError, match="whole"):
        clone(model).fit(x, sample_weight=weights / 2)


def test_left_out_chunks_are_not_read(tmp_path: Any) -> None:
    x, weights = weighted_samples(None)
    store = zarr.create_array(str(tmp_path / "x"), data=x, chunks=(10, 8, 9))
    weights[20:40] = 0
    expected = CellPCA(3, cell_shape=4).fit(str(tmp_path / "x"), sample_weight=weights)
    (tmp_path / "x" / "c" / "2" / "0" / "0").write_bytes(b"damaged")
    assert store.nchunks == 6
    found = CellPCA(3, cell_shape=4).fit(str(tmp_path / "x"), sample_weight=weights)
    assert_same_model(found, expected)


def test_a_value_that_is_not_finite_counts_where_its_sample_does() -> None:
    x, weights = weighted_samples(None)
    x, weights[7] = x.astype(np.float32), 2
    x[7, 0, 0] = np.nan
    for stack in (x, da.from_array(x, chunks=(9, 8, 9)), zarr.create_array({}, data=x, chunks=(9, 8, 9))):
        with pytest.raises(DataError, match="7"):
            PCA(3).fit(stack, sample_weight=weights)


def test_weights_of_samples_with_missing_values() -> None:
    x, weights = weighted_samples(None)
    x = x.astype(np.float32)
    x[np.random.default_rng(1).random(x.shape) < 0.1] = np.nan
    model = PCA(2, gaps="iterate", random_state=0)
    expected = clone(model).fit(x.repeat(weights, axis=0))
    for stack in (x, da.from_array(x, chunks=(60, 8, 9))):
        np.testing.assert_allclose(clone(model).fit(stack, sample_weight=weights).mean_, expected.mean_, rtol=1e-5)


def test_checkpoints_of_other_weights_are_not_used_and_a_stored_model_takes_weights(tmp_path: Any) -> None:
    x, weights = weighted_samples(None)
    model = CellPCA(3, cell_shape=4, keep_state=True)
    run = Run(checkpoints=Checkpoints(str(tmp_path / "kept")))
    runs = [clone(model).fit(x, sample_weight=w, run=run) for w in (weights, weights + 1)]
    for w, found in zip((weights, weights + 1), runs, strict=True):
        assert_same_model(found, clone(model).fit(x.repeat(w, axis=0)))
    runs[0].save(tmp_path / "m")
    again = load_any(tmp_path / "m").partial_fit(x, sample_weight=weights)
    assert_same_model(again, clone(model).fit(x.repeat(2 * weights, axis=0)))


@pytest.mark.parametrize(
    ("weights", "word"),
    [
        (np.ones(59), "59"),
        (np.ones((60, 1)), "60"),
        (["a"] * 60, "real"),
        (np.full(60, 1j), "complex128"),
        (np.full(60, -1), "-1"),
        (np.full(60, np.nan), "nan"),
        (np.full(60, np.inf), "inf"),
        (np.full(60, 2.0**60), "whole"),
        (np.full(60, 0.01), "sum|whole"),
        (np.zeros(60), "positive"),
    ],
)
def test_weights_that_are_rejected(weights: Any, word: str) -> None:
    x, _ = weighted_samples(None)
    for model in (PCA(3), CellPCA(3, cell_shape=4), StreamingPCA(3)):
        with pytest.raises(DataError, match=word):
            clone(model).fit(x, sample_weight=weights)
    for model in (CellPCA(3, cell_shape=4), StreamingPCA(3)):
        fitted = clone(model).partial_fit(x)
        if word == "sum|whole":  # the sum of all batches counts
            continue
        with pytest.raises(DataError, match=word):
            fitted.partial_fit(x, sample_weight=weights)
        assert_same_model(fitted, clone(model).partial_fit(x))


def test_one_sample_of_weight_1_has_no_variance() -> None:
    x, _ = weighted_samples(None)
    with pytest.raises(DataError, match="2"):
        PCA(1).fit(x, sample_weight=np.arange(len(x)) == 5)


def test_scikit_learn_routes_weights() -> None:
    x, weights = weighted_samples(None)
    with sklearn.config_context(enable_metadata_routing=True):
        model = CellPCA(3, cell_shape=4).set_fit_request(sample_weight=True)
        steps = make_pipeline(FunctionTransformer(), model).fit(x, sample_weight=weights)
    assert_same_model(steps[-1], CellPCA(3, cell_shape=4).fit(x, sample_weight=weights))


def test_every_fit_and_partial_fit_has_weights() -> None:
    for kind in (*ESTIMATORS.values(), SpectralClustering):
        for name in ("fit", "partial_fit"):
            if hasattr(kind, name):
                assert "sample_weight" in inspect.signature(getattr(kind, name)).parameters
