"""The page shows large samples by their overviews; nothing is read whole."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca import PCA, BandPCA, CellPCA
from dpca.explore import explorer as views
from dpca.explore import originals
from dpca.explore.opening import open_explorer
from dpca.jobs import encode_store, transform_store
from dpca.representation import reconstruction
from dpca.storage import ingest
from dpca.storage.errors import DataError

SHAPE = (6, 9, 66, 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    ramp = np.add.outer(np.arange(66), np.arange(40))
    x = np.random.default_rng(0).integers(0, 20, SHAPE) + ramp + 9 * np.arange(6).reshape(6, 1, 1, 1)
    np.save(folder / "x.npy", x.astype(np.uint8))
    stack = ingest(folder / "x.npy", folder / "x.zarr")
    for name, model in (("pca", PCA(3)), ("cells", CellPCA(2, cell_shape=(3, 11, 8)))):
        model.fit(stack).save(folder / f"{name}.zarr")
        transform_store(stack, folder / f"{name}.zarr", folder / f"{name}-scores.zarr")
    BandPCA(2, band_size=6000).fit(stack).save(folder / "bands.zarr")
    PCA(2, gaps="iterate").fit(stack).save(folder / "gaps.zarr")
    BandPCA(2, band_size=2000, gaps="iterate").fit(stack).save(folder / "gap-bands.zarr")
    encode_store(stack, folder / "cells.zarr", folder / "codes.zarr", psnr=25)
    return folder


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample is large, and a page has few pixels."""
    monkeypatch.setattr(originals, "WHOLE_SAMPLE", 100)
    monkeypatch.setattr(import_module("dpca.explore.decoders"), "WHOLE_SAMPLE", 100)
    monkeypatch.setattr(import_module("dpca.plots.overviews"), "_READ_BYTES", 1000)
    monkeypatch.setattr(reconstruction, "_BOX_ATTRIBUTES", 3000)
    monkeypatch.setattr(views, "LONGEST", 25)


def opened(folder: Path, store: str, **more: str) -> Any:
    found = open_explorer(str(folder / store), **{name: str(folder / path) for name, path in more.items()})
    if found.load is not None:
        found.load()
    return found.explorer


STORES = {
    "model": ("x.zarr", {"model": "pca.zarr"}),
    "model of cells": ("x.zarr", {"model": "cells.zarr"}),
    "scores": ("pca-scores.zarr", {"stack": "x.zarr", "model": "pca.zarr"}),
    "scores of cells": ("cells-scores.zarr", {"stack": "x.zarr", "model": "cells.zarr"}),
    "codes": ("codes.zarr", {"stack": "x.zarr"}),
    "bands": ("x.zarr", {"model": "bands.zarr"}),
    "gaps": ("x.zarr", {"model": "gaps.zarr"}),
}


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("plane", [3, None])
def test_the_page_shows_what_it_shows_of_small_samples(
    kind: str, plane: int | None, folder: Path, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, more = STORES[kind]
    boxes = opened(folder, store, **more)
    shown = boxes.view(4, 2, plane)
    parts = boxes.components(2, plane)
    small_page, unmeasured = boxes.thumbnail(1), boxes.measure(4, 2)
    monkeypatch.setattr(originals, "WHOLE_SAMPLE", 2**40)
    monkeypatch.setattr(import_module("dpca.explore.decoders"), "WHOLE_SAMPLE", 2**40)
    whole = opened(folder, store, **more)
    expected = whole.view(4, 2, plane)
    assert shown.original.shape == (22, 14)
    np.testing.assert_array_equal(shown.original, expected.original)
    np.testing.assert_allclose(shown.reconstruction, expected.reconstruction, atol=0.02)
    np.testing.assert_array_equal(small_page, whole.thumbnail(1))
    assert unmeasured == {}
    assert "ssim" in whole.measure(4, 2)
    assert shown.stored == expected.stored
    if parts is not None and kind != "codes":
        assert len(parts.images) == 2
        np.testing.assert_allclose(parts.mean, whole.components(2, plane).mean, atol=1e-6)
    assert "measured" not in boxes.orders


def test_samples_that_must_be_whole_are_refused(folder: Path, large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = opened(folder, "x.zarr", model="gap-bands.zarr")
    monkeypatch.setattr(originals, "MAX_SAMPLE", 10_000)
    with pytest.raises(DataError, match="whole"):
        boxes.view(0, 1, 0)
    monkeypatch.setattr(originals, "MAX_SAMPLE", 100)
    with pytest.raises(DataError, match="chunk"):
        opened(folder, "x.zarr")
