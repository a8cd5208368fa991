"""Weights of attributes of cells and bands: the estimators of samples times weights, in the units of the samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr
from sklearn.base import clone

from dpca import BandPCA, CellPCA, load
from dpca.engine.sources.source import as_source
from dpca.jobs import CompressionSettings, compress, encode_store, fit_store, reconstruct_store, transform_store
from dpca.models.cells import cells_on_disk
from dpca.representation import reconstruction
from dpca.representation.reconstruction import decoded_box, encoded_in_boxes
from dpca.storage import DataError, ingest, open_stack
from dpca.storage.run import Run

SHAPE, N = (12, 8), 40
RNG = np.random.default_rng(0)
LOW = RNG.normal(size=(N, 4)) @ RNG.normal(0, 9, (4, 96))
SAMPLES = (LOW + RNG.normal(size=LOW.shape) + 100).reshape(N, *SHAPE)
WEIGHTS = RNG.uniform(0.2, 3, SHAPE)
MASKED = np.where(np.arange(96).reshape(SHAPE) % 7 == 2, 0, WEIGHTS)
MASKED[4:8, :4] = 0  # a whole cell
MODELS: dict[str, Any] = {
    "cells": CellPCA(3, cell_shape=4),
    "all components": CellPCA(cell_shape=4),
    "lapped": CellPCA(3, cell_shape=4, overlap=2),
    "shared": CellPCA(3, cell_shape=4, shared=True),
    "shared and lapped": CellPCA(3, cell_shape=4, shared=True, overlap=2),
    "a ratio": CellPCA(cell_shape=4, ratio=10),
    "above noise": CellPCA("marchenko-pastur", cell_shape=4),
    "bands": BandPCA(3, band_size=20),
    "raster": BandPCA(3, band_size=20, mapping="raster"),
}
every_model = pytest.mark.parametrize("name", MODELS)


def weighted(name: str, weights: Any, **more: Any) -> Any:
    return clone(MODELS[name]).set_params(weights=weights, **more)


def assert_same(a: Any, b: Any) -> None:
    for name in ("mean_", "explained_variance_", "components_"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-9, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(a.transform(SAMPLES), b.transform(SAMPLES), atol=1e-8)


@every_model
def test_they_are_those_of_weighted_samples(name: str, tmp_path: Path) -> None:
    for weights in (WEIGHTS, MASKED):
        rows = SAMPLES * weights
        model, other = weighted(name, weights).fit(SAMPLES), clone(MODELS[name]).fit(rows)
        for attribute in ("components_", "explained_variance_", "total_variance_", "ranks_"):
            np.testing.assert_array_equal(getattr(model, attribute), getattr(other, attribute))
        np.testing.assert_allclose(model.mean_, SAMPLES.mean(axis=0), rtol=1e-12)
        scores = model.transform(SAMPLES)
        np.testing.assert_allclose(scores, other.transform(rows), atol=1e-9)
        back, known = model.inverse_transform(scores), weights > 0
        np.testing.assert_allclose(back[:, known] * weights[known], other.inverse_transform(scores)[:, known])
        np.testing.assert_allclose(back[:, ~known], np.broadcast_to(model.mean_[~known], (N, (~known).sum())))
        assert model.score(SAMPLES) == pytest.approx(other.score(rows), rel=1e-9)
        model.save(tmp_path / "m", overwrite=True)
        again = load(tmp_path / "m")
        np.testing.assert_array_equal(again.transform(SAMPLES), scores)
        np.testing.assert_array_equal(again.inverse_transform(scores), back)
        np.testing.assert_array_equal(again.get_params()["weights"], weights)
        assert again.basis_.fingerprint() == model.basis_.fingerprint() != other.basis_.fingerprint()


@every_model
def test_weights_of_1_and_no_weights(name: str) -> None:
    plain, model = clone(MODELS[name]).fit(SAMPLES), weighted(name, np.ones(SHAPE)).fit(SAMPLES)
    assert_same(model, plain)
    assert_same(model.set_params(weights=None).fit(SAMPLES), plain)
    assert not hasattr(model, "weights_")


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
def test_other_types_against_decompositions(dtype: str) -> None:
    x, corner = SAMPLES.astype(dtype), (slice(0, 4), slice(4, 8))
    for given in (x, da.from_array(x, chunks=(15, 5, 3))):
        model = weighted("cells", MASKED).fit(given)
        rows = ((x - x.mean(axis=0, dtype=np.float64)) * MASKED)[(slice(None), *corner)].reshape(N, -1)
        _, s, v = np.linalg.svd(rows, full_matrices=False)
        found = model.components_[(slice(None), *corner)].reshape(3, -1)
        np.testing.assert_allclose(model.explained_variance_[0, 1], s[:3] ** 2 / (N - 1), rtol=1e-5)
        np.testing.assert_allclose(np.abs((found * v[:3]).sum(axis=1)), 1, rtol=1e-5)
        assert not model.total_variance_[1, 0]


@pytest.mark.parametrize("name", ["cells", "lapped", "bands"])
def test_batches_and_states(name: str, tmp_path: Path) -> None:
    model = weighted(name, WEIGHTS, keep_state=True)
    if name == "bands":
        model.set_params(mapping="random", random_state=0)  # mapping by moments depends on the first batch
    whole = clone(model).fit(SAMPLES)
    assert_same(clone(model).partial_fit(SAMPLES[:15]).partial_fit(SAMPLES[15:]), whole)
    clone(model).fit(SAMPLES[:15]).save(tmp_path / "m")
    assert_same(load(tmp_path / "m").partial_fit(SAMPLES[15:]), whole)
    with pytest.raises(DataError, match="pass"):
        clone(model).set_params(weights=MASKED).partial_fit(SAMPLES)


def test_beside_weights_of_samples() -> None:
    often, shares = np.arange(N) % 4, np.linspace(0.1, 3, N)
    for name in ("cells", "raster"):
        model = weighted(name, MASKED)
        assert_same(clone(model).fit(SAMPLES, sample_weight=often), clone(model).fit(SAMPLES.repeat(often, axis=0)))
        found = clone(model).fit(SAMPLES, sample_weight=shares)
        rows = clone(MODELS[name]).fit(SAMPLES * MASKED, sample_weight=shares)
        np.testing.assert_allclose(found.components_, rows.components_, atol=1e-9)
        np.testing.assert_allclose(found.mean_, np.average(SAMPLES, axis=0, weights=shares), rtol=1e-10)


def test_latitudes() -> None:
    coords = {"lat": np.linspace(-60, 50, 12)}
    field = xarray.DataArray(SAMPLES, coords, ("time", "lat", "lon"))
    root = np.sqrt(np.cos(np.deg2rad(coords["lat"])))[:, None]
    named = weighted("cells", "coslat").fit(field)
    assert_same(named, weighted("cells", root).fit(SAMPLES))
    assert named.to_xarray()["mean"].dims == ("lat", "lon")


@pytest.mark.parametrize("name", ["cells", "shared", "lapped"])
def test_boxes_of_samples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstruction, "_BOX_ATTRIBUTES", 16)
    model = weighted(name, MASKED).fit(SAMPLES)
    scores, region = model.transform(SAMPLES), ((9, 11), (5, 7))
    found = encoded_in_boxes(model.basis_, lambda box: SAMPLES[5][tuple(slice(*ends) for ends in box)], "f8")
    np.testing.assert_allclose(found[0], scores[5], atol=1e-9)
    box = decoded_box(model.basis_, scores, 5, region, None)
    np.testing.assert_allclose(box, model.inverse_transform(scores)[5, 9:11, 5:7], rtol=1e-12)
    np.testing.assert_array_equal(model.basis_.mean_box(region), model.mean_[9:11, 5:7])


def test_components_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_on_disk, "MOST_BYTES", 0)
    assert isinstance(weighted("cells", WEIGHTS).fit(da.from_array(SAMPLES)).components_, np.ndarray)


def test_plans_and_jobs(tmp_path: Path) -> None:
    x = SAMPLES.astype(np.uint8)
    for name in ("cells", "bands"):
        basis, _ = weighted(name, MASKED).plan_fit(as_source(x), ("y", "x"), Run())
        plain, _ = clone(MODELS[name]).plan_fit(as_source(x), ("y", "x"), Run())
        assert basis.nbytes >= plain.nbytes + 2 * x[0].size * 8
    zarr.create_array(str(tmp_path / "x"), data=x, chunks=(15, 5, 8))
    stack = open_stack(ingest(str(tmp_path / "x"), tmp_path / "stack").path)
    model = fit_store(stack, tmp_path / "model", weighted("cells", MASKED)).model
    transform_store(stack, tmp_path / "model", tmp_path / "scores")
    reconstruct_store(tmp_path / "model", tmp_path / "scores", tmp_path / "back")
    found = zarr.open_group(tmp_path / "back")["samples"][...]
    expected = np.clip(np.rint(model.inverse_transform(model.transform(x))), 0, 255)
    assert (found != expected).mean() < 0.01  # values near a half
    np.testing.assert_allclose(found, expected, atol=1)
    with pytest.raises(DataError, match="weights"):
        encode_store(stack, tmp_path / "model", tmp_path / "small", max_error=2.0)
    settings = CompressionSettings(weighted("cells", MASKED), goal={"max_error": 2.0})
    with pytest.raises(DataError, match="weights"):  # before the fit
        compress(stack, tmp_path / "small", settings)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("small")]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"weights": np.ones((12, 7))}, r"\(12,.7\)"),
        ({"weights": -WEIGHTS}, "least.0"),
        ({"weights": WEIGHTS * np.nan}, "finite"),
        ({"weights": "coslat"}, "latitudes"),
        ({"weights": WEIGHTS, "n_components": None, "target_mse": 3.0}, "target_mse"),
        ({"weights": WEIGHTS, "n_components": None, "target_psnr": 30.0}, "target_psnr"),
        ({"weights": WEIGHTS, "n_components": "marchenko-pastur", "sigma": 1.0}, "sigma"),
        ({"weights": WEIGHTS, "gaps": "iterate"}, "gaps"),
    ],
)
def test_what_is_rejected(options: dict[str, Any], word: str) -> None:
    for name in ("cells", "bands"):
        with pytest.raises(DataError, match=word):
            clone(MODELS[name]).set_params(**options).fit(SAMPLES)
