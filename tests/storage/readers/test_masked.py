"""A region of samples: its values are those of the source, and a constant surrounds them."""

from __future__ import annotations

import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from PIL import Image

from dpca.jobs.plans.few_samples import FewSamples
from dpca.storage import DataError, ReadOptions, ingest
from dpca.storage.disk import folder_bytes
from dpca.storage.input import open_input
from dpca.storage.readers import open_reader
from dpca.storage.readers.masked import MaskedReader
from dpca.storage.readers.permuted import Permuted


def _field(tmp_path: Path, dtype: str = "f4") -> tuple[str, np.ndarray, np.ndarray, str]:
    x = np.random.default_rng(0).normal(300, 5, size=(9, 6, 7)).astype(dtype)
    inside = np.zeros((6, 7), bool)
    inside[1:4, 2:6] = True
    inside[2, 3] = False
    if dtype == "f4":
        x[:, 0, 0], x[4, 5, 6] = np.nan, np.inf  # outside
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "mask.npy", inside)
    return str(tmp_path / "x.npy"), x, inside, str(tmp_path / "mask.npy")


@pytest.mark.parametrize("dtype", ["f4", "u2", "i4"])
def test_values_inside_are_kept_and_one_value_of_the_range_is_outside(tmp_path: Path, dtype: str) -> None:
    source, x, inside, mask = _field(tmp_path, dtype)
    stack = ingest(MaskedReader(open_reader(source), mask), tmp_path / "out.zarr")
    found = stack.samples[...]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[:, inside], x[:, inside])
    assert np.unique(found[:, ~inside]).tolist() == [x[0, 1, 2]]
    assert stack.data_range is not None
    assert stack.data_range[0] == x[:, inside].min()


def test_boxes_and_parts_agree_and_are_sent_to_other_processes(tmp_path: Path) -> None:
    source, _, _, mask = _field(tmp_path)
    reader = MaskedReader(open_reader(source), mask)
    whole = pickle.loads(pickle.dumps(reader.part([1, 2, 5])))()
    box = pickle.loads(pickle.dumps(reader.box([1, 2, 5], ((2, 6), (1, 5)))))()
    assert reader.reads_boxes
    np.testing.assert_array_equal(box, whole[:, 2:6, 1:5])
    (streamed,) = reader.stream([[1, 2, 5]])
    np.testing.assert_array_equal(streamed, whole)


def test_a_mask_of_the_first_axes_spans_the_others(tmp_path: Path) -> None:
    x = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    inside = np.eye(3, 4)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "mask.npy", inside[None])  # a file with one sample
    reader = MaskedReader(open_reader(tmp_path / "x.npy"), str(tmp_path / "mask.npy"))
    np.testing.assert_array_equal(reader.fetch([0, 1]), np.where(inside[:, :, None] == 1, x, x[0, 0, 0, 0]))


def test_missing_values_outside_are_filled_and_those_inside_stay(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    _, x, inside, mask = _field(tmp_path)
    x[3, 1, 3] = np.nan
    data = xarray.DataArray(np.where(np.isfinite(x), x, np.nan), dims=("time", "lat", "lon"), name="sst")
    data.to_netcdf(tmp_path / "x.nc", encoding={"sst": {"_FillValue": -9.0}})
    block = MaskedReader(open_reader(tmp_path / "x.nc"), mask).fetch(range(9))
    found = np.ma.filled(block, np.nan)
    np.testing.assert_array_equal(np.argwhere(np.isnan(found)), [[3, 1, 3]])
    np.testing.assert_array_equal(found[:, inside], x[:, inside])


def test_the_first_value_may_be_missing(tmp_path: Path) -> None:
    source, x, inside, mask = _field(tmp_path)
    x[0, 1, 2] = np.nan
    np.save(source, x)
    assert np.unique(np.asarray(MaskedReader(open_reader(source), mask).fetch([2]))[0, ~inside]).tolist() == [
        x[0][inside & np.isfinite(x[0])][0]
    ]
    x[0] = np.nan
    np.save(source, x)
    assert np.unique(np.asarray(MaskedReader(open_reader(source), mask).fetch([2]))[0, ~inside]).tolist() == [0]


def test_fingerprints_depend_on_the_values_of_the_mask(tmp_path: Path) -> None:
    source, _, inside, mask = _field(tmp_path)
    reader = MaskedReader(open_reader(source), mask)
    np.save(tmp_path / "same.npy", inside.astype("f8"))
    assert MaskedReader(open_reader(source), str(tmp_path / "same.npy")).fingerprint() == reader.fingerprint()
    inside[0, 0] = True
    np.save(mask, inside)
    assert MaskedReader(open_reader(source), mask).fingerprint() != reader.fingerprint()
    assert reader.fingerprint() != open_reader(source).fingerprint()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.ones((7, 6)), r"\(6, 7\)"),
        (np.ones((9, 6, 7)), r"\(6, 7\)"),
        (np.zeros((6, 7)), "everywhere"),
        (np.full((6, 7), 254, np.uint8), "254"),
        (np.full((6, 7), np.nan), "nan"),
        (np.zeros((0, 7), np.uint8), "empty"),
    ],
)
def test_invalid_masks(tmp_path: Path, values: np.ndarray, says: str) -> None:
    source, _, _, mask = _field(tmp_path)
    np.save(mask, values)
    with pytest.raises(DataError, match=says):
        open_input(source, mask=mask)


@pytest.mark.parametrize("form", ["1.png", "L.png", "RGB.png", "I;16.png", "L.tif", "u1.npy", "i8.npy", "bool.zarr"])
def test_masks_are_images_or_arrays_of_any_format(tmp_path: Path, form: str) -> None:
    source, _, inside, _ = _field(tmp_path)
    kind, suffix = form.split(".")
    mask = str(tmp_path / f"given.{suffix}")
    if suffix == "npy":
        np.save(mask, inside.astype(kind) * 255)
    elif suffix == "zarr":
        zarr.create_array(mask, data=inside)
    else:
        pixels = inside.astype("u2") * 65535 if kind == "I;16" else inside.astype("u1") * 255
        (Image.fromarray(pixels) if kind == "I;16" else Image.fromarray(pixels).convert(kind)).save(mask)
    np.testing.assert_array_equal(MaskedReader(open_reader(source), mask).inside, inside)


def test_images_that_are_no_masks(tmp_path: Path) -> None:
    source, _, inside, _ = _field(tmp_path)
    (tmp_path / "masks").mkdir()
    gray = tmp_path / "masks" / "gray.png"
    Image.fromarray(inside.astype("u1") * 255 + np.eye(6, 7, dtype="u1")).save(gray)
    with pytest.raises(DataError, match="white"):
        open_input(source, mask=str(gray))
    Image.fromarray(inside).save(tmp_path / "masks" / "b.png")
    with pytest.raises(DataError, match="images"):
        open_input(source, mask=str(tmp_path / "masks"))
    gray.write_bytes(gray.read_bytes()[:50])
    with pytest.raises(DataError, match="broken"):
        open_input(source, mask=str(gray))


def _photographs(folder: Path, dtype: str = "u1", channels: tuple[int, ...] = (3,)) -> np.ndarray:
    x = np.random.default_rng(0).integers(50, 200, (9, 6, 7, *channels)).astype(dtype)
    folder.mkdir()
    for i, pixels in enumerate(x):
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return x


@pytest.mark.parametrize(("dtype", "channels"), [("u1", (3,)), ("u1", ()), ("u2", ())])
def test_photographs_are_masked_when_they_are_decoded(tmp_path: Path, dtype: str, channels: tuple[int, ...]) -> None:
    _, _, inside, mask = _field(tmp_path)
    x = _photographs(tmp_path / "photos", dtype, channels)
    x[:, ~inside] = x[0][inside].flat[0]
    reader = open_input(tmp_path / "photos", mask=mask)
    ways = {"whole": reader, "permuted": Permuted(reader, 0), "few": FewSamples(reader, 5)}
    for name, one in ways.items():
        stack = ingest(one, tmp_path / f"{name}.zarr")
        order = [int(sample.partition(".")[0]) for sample in stack.names]
        expected = x[order].copy()
        expected[:, ~inside] = x[order[0]][inside].flat[0]
        np.testing.assert_array_equal(stack.samples[...], expected)
        if dtype == "u2":
            assert stack.data_range == (expected.min(), expected.max())
    assert len(ways["few"]) == 5


def test_photographs_of_a_stream_and_after_broken_ones(tmp_path: Path) -> None:
    _, _, inside, mask = _field(tmp_path)
    x = _photographs(tmp_path / "photos")
    (tmp_path / "photos" / "0.png").write_bytes(b"no image")
    with tarfile.open(tmp_path / "photos.tar.gz", "w:gz") as tar:
        for photo in sorted((tmp_path / "photos").iterdir()):
            tar.add(photo, photo.name)
    reader = MaskedReader(open_reader(tmp_path / "photos.tar.gz"), mask)
    assert not reader.random_access
    stack = ingest(reader, tmp_path / "out.zarr", reading=ReadOptions(on_error="skip"))
    x[:, ~inside] = x[1][inside].flat[0]
    np.testing.assert_array_equal(stack.samples[...], x[1:])


def test_the_codec_is_chosen_for_the_region(tmp_path: Path) -> None:
    x, inside = np.random.default_rng(0).integers(0, 255, (300, 300), np.uint8), np.zeros((300, 300), bool)
    inside[:10, :10] = True
    Image.fromarray(x).save(tmp_path / "noise.png")
    Image.fromarray(inside).save(tmp_path / "mask.png")
    ingest(open_input(tmp_path / "noise.png", mask=str(tmp_path / "mask.png")), tmp_path / "out.zarr")
    assert folder_bytes(tmp_path / "out.zarr" / "samples") < x.nbytes / 10


def test_the_mask_has_the_size_after_crop_and_resize(tmp_path: Path) -> None:
    _, _, _, mask = _field(tmp_path)
    _photographs(tmp_path / "photos")
    reading = ReadOptions(crop=(4, 5), resize=(3, 4))
    whole = ingest(tmp_path / "photos", tmp_path / "whole.zarr", reading=reading).samples[...]
    for on_error in ("stop", "skip"):
        with pytest.raises(DataError, match="shape"):
            ingest(
                open_input(tmp_path / "photos", mask=mask),
                tmp_path / "no.zarr",
                reading=replace(reading, on_error=on_error),
            )
    np.save(mask, small := np.eye(3, 4, dtype=bool))
    stack = ingest(open_input(tmp_path / "photos", mask=mask), tmp_path / "out.zarr", reading=reading)
    np.testing.assert_array_equal(stack.samples[...], np.where(small[..., None], whole, whole[0, 0, 0, 0]))


def test_a_stack_has_a_mask(tmp_path: Path) -> None:
    source, _, _, mask = _field(tmp_path, "u2")
    ingest(source, tmp_path / "s.zarr")
    assert isinstance(open_input(tmp_path / "s.zarr", mask=mask), MaskedReader)
