"""Stacks in TIFF files that tifffile, Pillow and scikit-image wrote."""

from __future__ import annotations

import importlib.util
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from dpca.jobs import export_store
from dpca.storage import ingest
from dpca.storage.arrays.layout import stacked_axes
from dpca.storage.errors import DataError
from dpca.storage.readers import open_reader
from tests.storage.sources.made_sources import encoded, pixels, write_folder

Array = np.ndarray[Any, Any]


def values(*shape: int, dtype: str = "u2") -> Array:
    return np.random.default_rng(sum(shape)).integers(0, 200, shape).astype(dtype)


def check(path: Path, expected: Array, **options: Any) -> None:
    reader = open_reader(path, **options)
    assert not reader.encoded
    assert (len(reader), *reader.sample_shape) == expected.shape
    np.testing.assert_array_equal(reader.fetch(range(len(reader))), expected)
    part = pickle.loads(pickle.dumps(reader.part([1, len(reader) - 1])))()
    np.testing.assert_array_equal(part, expected[[1, -1]])
    assert part.dtype == expected.dtype.newbyteorder("=")


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "big-endian": {"byteorder": ">"},
    "BigTIFF": {"bigtiff": True},
    "deflated": {"compression": "zlib", "predictor": True},
    "tiled": {"tile": (16, 16)},
    "deflated tiles": {"tile": (16, 16), "compression": "zlib"},
    "strips": {"rowsperstrip": 5, "compression": "zlib"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "i4"])
def test_pages(way: str, dtype: str, tmp_path: Path) -> None:
    x = values(6, 24, 20, dtype=dtype)
    options = {"predictor": 3} if dtype == "f4" and "predictor" in WAYS[way] else {}
    if way == "deflated" and options and importlib.util.find_spec("imagecodecs") is None:
        options = {"predictor": None}
    tifffile.imwrite(tmp_path / "s.tif", x, metadata=None, **{**WAYS[way], **options})
    check(tmp_path / "s.tif", x)


@pytest.mark.parametrize("way", ["plain", "deflated", "deflated tiles"])
@pytest.mark.parametrize("kind", ["ome", "imagej"])
def test_hyperstacks_count_time_and_move_channels_last(kind: str, way: str, tmp_path: Path) -> None:
    x = values(5, 3, 2, 24, 20)
    path = tmp_path / ("s.ome.tif" if kind == "ome" else "s.tif")
    if kind == "imagej" and way != "plain":
        pytest.skip("ImageJ's are uncompressed")
    options = WAYS[way] | {kind: True, "metadata": {"axes": "TZCYX"}}
    tifffile.imwrite(path, x, **options)
    check(path, np.moveaxis(x, 2, -1))
    assert open_reader(path).axes == ("z", "y", "x", "channel")
    # slices instead
    axes = ("t", "sample", "channel", "y", "x")
    check(path, np.moveaxis(x.swapaxes(0, 1), 2, -1), axes=axes)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    order=st.permutations("TZC"),
    deflated=st.booleans(),
    height=st.integers(2, 9),
)
def test_axes_of_any_order_and_length(
    sizes: list[int], order: list[str], deflated: bool, height: int, tmp_path: Path
) -> None:
    x = values(*sizes, height, 7)
    axes = "".join(order)
    tifffile.imwrite(
        tmp_path / "s.ome.tif",
        x,
        ome=True,
        metadata={"axes": axes + "YX"},
        compression="zlib" if deflated else None,
        photometric="minisblack",
    )
    long = [axis for axis, n in zip(axes, sizes, strict=True) if n > 1]
    reader = open_reader(tmp_path / "s.ome.tif")
    if not long:
        assert reader.encoded
        return
    sample = next(axis for axis in "TZC" if axis in long)
    rest = [axis for axis in long if axis not in (sample, "C")]
    wanted = [sample, *rest, "Y", "X", *("C" if "C" in long and sample != "C" else "")]
    squeezed = x.reshape([n for n in x.shape[:3] if n > 1] + [height, 7])
    names = [*long, "Y", "X"]
    expected = squeezed.transpose([names.index(axis) for axis in wanted])
    np.testing.assert_array_equal(reader.fetch(range(len(reader))), expected)


@pytest.mark.parametrize(
    ("names", "shape", "axes"),
    [
        ("TZCYX", (2, 3, 4, 9, 9), ("sample", "z", "channel", "y", "x")),
        ("TZCYX", (1, 3, 1, 9, 9), ("t", "sample", "channel", "y", "x")),
        ("IYXS", (4, 9, 9, 3), ("sample", "y", "x", "channel")),
        ("CYXS", (4, 9, 9, 3), ("sample", "y", "x", "channel")),
        ("CYX", (4, 9, 9), ("sample", "y", "x")),
        ("RQYX", (4, 5, 9, 9), ("sample", "q", "y", "x")),
        ("QQYX", (4, 5, 9, 9), ("sample", "q", "y", "x")),
        ("TQQYX", (2, 4, 5, 9, 9), ("sample", "q1", "q2", "y", "x")),
        ("YXS", (9, 9, 3), None),
        ("CZYX", (1, 1, 9, 9), None),
    ],
)
def test_which_axis_counts_samples(names: str, shape: tuple[int, ...], axes: tuple[str, ...] | None) -> None:
    assert stacked_axes(names, shape) == axes


def test_pages_of_pillow_in_color(tmp_path: Path) -> None:
    x = np.stack([pixels(i) for i in range(4)])
    first, *more = [Image.fromarray(one) for one in x]
    first.save(tmp_path / "s.tif", save_all=True, append_images=more, compression="tiff_adobe_deflate")
    check(tmp_path / "s.tif", x)


def test_ingested_with_its_axes(tmp_path: Path) -> None:
    x = values(5, 2, 24, 20)
    tifffile.imwrite(tmp_path / "s.tif", x, imagej=True, metadata={"axes": "TCYX"})
    stack = ingest(tmp_path / "s.tif", tmp_path / "out.zarr", cell_shape=4)
    assert stack.axes == ("sample", "y", "x", "channel")
    np.testing.assert_array_equal(stack.samples[:], np.moveaxis(x, 1, -1))


def test_one_page_stays_an_image(tmp_path: Path) -> None:
    one = values(24, 20, dtype="u1")
    tifffile.imwrite(tmp_path / "s.tif", one, ome=True)
    assert open_reader(tmp_path / "s.tif").encoded
    files = {f"{i}.tif": (tmp_path / "s.tif").read_bytes() for i in range(3)}
    stack = ingest(write_folder(tmp_path / "t", files), tmp_path / "out.zarr")
    np.testing.assert_array_equal(stack.samples[:], [one] * 3)


@pytest.fixture
def ome(tmp_path: Path) -> Path:
    tifffile.imwrite(tmp_path / "s.ome.tif", values(5, 24, 20), metadata={"axes": "TYX"}, compression="zlib")
    return tmp_path / "s.ome.tif"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'SizeT="5"', b'SizeT="9"', "lacks pages"),
        (b'SizeT="5"', b'SizeT="99999999999999"', "claims 99,999,999,999,999 planes"),
        (b'PlaneCount="5"', b'PlaneCount="999999999999"', "claims 999,999,999,999 planes"),
        (b"<TiffData ", b'<AlongT Start="0" End="9"/><TiffData ', "modulo"),
        (
            b"<TiffData ",
            b"<TiffData><UUID FileName='/etc/passwd'>urn:uuid:1</UUID></TiffData><TiffData ",
            "one of several files",
        ),
    ],
)
def test_claims_of_ome_are_checked(ome: Path, old: bytes, new: bytes, words: str) -> None:
    description = tifffile.tiffcomment(ome).encode()
    assert description.count(old) == 1
    tifffile.tiffcomment(ome, description.replace(old, new))
    with pytest.raises(DataError, match=words):
        open_reader(ome)


def test_pages_written_one_by_one(tmp_path: Path) -> None:
    x = values(4, 24, 20)
    with tifffile.TiffWriter(tmp_path / "s.tif") as file:
        for page in x:
            file.write(page, compression="zlib")
    check(tmp_path / "s.tif", x)


def test_pages_of_several_shapes_are_refused(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "s.tif") as file:
        for size in (9, 9, 8):
            file.write(values(size, size), contiguous=False)
    with pytest.raises(DataError, match="shapes"):
        open_reader(tmp_path / "s.tif")


def test_palettes_are_refused(tmp_path: Path) -> None:
    images = [Image.fromarray(pixels(i)).quantize(16) for i in range(3)]
    images[0].save(tmp_path / "s.tif", save_all=True, append_images=images[1:])
    with pytest.raises(DataError, match="palette"):
        open_reader(tmp_path / "s.tif")


def test_a_page_never_written_is_refused(tmp_path: Path) -> None:
    def tiles() -> Any:
        for i in range(12):
            yield None if i == 7 else np.full((16, 16), i, "u1")

    tifffile.imwrite(
        tmp_path / "s.tif",
        tiles(),
        shape=(3, 32, 32),
        dtype="u1",
        tile=(16, 16),
        compression="zlib",
        photometric="minisblack",
    )
    with pytest.raises(DataError, match=r"page.1\b.*s\.tif"):
        open_reader(tmp_path / "s.tif").fetch(range(3))


@pytest.mark.skipif(importlib.util.find_spec("imagecodecs") is not None, reason="imagecodecs decodes it")
def test_a_codec_that_is_missing_names_its_extra(tmp_path: Path) -> None:
    images = [Image.fromarray(pixels(i)) for i in range(3)]
    images[0].save(tmp_path / "s.tif", save_all=True, append_images=images[1:], compression="tiff_lzw")
    with pytest.raises(DataError, match=r"imagecodecs.*dask-dpca\[tiff\]"):
        open_reader(tmp_path / "s.tif").fetch([0])


def test_frames_among_images_are_refused_by_name(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values(3, 24, 20, dtype="u1"), photometric="minisblack")
    source = write_folder(tmp_path / "t", {"a.png": encoded(pixels(channels=1)), "b.tif": buffer.getvalue()})
    with pytest.raises(DataError, match=r"b\.tif.*frame.*glob"):
        ingest(source, tmp_path / "out.zarr")


UNITS = {"axes": "TZCYX", "PhysicalSizeX": 0.65, "PhysicalSizeY": 0.5, "PhysicalSizeZ": 2, "TimeIncrement": 0.25}


@pytest.mark.parametrize("way", ["plain", "deflated"])
def test_spacing_times_and_names_of_channels_of_ome(way: str, tmp_path: Path) -> None:
    channel = {"Name": ["DAPI", "GFP"], "Color": [65535, -16776961]}  # red, green, blue and alpha of a signed number
    metadata = UNITS | {"PhysicalSizeXUnit": "nm", "Channel": channel}
    tifffile.imwrite(tmp_path / "s.ome.tif", values(3, 4, 2, 8, 6), ome=True, metadata=metadata, **WAYS[way])
    found = open_reader(tmp_path / "s.ome.tif").coordinates
    assert found is not None
    steps = {name: one.values[1] - one.values[0] for name, one in found.arrays.items() if "channel" not in name}
    assert steps == pytest.approx({"t": 0.25, "z": 2, "y": 0.5, "x": 0.65})
    units = {name: one.attributes.get("units") for name, one in found.arrays.items()}
    micro = "\N{MICRO SIGN}m"
    assert units == {"t": "s", "z": micro, "y": micro, "x": "nm", "channel": None, "channel_color": None}
    assert found.arrays["channel"].values.tolist() == ["DAPI", "GFP"]
    assert found.channel_colors == ["#0000ff", "#ff0000"]


def test_spacing_of_imagej(tmp_path: Path) -> None:
    metadata = {"axes": "TZYX", "spacing": 2.0, "unit": "um", "finterval": 0.5}
    tifffile.imwrite(tmp_path / "s.tif", values(3, 4, 8, 6), imagej=True, resolution=(4, 2), metadata=metadata)
    found = open_reader(tmp_path / "s.tif").coordinates
    assert found is not None
    steps = {name: (one.values[1], one.attributes["units"]) for name, one in found.arrays.items()}
    assert steps == {"t": (0.5, "s"), "z": (2.0, "um"), "y": (0.5, "um"), "x": (0.25, "um")}
    several = open_reader([tmp_path / "s.tif", tmp_path / "s.tif"]).coordinates
    assert several is not None
    assert "t" not in several.arrays  # it would count from 0 twice
    assert several.arrays["x"].values[1] == 0.25


def test_colors_of_imagej(tmp_path: Path) -> None:
    ramp = np.arange(256, dtype=np.uint8)
    tables = [np.stack([ramp, 0 * ramp, ramp]), np.stack([0 * ramp, ramp, 0 * ramp])]
    metadata = {"axes": "TCYX", "LUTs": tables, "mode": "composite"}
    tifffile.imwrite(tmp_path / "s.tif", values(3, 2, 8, 6), imagej=True, metadata=metadata)
    found = open_reader(tmp_path / "s.tif").coordinates
    assert found is not None
    assert found.channel_colors == ["#ff00ff", "#00ff00"]


def test_units_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "s.tif", values(3, 8, 6), imagej=True, metadata={"spacing": "wide", "unit": "um"})
    check(tmp_path / "s.tif", values(3, 8, 6))
    assert open_reader(tmp_path / "s.tif").coordinates is None


def test_exported_tiff_is_read_with_its_units(tmp_path: Path) -> None:
    metadata = UNITS | {"Channel": {"Name": ["DAPI", "GFP"], "Color": [65535, 16711935]}}
    tifffile.imwrite(tmp_path / "s.ome.tif", values(3, 4, 2, 8, 6), ome=True, metadata=metadata)
    stack = ingest(tmp_path / "s.ome.tif", tmp_path / "s.zarr")
    export_store(stack.path, tmp_path / "again.tif")
    found = open_reader(tmp_path / "again.tif").coordinates
    assert found is not None
    assert found.arrays["channel"].values.tolist() == ["DAPI", "GFP"]
    assert found.channel_colors == ["#0000ff", "#00ff00"]
    steps = {name: one.values[1] for name, one in found.arrays.items() if "channel" not in name}
    assert steps == pytest.approx({"z": 2, "y": 0.5, "x": 0.65})
    assert found.arrays["x"].attributes == {"units": "micrometer"}
