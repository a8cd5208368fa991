"""Samples of any order of bytes, from whatever they come in, are analyzed as those of this machine's order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
import xarray
import zarr

import dpca
from dpca.storage import ingest, open_stack

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def zarr_made(x: np.ndarray, folder: Path, version: int) -> zarr.Array[Any]:
    array = zarr.create_array(
        folder / f"v{version}.zarr", shape=x.shape, chunks=(7, 6, 5), dtype=x.dtype, zarr_format=version
    )
    array[:] = x
    return array


def in_memory(x: np.ndarray) -> zarr.Array[Any]:
    array = zarr.create_array(zarr.storage.MemoryStore(), shape=x.shape, chunks=(7, 6, 5), dtype=x.dtype)
    array[:] = x
    return array


def stored(x: np.ndarray, folder: Path, version: int) -> str:
    zarr_made(x, folder, version)
    return str(folder / f"v{version}.zarr")


def saved(x: np.ndarray, folder: Path) -> str:
    np.save(folder / "a.npy", x)
    return str(folder / "a.npy")


def in_hdf5(x: np.ndarray, folder: Path) -> str:
    with h5py.File(folder / "a.h5", "w") as file:
        file["values"] = x
    return str(folder / "a.h5")


def in_netcdf(x: np.ndarray, folder: Path) -> str:
    with h5py.File(folder / "a.nc", "w") as file:
        file["v"] = x
        for axis, (name, length) in enumerate(zip(("time", "y", "x"), x.shape, strict=True)):
            file[name] = np.arange(length, dtype=">i4")
            file[name].make_scale(name)
            file["v"].dims[axis].attach_scale(file[name])
    return str(folder / "a.nc")


GIVEN: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "numpy": lambda x, folder: x,
    "Dask": lambda x, folder: da.from_array(x, chunks=(7, 6, 5)),
    "xarray": lambda x, folder: xarray.DataArray(x),
    "a new array of Zarr 2": lambda x, folder: zarr_made(x, folder, 2),
    "a new array of Zarr 3": lambda x, folder: zarr_made(x, folder, 3),
    "Zarr in memory": lambda x, folder: in_memory(x),
    "a path of Zarr 2": lambda x, folder: stored(x, folder, 2),
    "a path of Zarr 3": lambda x, folder: stored(x, folder, 3),
    "a stack": lambda x, folder: open_stack(stored(x, folder, 2)),
    "npy": saved,
    "HDF5": in_hdf5,
    "netCDF": in_netcdf,
}


@pytest.mark.cases(6)
@pytest.mark.parametrize("dtype", [">f8", ">f4", ">i2", ">u2"])
@pytest.mark.parametrize("kind", GIVEN)
def test_the_order_of_bytes_changes_nothing(kind: str, dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(20, 6, 5)) * 100 * np.arange(1, 6)).astype(dtype)
    native = x.astype(x.dtype.newbyteorder("="))
    given = GIVEN[kind](x, tmp_path)
    for model in (dpca.PCA(2, solver="covariance"), dpca.CellPCA(2, cell_shape=3)):
        expected = type(model)(**model.get_params()).fit(native)
        found = model.fit(given)
        np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-5)
        np.testing.assert_allclose(np.asarray(found.transform(given)), expected.transform(native), rtol=1e-3, atol=0.1)
    if isinstance(given, str) or kind.startswith("a new"):
        path = given if isinstance(given, str) else str(given.store_path).removeprefix("file://")
        np.testing.assert_array_equal(ingest(path, tmp_path / "stack.zarr").samples[:], native)
