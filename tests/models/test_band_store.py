"""Stored band models: whole, recognized, and refused in one sentence where they are not what they should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca import BandPCA, CellPCA
from storage import StoreError
from tests.resealing import edit_facts

LEARNED = (
    "components_",
    "mean_",
    "explained_variance_",
    "explained_variance_ratio_",
    "total_variance_",
    "singular_values_",
    "n_samples_seen_",
    "n_components_",
    "n_features_in_",
    "sample_shape_",
)


@pytest.mark.parametrize(
    ("shape", "options", "dtype"),
    [
        ((20, 8, 9, 3), {"n_components": 3, "band_size": 20}, np.uint8),
        ((20, 30), {"n_components": None, "band_size": 7, "mapping": "mean", "n_intervals": 3}, np.float32),
        ((12, 4, 5, 6), {"n_components": 4, "band_size": 40, "mapping": "random", "random_state": 3}, np.float64),
        ((9, 11), {"n_components": 2, "band_size": 50, "mapping": "raster", "keep_channels": False}, np.int32),
        ((2, 3, 3), {"n_components": 1, "band_size": 9, "n_estimating": 2}, np.uint8),
    ],
)
def test_what_is_saved_is_loaded(shape: tuple[int, ...], options: dict[str, Any], dtype: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    model = BandPCA(**options).fit(x)
    model.save(tmp_path / "model.zarr")
    again = BandPCA.load(tmp_path / "model.zarr")
    for name in LEARNED:
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    np.testing.assert_array_equal(again.bands_.labels, model.bands_.labels)
    np.testing.assert_array_equal(again.transform(x), model.transform(x))
    # It is a model like any other: it can be fitted anew with the parameters that it shows.
    assert again.get_params() == model.get_params()
    np.testing.assert_array_equal(again.fit(x).components_, model.components_)


def test_other_stores_and_damage_are_refused(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 200, (20, 8, 9), dtype=np.uint8)
    CellPCA(3, cell_shape=4).fit(x).save(tmp_path / "cells.zarr")
    with pytest.raises(StoreError, match="cell-pca"):
        BandPCA.load(tmp_path / "cells.zarr")
    path = tmp_path / "bands.zarr"
    BandPCA(3, band_size=20).fit(x).save(path)
    with pytest.raises(StoreError, match="overwrite"):
        BandPCA(2, band_size=20).fit(x).save(path)
    shard = next(p for p in sorted((path / "labels" / "c").rglob("*")) if p.is_file())
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="damaged"):
        BandPCA.load(path)


@pytest.mark.parametrize(("fact", "value"), [("n_bands", 1), ("n_samples_seen", 1), ("parameters", {})])
def test_facts_that_contradict_the_arrays(fact: str, value: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 200, (20, 8, 9), dtype=np.uint8)
    BandPCA(3, band_size=20).fit(x).save(tmp_path / "bands.zarr")
    edit_facts(tmp_path / "bands.zarr", lambda facts: facts.update({fact: value}))
    with pytest.raises(StoreError, match="damaged"):
        BandPCA.load(tmp_path / "bands.zarr")
