"""Weights of attributes of PatchPCA: the patches of weighted anomalies, in the units of the samples."""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import scipy.linalg
import xarray
import zarr
from numpy.lib.stride_tricks import sliding_window_view

from dpca import PatchPCA, load
from dpca.engine.sources.source import as_source
from dpca.jobs import fit_store, reconstruct_store, transform_store
from dpca.storage import DataError, StoreError, ingest, open_stack
from dpca.storage.run import Run
from tests.conftest import smooth_images
from tests.helpers.resealing import edit_facts

SHAPE, N = (11, 8), 30
RNG = np.random.default_rng(0)
SAMPLES = smooth_images(N, (*SHAPE, 1))[..., 0].astype(np.float64) + 1000 * np.linspace(0, 1, 11)[:, None]
WEIGHTS = RNG.uniform(0.2, 3, SHAPE)
MASKED = np.where(np.arange(88).reshape(SHAPE) % 7 == 2, 0, WEIGHTS)
MASKED[:5, :4] = 0  # whole patches


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("weights", [WEIGHTS, MASKED], ids=["positive", "masked"])
def test_they_are_those_of_weighted_anomalies(weights: np.ndarray, stride: int, tmp_path: Path) -> None:
    model = PatchPCA(4, patch_shape=3, stride=stride, weights=weights).fit(SAMPLES)
    rows = (SAMPLES - SAMPLES.mean(axis=0)) * weights
    every = sliding_window_view(rows, (3, 3), axis=(1, 2))[:, ::stride, ::stride]
    values, vectors = np.linalg.eigh(np.cov(every.reshape(-1, 9), rowvar=False))
    np.testing.assert_allclose(model.explained_variance_, values[::-1][:4], rtol=1e-9)
    np.testing.assert_allclose(model.total_variance_, values.sum(), rtol=1e-9)
    found = model.components_.reshape(4, 9)
    assert scipy.linalg.subspace_angles(found.T, vectors[:, ::-1][:, :4]).max() < 1e-6
    np.testing.assert_allclose(model.mean_, 0, atol=1e-9)
    np.testing.assert_allclose(model.sample_mean_, SAMPLES.mean(axis=0), rtol=1e-12)
    scores = model.transform(SAMPLES)
    np.testing.assert_allclose(scores, every.reshape(*scores.shape[:3], 9) @ found.T, atol=1e-7)
    other, known = PatchPCA(4, patch_shape=3, stride=stride).fit(rows), weights > 0
    back, of_rows = model.inverse_transform(scores), other.inverse_transform(other.transform(rows))
    expected = (of_rows / np.where(known, weights, 1) + SAMPLES.mean(axis=0))[:, known]
    np.testing.assert_allclose(back[:, known], expected, rtol=1e-8)
    np.testing.assert_allclose(back[:, ~known], np.broadcast_to(SAMPLES.mean(axis=0)[~known], (N, (~known).sum())))
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    np.testing.assert_array_equal(again.transform(SAMPLES), scores)
    np.testing.assert_array_equal(again.inverse_transform(scores), back)
    np.testing.assert_array_equal(again.get_params()["weights"], weights)
    assert again.basis_.fingerprint() == model.basis_.fingerprint() != other.basis_.fingerprint()
    assert not hasattr(model.set_params(weights=None).fit(SAMPLES), "weights_")


def test_all_components_return_the_samples() -> None:
    x = np.clip(SAMPLES / 8, 0, 255).astype(np.uint8)
    for given in (x, da.from_array(x, chunks=(7, 5, 3))):
        model = PatchPCA(patch_shape=3, weights=WEIGHTS, memory_budget=2**26).fit(given)
        back = np.asarray(model.inverse_transform(model.transform(given)))
        np.testing.assert_allclose(back, x, atol=1e-3)
    often = np.arange(N) % 3
    one = PatchPCA(3, patch_shape=3, weights=MASKED).fit(x, sample_weight=often)
    other = PatchPCA(3, patch_shape=3, weights=MASKED).fit(x.repeat(often, axis=0))
    np.testing.assert_allclose(one.explained_variance_, other.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(one.sample_mean_, other.sample_mean_)


def test_areas_near_the_poles_count_less() -> None:
    lat = np.linspace(-75, 75, 11)
    field = xarray.DataArray(SAMPLES, {"lat": lat}, ("time", "lat", "lon"))
    model = PatchPCA(3, patch_shape=3, weights="coslat").fit(field)
    root = np.broadcast_to(np.sqrt(np.cos(np.deg2rad(lat)))[:, None], SHAPE)
    np.testing.assert_allclose(model.weights_, root)
    by_array = PatchPCA(3, patch_shape=3, weights=root[:, :1]).fit(SAMPLES)
    np.testing.assert_array_equal(model.components_, by_array.components_)
    assert model.inverse_transform(model.transform(field)).dims == field.dims


def test_plans_and_jobs(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", SAMPLES)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    stack = open_stack(tmp_path / "x.zarr")
    model = PatchPCA(3, patch_shape=3, weights=MASKED)
    placeholder, known = model.plan_fit(as_source(stack), ("y", "x"), Run())
    fitted = PatchPCA(3, patch_shape=3, weights=MASKED).fit(stack)
    assert (known, placeholder.nbytes, placeholder.score_shape) == (True, fitted.basis_.nbytes, (9, 6, 3))
    fit_store(stack, tmp_path / "m.zarr", model)
    transform_store(stack, tmp_path / "m.zarr", tmp_path / "s.zarr")
    scores = zarr.open_group(tmp_path / "s.zarr", mode="r")["scores"][:]
    np.testing.assert_allclose(scores, fitted.transform(SAMPLES), atol=1e-9)
    reconstruct_store(tmp_path / "m.zarr", tmp_path / "s.zarr", tmp_path / "r.zarr")
    back = open_stack(tmp_path / "r.zarr").samples[:]
    np.testing.assert_allclose(back, fitted.inverse_transform(scores), rtol=1e-12)


def test_wrong_weights_and_stores(tmp_path: Path) -> None:
    for weights, word in ((-WEIGHTS, "range"), (WEIGHTS[:3], "shape"), ("coslat", "latitudes"), (WEIGHTS / 1e20, "1e")):
        with pytest.raises(DataError, match=word):
            PatchPCA(3, patch_shape=3, weights=weights).fit(SAMPLES)
    PatchPCA(3, patch_shape=3, weights=WEIGHTS).fit(SAMPLES).save(tmp_path / "m")
    assert zarr.open_group(tmp_path / "m", mode="r").attrs["dpca"]["version"] == 2
    edit_facts(tmp_path / "m", lambda facts: facts.update(version=3))
    with pytest.raises(StoreError, match="version"):
        load(tmp_path / "m")
