"""Axes of samples are named, so that a cell has all channels of its pixels wherever their axis is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpca
from dpca import BandPCA, CellPCA
from dpca.cli import main
from dpca.storage import DataError, open_stack


@pytest.fixture(scope="module")
def volumes() -> Any:
    """Volumes (t, c, z, y, x) of two channels."""
    return np.random.default_rng(0).normal(size=(12, 2, 4, 16, 24)).astype(np.float32)


@pytest.mark.parametrize("axes", ["tczyx", "czyx", ("channel", "z", "y", "x")])
@pytest.mark.parametrize("cell", [(2, 8, 8), 4])
def test_channels_before_other_axes_stay_in_one_cell(axes: Any, cell: Any, volumes: Any, tmp_path: Path) -> None:
    model = CellPCA(3, cell_shape=cell, axes=axes).fit(volumes)
    last = CellPCA(3, cell_shape=cell, axes="tzyxc").fit(np.moveaxis(volumes, 1, -1))
    np.testing.assert_allclose(model.explained_variance_[0], last.explained_variance_, rtol=1e-5)
    back = model.inverse_transform(model.transform(volumes))
    expected = np.moveaxis(last.inverse_transform(last.transform(np.moveaxis(volumes, 1, -1))), -1, 1)
    np.testing.assert_allclose(back, expected, atol=1e-4)
    model.save(tmp_path / "model.zarr")
    again = dpca.load(tmp_path / "model.zarr")
    np.testing.assert_array_equal(again.transform(volumes), model.transform(volumes))
    parts = CellPCA(3, cell_shape=cell, axes=axes).partial_fit(volumes[:7]).partial_fit(volumes[7:])
    assert parts.grid_.cell_shape == model.grid_.cell_shape


def test_a_long_axis_is_not_taken_for_channels() -> None:
    samples = np.random.default_rng(0).normal(size=(5, 2, 6, 48, 64)).astype(np.float32)
    with pytest.raises(DataError, match="channels"):
        CellPCA(2, cell_shape=(2, 8, 8)).fit(samples)
    model = CellPCA(2, cell_shape=(2, 8, 8), axes="tczyx").fit(samples)
    assert model.grid_.cell_shape == (2, 2, 8, 8)
    assert CellPCA(2, cell_shape=(8, 8), axes="yxc").fit(samples[:, 0, :5].transpose(0, 2, 3, 1)).grid_.n_spatial == 2


def test_names_that_do_not_fit_are_refused(volumes: Any) -> None:
    for axes in ("zyx", "ztczyx", "zzyx"):
        with pytest.raises(DataError, match="axes"):
            CellPCA(2, cell_shape=2, axes=axes).fit(volumes)
    with pytest.raises(DataError, match="axes"):
        CellPCA(2, cell_shape=2, axes=3).fit(volumes)


def test_bands_keep_channels_that_are_named() -> None:
    pixels = np.random.default_rng(0).normal(size=(9, 10, 6))
    assert BandPCA(2, band_size=12, mapping="raster", axes="txc").fit(pixels).partition_.n_parts == 5
    assert BandPCA(2, band_size=12, mapping="raster").fit(pixels[:, :, :5]).partition_.n_parts == 5


def test_letters_name_the_axes_of_a_file(volumes: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", volumes)
    assert main(["ingest", str(tmp_path / "v.npy"), str(tmp_path / "v.zarr"), "--axes", "tczyx"]) == 0
    stack = open_stack(tmp_path / "v.zarr")
    assert stack.axes == ("sample", "z", "y", "x", "channel")
    np.testing.assert_array_equal(stack.samples[:], np.moveaxis(volumes, 1, -1))
    assert main(["ingest", str(tmp_path / "v.npy"), str(tmp_path / "z.zarr"), "--axes", "a,c,z,y,x"]) == 0
    assert open_stack(tmp_path / "z.zarr").shape == (4, 12, 16, 24, 2)  # z counts samples
