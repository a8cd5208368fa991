"""Compressed stores as others read them: by URLs ``dpca::``, in zarr, xarray and Dask; and as arrays of xarray."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import dask.array as da
import fsspec
import numpy as np
import pytest
import xarray
import zarr
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

import dpca
from dpca import CellPCA
from dpca.jobs import encode_store
from dpca.representation.compressed import file_system, lazy_views
from dpca.storage import DataError, StoreError, ingest, open_stack
from dpca.storage.survey import ReadOptions
from tests.conftest import smooth_images
from tests.helpers.s3_server import options_at, upload

N, SHAPE = 230, (14, 18)


@pytest.fixture(scope="module")
def field() -> xarray.DataArray:
    coords = {
        "time": np.arange("2001-01-01", "2002-01-01", dtype="M8[D]").astype("M8[ns]")[:N],
        "lat": np.linspace(-60, 60, SHAPE[0]),
        "lon": np.arange(0, 360, 20.0),
        "season": ("time", np.array(["cold", "warm"])[np.arange(N) % 2]),
    }
    values = smooth_images(N, SHAPE).astype(np.float32) + 200
    return xarray.DataArray(values, coords, ("time", "lat", "lon"), attrs={"units": "K"}, name="air")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, field: xarray.DataArray) -> Path:
    """Two stores: images with a channel axis in overlapping cells, and a field with coordinates and an error bound."""
    folder = tmp_path_factory.mktemp("views")
    images = smooth_images(N, (*SHAPE, 2))
    np.save(folder / "images.npy", images)
    ingest(folder / "images.npy", folder / "images-stack.zarr", axes=("y", "x", "channel"))
    ingest(field, folder / "field-stack.zarr", reading=ReadOptions(data_range=(200, 455)))
    for name, goal in {"images": {"psnr": 32.0}, "field": {"max_error": 2.0}}.items():
        stack = open_stack(folder / f"{name}-stack.zarr")
        CellPCA(20, cell_shape=6, overlap=3, shared=True).fit(stack).save(folder / f"{name}-model.zarr")
        encode_store(stack, folder / f"{name}-model.zarr", folder / f"{name}.zarr", **goal)
    return folder


@pytest.fixture(scope="module", params=["images", "field"])
def both(request: pytest.FixtureRequest, folder: Path) -> tuple[str, np.ndarray]:
    """A store's address, and all that is in it."""
    path = folder / f"{request.param}.zarr"
    return f"dpca::{path}", dpca.open_compressed(path)[...]


@pytest.mark.cases(1)
def test_all_that_opens_zarr_reads_the_reconstruction(both: tuple[str, np.ndarray]) -> None:
    url, whole = both
    assert zarr.open_array(url).dtype == whole.dtype
    for values in (
        zarr.open_array(url, mode="r"),
        zarr.open(url, mode="r"),
        zarr.open_group(url, mode="r")["samples"],
        zarr.open_array("dpca://samples::" + url.removeprefix("dpca::"), mode="r"),
        xarray.open_zarr(url).samples,
        xarray.open_zarr(url, consolidated=False).samples,
        da.from_zarr(url),
        da.from_zarr(url, component="samples"),
    ):
        assert values.dtype == whole.dtype
        assert np.array_equal(np.asarray(values), whole)


@settings(deadline=None, max_examples=10)
@given(index=hnp.basic_indices((N, *SHAPE), allow_newaxis=False, allow_ellipsis=False))
def test_parts_are_those_of_the_whole(folder: Path, index: Any) -> None:
    array = zarr.open_array(f"dpca::{folder}/field.zarr", mode="r").oindex
    whole = dpca.open_compressed(folder / "field.zarr")[...]
    backwards = any(isinstance(part, slice) and (part.step or 1) < 0 for part in np.atleast_1d(index).tolist())
    if not backwards:  # which zarr does not do
        assert np.array_equal(array[index], whole[index])


def test_other_processes_read_the_same(both: tuple[str, np.ndarray], cluster: Any) -> None:
    url, whole = both
    assert np.array_equal(cluster.compute(da.from_zarr(url)[100:170], sync=True), whole[100:170])
    assert np.array_equal(pickle.loads(pickle.dumps(zarr.open_array(url, mode="r")))[7], whole[7])


def test_levels_are_those_of_the_store(folder: Path) -> None:
    few = dpca.open_compressed(folder / "images.zarr", level=2)
    array = zarr.open_array(f"dpca::{folder}/images.zarr", mode="r", storage_options={"level": 2})
    assert np.array_equal(array[:9], few[:9])
    with pytest.raises(DataError, match="components"):
        zarr.open_array(f"dpca::{folder}/images.zarr", mode="r", storage_options={"level": 0})


def test_large_samples_are_cut_between_cells(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = dpca.open_compressed(folder / "images.zarr")[...]
    monkeypatch.setattr(lazy_views, "_CHUNK_BYTES", 30_000)
    array = zarr.open_array(f"dpca::{folder}/images.zarr", mode="r")
    assert array.chunks == (128, 6, 12, 2)
    assert np.array_equal(array[...], whole)
    assert np.array_equal(dpca.open_compressed(folder / "images.zarr").dask().compute(), whole)


def test_chunks_are_decoded_once_while_they_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, decoded = dpca.open_compressed(folder / "images.zarr")[...], []
    chunk = file_system._StoredFile.chunk

    def counted(self: Any, key: str) -> bytes | None:
        decoded.append(key)
        return chunk(self, key)

    monkeypatch.setattr(file_system._StoredFile, "chunk", counted)
    for room, times in ((2**20, 2), (0, 8)):
        monkeypatch.setattr(file_system, "_RECENT_BYTES", room)
        array = zarr.open_array(f"dpca::{folder}/images.zarr", mode="r")
        decoded.clear()
        for i in (0, 1, N - 1, 2, 3, N - 2, 4, 5):
            assert np.array_equal(array[i], whole[i])
        assert len(decoded) == times


def test_stores_in_buckets(folder: Path, bucket: str, s3: str) -> None:
    whole = dpca.open_compressed(folder / "images.zarr")[...]
    there = "dpca::" + upload(folder / "images.zarr", bucket)
    assert np.array_equal(da.from_zarr(there).compute(scheduler="threads"), whole)
    found = xarray.open_zarr(there, storage_options={"s3": options_at(s3)})
    assert np.array_equal(found.samples[-1], whole[-1])


def test_names_and_coordinates(folder: Path, field: xarray.DataArray) -> None:
    store = dpca.open_compressed(folder / "field.zarr")
    names = open_stack(folder / "field-stack.zarr").names.tolist()
    for found in (store.xarray(), xarray.open_zarr(f"dpca::{folder}/field.zarr").samples):
        assert found.attrs == {"units": "K"}
        assert set(found.coords) == {"time", "lat", "lon", "season", "name"}
        for name in ("time", "lat", "lon", "season"):
            assert found[name].dims == field[name].dims
            assert np.array_equal(found[name].values, field[name].values), name
        assert found.name == "samples"
        assert found["name"].values.tolist() == names
        picked = found.sel(time="2001-03-01", lat=-60).values
        assert np.array_equal(picked, store[59, 0])
    images = dpca.open_compressed(folder / "images.zarr").xarray()
    assert images.dims == ("sample", "y", "x", "channel")
    assert list(images.coords) == ["name"]


def test_the_quality_of_the_samples_is_beside_them(folder: Path) -> None:
    found = xarray.open_zarr(f"dpca::{folder}/images.zarr")
    assert set(found.data_vars) == {"samples", "mse", "psnr", "ssim"}
    assert found.psnr.dims == ("sample",)
    assert np.array_equal(found.mse, dpca.open_compressed(folder / "images.zarr").quality["mse"])


def test_files_are_listed(folder: Path) -> None:
    files, root = fsspec.url_to_fs(f"dpca::{folder}/images.zarr")
    assert files.isdir("samples")
    assert files.isfile(".zgroup")
    assert not files.exists("none")
    assert files.cat_file(".zgroup", 2, 13) == b"zarr_format"
    assert {Path(name).name for name in files.ls(root, detail=False)} >= {".zarray", "samples", "name"}


@pytest.mark.parametrize("name", ["0.0.0", "0.0.0.9", "-1.0.0.0", "samples/c/0", "none/.zarray"])
def test_there_is_no_more_than_there_is(folder: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        fsspec.url_to_fs(f"dpca::{folder}/images.zarr")[0].cat_file(name)


def test_writing_is_refused(folder: Path) -> None:
    url = f"dpca::{folder}/images.zarr"
    array, files = zarr.open_array(url, mode="r+"), fsspec.url_to_fs(url)[0]
    for write in (
        lambda: array.__setitem__(0, 1),
        lambda: files.rm("samples", recursive=True),
        lambda: files.pipe_file("a", b""),
        lambda: files.mkdir("a"),
    ):
        with pytest.raises(StoreError, match="written"):
            write()


def test_what_is_not_there_is_an_error(folder: Path) -> None:
    for url in (f"dpca::{folder}/none.zarr", f"dpca::{folder}/images-stack.zarr"):
        for opened in (zarr.open_array, zarr.open_group, xarray.open_zarr, da.from_zarr):
            with pytest.raises(StoreError, match="nothing|compressed"):
                opened(url)
    with pytest.raises(DataError, match="names"):
        fsspec.filesystem("dpca")


def damaged(path: Path, how: str) -> None:
    if how == "removed":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 1
        path.write_bytes(content)


@pytest.mark.cases(5)
@pytest.mark.parametrize("how", ["removed", "cut", "changed"])
@pytest.mark.parametrize(
    "name",
    ["images/codes/c/0/0", "images/basis/c/0", "field/residual/c/0/0/0", "field/zarr.json", "field/codes/zarr.json"],
)
def test_damage_is_an_error_and_no_fill_values(folder: Path, tmp_path: Path, name: str, how: str) -> None:
    store, _, inside = name.partition("/")
    shutil.copytree(folder / f"{store}.zarr", tmp_path / "x.zarr")
    url = f"dpca::{tmp_path}/x.zarr"
    before = zarr.open_array(url, mode="r")
    damaged(tmp_path / "x.zarr" / inside, how)
    for read in (
        lambda: zarr.open_array(url, mode="r")[...],
        lambda: da.from_zarr(url).compute(scheduler="threads"),
        lambda: xarray.open_zarr(url).samples.values,
    ):
        with pytest.raises(StoreError):
            read()
    if inside.startswith(("codes/c", "residual")):
        with pytest.raises(StoreError):
            before[...]


def test_a_store_that_was_replaced_is_opened_again_and_not_mixed(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "images.zarr", tmp_path / "x.zarr")
    sent = pickle.dumps(zarr.open_array(f"dpca::{tmp_path}/x.zarr", mode="r"))
    shutil.rmtree(tmp_path / "x.zarr")
    shutil.copytree(folder / "field.zarr", tmp_path / "x.zarr")
    with pytest.raises(StoreError, match="replaced"):
        pickle.loads(sent)[0]
    assert zarr.open_array(f"dpca::{tmp_path}/x.zarr", mode="r").shape == (N, *SHAPE)
