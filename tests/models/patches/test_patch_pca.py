"""PatchPCA: components against numpy's eigenvectors of all patches, feature maps against scipy's correlations."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.linalg
import xarray
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from scipy.signal import correlate

import dpca
from dpca import PatchPCA
from dpca.engine.sources.source import as_source
from dpca.jobs import fit_store, reconstruct_store, transform_store
from dpca.kernels import patches
from dpca.kernels.patches import PatchGrid
from dpca.rules.covariance.patch_covariance import PatchCovariancePCA
from dpca.storage import DataError, StoreError, open_stack
from dpca.storage.run import Run
from tests.conftest import smooth_images
from tests.helpers.resealing import edit_facts
from tests.helpers.rounding import assert_equal_up_to_rounding


def all_patches(x: np.ndarray, patch: tuple[int, ...], stride: int) -> np.ndarray:
    """All patches as rows, copied out at once."""
    n, axes = len(patch), tuple(range(1, len(patch) + 1))
    windows = sliding_window_view(x, patch, axis=axes)[(slice(None), *(slice(None, None, stride),) * n)]
    for _ in range(windows.ndim - 1 - 2 * n):  # channels behind the patch
        windows = np.moveaxis(windows, n + 1, -1)
    return windows.reshape(-1, int(np.prod(patch)) * int(np.prod(x.shape[n + 1 :])))


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return smooth_images(40, (17, 14, 3))


@pytest.fixture(scope="module")
def fitted(images: np.ndarray) -> PatchPCA:
    return PatchPCA(12, patch_shape=5).fit(images)


def test_components_span_the_eigenvectors_of_all_patches_at_once(images: np.ndarray, fitted: PatchPCA) -> None:
    rows = all_patches(images, (5, 5), 1).astype(np.float64)
    values, vectors = np.linalg.eigh(np.cov(rows, rowvar=False))
    assert fitted.components_.shape == (12, 5, 5, 3)
    found = fitted.components_.reshape(12, -1).astype(np.float64)
    assert scipy.linalg.subspace_angles(found.T, vectors[:, ::-1][:, :12]).max() < 1e-4
    filters = fitted.filters(whiten=4.0).reshape(12, 3, 5, 5).transpose(0, 2, 3, 1).reshape(12, -1)
    assert scipy.linalg.subspace_angles(filters.T.astype(float), vectors[:, ::-1][:, :12]).max() < 1e-4
    np.testing.assert_allclose(fitted.explained_variance_, values[::-1][:12], rtol=1e-9)
    np.testing.assert_allclose(fitted.total_variance_, values.sum(), rtol=1e-9)
    np.testing.assert_allclose(fitted.explained_variance_ratio_, values[::-1][:12] / values.sum(), rtol=1e-9)
    np.testing.assert_allclose(fitted.mean_.ravel(), rows.mean(axis=0), rtol=1e-12)
    assert (fitted.n_samples_seen_, fitted.sample_shape_) == (40, (17, 14, 3))


def test_feature_maps_are_correlations(images: np.ndarray, fitted: PatchPCA) -> None:
    maps = fitted.transform(images[:3])
    assert (maps.shape, maps.dtype) == ((3, 13, 10, 12), np.float32)
    for whiten in (None, 7.5):
        weights, biases = fitted.filters(whiten), fitted.filter_biases(whiten)
        assert weights.shape == (12, 3, 5, 5)
        scales = 1.0 if whiten is None else np.sqrt(fitted.explained_variance_ + whiten)
        for i, j in ((0, 0), (2, 11)):
            image = images[i].astype(np.float64).transpose(2, 0, 1)
            expected = correlate(image, weights[j].astype(np.float64), mode="valid")[0] + biases[j]
            np.testing.assert_allclose(maps[i, ..., j] / np.broadcast_to(scales, 12)[j], expected, atol=2e-3)
    both = fitted.filters(7.5, signs=True)
    np.testing.assert_array_equal(both, np.concatenate([weights, -weights]))
    np.testing.assert_array_equal(fitted.filter_biases(7.5, signs=True), np.concatenate([biases, -biases]))


def test_whitened_patches_have_the_covariance_that_is_promised(images: np.ndarray) -> None:
    model = PatchPCA(patch_shape=3, stride=2).fit(images.astype(np.float64))
    rows = all_patches(images, (3, 3), 2).astype(np.float64)
    eps = 1e-3 * model.explained_variance_[-1]
    for whiten in (0.0, eps, 50.0):
        filters = model.filters(whiten).transpose(0, 2, 3, 1).reshape(27, -1)
        covariance = np.cov(rows @ filters.T, rowvar=False)
        expected = model.explained_variance_ / (model.explained_variance_ + whiten)
        np.testing.assert_allclose(covariance, np.diag(expected), atol=1e-9)
        assert whiten == 50.0 or np.abs(covariance - np.eye(27)).max() <= 1.001e-3


@settings(max_examples=12, deadline=None)
@given(
    sample=st.sampled_from([(9,), (7, 8), (6, 9, 2), (5, 6, 5), (5, 4, 6, 2)]),
    patch=st.integers(1, 4),
    stride=st.integers(1, 3),
    dtype=st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
    most=st.sampled_from([1, 60, 2**18]),
)
def test_all_shapes_strides_and_blocks(sample: tuple[int, ...], patch: int, stride: int, dtype: Any, most: int) -> None:
    x = np.random.default_rng(0).integers(0, 100, (4, *sample)).astype(dtype)
    n_spatial = len(sample) - (len(sample) > 2 and sample[-1] == 2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(patches, "_BLOCK_VALUES", most)
        model = PatchPCA(patch_shape=patch, stride=stride).fit(x)
        rows = all_patches(x, (patch,) * n_spatial, stride).astype(np.float64)
        np.testing.assert_allclose(model.total_variance_, rows.var(axis=0, ddof=1).sum(), rtol=1e-4)
        maps = model.transform(x)
        flat = maps.reshape(-1, model.n_components_).astype(np.float64)
        expected = (rows - rows.mean(axis=0)) @ model.components_.reshape(model.n_components_, -1).T
        np.testing.assert_allclose(flat, expected, atol=0.01)
        back, covered = model.inverse_transform(maps), model.grid_.counts() > 0
        np.testing.assert_allclose(back[:, covered], x[:, covered], atol=0.01)
        fill = model.mean_.mean(axis=tuple(range(n_spatial)))
        np.testing.assert_allclose(back[:, ~covered], np.broadcast_to(fill, back[:, ~covered].shape), rtol=1e-5)
        assert len(model.get_feature_names_out()) == maps[0].size


def test_samples_are_the_nearest_to_what_scores_stand_for(images: np.ndarray) -> None:
    """The average at each pixel, against least squares of all patches at once."""
    model, x = PatchPCA(2, patch_shape=3).fit(images[..., 0]), images[:1, :6, :5, 0]
    small = PatchPCA(2, patch_shape=3).fit(images[:, :6, :5, 0])
    scores = small.transform(x)
    wanted = scores.reshape(-1, 2) @ small.components_.reshape(2, -1) + small.mean_.ravel()
    pixels = sliding_window_view(np.arange(30).reshape(6, 5), (3, 3)).reshape(-1)
    system = np.zeros((len(pixels), 30))
    system[np.arange(len(pixels)), pixels] = 1
    expected = np.linalg.lstsq(system, wanted.ravel(), rcond=None)[0]
    np.testing.assert_allclose(small.inverse_transform(scores).ravel(), expected, rtol=1e-4)
    errors = [
        np.square(model.inverse_transform(model.transform(images[..., 0]), k) - images[..., 0]).mean() for k in (1, 2)
    ]
    assert errors[0] > errors[1]


def test_merging_any_batches_gives_the_same_bytes_of_8_bit_integers(images: np.ndarray, fitted: PatchPCA) -> None:
    rule, rows = PatchCovariancePCA(fitted.grid_, 12), images.reshape(40, -1)

    def state(part: np.ndarray) -> Any:
        return rule.update(rule.init(rows.shape[1], np.uint8), part)

    merged = rule.merge(rule.merge(state(rows[30:]), state(rows[:7])), state(rows[7:30]))
    assert merged.counts == {"n_samples": 40, "n_patches": 40 * fitted.grid_.n_patches}
    found = rule.finish(merged)
    np.testing.assert_array_equal(found["components"].astype(np.float32).reshape(12, 5, 5, 3), fitted.components_)
    np.testing.assert_array_equal(found["mean"], fitted.mean_.ravel())
    assert rule.work_bytes(40, rows.shape[1], np.uint8) > 0


def test_values_far_from_0_lose_nothing(images: np.ndarray) -> None:
    x = images.astype(np.float32) / 255
    near, far = PatchPCA(4, patch_shape=3).fit(x), PatchPCA(4, patch_shape=3).fit(x + np.float32(4096))
    np.testing.assert_allclose(far.explained_variance_, near.explained_variance_, rtol=5e-3)


def test_store_to_store(images: np.ndarray, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "stack.zarr"), data=images, chunks=(7, 17, 14, 3))
    stack, model, scores = open_stack(tmp_path / "stack.zarr"), tmp_path / "model.zarr", tmp_path / "scores.zarr"
    kept = fit_store(stack, model, PatchPCA(5, patch_shape=(4, 3), stride=(2, 3))).model
    transform_store(stack, model, scores)
    written, n_terms, length = zarr.open(scores)["scores"][...], 4 * 3 * 3, 255 * np.sqrt(4 * 3 * 3)
    assert_equal_up_to_rounding(written, kept.transform(images), n_terms, length)
    opened = dpca.open_scores(scores, 2, model=model)
    np.testing.assert_array_equal(opened.scores.compute(), written[..., :2])
    reconstruct_store(model, scores, tmp_path / "again.zarr", n_components=3)
    back = np.clip(kept.inverse_transform(written, 3), 0, 255)
    assert np.abs(open_stack(tmp_path / "again.zarr").samples[...] - back).max() < 0.5 + 1e-3
    with xarray.open_zarr(scores, consolidated=False) as others:
        assert others["scores"].dims == ("sample", "patch_y", "patch_x", "component")
    for fact, value in (("stride", [0, 3]), ("patch_shape", [4, 4]), ("total_variance", None), ("n_samples_seen", 1)):
        damaged = shutil.copytree(model, tmp_path / fact)
        edit_facts(damaged, lambda facts, new={fact: value}: facts.update(new))
        with pytest.raises(StoreError, match="damaged"):
            PatchPCA.load(damaged)


def test_labelled_and_flat(images: np.ndarray, fitted: PatchPCA) -> None:
    field = xarray.DataArray(images[..., 0].astype(np.float32), dims=("time", "lat", "lon"))
    maps = PatchPCA(2, patch_shape=5, stride=3).fit(field).transform(field)
    assert maps.dims == ("time", "patch_lat", "patch_lon", "component")
    flat = PatchPCA(12, patch_shape=5, flatten=True).fit(images)
    lazy = flat.transform(da.from_array(images, chunks=(9, 17, 14, 3)))
    expected = fitted.transform(images)
    np.testing.assert_allclose(lazy.compute(scheduler="sync"), expected.reshape(40, -1), atol=1e-3)
    np.testing.assert_array_equal(flat.inverse_transform(expected.reshape(40, -1)), fitted.inverse_transform(expected))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"patch_shape": 20}, r"patch_shape is \(20, 20\).*from 1 to \(17, 14\)"),
        ({"patch_shape": 0}, "from 1 to"),
        ({"patch_shape": "5"}, "patch_shape is '5'"),
        ({"patch_shape": (5, 5, 3, 1)}, "one length for each spatial axis"),
        ({"stride": 0}, r"stride is \(0, 0\)"),
        ({"stride": 1.5}, "stride is 1.5"),
        ({"stride": (1, 2, 3)}, r"stride is \(1, 2, 3\)"),
        ({"n_components": 76}, "only 75 attributes"),
        ({"n_components": 0}, "positive integer"),
    ],
)
def test_parameters_that_fit_no_samples(images: np.ndarray, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        PatchPCA(**parameters).fit(images)


def test_filters_that_cannot_be(images: np.ndarray, fitted: PatchPCA) -> None:
    for wrong in (-1, np.nan, "much", True):
        with pytest.raises(DataError, match="whiten.*None"):
            fitted.filters(wrong)
    constant = PatchPCA(2, patch_shape=2).fit(np.ones((3, 4, 4)))
    with pytest.raises(DataError, match="whiten.*variance"):
        constant.filters(0)
    assert constant.explained_variance_ratio_.tolist() == [0, 0]


def test_memory_is_planned(images: np.ndarray) -> None:
    source = as_source(images)
    need = PatchCovariancePCA(PatchGrid((17, 14, 3), (5, 5), (1, 1)), 75).work_bytes(40, 714, np.float64)
    assert need > 75 * 75 * 8 + 2**18 * 8  # the matrix, and a block of patches
    basis, known = PatchPCA(stride=2).plan_fit(source, ("y", "x", "channel"), Run())
    assert known
    assert basis.score_shape == (7, 5, 75)
    assert basis.work_bytes(10, np.uint8) > 10 * 7 * 5 * 75 * 4
