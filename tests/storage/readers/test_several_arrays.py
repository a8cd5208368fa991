"""Several arrays of equal samples as one stack: a glob, a list, or a folder of them."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import netcdf_file

from dpca.storage import ingest
from dpca.storage.errors import DataError
from dpca.storage.readers import open_reader
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.storage.sources.made_sources import encoded, pixels


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_rows_are_those_of_the_files_joined(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("several")
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
    sample = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    dtype = data.draw(st.sampled_from(["u1", ">i2", "f4", "f8"]))
    parts = [np.random.default_rng(i).integers(0, 99, (n, *sample)).astype(dtype) for i, n in enumerate(lengths)]
    for i, part in enumerate(parts):
        np.save(folder / f"{i}.npy", part)
    whole = np.concatenate(parts)
    for source in (folder, str(folder / "*.npy"), [folder / f"{i}.npy" for i in range(len(parts))]):
        reader = open_reader(source)
        wanted = sorted(data.draw(st.sets(st.integers(0, len(whole) - 1), min_size=1)))
        rows = pickle.loads(pickle.dumps(reader.part(wanted)))()
        np.testing.assert_array_equal(rows, whole[wanted])
        assert rows.dtype == np.dtype(dtype).newbyteorder("=")
        assert len(reader) == len(whole)


def test_ingested_from_plain_and_packed_files(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(7, 5, 4)).astype("f4")
    np.save(tmp_path / "a.npy", x[:3])
    np.savez_compressed(tmp_path / "b.npz", samples=x[3:])
    stack = ingest([tmp_path / "a.npy", tmp_path / "b.npz"], tmp_path / "out.zarr", run=Run(threads=1))
    np.testing.assert_array_equal(stack.samples[:], x)


def test_a_glob_of_stacks_in_tiff(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 999, (6, 24, 20)).astype("u2")
    for i in range(2):
        tifffile.imwrite(tmp_path / f"{i}.tif", x[3 * i : 3 * i + 3], photometric="minisblack")
    reader = open_reader(str(tmp_path / "*.tif"))
    np.testing.assert_array_equal(reader.fetch(range(6)), x)


def test_missing_values_keep_their_places(tmp_path: Path) -> None:
    for year in range(2):
        with netcdf_file(tmp_path / f"{year}.nc", "w") as file:
            file.createDimension("t", 3)
            file.createDimension("x", 2)
            file.createVariable("sst", "f4", ("t", "x"))[:] = np.where(np.arange(6).reshape(3, 2) == 3 - year, -1, 5)
            file.variables["sst"].missing_value = np.float32(-1)
    stack = ingest(str(tmp_path / "*.nc"), tmp_path / "out.zarr", reading=ReadOptions(on_error="skip"))
    assert [name for name, _ in stack.rejected] == ["0.nc/sst/1", "1.nc/sst/1"]
    assert stack.shape == (4, 2)


def test_images_come_before_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.ones((4, 2)))
    (tmp_path / "a.png").write_bytes(encoded(pixels()))
    reader = open_reader(tmp_path)
    assert (reader.encoded, len(reader), reader.others) == (True, 1, {".npy": 1})


@pytest.mark.parametrize("other", [np.ones((2, 3, 5), "u1"), np.ones((2, 3, 4), "u2"), np.ones((2, 3), "u1")])
def test_other_samples_are_refused(other: np.ndarray[tuple[int, ...], np.dtype[np.generic]], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 3, 4), "u1"))
    np.save(tmp_path / "b.npy", other)
    with pytest.raises(DataError, match="shape"):
        open_reader(tmp_path)
