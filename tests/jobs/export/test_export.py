"""Exported files hold the samples, names and coordinates of their store, as other libraries read them."""

from __future__ import annotations

import io
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import dpca
from dpca import PCA, CellPCA
from dpca.cli import main
from dpca.jobs import encode_store, export_store, fit_store, reconstruct_store, transform_store
from dpca.jobs.base.stored_samples import stored_samples
from dpca.jobs.export.file_names import file_names
from dpca.models.scores import Scores
from dpca.representation.compressed.compressed import Compressed
from dpca.storage import DataError, Run, StoreError, ingest, open_stack
from dpca.storage.errors import PlanError
from dpca.storage.stack import Stack
from tests.conftest import smooth_images, write_images
from tests.helpers.interrupted import interrupt_at

tifffile = pytest.importorskip("tifffile")
nibabel = pytest.importorskip("nibabel")
h5py = pytest.importorskip("h5py")
xarray = pytest.importorskip("xarray")


def plain(path: Path, values: Any, names: tuple[str, ...] | None = None) -> Path:
    """Write an array of another program."""
    array = zarr.create_array(path, shape=values.shape, dtype=values.dtype, dimension_names=names)
    array[...] = values
    return path


def any_values(n: int, shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    """Return values of the whole range of a type."""
    rng, kind = np.random.default_rng(seed), np.dtype(dtype).kind
    if kind == "b":
        return rng.random((n, *shape)) < 0.5
    if kind == "f":
        return rng.normal(size=(n, *shape)).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, (n, *shape), dtype, endpoint=True)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs in folders, and all stores of them."""
    here = tmp_path_factory.mktemp("stores")
    write_images(here / "photos", 9, (40, 36, 3))
    stack = ingest(here / "photos", here / "stack.zarr")
    fit_store(stack, here / "model.zarr", CellPCA(6, cell_shape=8))
    encode_store(stack, here / "model.zarr", here / "small.zarr", psnr=34)
    transform_store(stack, here / "model.zarr", here / "scores.zarr")
    return here


def samples_of(folder: Path, store: str, k: int | None = None) -> Any:
    """Return the samples of a store, by the function for its kind."""
    if store == "small.zarr":
        return dpca.open_compressed(folder / store, level=k)[...]
    if store == "scores.zarr":
        return dpca.open_scores(folder / store, k, model=folder / "model.zarr").stack().compute()
    return open_stack(folder / store).samples[...]


@pytest.mark.parametrize("k", [None, 2])
@pytest.mark.parametrize("store", ["small.zarr", "scores.zarr"])
def test_samples_of_every_kind_of_store(store: str, k: int | None, stores: Path, tmp_path: Path) -> None:
    model = stores / "model.zarr" if store == "scores.zarr" else None
    export_store(stores / store, tmp_path / "out", format="png", n_components=k, model=model)
    export_store(stores / store, tmp_path / "all.npy", n_components=k, model=model)
    expected, names = samples_of(stores, store, k), open_stack(stores / "stack.zarr").names.tolist()
    read = [np.asarray(Image.open(tmp_path / "out" / Path(name).with_suffix(".png"))) for name in names]
    np.testing.assert_array_equal(read, expected)
    np.testing.assert_array_equal(np.load(tmp_path / "all.npy"), expected)


def test_the_names_of_photographs_and_their_format(stores: Path, tmp_path: Path) -> None:
    (tmp_path / "people" / "Ann").mkdir(parents=True)
    for i, pixels in enumerate(smooth_images(3, (40, 36, 3))):
        Image.fromarray(pixels).save(tmp_path / "people" / "Ann" / f"{i}.jpeg")
    ingest(tmp_path / "people", tmp_path / "people.zarr")
    done = export_store(tmp_path / "people.zarr", tmp_path / "out", quality=100)
    assert (done.format, done.n_samples) == ("jpeg", 3)
    files = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.jpg"))
    assert files == ["Ann/0.jpg", "Ann/1.jpg", "Ann/2.jpg"]
    read = np.asarray(Image.open(tmp_path / "out" / "Ann" / "1.jpg")).astype(float)
    assert np.abs(read - open_stack(tmp_path / "people.zarr").samples[1]).mean() < 2
    again = ingest(tmp_path / "out", tmp_path / "again.zarr")  # reads what was exported
    assert again.names.tolist() == files


IMAGES = [((7, 9), "u1"), ((7, 9), "u2"), ((7, 9, 3), "u1"), ((7, 9, 4), "u1"), ((5, 1), "u1"), ((1, 1, 3), "u1")]
VOLUMES = [
    ((3, 7, 9), "u2"),
    ((3, 7, 9), "i2"),
    ((3, 7, 9), "f4"),
    ((7, 9), "f8"),
    ((7, 9), "f2"),
    ((5, 6, 7, 3), "u2"),
]


@pytest.mark.parametrize(("shape", "dtype"), [*IMAGES, *VOLUMES, ((13,), "i4"), ((7, 9), "?")])
def test_each_format_is_read_by_another_library_or_refused(shape: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    values = any_values(5, shape, dtype)
    store, written = plain(tmp_path / "s.zarr", values), set()
    readers: dict[str, Any] = {
        "png": lambda path: np.asarray(Image.open(path)),
        "tiff": tifffile.imread,
        "npy": np.load,
        "nifti": lambda path: np.asanyarray(nibabel.load(path).dataobj).T,
    }
    for name, read in readers.items():
        try:
            export_store(store, tmp_path / name, format=name)
        except DataError as error:
            assert "give --format" in str(error)  # noqa: PT017
            assert not (tmp_path / name).exists()
            continue
        files = sorted(path for path in (tmp_path / name).iterdir() if path.suffix != ".json")
        written.add(name)
        assert len(files) == 5
        for file, sample in zip(files, values, strict=True):
            found = read(file)
            assert found.dtype == sample.dtype
            np.testing.assert_array_equal(found.reshape(sample.shape), sample)
    of_images = {"png"} if (shape, dtype) in IMAGES else set()
    of_tiff = {"tiff"} if len(shape) > 1 and dtype != "?" else set()
    scalar = dtype not in ("?", "f2") and not (len(shape) > 2 and shape[-1] in (3, 4))
    assert written == {"npy", *of_images, *of_tiff, *({"nifti"} if scalar else set())}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_file_with_all_samples(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    here, n = tmp_path_factory.mktemp("one"), data.draw(st.integers(1, 7))
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=3)))
    dtype = data.draw(st.sampled_from(["u1", "u2", "i2", "i4", "f4", "f8"]))
    values, first = any_values(n, shape, dtype, data.draw(st.integers(0, 99))), data.draw(st.integers(0, n - 1))
    array = zarr.create_array(
        here / "s.zarr", shape=values.shape, dtype=dtype, chunks=(data.draw(st.integers(1, n)), *shape)
    )
    array[...] = values
    step = data.draw(st.integers(1, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpca.jobs.export.export._TASK_BYTES", data.draw(st.sampled_from([1, 200, 2**24])))
        given = {"samples": slice(first, None, step), "run": Run(threads=data.draw(st.integers(1, 2)))}
        for name in ("a.npy", "a.tif", "a.nc"):
            export_store(here / "s.zarr", here / name, **given)
        if shape[-1] > 4 or len(shape) == 2:  # otherwise the last axis has channels
            export_store(here / "s.zarr", here / "a.nii", **given)
            read = np.asanyarray(nibabel.load(here / "a.nii").dataobj).T
            np.testing.assert_array_equal(read.reshape(values[first::step].shape), values[first::step])
    np.testing.assert_array_equal(np.load(here / "a.npy"), values[first::step])
    found = tifffile.imread(here / "a.tif", squeeze=False)
    np.testing.assert_array_equal(found.reshape(values[first::step].shape), values[first::step])
    with h5py.File(here / "a.nc") as file:
        np.testing.assert_array_equal(file["samples"][...], values[first::step])


def fields(path: Path) -> Any:
    """Write fields of a grid in time as netCDF, by xarray, and return them."""
    values = np.random.default_rng(1).normal(size=(6, 4, 5)).astype("f4")
    coords = {
        "time": ("time", np.arange(6.0), {"units": "days since 2001-01-01", "calendar": "360_day"}),
        "lat": ("lat", np.array([-20.0, -10, 0, 10]), {"units": "degrees_north", "standard_name": "latitude"}),
        "lon": ("lon", np.arange(0.0, 50, 10), {"units": "degrees_east"}),
    }
    found = xarray.DataArray(values, coords, ("time", "lat", "lon"), "t2m", {"units": "K", "long_name": "temperature"})
    found.to_dataset().assign_attrs(title="Fields of a grid").to_netcdf(path, engine="scipy")
    return found


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_fields_keep_coordinates_units_and_names(engine: str, tmp_path: Path) -> None:
    pytest.importorskip(engine if engine == "h5netcdf" else "netCDF4")
    original = fields(tmp_path / "given.nc")
    ingest(tmp_path / "given.nc", tmp_path / "stack.zarr")
    export_store(tmp_path / "stack.zarr", tmp_path / "out.nc", samples=slice(1, 5))
    with xarray.open_dataset(tmp_path / "out.nc", engine=engine, decode_times=False) as read:
        found = read["t2m"].load()
        assert read.attrs["title"] == "Fields of a grid"
    assert found["time"].attrs.pop("axis") == "T"
    xarray.testing.assert_identical(found, original[1:5])
    again = ingest(tmp_path / "out.nc", tmp_path / "again.zarr", key="t2m")
    assert again.coordinates is not None
    assert again.coordinates.attributes["title"] == "Fields of a grid"
    assert again.coordinates.dims == ("time", "lat", "lon")


def test_curved_grids_and_texts_in_netcdf(tmp_path: Path) -> None:
    values = np.random.default_rng(2).normal(size=(3, 4, 5))
    given = xarray.DataArray(
        values,
        {"lat2": (("y", "x"), np.arange(20.0).reshape(4, 5)), "place": ("y", ["a", "b", "c", "d"])},
        ("sample", "y", "x"),
    )
    given.to_dataset(name="v").to_netcdf(tmp_path / "given.nc", engine="scipy")
    ingest(tmp_path / "given.nc", tmp_path / "stack.zarr")
    export_store(tmp_path / "stack.zarr", tmp_path / "out.nc")
    pytest.importorskip("netCDF4")
    with xarray.open_dataset(tmp_path / "out.nc", engine="netcdf4") as read:
        np.testing.assert_array_equal(read["v"].values, values)
        np.testing.assert_array_equal(read["v"].coords["lat2"].values, given["lat2"].values)


def test_coordinates_that_netcdf_has_no_types_for(tmp_path: Path) -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    given = xarray.DataArray(
        values,
        {"night": ("samples", [True, False]), "h": (("y", "x"), np.ones((3, 4), "f2")), "room": ("y", ["a", "é", ""])},
        ("samples", "y", "x"),
    )
    given.to_dataset(name="v").to_zarr(tmp_path / "given.zarr", zarr_format=2, consolidated=False)
    export_store(tmp_path / "given.zarr", tmp_path / "out.nc")
    netcdf = pytest.importorskip("netCDF4")
    with netcdf.Dataset(tmp_path / "out.nc") as read:
        (variable,) = (one for one in read.variables.values() if one.ndim == 3)
        np.testing.assert_array_equal(variable[...], values)
        np.testing.assert_array_equal(read["h"][...], np.ones((3, 4)))
        assert read["night"][...].tolist() == [1, 0]
        assert read["room"][...].tolist() == ["a", "é", ""]


def spaced(path: Path, values: Any) -> Path:
    """Write volumes with coordinates in micrometers."""
    given = xarray.DataArray(
        values,
        {
            "z": ("z", 2.5 * np.arange(values.shape[1]), {"units": "um"}),
            "y": ("y", 10 + 0.5 * np.arange(values.shape[2]), {"units": "um"}),
        },
        ("time", "z", "y", "x"),
    )
    given.to_dataset(name="v").to_netcdf(path.with_suffix(".nc"), engine="scipy")
    ingest(path.with_suffix(".nc"), path)
    return path


def test_the_spacing_of_volumes(tmp_path: Path) -> None:
    values = any_values(2, (3, 4, 5), "i2")
    store = spaced(tmp_path / "v.zarr", values)
    export_store(store, tmp_path / "one.nii", samples=1)
    read = nibabel.load(tmp_path / "one.nii")
    np.testing.assert_array_equal(np.asanyarray(read.dataobj).T, values[1])
    assert read.header.get_zooms() == (1.0, 0.5, 2.5)
    np.testing.assert_array_equal(read.affine, [[1, 0, 0, 0], [0, 0.5, 0, 10], [0, 0, 2.5, 0], [0, 0, 0, 1]])
    export_store(store, tmp_path / "one.tif", samples=0)
    with tifffile.TiffFile(tmp_path / "one.tif") as file:
        assert len(file.pages) == 3
        assert file.series[0].axes == "ZYX"
        assert file.shaped_metadata[0]["spacing_z"] == 2.5


def test_pages_of_a_tiff_have_their_axes(stores: Path, tmp_path: Path) -> None:
    export_store(stores / "small.zarr", tmp_path / "movie.tif", samples=slice(0, 4))
    with tifffile.TiffFile(tmp_path / "movie.tif") as file:
        assert (len(file.pages), file.series[0].axes) == (4, "TYXS")
        np.testing.assert_array_equal(file.asarray(), samples_of(stores, "small.zarr")[:4])
    assert len(ingest(tmp_path / "movie.tif", tmp_path / "again.zarr").names) == 4


# -- the rules of outputs


def test_an_export_is_recognized_refused_or_replaced(
    stores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out") + "/"
    line = ["export", str(stores / "small.zarr"), out, "--samples", "0:4"]
    assert main(line) == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert main(line) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    other = [*line[:-1], "0:2"]
    assert main(other) == 4
    assert "--overwrite" in capsys.readouterr().err
    assert main([*other, "--overwrite"]) == 0
    assert len(list((tmp_path / "out").rglob("*.png"))) == 2
    (tmp_path / "out" / "mine.txt").write_text("mine")
    for more in ([], ["--overwrite"]):
        assert main([*line, *more]) == 4
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("name", ["out.npy", "out.nc", "out.png", "folder", "report"])
def test_nothing_else_is_replaced(name: str, stores: Path, tmp_path: Path) -> None:
    target = tmp_path / name
    if name == "folder":
        target.mkdir()
        (target / "mine").write_text("mine")
    elif name == "report":
        from dpca.report.record import write_report

        write_report(target, {}, {})
    else:
        target.write_text("mine")
    before = sorted(path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file())
    for overwrite in (False, True):
        with pytest.raises(StoreError):
            export_store(
                stores / "small.zarr",
                target,
                samples=0 if name == "out.png" else None,
                run=Run(overwrite=overwrite),
            )
    assert sorted(path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file()) == before
    assert not list(tmp_path.glob("*.partial"))


def test_an_export_lies_outside_its_store(stores: Path, tmp_path: Path) -> None:
    for target in (stores / "small.zarr", stores / "small.zarr" / "out", stores):
        with pytest.raises(StoreError):
            export_store(stores / "small.zarr", target, format="png", run=Run(overwrite=True))
    with pytest.raises(StoreError):
        export_store(stores / "small.zarr", "s3://bucket/out")


@pytest.mark.parametrize("name", ["out", "out.npy", "out.tif", "out.nc", "out.zarr"])
def test_an_interrupted_export_resumes(name: str, stores: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpca.jobs.export.export._TASK_BYTES", 1)
        patch.setattr("dpca.jobs.export.export.rows_of_a_shard", lambda given, n: 2)
        export_store(stores / "stack.zarr", tmp_path / "whole" / name)
        done: list[str] = []

        def more(unit: str) -> bool:
            done.append(unit)
            return len(done) <= 3

        interrupt_at(patch, more)
        with pytest.raises(KeyboardInterrupt):
            export_store(stores / "stack.zarr", tmp_path / name, run=Run(threads=1))
    assert not (tmp_path / name).exists()
    assert (tmp_path / f"{name}.partial").is_dir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "dpca.jobs.export.export._TASK_BYTES", 1
        )  # another layout is kept, and other tasks are made again
        export_store(stores / "stack.zarr", tmp_path / name, run=Run(threads=1))
    read: list[dict[str, bytes]] = []
    for folder in (tmp_path, tmp_path / "whole"):
        files = [folder / name] if (folder / name).is_file() else sorted((folder / name).rglob("*"))
        read.append({str(file.relative_to(folder)): file.read_bytes() for file in files if file.is_file()})
    assert read[0].keys() == read[1].keys()
    assert read[0] == read[1]
    assert not (tmp_path / f"{name}.partial").exists()


@pytest.mark.parametrize("name", ["out", "out.npy", "out.nc", "out.tif", "out.ome.zarr"])
@pytest.mark.parametrize("store", ["small.zarr", "large"])
def test_no_more_memory_than_planned(name: str, store: str, stores: Path, tmp_path: Path) -> None:
    import tracemalloc

    path = stores / store
    if store == "large":
        path = plain(tmp_path / "large.zarr", any_values(3, (1100, 900), "u2"))
    planned: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpca.jobs.export.export.require_memory", lambda what, need, budget: planned.append(need))
        export_store(path, tmp_path / "first" / name, run=Run(threads=1))  # imports libraries
        tracemalloc.start()
        export_store(path, tmp_path / name, run=Run(threads=1))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= planned[-1]


def test_gray_photographs(tmp_path: Path) -> None:
    pixels = smooth_images(2, (40, 36))
    for name, values in (("flat", pixels), ("one channel", pixels[..., None])):
        export_store(plain(tmp_path / f"{name}.zarr", values), tmp_path / name, format="jpeg")
        read = np.asarray(Image.open(tmp_path / name / "1.jpg"))
        assert read.shape == (40, 36)
        assert np.abs(read.astype(float) - pixels[1]).mean() < 2


def test_memory_is_planned_first(stores: Path, tmp_path: Path) -> None:
    for name in ("out", "out.npy", "out.zarr"):
        with pytest.raises(PlanError):
            export_store(stores / "small.zarr", tmp_path / name, run=Run(memory=2**20))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["out.jpg"], "holds one sample"),
        (["out.npy", "--format", "png"], "suffix"),
        (["out", "--format", "netcdf"], "one file"),
        (["out", "--samples", "99"], "sample 99"),
        (["out", "--samples", "9:3"], "9:3"),
        (["out", "--samples", "5:2:-1"], "ascending"),
        (["out.nii"], "channels"),
        (["out", "--model", "m.zarr"], "leave out"),
    ],
)
def test_refusals_name_the_remedy(
    arguments: list[str], word: str, stores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, *options = arguments
    assert main(["export", str(stores / "small.zarr"), str(tmp_path / target), *options]) == 3
    assert word in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_model_or_a_stack_without_components_is_refused(stores: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="dpca.load"):
        export_store(stores / "model.zarr", tmp_path / "out")
    with pytest.raises(DataError, match="components"):
        export_store(stores / "stack.zarr", tmp_path / "out", n_components=2)


# -- names


@given(
    st.lists(st.text("aA./\\ é1", max_size=6) | st.sampled_from(["a.png", "a", "A.jpg", "a/b", "..", "/x"]), max_size=9)
)
def test_files_have_different_names_inside_of_their_folder(names: list[str]) -> None:
    files = file_names(names, ".png", range(len(names)))
    assert len({name.casefold() for name in files}) == len(names)
    folders = {str(above).casefold() for name in files for above in Path(name).parents}
    assert not folders & {name.casefold() for name in files}
    for name in files:
        assert not os.path.isabs(name)
        assert os.path.normpath(name) == name
        assert ".." not in name.split("/")


def test_samples_without_names_are_numbered_in_order() -> None:
    assert file_names(["8", "9", "10"], ".npy", range(8, 11)) == ["08.npy", "09.npy", "10.npy"]
    assert file_names(["x" * 400], ".png", range(1))[0] == "x" * 200 + ".png"
    assert file_names(["flow-2.5", "scan.nii.gz"], ".png", range(2)) == ["flow-2.5.png", "scan.png"]


# -- open and load, and stacks again


def test_open_and_load_find_the_kind(stores: Path, tmp_path: Path) -> None:
    assert isinstance(dpca.open(stores / "small.zarr"), Compressed)
    assert isinstance(dpca.open(stores / "stack.zarr"), Stack)
    assert isinstance(dpca.open(stores / "scores.zarr", model=stores / "model.zarr"), Scores)
    assert dpca.open(stores / "small.zarr", n_components=2).level == 2
    assert isinstance(dpca.load(stores / "model.zarr"), CellPCA)
    PCA(2).fit(stores / "stack.zarr").save(tmp_path / "pca.zarr")
    assert isinstance(dpca.load(tmp_path / "pca.zarr"), PCA)
    plain(tmp_path / "plain.zarr", np.zeros((3, 4, 5), "u1"))
    assert dpca.open(tmp_path / "plain.zarr").sample_shape == (4, 5)
    with pytest.raises(StoreError, match="dpca.load"):
        dpca.open(stores / "model.zarr")
    for missing in (dpca.open, dpca.load):
        with pytest.raises((DataError, StoreError)):
            missing(tmp_path / "none.zarr")


@pytest.mark.parametrize("k", [None, 2])
def test_a_compressed_store_becomes_a_stack(k: int | None, stores: Path, tmp_path: Path, scheduler: str) -> None:
    reconstruct_store(None, stores / "small.zarr", tmp_path / "again.zarr", n_components=k)
    again, small = open_stack(tmp_path / "again.zarr"), dpca.open_compressed(stores / "small.zarr", level=k)
    np.testing.assert_array_equal(again.samples[...], small[...])
    assert again.names.tolist() == small.names.tolist()
    assert (again.axes, again.data_range) == (small.axes, (0.0, 255.0))
    line = ["reconstruct", str(stores / "small.zarr"), str(tmp_path / "more.zarr"), "--scheduler", scheduler]
    assert main([*line, *(["--components", "2"] if k else [])]) == 0
    np.testing.assert_array_equal(open_stack(tmp_path / "more.zarr").samples[...], small[...])
    with pytest.raises(DataError, match="model"):
        reconstruct_store(stores / "model.zarr", stores / "small.zarr", tmp_path / "x.zarr")
    with pytest.raises(PlanError):
        reconstruct_store(None, stores / "small.zarr", tmp_path / "x.zarr", run=Run(memory=2**20))


def test_stored_samples_take_no_more_memory_than_they_say(stores: Path) -> None:
    import tracemalloc

    for store in ("small.zarr", "stack.zarr", "scores.zarr"):
        given = stored_samples(stores / store, None, stores / "model.zarr" if store == "scores.zarr" else None)
        given.read(0, 1, given.whole)
        for n, region in itertools.product((1, 5, 9), (given.whole, ((8, 17), (0, 20), (1, 3)))):
            tracemalloc.start()
            found = given.read(0, n, region)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak <= given.read_bytes(n, region) + 2**20
            box = tuple(slice(*ends) for ends in region)
            np.testing.assert_array_equal(found, given.read(0, n, given.whole)[(slice(None), *box)])


def test_one_sample_is_a_file_of_its_own(stores: Path, tmp_path: Path) -> None:
    export_store(stores / "small.zarr", tmp_path / "seven.png", samples=7)
    export_store(stores / "small.zarr", tmp_path / "last.npy", samples=-1)
    expected = samples_of(stores, "small.zarr")
    np.testing.assert_array_equal(
        np.asarray(Image.open(io.BytesIO((tmp_path / "seven.png").read_bytes()))), expected[7]
    )
    np.testing.assert_array_equal(np.load(tmp_path / "last.npy"), expected[-1])
