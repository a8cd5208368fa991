"""Weights of samples that are not whole numbers, in `partial_fit` and in kernels, against sums by numpy."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.base import clone
from sklearn.metrics.pairwise import pairwise_kernels

from dpca import BandPCA, CellPCA, KernelPCA, PatchCascade, SpectralClustering, StreamingPCA, load
from dpca.storage import DataError
from dpca.storage.run import Run
from tests.helpers.weighted import SHAPE, K, N, samples

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

STREAMS: dict[str, Any] = {
    "covariance": StreamingPCA(K, method="covariance", keep_state=True),
    "incremental SVD": StreamingPCA(K, method="incremental-svd", keep_state=True),
    "cells": CellPCA(K, cell_shape=SHAPE, keep_state=True),
    "bands": BandPCA(K, band_size=24, mapping="raster", keep_state=True),
}
every_stream = pytest.mark.parametrize("model", STREAMS.values(), ids=list(STREAMS))
every_dtype = pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])


def mean_and_variances(x: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weighted mean, and the eigenvalues of numpy's weighted covariance with the divisor sum(weights) - 1."""
    rows, total = x.reshape(len(x), -1).astype(float), weights.sum()
    covariance = np.cov(rows, rowvar=False, aweights=weights, ddof=0) * (total / (total - 1))
    return np.average(rows, axis=0, weights=weights), np.linalg.eigvalsh(covariance)[::-1]


def assert_fitted(model: Any, x: np.ndarray, weights: np.ndarray, rtol: float = 1e-6) -> None:
    mean, values = mean_and_variances(x, weights)
    np.testing.assert_allclose(model.mean_.ravel(), mean, rtol=rtol)
    np.testing.assert_allclose(model.explained_variance_.ravel(), values[:K], rtol=rtol)
    np.testing.assert_allclose(np.sum(model.total_variance_), values.sum(), rtol=rtol)
    np.testing.assert_allclose(model.n_samples_seen_, weights.sum())


@every_dtype
@every_stream
def test_batches_are_those_of_numpys_covariance(model: Any, dtype: Any) -> None:
    x, weights = samples(dtype)
    for edges in ([0, N], [0, 30, 31, N]):
        found = clone(model)
        for start, stop in itertools.pairwise(edges):
            found.partial_fit(x[start:stop], sample_weight=weights[start:stop])
        assert_fitted(found, x, weights)


@every_dtype
@every_stream
def test_batches_without_weights_and_with_whole_ones_beside_others(model: Any, dtype: Any) -> None:
    x, weights = samples(dtype)
    weights[:30], weights[60:] = 1, np.arange(30) % 3
    for order in ((0, 30, 60), (30, 0, 60), (60, 30, 0)):
        found = clone(model)
        for at in order:
            own = None if at == 0 else weights[at : at + 30]
            found.partial_fit(x[at : at + 30], sample_weight=own)
        assert_fitted(found, x, weights)


@every_stream
def test_a_stored_state_continues_and_whole_sums_are_stored_as_integers(model: Any, tmp_path: Path) -> None:
    x, weights = samples()
    first = clone(model).partial_fit(x[:40], sample_weight=weights[:40])
    first.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.n_samples_seen_ == first.n_samples_seen_ != int(first.n_samples_seen_)
    np.testing.assert_array_equal(again.transform(x), first.transform(x))
    assert_fitted(again.partial_fit(x[40:], sample_weight=weights[40:]), x, weights)
    clone(model).partial_fit(x, sample_weight=np.full(N, 0.5)).save(tmp_path / "whole")
    assert zarr.open_group(tmp_path / "whole", mode="r")["state_counts"].dtype == np.int64
    assert isinstance(load(tmp_path / "whole").n_samples_seen_, int)


@pytest.mark.parametrize("name", ["covariance", "incremental SVD"])
def test_merged_streams(name: str) -> None:
    x, weights = samples(np.uint8)
    a, b = (clone(STREAMS[name]).partial_fit(x[r], sample_weight=weights[r]) for r in (slice(50), slice(50, N)))
    assert_fitted(a.merge(b), x, weights)
    assert 0.99 < a.captured_bound_ <= 1


def test_no_estimate_from_a_random_sample_of_samples_with_weights() -> None:
    """But one of samples of equal weights."""
    x, weights = samples()
    found = clone(STREAMS["incremental SVD"]).partial_fit(x)
    assert found.captured_estimate_ > 0.9
    assert np.isnan(found.partial_fit(x, sample_weight=weights).captured_estimate_)
    assert np.isnan(found.partial_fit(x).captured_estimate_)
    fitted = clone(STREAMS["incremental SVD"]).fit(x, sample_weight=weights)
    assert np.isnan(fitted.partial_fit(x).captured_estimate_)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("method", ["covariance", "incremental-svd"])
def test_streams_about_0(method: str, center: bool) -> None:
    x, weights = samples()
    rows, total = x.reshape(N, -1), weights.sum()
    rows = rows - center * np.average(rows, axis=0, weights=weights)
    found = StreamingPCA(K, method=method, center=center).partial_fit(x, sample_weight=weights)
    values = np.linalg.eigvalsh((rows.T * weights) @ rows / (total - 1))[::-1]
    np.testing.assert_allclose(found.explained_variance_, values[:K], rtol=1e-6)


def test_cells_that_share_components() -> None:
    for dtype in (np.uint8, np.float32):
        x, weights = samples(dtype)
        found = CellPCA(K, cell_shape=(2, 6), shared=True)
        for rows in (slice(40), slice(40, N)):
            found.partial_fit(x[rows], sample_weight=weights[rows])
        np.testing.assert_allclose(found.explained_variance_[0, 0], shared_truth(x, weights)[:K], rtol=1e-6)
        np.testing.assert_allclose(found.mean_, np.average(x.astype(float), axis=0, weights=weights), rtol=1e-9)


def kernel_truth(x: np.ndarray, weights: np.ndarray, model: Any) -> np.ndarray:
    """Eigenvalues of D^(1/2) K D^(1/2), with kernels about the weighted mean."""
    own = {"gamma": model.gamma_, "coef0": 1, "degree": 3}
    kernels = pairwise_kernels(x.reshape(N, -1).astype(float), metric=model.kernel, filter_params=True, **own)
    share = weights / weights.sum()
    kernels = kernels - (kernels @ share)[:, None] - share @ kernels + share @ kernels @ share
    return np.linalg.eigvalsh(np.sqrt(np.outer(weights, weights)) * kernels)[::-1][:K]


@pytest.mark.parametrize("kernel", ["rbf", "poly", "linear", "cosine"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_kernels_are_those_of_the_weighted_eigenproblem(kernel: str, dtype: Any) -> None:
    x, weights = samples(dtype)
    stacks = (x, da.from_array(x, chunks=(37, 4, 4)), zarr.create_array({}, data=x, chunks=(50, 3, 6)))
    for stack in stacks:
        found = KernelPCA(K, kernel=kernel, method="exact").fit(stack, sample_weight=weights)
        np.testing.assert_allclose(found.eigenvalues_, kernel_truth(x, weights, found), rtol=1e-6)
        scores = found.transform(x)
        np.testing.assert_allclose(weights @ scores, 0, atol=1e-6 * np.abs(scores).max())
        np.testing.assert_allclose(scores[weights > 0], found.landmark_scores_, atol=1e-6 * np.abs(scores).max())
        assert found.n_samples_seen_ == (weights > 0).sum()
    rows = x.reshape(N, -1).astype(float)
    own = KernelPCA(K, kernel=kernel, landmarks=x.astype(float), gamma=found.gamma_)
    for stack in (x, stacks[2]):
        fitted = clone(own).fit(stack, sample_weight=weights)
        np.testing.assert_allclose(fitted.eigenvalues_, found.eigenvalues_, rtol=1e-5)
        np.testing.assert_allclose(fitted.total_, found.total_, rtol=1e-3)
        assert fitted.captured_bound_ > 0.99
    fewer = clone(own).fit(x, sample_weight=weights / 3)
    np.testing.assert_allclose(fewer.total_, found.total_ / 3, rtol=1e-3)
    batches = clone(own).partial_fit(x[:50], sample_weight=weights[:50]).partial_fit(x[50:], sample_weight=weights[50:])
    np.testing.assert_allclose(batches.eigenvalues_, found.eigenvalues_, rtol=1e-5)
    np.testing.assert_allclose(batches.n_samples_seen_, weights.sum())
    if kernel == "rbf":
        total = mean_and_variances(rows, weights)[1].sum()
        np.testing.assert_allclose(found.gamma_, 1 / (4 * total), rtol=1e-9)
        chosen = KernelPCA(K, n_landmarks=60, random_state=0).fit(x, sample_weight=weights)
        np.testing.assert_allclose(chosen.gamma_, found.gamma_, rtol=1e-6)
        np.testing.assert_allclose(chosen.eigenvalues_, found.eigenvalues_, rtol=1e-2)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_kernels_of_large_samples(kernel: str) -> None:
    rng = np.random.default_rng(0)
    patterns, weights = rng.normal(size=(4, 40, 60, 70)), rng.random(9) * 3
    x = np.tensordot(rng.normal(size=(9, 4)), patterns, 1) + rng.normal(size=(9, 40, 60, 70)) + 5
    store, run = zarr.create_array({}, data=x.astype("f4"), chunks=(9, 7, 13, 70)), Run(memory=36 * 2**20, threads=2)
    found = KernelPCA(K, kernel=kernel, method="exact").fit(store, sample_weight=weights, run=run)
    known = KernelPCA(K, kernel=kernel, method="exact").fit(x, sample_weight=weights)
    assert isinstance(found.landmarks_, da.Array)
    assert not isinstance(known.landmarks_, da.Array)
    for name in ("gamma_", "eigenvalues_", "total_", "mean_coefficients_"):
        np.testing.assert_allclose(getattr(found, name), getattr(known, name), rtol=1e-5)
    np.testing.assert_allclose(found.landmark_scores_, known.landmark_scores_, atol=1e-3)
    np.testing.assert_allclose(found.transform(x[:5]), known.transform(x[:5]), atol=1e-3)


def test_spectral_clustering_is_that_of_weighted_degrees() -> None:
    truth, rng = np.arange(60) % 3, np.random.default_rng(0)
    x, weights = np.array([[0, 0], [6, 0], [0, 6]])[truth] + rng.normal(size=(60, 2)), rng.random(60) * 3
    weights[::9] = 0
    kernels = pairwise_kernels(x, metric="rbf", gamma=0.2)
    degrees = kernels @ weights
    values = np.linalg.eigvalsh(kernels * np.sqrt(np.outer(weights / degrees, weights / degrees)))[::-1]
    for given in (x, da.from_array(x, chunks=(17, 2))):
        found = SpectralClustering(3, gamma=0.2, landmarks=x, random_state=0).fit(given, sample_weight=weights)
        np.testing.assert_allclose(found.eigenvalues_, values[:3], rtol=1e-5)
        assert found.labels_.shape == (60,)
        assert len(set(zip(found.labels_, truth, strict=True))) <= 5


@pytest.mark.parametrize("options", [{}, {"filters": "random"}, {"whitening": None}], ids=str)
def test_cascades_of_weights_close_to_whole_numbers(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    x, weights = rng.integers(0, 256, (30, 12, 12), dtype=np.uint8), rng.integers(0, 3, 30).astype(float)
    x[:10, :6] //= 4
    model = PatchCascade((3, 4), patch_shape=3, random_state=0, **options)
    expected = clone(model).fit(x, sample_weight=weights)
    assert not np.allclose(expected.transform(x), clone(model).fit(x).transform(x), rtol=1e-3)
    weights[weights.argmax()] += 1e-9
    found = clone(model).fit(da.from_array(x, chunks=(7, 12, 12)), sample_weight=weights)
    np.testing.assert_allclose(found.transform(x), expected.transform(x), rtol=1e-4, atol=1e-4)
    for name in ("means_", "explained_variance_"):
        for a, b in zip(getattr(found, name), getattr(expected, name), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        StreamingPCA(K, method="oja", random_state=0),
        StreamingPCA(K, gaps="iterate"),
        StreamingPCA(K, track_scores=True),
        StreamingPCA(K, method="incremental-svd", forgetting=0.9),
    ],
    ids=str,
)
def test_streams_that_require_whole_weights(model: Any) -> None:
    x, weights = samples()
    with pytest.raises(DataError, match="whole"):
        clone(model).partial_fit(x, sample_weight=weights)
    known = clone(model).partial_fit(x)
    with pytest.raises(DataError, match="whole"):
        known.partial_fit(x, sample_weight=weights)
    np.testing.assert_array_equal(known.components_, clone(model).partial_fit(x).components_)


@every_stream
def test_batches_of_little_weight_count_together(model: Any) -> None:
    x, weights = samples()
    found = clone(model).partial_fit(x[:1], sample_weight=[0.4]).partial_fit(x[1:2], sample_weight=[0.2])
    assert_fitted(found.partial_fit(x, sample_weight=weights), np.r_[x[:2], x], np.r_[0.4, 0.2, weights])
    if isinstance(model, StreamingPCA):
        with pytest.raises(DataError, match="components"):
            _ = clone(model).partial_fit(x[:1], sample_weight=[0.4]).components_


def test_other_rejected_weights() -> None:
    x, weights = samples()
    with pytest.raises(DataError, match="precomputed"):
        KernelPCA(K, method="exact", kernel="precomputed").fit(np.eye(N), sample_weight=weights + 0.1)
    model = StreamingPCA(K).partial_fit(x, sample_weight=weights)
    with pytest.raises(DataError, match="partial_fit"):
        next(model.iter_fit(x))
    with pytest.raises(DataError, match="sum"):
        KernelPCA(K, method="exact").fit(x, sample_weight=weights / 1000)


@every_dtype
@pytest.mark.parametrize("center", [True, False])
@every_stream
def test_a_fit_that_keeps_its_state_continues(model: Any, center: bool, dtype: Any, tmp_path: Path) -> None:
    """As a stream of batches does, from samples in memory and in a store, with other weights and without."""
    x, weights = samples(dtype)
    weights[70:] = 1
    model = clone(model)
    if not center:
        if not isinstance(model, StreamingPCA):
            return
        model.set_params(center=False)
    known = clone(model)
    for rows in (slice(50), slice(50, 70), slice(70, N)):
        known.partial_fit(x[rows], sample_weight=weights[rows])
    for stack in (x[:50], zarr.create_array({}, data=x[:50], chunks=(9, 2, 3))):
        found = clone(model).fit(stack, sample_weight=weights[:50])
        np.testing.assert_allclose(found.n_samples_seen_, weights[:50].sum())
        found.save(tmp_path / "m", overwrite=True)
        for later in (found, load(tmp_path / "m")):
            later.partial_fit(x[50:70], sample_weight=weights[50:70]).partial_fit(x[70:])
            np.testing.assert_allclose(later.n_samples_seen_, known.n_samples_seen_)
            for name in ("mean_", "explained_variance_", "total_variance_"):
                np.testing.assert_allclose(getattr(later, name), getattr(known, name), rtol=2e-5)
            if center:
                assert_fitted(later, x, weights, rtol=2e-5)
            if isinstance(later, StreamingPCA):
                assert 0.99 < later.captured_bound_ <= 1
                assert np.isnan(later.captured_estimate_) == (later.method == "incremental-svd")


@every_stream
def test_models_of_some_samples_of_a_weighted_fit_keep_no_state(model: Any) -> None:
    """The rows of such a fit are about the mean of all samples."""
    x, weights = samples()
    x, weights = x.repeat(10, axis=0), weights.repeat(10)
    stack, states = zarr.create_array({}, data=x, chunks=(50, 4, 6)), []
    fit = {"sample_weight": weights, "callback": lambda progress: states.append(progress.model._states is not None)}
    assert hasattr(clone(model).fit(stack, **fit), "partial_fit")
    assert states == [False] * (len(states) - 1) + [True]
    assert len(states) > 1
    assert not hasattr(clone(model).fit(stack, sample_weight=weights, max_samples=100), "partial_fit")


def shared_truth(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Eigenvalues of the mean of numpy's weighted covariances of both halves."""
    total, halves = weights.sum(), (x[:, :2].reshape(len(x), -1), x[:, 2:].reshape(len(x), -1))
    covariances = [np.cov(half.astype(float), rowvar=False, aweights=weights, ddof=0) for half in halves]
    return np.linalg.eigvalsh(sum(covariances) / 2 * total / (total - 1))[::-1]


@every_dtype
def test_a_fit_of_cells_that_share_components(dtype: Any) -> None:
    x, weights = samples(dtype)
    for stack in (x, da.from_array(x, chunks=(37, 4, 4)), zarr.create_array({}, data=x, chunks=(50, 3, 6))):
        found = CellPCA(K, cell_shape=(2, 6), shared=True, keep_state=True).fit(stack, sample_weight=weights)
        np.testing.assert_allclose(found.explained_variance_[0, 0], shared_truth(x, weights)[:K], rtol=1e-5)
        np.testing.assert_allclose(found.total_variance_, shared_truth(x, weights).sum(), rtol=1e-5)
        np.testing.assert_allclose(found.mean_, np.average(x.astype(float), axis=0, weights=weights), rtol=1e-6)
        again, both = found.partial_fit(x[:40], sample_weight=weights[:40] / 2).partial_fit(x[:9]), weights.copy()
        both[:40] *= 1.5
        both[:9] += 1
        np.testing.assert_allclose(again.explained_variance_[0, 0], shared_truth(x, both)[:K], rtol=1e-5)
        np.testing.assert_allclose(again.mean_, np.average(x.astype(float), axis=0, weights=both), rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"overlap": 2}, {"n_components": None, "target_mse": 900}], ids=str)
def test_shared_cells_of_several_shapes_and_weights_close_to_whole_numbers(options: dict[str, Any]) -> None:
    x, weights = samples(np.uint8)
    whole = np.rint(weights)
    model = CellPCA(**{"n_components": 2, "cell_shape": 4, "shared": True, **options})
    expected = clone(model).fit(x.repeat(whole.astype(int), axis=0))
    whole[whole.argmax()] += 1e-9
    found = clone(model).fit(x, sample_weight=whole)
    np.testing.assert_array_equal(found.ranks_, expected.ranks_)
    for name in ("mean_", "explained_variance_", "total_variance_"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-4)


def test_shared_cells_in_blocks_of_large_samples() -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(12, 5)) @ rng.normal(size=(5, 600 * 800)) + 20).astype(np.float32).reshape(12, 600, 800)
    weights, model = rng.random(12) * 3, CellPCA(K, cell_shape=20, shared=True)
    store = zarr.create_array({}, data=x, chunks=(1, 100, 800))
    known, found = (clone(model).fit(store, sample_weight=weights, run=Run(memory=m)) for m in (10**9, 10**8))
    assert not known.fit_report_.note
    assert "blocks" in found.fit_report_.note
    for name in ("mean_", "explained_variance_", "total_variance_"):
        np.testing.assert_allclose(getattr(found, name), getattr(known, name), rtol=1e-4)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_pre_images_have_the_width_of_weighted_scores(kernel: str) -> None:
    x, weights = samples()
    model = KernelPCA(K, kernel=kernel, method="exact", gamma=1e-4)
    found = clone(model).fit(x, sample_weight=weights)
    _, variances = mean_and_variances(found.landmark_scores_, weights[weights > 0])
    np.testing.assert_allclose(found.inverse_gamma_, 1 / (4 * variances.sum()), rtol=1e-9)
    whole = np.rint(weights)
    expected = clone(model).fit(x.repeat(whole.astype(int), axis=0))
    whole[whole.argmax()] += 1e-9
    np.testing.assert_allclose(
        clone(model).fit(x, sample_weight=whole).inverse_gamma_, expected.inverse_gamma_, rtol=1e-6
    )
