"""Names of axes and coordinates go from any source through stacks to scores and back, and xarray reads them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import cftime
import dask.array as da
import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpca import PCA, BandPCA, CellPCA
from dpca.jobs import reconstruct_store, transform_store
from dpca.storage import DataError, StoreError, ingest, open_stack, verify
from dpca.storage.arrays.coordinates import Coordinate, Coordinates, collect, joined, write_coordinates
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions

ATTRIBUTES = {"standard_name": "air_temperature", "units": "K"}


def field(n: int = 30, start: str = "2001-01-01") -> xr.DataArray:
    rng = np.random.default_rng(0)
    coords = {
        "time": pd.date_range(start, periods=n, freq="D"),
        "month": ("time", np.arange(n) % 12),
        "lat": ("lat", np.linspace(-70, 70, 8), {"units": "degrees_north"}),
        "lon": np.arange(0.0, 360, 30),
        "area": (("lat", "lon"), rng.random((8, 12))),
        "height": ((), 2.0, {"units": "m"}),
    }
    values = rng.normal(280, 5, (n, 8, 12)).astype("f4")
    return xr.DataArray(values, coords, ("time", "lat", "lon"), name="tas", attrs=ATTRIBUTES)


def opened(path: Path) -> xr.Dataset:
    """xarray finds the coordinates without options and without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return xr.open_zarr(path, consolidated=False).load()


def check(found: xr.DataArray, expected: xr.DataArray) -> None:
    """Values, names and attributes are equal."""
    xr.testing.assert_equal(found, expected)
    assert {name: found.attrs[name] for name in ATTRIBUTES} == ATTRIBUTES
    for name in found.coords:
        own = {key: text for key, text in found[name].attrs.items() if key != "every_shard_is_stored"}
        assert own == expected[name].attrs


# -- sources


def by_h5py(path: Path, x: xr.DataArray) -> Path:
    """As the library of netCDF-4 writes a variable, its dimensions and its coordinates."""
    with h5py.File(path, "w") as file:
        for dim, values in (("lat", x["lat"].values), ("lon", x["lon"].values), ("time", np.arange(x.sizes["time"]))):
            file[dim] = values
            file[dim].make_scale(dim)
        file["time"].attrs.update(
            {"units": "days since 2001-01-01", "calendar": "proleptic_gregorian", "bounds": "ends"}
        )
        file["lat"].attrs["units"] = "degrees_north"
        file["bnds"] = np.zeros(2, "f4")
        file["bnds"].make_scale("This is a netCDF dimension but not a netCDF variable.         2")
        file["tas"], file["month"], file["area"] = x.values, x["month"].values, x["area"].values
        file["ends"] = np.zeros((x.sizes["time"], 2))
        file["height"] = 2.0
        file["height"].attrs["units"] = "m"
        for name, dims in {
            "tas": x.dims,
            "month": x["month"].dims,
            "area": x["area"].dims,
            "ends": ("time", "bnds"),
        }.items():
            for i, dim in enumerate(dims):
                file[name].dims[i].attach_scale(file[dim])
        file["tas"].attrs.update({**ATTRIBUTES, "coordinates": "month area height ../area nowhere"})
    return path


def by_scipy(path: Path, x: xr.DataArray) -> Path:
    x.to_netcdf(path, engine="scipy")
    return path


def by_xarray(zarr_format: Any) -> Callable[[Path, xr.DataArray], Path]:
    def write(path: Path, x: xr.DataArray) -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of consolidated metadata in version 3
            x.to_dataset().to_zarr(path, zarr_format=zarr_format)
        return path

    return write


def by_scipy_unread(path: Path, x: xr.DataArray) -> xr.DataArray:
    return xr.open_dataarray(by_scipy(path, x), engine="scipy")


SOURCES: dict[str, Callable[[Path, xr.DataArray], Any]] = {
    "netCDF-4": by_h5py,
    "netCDF-3": by_scipy,
    "Zarr 2": by_xarray(2),
    "Zarr 3": by_xarray(3),
    "in memory": lambda path, x: x,
    "in Dask": lambda path, x: x.chunk(time=7, lat=3),
    "not yet read": by_scipy_unread,
    "a variable": lambda path, x: x.to_dataset()["tas"],
}


@pytest.mark.cases(3)
@pytest.mark.parametrize("kind", SOURCES)
def test_a_stack_keeps_names_and_coordinates(kind: str, tmp_path: Path) -> None:
    x = field()
    source = SOURCES[kind](tmp_path / "source", x)
    stack = ingest(source, tmp_path / "s.zarr")
    assert stack.axes == ("sample", "lat", "lon")
    found = opened(tmp_path / "s.zarr")
    check(found["samples"], x)
    assert found["name"].dims == ("time",)
    assert verify(tmp_path / "s.zarr") == []
    before = (tmp_path / "s.zarr" / "zarr.json").stat().st_mtime_ns
    ingest(
        SOURCES[kind](tmp_path / "source", x) if "netCDF" not in kind and "Zarr" not in kind else source,
        tmp_path / "s.zarr",
    )
    assert (tmp_path / "s.zarr" / "zarr.json").stat().st_mtime_ns == before, "it was made again"
    # and a stack of a stack
    ingest(tmp_path / "s.zarr", tmp_path / "again.zarr")
    check(opened(tmp_path / "again.zarr")["samples"], x)


@pytest.mark.long
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.permutations(["time", "lat", "lon"]),
    dtype=st.sampled_from(["f4", "f8", "i2", "u1", ">i4", "?"]),
    chunks=st.none() | st.integers(1, 30),
)
def test_any_order_of_dims(
    order: list[str], dtype: str, chunks: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("order")
    x = field().astype(dtype).transpose(*order)
    x = x if chunks is None else x.chunk(time=chunks)
    axes = [{"time": "sample"}.get(dim, dim) for dim in order]
    stack = ingest(x, folder / "s.zarr", axes=axes)
    inner = [dim for dim in order if dim != "time"]
    assert stack.axes == ("sample", *inner)
    xr.testing.assert_equal(opened(folder / "s.zarr")["samples"], x.transpose("time", *inner).compute())


def test_what_is_left_out_leaves_out_its_time(tmp_path: Path) -> None:
    x = field()
    x[3, 2, 2] = np.nan
    with pytest.raises(DataError, match=r"'tas'.*\(2,.2\)"):
        ingest(x, tmp_path / "s.zarr")
    ingest(x.chunk(time=4), tmp_path / "s.zarr", reading=ReadOptions(on_error="skip"), run=Run(overwrite=True))
    xr.testing.assert_equal(opened(tmp_path / "s.zarr")["samples"], x.drop_isel(time=3))


def test_a_file_a_year(tmp_path: Path) -> None:
    encoding = {"time": {"units": "days since 2000-01-01", "dtype": "i4"}}
    parts = [field(20, "2001-01-01"), field(20, "2001-01-21")]
    for name, part in zip("ab", parts, strict=True):
        part.to_netcdf(tmp_path / f"{name}.nc", engine="scipy", encoding=encoding)
    ingest([tmp_path / "a.nc", tmp_path / "b.nc"], tmp_path / "s.zarr")
    check(opened(tmp_path / "s.zarr")["samples"], xr.concat(parts, "time"))
    # times that count from a day of their own
    parts[1].to_netcdf(tmp_path / "b.nc", engine="scipy", encoding={"time": {"units": "days since 2001-01-21"}})
    ingest([tmp_path / "a.nc", tmp_path / "b.nc"], tmp_path / "u.zarr")
    np.testing.assert_array_equal(opened(tmp_path / "u.zarr")["time"], xr.concat(parts, "time")["time"])
    # other units are not joined
    parts[1].to_netcdf(tmp_path / "b.nc", engine="scipy", encoding={"time": {"units": "hours since 2001-01-21"}})
    ingest([tmp_path / "a.nc", tmp_path / "b.nc"], tmp_path / "t.zarr")
    assert set(opened(tmp_path / "t.zarr")["samples"].coords) == {"month", "lat", "lon", "area", "height"}


@given(
    unit=st.sampled_from(["days", "hours", "minutes", "seconds"]),
    begins=st.lists(st.datetimes(datetime(1583, 1, 1), datetime(2300, 1, 1)), min_size=2, max_size=2),
    calendar=st.sampled_from(["standard", "proleptic_gregorian", "noleap", "360_day"]),
    floating=st.booleans(),
)
def test_joined_times_are_those_of_the_parts_or_left_out(
    unit: str, begins: list[datetime], calendar: str, floating: bool
) -> None:
    """cftime knows what numbers mean in every calendar."""
    counts, parts, known = np.array([3, 4]).astype("f4" if floating else "i4"), [], []
    for begin in begins:
        attributes = {"units": f"{unit} since {begin:%Y-%m-%d %H:%M:%S}", "calendar": calendar}
        parts.append(Coordinates(("time", "x"), {"time": Coordinate(("time",), counts, attributes)}, {}))
    with suppress(ValueError):  # 31 January in a calendar of 30 days
        known = [t for p in parts for t in cftime.num2date(counts, p.arrays["time"].attributes["units"], calendar)]
    together = joined(parts)
    assert together is not None
    if (found := together.arrays.get("time")) is None:
        whole = (begins[1].replace(microsecond=0) - begins[0].replace(microsecond=0)) / timedelta(**{unit: 1})
        assert calendar in ("noleap", "360_day") or not whole.is_integer()
    elif known:
        assert list(cftime.num2date(found.values, found.attributes["units"], calendar)) == known


def recounted(since: tuple[str, str], **attributes: str) -> tuple[list[int], str]:
    parts = [
        Coordinates(("time",), {"time": Coordinate(("time",), np.arange(2), {"units": units, **attributes})}, {})
        for units in since
    ]
    found = joined(parts)
    assert found is not None
    if "time" not in found.arrays:
        return [], ""
    return found.arrays["time"].values.tolist(), found.arrays["time"].attributes["units"]


def test_times_counted_from_another_date_by_hand() -> None:
    """A day has 24 hours, 1,440 minutes, 86,400 seconds; calendars differ before 1583 and by their names."""
    for unit, day in (("days", 1), ("hours", 24), ("minutes", 1440), ("seconds", 86400)):
        since = tuple(f"{unit} since 2001-01-0{i}" for i in (1, 3))
        assert recounted(since) == ([0, 1, 2 * day, 2 * day + 1], since[0])
    assert recounted(("days since 1583-01-01", "days since 1583-01-02"))[0] == [0, 1, 1, 2]
    left_out: tuple[list[int], str] = ([], "")
    assert recounted(("days since 1582-01-01", "days since 1582-01-02")) == left_out
    assert recounted(("days since 1550-01-01", "days since 2000-01-01")) == left_out
    assert recounted(("days since 2001-01-01", "days since 2001-01-02"), calendar="noleap") == left_out
    assert recounted(("days since 2001-01-01", "hours since 2001-01-02")) == left_out
    assert recounted(("days since 2001-01-01", "days since 2001-01-02 06:00")) == left_out


def test_narrow_counts_hold_later_dates() -> None:
    parts = [
        Coordinates(("t",), {"t": Coordinate(("t",), np.array([100], "i1"), {"units": f"days since {year}-01-01"})}, {})
        for year in (2001, 2003)
    ]
    found = joined(parts)
    assert found is not None
    assert found.arrays["t"].values.tolist() == [100, 830]


def test_long_coordinates_are_written_whole(tmp_path: Path) -> None:
    values = np.arange(70_000.0)
    group = zarr.create_group(tmp_path / "a.zarr")
    write_coordinates(group, Coordinates(("t",), {"t": Coordinate(("t",), values, {})}, {}))
    np.testing.assert_array_equal(group["t"][:], values)  # type: ignore[index]


def test_what_differs_between_parts_is_left_out() -> None:
    def part(lat: float) -> Coordinates:
        arrays = {"t": Coordinate(("t",), np.ones(2), {}), "lat": Coordinate(("lat",), np.array([lat, 1.0]), {})}
        return Coordinates(("t", "lat"), arrays, {})

    same, other = joined([part(0), part(0)]), joined([part(0), part(0.5)])
    assert same is not None
    assert other is not None
    assert (set(same.arrays), set(other.arrays)) == ({"t", "lat"}, {"t"})
    assert joined([part(0), None]) is None


class Unread:
    """Values that must not be read."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.dtype = shape, np.dtype("f8")

    def __getitem__(self, at: Any) -> Any:
        raise AssertionError("this was read")


def test_which_arrays_are_coordinates() -> None:
    """Those called as a dim have that one alone; others any of the dims; none lies in another group, or is huge."""
    asked: list[str] = []
    known: dict[str, tuple[tuple[str, ...], Any]] = {
        "x": (("t", "x"), np.ones((3, 2))),
        "t": (("t",), np.arange(3)),
        "long": (("n",), Unread(2**25 + 1)),
        "area": (("x", "t"), np.ones((2, 3))),
        "wrong": (("x",), np.ones(3)),
        "other": (("z",), np.ones(2)),
        "gappy": (("t",), np.array([0, np.nan, 1])),
        "endless": (("t",), np.array([0, np.inf, 1])),
        "masked": (("t",), np.array([0, -9, 1])),
    }

    def find(name: str) -> Any:
        asked.append(name)
        return None if name not in known else (*known[name], {"_FillValue": -9} if name == "masked" else {})

    beside = "area ../x /t long wrong other gappy endless masked none area"
    found = collect(("t", "x", "n"), (3, 2, 2**25 + 1), {"coordinates": beside}, find)
    assert found is not None
    assert set(found.arrays) == {"t", "area"}
    assert sorted(asked) == sorted({"t", "x", "n", *beside.split()} - {"../x", "/t"})
    assert collect(("t", "t"), (3, 3), {}, find) is None
    assert collect(("t", ""), (3, 3), {}, find) is None


def test_a_dataset_needs_a_key(tmp_path: Path) -> None:
    data = field().to_dataset().assign(other=field())
    with pytest.raises(DataError, match="'tas'.*'other'"):
        ingest(data, tmp_path / "s.zarr")
    with pytest.raises(DataError, match="variable.'x'"):
        ingest(data, tmp_path / "s.zarr", key="x")
    ingest(data, tmp_path / "s.zarr", key="tas")
    check(opened(tmp_path / "s.zarr")["samples"], field())
    with pytest.raises(DataError, match="DataArray"):
        ingest(field(), tmp_path / "t.zarr", key="tas")


def test_names_that_our_stores_take(tmp_path: Path) -> None:
    x = field().rename(time="samples", lat="y", lon="channel").transpose("samples", "channel", "y")
    x = x.assign_coords(
        label=("samples", np.arange(30)), mse=("y", np.arange(8)), phase=("samples", np.full(30, np.nan))
    )
    stack = ingest(x, tmp_path / "s.zarr")
    assert stack.axes == ("sample", "y", "channel")
    found = opened(tmp_path / "s.zarr")["samples"]
    assert found.dims == ("sample", "y", "channel")
    assert set(found.coords) == {"sample", "month", "y", "channel", "area", "height"}
    np.testing.assert_array_equal(found.values, x.transpose("samples", "y", "channel").values)


def test_an_index_of_two_levels(tmp_path: Path) -> None:
    x = field().drop_vars("area").stack(place=("lat", "lon"))
    ingest(x, tmp_path / "s.zarr")
    found = opened(tmp_path / "s.zarr")["samples"]
    xr.testing.assert_equal(found.set_index(place=["lat", "lon"]).unstack("place"), field().drop_vars("area"))


def test_what_cannot_be_computed_is_told_in_one_sentence(tmp_path: Path) -> None:
    def fail(block: Any) -> Any:
        raise ZeroDivisionError("by zero")

    broken = da.map_blocks(fail, da.zeros((30, 8, 12), chunks=10), meta=np.empty((0, 0, 0)))
    with pytest.raises(DataError, match=r"'tas'.*zero.*load\(\)"):
        ingest(field().copy(data=broken), tmp_path / "s.zarr")


# -- scores and reconstructions


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "model", [PCA(3), CellPCA(2, cell_shape=(3, 4)), BandPCA(2, band_size=30)], ids=lambda m: m.part_name
)
def test_scores_and_reconstructions_carry_coordinates(model: Any, tmp_path: Path) -> None:
    x = field()
    stack = ingest(x, tmp_path / "s.zarr")
    fitted = model.fit(tmp_path / "s.zarr")
    fitted.save(tmp_path / "m.zarr")
    transform_store(stack, tmp_path / "m.zarr", tmp_path / "t.zarr", reconstruct=True)
    stored, expected = opened(tmp_path / "t.zarr"), fitted.transform(x)
    scores = stored["scores"].assign_coords(component=range(stored.sizes["component"]))
    xr.testing.assert_allclose(scores.drop_vars("area", errors="ignore"), expected, atol=1e-3)
    assert scores.attrs["units"] == "K"
    assert stored["mse"].dims == ("time",)
    check(stored["reconstructions"].copy(data=x.values), x)
    reconstruct_store(tmp_path / "m.zarr", tmp_path / "t.zarr", tmp_path / "r.zarr")
    back = opened(tmp_path / "r.zarr")["samples"]
    xr.testing.assert_equal(back, stored["reconstructions"].rename("samples"))
    assert back.attrs == stored["reconstructions"].attrs
    for name in "mtr":
        assert verify(tmp_path / f"{name}.zarr") == []
    np.testing.assert_allclose(fitted.inverse_transform(scores).values, back.values, atol=1e-3)


def test_stores_of_anyone_are_read_where_they_are(tmp_path: Path) -> None:
    path = by_xarray(3)(tmp_path / "x.zarr", field())
    model = CellPCA(2, cell_shape=4).fit(path)
    assert model.to_xarray()["components"].dims == ("component", "lat", "lon")
    model.save(tmp_path / "m.zarr")
    transform_store(open_stack(path, data_range=(200, 300)), tmp_path / "m.zarr", tmp_path / "t.zarr")
    scores = opened(tmp_path / "t.zarr")["scores"]
    assert scores.dims == ("time", "cell_lat", "cell_lon", "component")
    np.testing.assert_array_equal(scores["time"], field()["time"])


def test_stacks_without_names_are_as_before(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", field().values)
    ingest(tmp_path / "x.npy", tmp_path / "s.zarr")
    found = opened(tmp_path / "s.zarr")
    assert found["samples"].dims == ("sample", "y", "x")
    assert not found.coords
    assert open_stack(tmp_path / "s.zarr").coordinates.arrays == {}
    PCA(2).fit(tmp_path / "s.zarr").save(tmp_path / "m.zarr")
    assert not (tmp_path / "m.zarr" / "coordinates").exists()


def test_a_damaged_coordinate_is_told_of_ours_and_left_out_of_others(tmp_path: Path) -> None:
    ingest(field(), tmp_path / "s.zarr")
    chunk = tmp_path / "s.zarr" / "lat" / "c" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-9] + b"123456789")
    with pytest.raises(StoreError, match="lat"):
        PCA(2).fit(tmp_path / "s.zarr")
    assert any("lat" in problem for problem in verify(tmp_path / "s.zarr"))
    path = by_xarray(3)(tmp_path / "x.zarr", field())
    (path / "lat" / "c" / "0").write_bytes(b"no chunk")
    learned = PCA(2).fit(path).to_xarray()["components"]
    assert learned.dims == ("component", "lat", "lon")
    assert set(learned.coords) == {"component"}


def test_along_which_axes_a_picture_would_have_the_south_at_the_top() -> None:
    def northward(values: list[float], name: str = "lat", **attributes: str) -> tuple[int, ...]:
        along = Coordinate((name,), np.array(values), attributes)
        return Coordinates(("time", name, "x"), {name: along}, {}).northward

    assert northward([-10, 0, 10]) == (1,)
    assert northward([10, 0, -10]) == northward([3]) == ()
    assert northward([0, 1], "y", units="degrees_north") == northward([0, 1], "y", standard_name="latitude") == (1,)
    assert northward([0, 1], "y") == ()
