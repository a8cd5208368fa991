"""Variables of netCDF-3 files that scipy and xarray wrote."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.io import netcdf_file

from dpca.storage import ingest
from dpca.storage.errors import DataError
from dpca.storage.readers import open_reader

Array = np.ndarray[Any, Any]


def write(path: Path, values: Array, *, record: bool = True, version: int = 1, **attributes: Any) -> Path:
    with netcdf_file(path, "w", version=version) as file:
        for i, n in enumerate(values.shape):
            file.createDimension(f"d{i}", None if record and i == 0 else n)
        # a second variable that is interleaved with the first, record by record
        file.createVariable("other", "f8", ("d0",))[:] = np.arange(len(values))
        variable = file.createVariable("sst", values.dtype.newbyteorder(">"), [f"d{i}" for i in range(values.ndim)])
        variable[:] = values
        for name, value in attributes.items():
            setattr(variable, name, value)
    return path


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_rows(tmp_path: Path, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["i1", "i2", "i4", "f4", "f8"]))
    shape = data.draw(st.lists(st.integers(2, 5), min_size=2, max_size=4))
    elements = st.integers(-100, 100) if dtype[0] == "i" else st.integers(-1000, 1000).map(float)
    x = data.draw(arrays(dtype, shape, elements=elements))
    version = data.draw(st.sampled_from([1, 2]))
    path = write(tmp_path / "s.nc", x, record=data.draw(st.booleans()), version=version)
    reader = open_reader(path)
    assert (len(reader), *reader.sample_shape) == x.shape
    assert reader.axes == tuple(f"d{i}" for i in range(1, x.ndim))
    wanted = sorted(data.draw(st.sets(st.integers(0, len(x) - 1), min_size=1)))
    rows = pickle.loads(pickle.dumps(reader.part(wanted)))()
    assert rows.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(rows, x[wanted])


def test_samples_on_another_axis(tmp_path: Path) -> None:
    x = np.arange(60, dtype="i4").reshape(3, 4, 5)
    reader = open_reader(write(tmp_path / "s.nc", x), axes=("lat", "sample", "lon"))
    np.testing.assert_array_equal(reader.fetch(range(4)), np.moveaxis(x, 1, 0))


def test_packed_values_are_decoded_as_xarray_does(tmp_path: Path) -> None:
    x = np.arange(60, dtype="i2").reshape(3, 4, 5)
    path = write(tmp_path / "s.nc", x, scale_factor=np.float32(0.5), add_offset=np.float32(7))
    stack = ingest(path, tmp_path / "out.zarr")
    with xarray.open_dataset(path, engine="scipy") as truth:
        np.testing.assert_array_equal(stack.samples[:], truth["sst"].values)


@pytest.mark.parametrize(
    ("dtype", "value", "attributes"),
    [
        ("i2", -5, {"_FillValue": np.int16(-5)}),
        ("f4", 1e20, {"missing_value": np.float32(1e20)}),
        ("f8", 99, {"valid_max": 50.0}),
        ("f4", 9.969209968386869e36, {}),
        ("i2", -32767, {}),
    ],
)
def test_missing_values_are_refused(dtype: str, value: float, attributes: dict[str, Any], tmp_path: Path) -> None:
    x = np.ones((4, 3, 3), dtype)
    x[2, 1, 0] = value
    path = write(tmp_path / "s.nc", x, **attributes)
    with pytest.raises(DataError, match=r"sample.2\b.*s\.nc/sst.*\(1,.0\)"):
        ingest(path, tmp_path / "out.zarr")


def test_a_variable_is_chosen_by_name(tmp_path: Path) -> None:
    with netcdf_file(tmp_path / "s.nc", "w") as file:
        file.createDimension("t", 3)
        file.createDimension("x", 2)
        for i, name in enumerate("ab"):
            file.createVariable(name, "f4", ("t", "x"))[:] = i
    with pytest.raises(DataError, match="--key"):
        open_reader(tmp_path / "s.nc")
    assert open_reader(tmp_path / "s.nc", key="b").fetch([0]).tolist() == [[1, 1]]


@pytest.mark.parametrize("cut", [5, 40, 200, -4])
def test_cut_files_are_refused(cut: int, tmp_path: Path) -> None:
    path = write(tmp_path / "s.nc", np.ones((20, 6, 7)))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match="truncated"):
        open_reader(path)


def test_64_bit_data_say_how_to_convert(tmp_path: Path) -> None:
    (tmp_path / "s.nc").write_bytes(b"CDF\x05" + bytes(99))
    with pytest.raises(DataError, match="nccopy"):
        open_reader(tmp_path / "s.nc")
