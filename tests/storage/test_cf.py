"""Packed and missing values of netCDF, HDF5 and Zarr: decoded as xarray decodes them, and never taken as data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray
import zarr
from hypothesis import given
from hypothesis import strategies as st

from dpca.storage import cf
from dpca.storage.errors import DataError
from dpca.storage.ingest import ingest
from dpca.storage.readers import open_reader
from dpca.storage.stack import open_stack
from dpca.storage.survey import ReadOptions

SHAPE = (6, 4, 5)


def values(dtype: str = "i2") -> np.ndarray[Any, Any]:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return np.random.default_rng(0).normal(280, 9, SHAPE).astype(kind)
    return np.random.default_rng(0).integers(0, 100, SHAPE).astype(kind)


def netcdf(path: Path, data: np.ndarray[Any, Any], attributes: dict[str, Any], **options: Any) -> Path:
    """Write a variable as netCDF-4 does."""
    with h5py.File(path / "a.nc", "w") as file:
        variable = file.create_dataset("t", data=data, **options)
        for name, value in attributes.items():
            variable.attrs[name] = value
    return path / "a.nc"


def by_xarray(data: np.ndarray[Any, Any], attributes: dict[str, Any]) -> np.ndarray[Any, Any]:
    variable = xarray.Variable(("t", "y", "x")[: data.ndim], data, attributes)
    return np.asarray(xarray.conventions.decode_cf_variable("t", variable, decode_times=False).values)


F4, F8, I2 = np.float32, np.float64, np.int16
PACKINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "short to float": ("i2", {"scale_factor": F4(0.01), "add_offset": F4(273.15)}),
    "short to double": ("i2", {"scale_factor": F8(0.01), "add_offset": F8(273.15)}),
    "a factor alone": ("i2", {"scale_factor": F4(0.5)}),
    "an offset alone": ("i2", {"add_offset": F4(100)}),
    "an int to double": ("i4", {"scale_factor": F4(0.01), "add_offset": F4(3)}),
    "a float to float": ("f4", {"scale_factor": F4(10), "add_offset": F4(1)}),
    "mixed types": ("i2", {"scale_factor": F4(0.1), "add_offset": F8(1e6)}),
    "in arrays of one": ("u1", {"scale_factor": np.array([0.5]), "add_offset": np.array([2.0])}),
    "signed bytes meant without": ("i1", {"_Unsigned": "true", "scale_factor": F4(0.5)}),
    "big-endian": (">i2", {"scale_factor": F4(0.01), "add_offset": F4(273.15)}),
}


@pytest.mark.parametrize("name", PACKINGS)
def test_packed_values_are_those_of_xarray(name: str, tmp_path: Path) -> None:
    dtype, attributes = PACKINGS[name]
    data = values(dtype)
    stack = ingest(netcdf(tmp_path, data, attributes, chunks=(2, 4, 5)), tmp_path / "out.zarr")
    expected = by_xarray(data, attributes)
    assert stack.dtype == expected.dtype
    np.testing.assert_array_equal(stack.samples[:], expected)
    assert stack.data_range == (expected.min(), expected.max())


def test_an_unsigned_byte_keeps_its_type(tmp_path: Path) -> None:
    data = np.arange(-60, 60, dtype=np.int8).reshape(SHAPE)
    stack = ingest(netcdf(tmp_path, data, {"_Unsigned": "true"}), tmp_path / "out.zarr")
    assert (stack.dtype, stack.data_range) == (np.uint8, (0.0, 255.0))
    np.testing.assert_array_equal(stack.samples[:], data.view(np.uint8))


def test_a_factor_of_one_leaves_values_as_they_are(tmp_path: Path) -> None:
    attributes = {"scale_factor": F4(1), "add_offset": F4(0), "_FillValue": np.float32(np.nan)}
    data = values("i2")
    stack = ingest(netcdf(tmp_path, data, attributes), tmp_path / "out.zarr")
    assert stack.dtype == np.int16
    np.testing.assert_array_equal(stack.samples[:], data)


MISSING: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any]]] = {
    "_FillValue": ("f4", 1e20, {"_FillValue": F4(1e20)}, {}),
    "a double for a float": ("f4", 1e20, {"_FillValue": 1e20}, {}),
    "missing_value": ("f4", -999.0, {"missing_value": F4(-999)}, {}),
    "several missing_values": ("i2", -2, {"missing_value": np.array([-1, -2], "i2")}, {}),
    "zero by attribute": ("i2", 0, {"_FillValue": I2(0)}, {}),
    "of integers": ("i2", -32768, {"_FillValue": I2(-32768)}, {}),
    "of packed integers": ("i2", -32768, {"_FillValue": I2(-32768), "scale_factor": 0.01, "add_offset": 5.0}, {}),
    "of bytes": ("u1", 255, {"_FillValue": np.uint8(255)}, {}),
    "of bytes meant without a sign": ("i1", -1, {"_FillValue": np.int8(-1), "_Unsigned": b"true"}, {}),
    "below the valid range": ("f4", -5.0, {"valid_min": F4(0)}, {}),
    "above the valid range": ("i2", 101, {"valid_range": np.array([0, 100], "i2")}, {}),
    "a valid range of unpacked values": ("i2", 101, {"valid_max": 10.05, "scale_factor": 0.1}, {}),
    "the fill value of the format": ("f4", 9.96921e36, {}, {"fillvalue": 9.96921e36}),
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", MISSING)
def test_a_missing_value_is_named_and_never_data(name: str, tmp_path: Path) -> None:
    dtype, value, attributes, options = MISSING[name]
    data = np.maximum(values(dtype), 1).astype(dtype)
    sound = ingest(netcdf(tmp_path, data, attributes, **options), tmp_path / "sound.zarr")
    assert sound.n_samples == len(data)
    data[2, 1, 3] = value
    source = netcdf(tmp_path, data, attributes, **options)
    with pytest.raises(DataError, match=r"sample.2\b.*a\.nc/t.*\(1,.3\).*--on-error"):
        ingest(source, tmp_path / "out.zarr")
    stack = ingest(source, tmp_path / "out.zarr", reading=ReadOptions(on_error="skip"))
    assert stack.names.tolist() == ["0", "1", "3", "4", "5"]
    assert [name for name, _ in stack.rejected] == ["2"]
    np.testing.assert_array_equal(stack.samples[:], np.delete(sound.samples[:], 2, 0))


@pytest.mark.parametrize(
    ("dtype", "attributes"),
    [
        ("f4", {"valid_min": F4(-2.5), "valid_max": F4(7.5)}),
        ("f4", {"valid_range": np.array([-2.5, 7.5], "f4")}),
        ("i2", {"valid_min": I2(-2), "valid_max": I2(7)}),
        ("u1", {"valid_range": np.array([3, 200], "u1"), "scale_factor": F4(2)}),  # of stored values
        ("i2", {"valid_range": np.array([-1.5, 2.5]), "scale_factor": 0.5}),  # of floats: of the data
        ("i1", {"valid_range": np.array([5, -6], "i1"), "_Unsigned": "true"}),  # 5 to 250
    ],
)
def test_the_ends_of_a_valid_range_are_valid_and_what_is_beyond_them_is_not(
    dtype: str, attributes: dict[str, Any]
) -> None:
    """CF conventions, section 2.5.1: values less than the minimum, or greater than the maximum, are missing."""
    coding = cf.coding_of(attributes, np.dtype(dtype), "'t'")
    assert coding is not None
    assert coding.low is not None
    assert coding.high is not None
    # A step beyond: the next number of a float, 1 of an integer; halves where these are made of integers.
    low, high = (np.asarray([end / coding.scale if coding.decoded_range else end]) for end in (coding.low, coding.high))
    ends = np.concatenate([low, high]).astype(coding.stored)
    step = np.array([-1, 1])
    beyond = np.nextafter(ends, ends + step.astype(dtype)) if dtype == "f4" else (ends + step).astype(ends.dtype)
    assert not np.ma.isMaskedArray(coding.decode(ends.view(dtype)))
    assert np.ma.getmaskarray(coding.decode(beyond.view(dtype))).all()


@pytest.mark.parametrize(
    ("stated", "dtype", "unsigned", "missing"),
    [
        (-1, "i1", "true", (255,)),
        (255, "i1", "true", (255,)),
        (0, "i1", "true", (0,)),
        (127, "i1", "true", (127,)),
        (256, "i1", "true", ()),  # no value of a byte, whatever its sign
        (-256, "i1", "true", ()),
        (255, "u1", "false", (-1,)),
        (128, "u1", "false", (-128,)),
        (256, "u1", "false", ()),
        (-32768, "i2", "false", (-32768,)),
        (np.nan, "i2", "false", ()),
        (np.inf, "f4", "false", ()),
        (1e300, "f4", "false", ()),
    ],
)
def test_missing_values_of_the_other_sign(stated: float, dtype: str, unsigned: str, missing: tuple[float, ...]) -> None:
    coding = cf.coding_of({"_FillValue": stated, "_Unsigned": unsigned, "scale_factor": 2.0}, np.dtype(dtype), "'t'")
    assert coding is not None
    assert coding.missing == missing


def test_what_a_valid_range_is_about() -> None:
    """Of stored values, but where they are integers and the range is of floats: of the data, whatever the sign."""
    floats = cf.coding_of({"scale_factor": F4(10), "valid_max": F4(5)}, np.dtype("f4"), "'t'")
    bytes_ = cf.coding_of({"scale_factor": 0.5, "valid_min": -2.0, "_Unsigned": "true"}, np.dtype("i1"), "'t'")
    assert floats is not None
    assert bytes_ is not None
    assert np.ma.getmaskarray(floats.decode(np.array([5, 6], "f4"))).tolist() == [False, True]
    assert (bytes_.decoded_range, bytes_.low) == (True, -2.0)


@pytest.mark.parametrize("version", [2, 3])
def test_fill_values_of_single_bytes_that_nobody_stated_mean_nothing(version: Any) -> None:
    array = zarr.create_array({}, shape=(4, 4), dtype="u1", fill_value=255, zarr_format=version)
    assert cf.coding_of_zarr(array, "'t'") is None
    wide = zarr.create_array({}, shape=(4, 4), dtype="i2", fill_value=255, zarr_format=version)
    coding = cf.coding_of_zarr(wide, "'t'")
    assert coding is not None
    assert coding.missing == (255,)


def test_what_was_never_written_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        array = file.create_dataset("t", (8, 4, 5), "f4", chunks=(2, 4, 5))
        array[:6] = 1
    with pytest.raises(DataError, match=r"a\.h5/t.*\b3\b.*chunks"):
        open_reader(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("t", (8, 4, 5), "f4")
    with pytest.raises(DataError, match=r"b\.h5/t.*\b640\b"):
        open_reader(tmp_path / "b.h5")


@pytest.mark.parametrize(
    "attributes",
    [
        {"scale_factor": 0.0},
        {"scale_factor": "x"},
        {"add_offset": [1.0, 2.0]},
        {"valid_range": [1]},
        {"_FillValue": "x"},
    ],
)
def test_attributes_of_nonsense_are_refused(attributes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="attribute"):
        open_reader(netcdf(tmp_path, values(), attributes))


def test_real_netcdf_is_read_as_it_is(real_data: Path, tmp_path: Path) -> None:
    source = real_data / "climate" / "A1B_north_america.nc"
    stack = ingest(source, tmp_path / "out.zarr", key="air_temperature")
    with h5py.File(source) as file:
        np.testing.assert_array_equal(stack.samples[:], file["air_temperature"][:])
    assert stack.data_range is not None
    assert 200 < stack.data_range[0] < stack.data_range[1] < 330


def by_xarray_to_zarr(path: Path, data: np.ndarray[Any, Any], encoding: dict[str, Any], version: int) -> Path:
    dataset = xarray.Dataset({"t": (("time", "y", "x"), data)})
    dataset.to_zarr(path / "a.zarr", encoding={"t": encoding}, zarr_format=version, consolidated=False)
    return path / "a.zarr"


ENCODINGS: dict[str, dict[str, Any]] = {
    "packed": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768},
    "a fill value": {"dtype": "f4", "_FillValue": 1e20},
    "a double fill value": {"dtype": "f8", "_FillValue": -999.0},
    "integers": {"dtype": "i4", "_FillValue": -1},
    "bytes": {"dtype": "u1", "_FillValue": 255, "scale_factor": 2.0},
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", ENCODINGS)
def test_zarr_of_xarray_is_decoded_by_ingest_and_refused_without(name: str, version: int, tmp_path: Path) -> None:
    data = np.round(values("f8"))
    data[4, 0, 1] = np.nan
    path = by_xarray_to_zarr(tmp_path, data, ENCODINGS[name], version)
    with pytest.raises(DataError, match="ingest"):
        open_stack(path)
    with pytest.raises(DataError, match=r"sample.4\b.*a\.zarr.*\(0,.1\)"):
        ingest(path, tmp_path / "out.zarr")
    stack = ingest(path, tmp_path / "out.zarr", reading=ReadOptions(on_error="skip"))
    with xarray.open_zarr(path, consolidated=False) as dataset:
        expected = np.delete(dataset["t"].values, 4, 0)
    np.testing.assert_array_equal(stack.samples[:], expected)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", ["f4", "i4", "u1"])
def test_plain_zarr_of_xarray_is_read_where_it_is(dtype: str, version: int, tmp_path: Path) -> None:
    data = values(dtype)
    path = by_xarray_to_zarr(tmp_path, data, {}, version)
    np.testing.assert_array_equal(open_stack(path).samples[:], data)
    assert ingest(path, tmp_path / "out.zarr").dtype == dtype


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"valid_range": [0, 50]}, "valid range"),
        ({"missing_value": -1}, r"missing value \(-1\)"),
        ({"add_offset": 3.0}, "packed"),
        ({"_Unsigned": "true"}, "packed"),
    ],
)
def test_foreign_zarr_that_cannot_be_read_as_it_is(attributes: dict[str, Any], words: str, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a.zarr", data=values(), attributes=attributes)
    with pytest.raises(DataError, match=words):
        open_stack(tmp_path / "a.zarr")


@pytest.mark.parametrize(
    "attributes", [{"scale_factor": 1, "add_offset": 0.0}, {"missing_value": "NaN"}, {"units": "K"}]
)
def test_foreign_zarr_that_can(attributes: dict[str, Any], tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a.zarr", data=values("f4"), attributes=attributes, fill_value=np.nan)
    assert open_stack(tmp_path / "a.zarr").n_samples == 6


numbers = st.sampled_from([-32768, -999, -1, 0, 1, 7, 100, 255, 32767])
factors = st.sampled_from([0.01, 0.5, 1.0, 2.0, -3.0])


@given(
    dtype=st.sampled_from(["i1", "u1", "i2", "u2", "i4", "i8", "f4", "f8"]),
    fill=st.none() | numbers,
    missing=st.none() | numbers,
    scale=st.none() | factors.map(F4) | factors,
    offset=st.none() | st.sampled_from([F4(0), F4(-5), 0.0, 273.15]),
    content=st.lists(numbers, min_size=1, max_size=12),
)
def test_any_coding_is_that_of_xarray(
    dtype: str, fill: int | None, missing: int | None, scale: Any, offset: Any, content: list[int]
) -> None:
    kind = np.dtype(dtype)
    fits = (lambda n: True) if kind.kind == "f" else lambda n: np.iinfo(kind).min <= n <= np.iinfo(kind).max
    data = np.array([n for n in content if fits(n)], kind)
    stated = {"_FillValue": fill, "missing_value": missing}
    attributes: dict[str, Any] = {name: kind.type(n) for name, n in stated.items() if n is not None and fits(n)}
    attributes |= {name: n for name, n in {"scale_factor": scale, "add_offset": offset}.items() if n is not None}
    if len({*(attributes[name] for name in stated if name in attributes)}) > 1:
        del attributes["missing_value"]  # xarray warns of two different ones
    expected = by_xarray(data, attributes).astype(np.float64)
    coding = cf.coding_of(attributes, kind, "'t'")
    decoded = data if coding is None else coding.decode(data)
    found = np.ma.filled(np.ma.asarray(decoded, np.float64), math.nan)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    # xarray computes in the smallest float that the stored type fits in, this in the type of the result
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("given", ["path", "array"])
def test_no_fit_takes_packed_values_as_they_are(given: str, tmp_path: Path) -> None:
    from dpca import CellPCA

    array = zarr.create_array(tmp_path / "a.zarr", data=values(), attributes={"scale_factor": 0.1})
    with pytest.raises(DataError, match="packed"):
        CellPCA(2, cell_shape=2).fit(tmp_path / "a.zarr" if given == "path" else array)


def test_what_info_says_of_packed_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dpca.cli import main

    zarr.create_array(tmp_path / "a.zarr", data=values(), attributes={"scale_factor": 0.1})
    assert main(["info", str(tmp_path / "a.zarr")]) == 0
    assert "source: zarr, decoded by ingest" in capsys.readouterr().out
