"""Images of OME-Zarr, written by zarr as versions 0.1 to 0.5 of the format say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpca.cli import main
from dpca.engine.sources.source import as_source
from dpca.jobs import export_store
from dpca.storage import ingest, open_stack
from dpca.storage.errors import DataError, StoreError
from dpca.storage.readers import open_reader


def write(path: Path, values: Any, axes: str | None, version: str = "0.4", dataset: str = "0") -> Path:
    """Write two resolutions; the first one is read."""
    group = zarr.create_group(path, zarr_format=3 if version == "0.5" else 2, overwrite=True)
    for i, one in enumerate((values, values[..., ::2, ::2])):
        group.create_array(f"{i}", data=one, chunks=(1,) * (values.ndim - 2) + one.shape[-2:])
    image: dict[str, Any] = {"version": version, "datasets": [{"path": dataset}, {"path": "1"}]}
    if version in ("0.4", "0.5"):
        kinds = {"t": "time", "c": "channel"}
        image["axes"] = [{"name": axis, "type": kinds.get(axis, "space")} for axis in axes or ""]
    elif version == "0.3":
        image["axes"] = list(axes or "")
    group.attrs["ome" if version == "0.5" else "multiscales"] = (
        {"version": version, "multiscales": [image]} if version == "0.5" else [image]
    )
    return path


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 3), min_size=3, max_size=3), version=st.sampled_from(["0.1", "0.3", "0.4", "0.5"]))
def test_the_highest_resolution_by_the_names_of_its_axes(sizes: list[int], version: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 99, (*sizes, 6, 4)).astype("u2")
    reader = open_reader(write(tmp_path / "s.zarr", x, "tczyx", version))
    long = {axis: n for axis, n in zip("tcz", sizes, strict=True) if n > 1}
    sample = next((axis for axis in "tzc" if axis in long), "t")
    rest = [axis for axis in "tz" if axis in long and axis != sample]
    wanted = [sample, *rest, "y", "x", *("c" if "c" in long and sample != "c" else "")]
    expected = x.transpose(["tczyx".index(a) for a in wanted + [a for a in "tczyx" if a not in wanted]])
    expected = expected.reshape(expected.shape[: len(wanted)])
    assert reader.axes == tuple("channel" if axis == "c" else axis for axis in wanted[1:])
    np.testing.assert_array_equal(reader.fetch(range(len(reader))), expected)


def test_read_where_it_is_if_its_axes_are_in_order(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 99, (5, 3, 6, 4)).astype("u1")
    path = write(tmp_path / "s.zarr", x, "tzyx", "0.5")
    stack = open_stack(path)
    assert stack.axes == ("sample", "z", "y", "x")
    np.testing.assert_array_equal(stack.samples[:], x)
    assert as_source(path).shape == x.shape


def test_ingested_if_they_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).integers(0, 99, (1, 2, 5, 6, 4)).astype("u1")
    path = write(tmp_path / "s.zarr", x, "tczyx")
    with pytest.raises(DataError, match="ingest"):
        open_stack(path)
    assert main(["info", str(path)]) == 0
    assert "6 x 4 x 2" in capsys.readouterr().out
    stack = ingest(path, tmp_path / "out.zarr")
    assert stack.axes == ("sample", "y", "x", "channel")
    np.testing.assert_array_equal(stack.samples[:], np.moveaxis(x[0], 0, -1))


@pytest.mark.parametrize("dataset", ["../../etc", "/etc", "7", "0/../../0"])
def test_nothing_outside_is_followed(dataset: str, tmp_path: Path) -> None:
    path = write(tmp_path / "s.zarr", np.ones((3, 4, 4), "u1"), "tyx", dataset=dataset)
    with pytest.raises((DataError, StoreError), match="OME-Zarr|readable"):
        open_reader(path)


def test_axes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "s.zarr", np.ones((3, 4, 4), "u1"), "tzyx")
    with pytest.raises(DataError, match="OME-Zarr"):
        open_reader(path)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("lengths", [(5, 2, 3), (1, 2, 3), (4, 3, 1), (1, 5, 1), (6, 1, 2)])
def test_a_level_has_the_axes_of_the_image(lengths: tuple[int, ...], version: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 99, (*lengths, 6, 4)).astype("u2")
    path = write(tmp_path / "s.zarr", x, "tczyx", version)
    whole, level, coarse = (open_reader(str(path) + part) for part in ("", "/0", "/1"))
    assert (level.axes, level.sample_shape, len(level)) == (whole.axes, whole.sample_shape, len(whole))
    assert (coarse.axes, len(coarse)) == (whole.axes, len(whole))
    np.testing.assert_array_equal(level.fetch([0]), whole.fetch([0]))
    np.testing.assert_array_equal(coarse.fetch([0]), whole.fetch([0])[:, *coarse_of(whole.axes)])
    if len(whole) > 1:  # an estimator reads it without a copy
        source = as_source(path)
        np.testing.assert_array_equal(dask_values(source), whole.fetch(range(len(whole))))


def coarse_of(axes: Any) -> list[slice]:
    """Return the index of the lower resolution in the full one."""
    return [slice(None, None, 2) if axis in "yx" else slice(None) for axis in axes]


def dask_values(source: Any) -> Any:
    """Return all values of a source, as a task reads them."""
    out = np.empty(source.shape, source.dtype)
    source.reader()((0, len(out)), tuple((0, n) for n in out.shape[1:]), out)
    return out


def test_units_and_names_of_channels_from_source_to_export(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 99, (3, 2, 4, 6, 8)).astype("u2")
    path = write(tmp_path / "s.zarr", x, "tczyx", "0.5")
    group = zarr.open_group(path, mode="r+")
    ome: Any = group.attrs["ome"]
    units = {"t": "second", "z": "micrometer", "y": "micrometer", "x": "micrometer"}
    for axis in ome["multiscales"][0]["axes"]:
        axis.update({"unit": units[axis["name"]]} if axis["name"] in units else {})
    for i, one in enumerate(ome["multiscales"][0]["datasets"]):
        scale = {"type": "scale", "scale": [1.0, 1.0, 1.0, 0.65 * 2**i, 0.65 * 2**i]}
        shift = {"type": "translation", "translation": [0.0, 0.0, 3.5, 0.325 * i, 0.325 * i]}
        one["coordinateTransformations"] = [scale, shift]
    ome["multiscales"][0]["coordinateTransformations"] = [{"type": "scale", "scale": [0.5, 1, 2, 1, 1]}]
    ome["omero"] = {"channels": [{"label": "DAPI", "color": "0000ff"}, {"label": "GFP", "color": "00FF7F"}]}
    group.attrs["ome"] = ome
    stack = ingest(path, tmp_path / "stack.zarr")
    along = stack.coordinates
    assert along is not None
    np.testing.assert_allclose(along.arrays["t"].values, [0, 0.5, 1])
    np.testing.assert_allclose(along.arrays["z"].values, [7, 9, 11, 13])
    np.testing.assert_allclose(along.arrays["x"].values, 0.65 * np.arange(8))
    assert along.arrays["x"].attributes == {"units": "micrometer"}
    assert along.arrays["channel"].values.tolist() == ["DAPI", "GFP"]
    assert along.channel_colors == ["#0000ff", "#00ff7f"]
    coarse = open_reader(f"{path}/1").coordinates
    assert coarse is not None
    np.testing.assert_allclose(coarse.arrays["x"].values, 0.325 + 1.3 * np.arange(4))
    export_store(stack.path, tmp_path / "out.ome.zarr")
    found: Any = zarr.open_group(tmp_path / "out.ome.zarr", mode="r").attrs["ome"]
    (image,) = found["multiscales"]
    assert {one["name"]: one.get("unit") for one in image["axes"]} == {**units, "c": None}
    scale, shift = image["datasets"][0]["coordinateTransformations"]
    np.testing.assert_allclose(scale["scale"], [0.5, 1, 2, 0.65, 0.65])
    np.testing.assert_allclose(shift["translation"], [0, 0, 7, 0, 0])
    assert [one["label"] for one in found["omero"]["channels"]] == ["DAPI", "GFP"]
    assert [one["color"] for one in found["omero"]["channels"]] == ["0000FF", "00FF7F"]
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "out.ome.zarr", mode="r")["0"][...], x)
    again = open_reader(tmp_path / "out.ome.zarr").coordinates
    assert again is not None
    assert again.arrays["channel"].values.tolist() == ["DAPI", "GFP"]
    assert again.channel_colors == ["#0000ff", "#00ff7f"]


@pytest.mark.parametrize("colors", [["FFFFFF", "FFFFFF"], ["green", "FF0000"], ["FF0000", None], ["FF0000"]])
def test_colors_that_tell_no_channels_apart_are_left_out(colors: list[str | None], tmp_path: Path) -> None:
    path = write(tmp_path / "s.zarr", np.zeros((3, 2, 4, 6, 8), "u2"), "tczyx", "0.5")
    group = zarr.open_group(path, mode="r+")
    channels = [{"label": f"c{i}", **({} if color is None else {"color": color})} for i, color in enumerate(colors)]
    group.attrs["ome"] = {**group.attrs["ome"], "omero": {"channels": channels}}
    found = open_reader(path).coordinates
    assert found is None or found.channel_colors is None
    assert len(colors) == 1 or found.arrays["c" if "c" in found.dims else "channel"].values.tolist() == ["c0", "c1"]
