"""Viewers of microscopy read an export with their own loaders: values, axes, units, names of channels, contrast.

These loaders are large and not part of any extra. Each test is skipped without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca import CellPCA
from dpca.jobs import encode_store, export_store, fit_store
from dpca.storage import ingest

tifffile = pytest.importorskip("tifffile")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """An OME-TIFF of two channels, compressed and exported, and the decoded samples (t, c, z, y, x)."""
    here = tmp_path_factory.mktemp("viewers")
    x = np.random.default_rng(0).integers(0, 4000, (3, 4, 2, 300, 280)).astype("u2")
    stated = {"axes": "TZCYX", "PhysicalSizeX": 0.65, "PhysicalSizeY": 0.5, "PhysicalSizeZ": 2, "TimeIncrement": 0.5}
    channels = {"Channel": {"Name": ["DAPI", "GFP"], "Color": [65535, 16711935]}}
    tifffile.imwrite(here / "s.ome.tif", x, metadata=stated | channels)
    stack = ingest(here / "s.ome.tif", here / "stack.zarr")
    fit_store(stack, here / "model.zarr", CellPCA(2, cell_shape=(2, 20, 20)))
    encode_store(stack, here / "model.zarr", here / "small.zarr", max_error=0.5)
    export_store(here / "small.zarr", here / "out.ome.zarr")
    return here / "out.ome.zarr", np.moveaxis(x, 2, 1)


def test_napari(exported: tuple[Path, Any]) -> None:
    reader = pytest.importorskip("napari_ome_zarr", reason="needs napari-ome-zarr and napari")
    path, expected = exported
    ((levels, shown, kind),) = reader.napari_get_reader(str(path))(str(path))
    assert kind == "image"
    assert [level.shape[-2:] for level in levels] == [(300, 280), (150, 140)]
    np.testing.assert_array_equal(np.asarray(levels[0]), expected)
    assert shown["channel_axis"] == 1
    assert [name.rpartition(" ")[2] for name in shown["name"]] == ["DAPI", "GFP"]
    assert tuple(shown["units"]) == ("second", *("micrometer",) * 3)
    np.testing.assert_allclose(shown["scale"], [0.5, 2, 0.5, 0.65])
    assert all(low < high for low, high in shown["contrast_limits"])


def test_ome_zarr_of_python(exported: tuple[Path, Any]) -> None:
    pytest.importorskip("ome_zarr", reason="needs ome-zarr")
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader

    path, expected = exported
    (image,) = Reader(parse_url(str(path)))()
    np.testing.assert_array_equal(np.asarray(image.data[0]), expected)
    assert image.metadata["channel_names"] == ["DAPI", "GFP"]
    assert image.metadata["colormap"] == [[[0, 0, 0], [0, 0, 1]], [[0, 0, 0], [0, 1, 0]]]


def test_tensorstore_which_programs_for_neuroglancer_use(exported: tuple[Path, Any]) -> None:
    tensorstore = pytest.importorskip("tensorstore", reason="needs tensorstore")
    path, expected = exported
    store = {"driver": "file", "path": f"{path / '0'}"}
    found = tensorstore.open({"driver": "zarr3", "kvstore": store}).result()
    assert found.domain.labels == ("t", "c", "z", "y", "x")
    np.testing.assert_array_equal(found.read().result(), expected)
