"""Every estimator fits and transforms what lies at a path, as it does the same values in memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
import tifffile
import xarray
from PIL import Image
from scipy.io import netcdf_file
from sklearn.base import clone

from dpca import PCA, BandPCA, CellPCA, StreamingPCA
from dpca.cli import main
from dpca.storage.errors import DataError

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).integers(0, 255, (60, 8, 10)).astype("u1")


def npy(folder: Path) -> Path:
    np.save(folder / "x.npy", X)
    return folder / "x.npy"


def several(folder: Path) -> Path:
    for i in range(3):
        np.save(folder / f"{i}.npy", X[20 * i : 20 * i + 20])
    return folder


def tiff(folder: Path) -> Path:
    tifffile.imwrite(folder / "x.tif", X, photometric="minisblack", compression="zlib")
    return folder / "x.tif"


def packed_hdf5(folder: Path) -> Path:
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=X.astype("i4") - 100, chunks=(7, 8, 5))
        file["x"].attrs.update(scale_factor=2.0, add_offset=200.0)
    return folder / "x.h5"


def netcdf3(folder: Path, values: Array = X, **attributes: Any) -> Path:
    with netcdf_file(folder / "x.nc", "w") as file:
        for i, n in enumerate(values.shape):
            file.createDimension(f"d{i}", n)
        file.createVariable("sst", "f4", ("d0", "d1", "d2"))[:] = values
        for name, value in attributes.items():
            setattr(file.variables["sst"], name, value)
    return folder / "x.nc"


MADE: dict[str, tuple[Callable[[Path], Path], Array]] = {
    "npy": (npy, X),
    "several npy": (several, X),
    "TIFF": (tiff, X),
    "packed HDF5": (packed_hdf5, 2.0 * X),
    "netCDF-3": (netcdf3, X.astype("f4")),
}
MODELS = {
    "cells": CellPCA(n_components=3, cell_shape=4),
    "bands": BandPCA(n_components=3, band_size=20),
    "exact": PCA(n_components=3),
    "streaming": StreamingPCA(n_components=3, random_state=0),
}


@pytest.mark.cases(6)
@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("name", MODELS)
def test_a_path_is_what_lies_there(name: str, kind: str, tmp_path: Path) -> None:
    make, values = MADE[kind]
    path = make(tmp_path)
    model, truth = clone(MODELS[name]).fit(path), clone(MODELS[name]).fit(values)
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=2e-4)
    scores = model.transform(path)
    assert isinstance(scores, da.Array)
    np.testing.assert_allclose(scores.compute(), model.transform(values), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("kind", ["netCDF", "npz", "Zarr"])
def test_key_chooses_one_of_several_arrays(kind: str, tmp_path: Path) -> None:
    path, other = tmp_path / "several", X[:, ::-1] // 2
    data = xarray.Dataset({"air": (("time", "y", "x"), X), "sea": (("time", "y", "x"), other)})
    if kind == "npz":
        path = tmp_path / "several.npz"
        np.savez(path, air=X, sea=other)
    elif kind == "Zarr":
        data.to_zarr(path, zarr_format=3, consolidated=False)
    else:
        data.astype("i2").to_netcdf(path, engine="scipy")
    truth = PCA(n_components=3).fit(other)
    for model in (PCA(n_components=3).fit(path, key="sea"), PCA(n_components=3).fit(data, key="sea")):
        np.testing.assert_allclose(model.components_, truth.components_, atol=1e-6)
    scores = PCA(n_components=3).fit_transform(path, key="sea")
    np.testing.assert_allclose(scores.compute(), truth.transform(other), rtol=1e-5, atol=1e-3)
    with pytest.raises(DataError, match="lake|nothing"):
        PCA(n_components=3).fit(path, key="lake")
    with pytest.raises(DataError, match="key='sea'"):
        PCA(n_components=3).fit(X, key="sea")


def test_on_a_cluster(cluster: Any, tmp_path: Path) -> None:
    from distributed import Client

    with Client(cluster.scheduler.address):
        model = CellPCA(n_components=3, cell_shape=4).fit(npy(tmp_path))
        np.testing.assert_array_equal(model.transform(tmp_path / "x.npy").compute(), model.transform(X))


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_images_are_ingested_first(model: Any, tmp_path: Path) -> None:
    Image.fromarray(X[0]).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="encoded.*ingest"):
        clone(model).fit(tmp_path)
    np.savez_compressed(tmp_path / "x.npz", x=X)
    with pytest.raises(DataError, match="beginning.*ingest"):
        clone(model).fit(tmp_path / "x.npz")


@pytest.mark.parametrize(("value", "attributes"), [(-9, {"missing_value": np.float32(-9)}), (np.nan, {})])
def test_a_land_mask_says_what_to_do(value: float, attributes: dict[str, Any], tmp_path: Path) -> None:
    values = X.astype("f4")
    values[:, 2, 3:5] = value
    path = netcdf3(tmp_path, values, **attributes)
    for model in (PCA(n_components=3), CellPCA(n_components=3, cell_shape=4)):
        with pytest.raises(
            DataError,
            match=r"sample.0.*x\.nc/sst.*finite",
        ):
            model.fit(path)
    # what it says is true
    filled, ocean = values.copy(), np.delete(values.reshape(60, 80), [23, 24], axis=1)
    filled[:, 2, 3:5] = 0
    model, truth = PCA(n_components=3).fit(netcdf3(tmp_path, filled)), PCA(n_components=3).fit(ocean)
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-5)
    np.testing.assert_allclose(model.components_.reshape(3, 8, 10)[:, 2, 3:5], 0, atol=1e-6)


def test_an_empty_find_is_told_before_a_cluster_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr("dpca.engine.clusters.cluster.open_client", started)
    (tmp_path / "t").mkdir()
    for name in ("a.txt", "b.txt", "c.csv", "d"):
        (tmp_path / "t" / name).write_text("x")
    source, output = str(tmp_path / "t"), str(tmp_path / "out.zarr")
    words = "(2 with .txt, 1 with .csv, 1 with no suffix)"
    for command in (["ingest", source, output], ["fit", source, output, "--cell", "4", "--components", "2"]):
        assert main(command) == 3
        assert words in capsys.readouterr().err
    with pytest.raises(DataError, match=r"\.txt"):
        PCA(n_components=2).fit(source)
    assert main(["ingest", f"{source}/*.jpg", output]) == 3
    assert re.search(
        r"no file matches .*/t/\*.jpg': in .*/t' 4 other files were found \(2 with", capsys.readouterr().err
    )


def test_pipelines_tell_an_empty_find_before_a_cluster_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dpca.pipelines import celeba_cpca, lsun_streaming

    monkeypatch.setattr("dpca.engine.clusters.cluster.open_client", None)
    (tmp_path / "t").mkdir()
    for program in (celeba_cpca, lsun_streaming):
        assert program.main(["--source", str(tmp_path / "t"), "--output", str(tmp_path / "out.zarr")]) == 3
        assert "no other file was found" in capsys.readouterr().err
