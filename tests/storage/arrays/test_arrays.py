from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.storage.arrays.arrays import choose_codec, create_array, create_root, write_shard, write_strings
from dpca.storage.arrays.layout import Layout
from dpca.storage.arrays.reading import is_dense, open_array, path_of, read_into, root_facts, what_is_wrong_with
from dpca.storage.errors import StoreError

SHAPE, LAYOUT, AXES = (10, 6, 8), Layout((2, 3, 8), (4, 6, 8)), ("sample", "y", "x")


@pytest.fixture
def values():
    return np.random.default_rng(0).integers(0, 255, SHAPE, dtype=np.uint8)


@pytest.fixture
def array(tmp_path, values):
    group = create_root(tmp_path / "s.zarr", kind="stack", fingerprint="f")
    array = create_array(group, "samples", SHAPE, "u1", LAYOUT, AXES)
    for start in range(0, len(values), 4):
        write_shard(array, start, values[start : start + 4])
    return array


@pytest.mark.parametrize("codec", ["raw", "blosc", "sparse"])
@pytest.mark.parametrize("dtype", ["?", "u1", ">u2", "<i4", "f2", ">f4", "f8"])
def test_values_come_back_in_any_dtype(tmp_path, values, codec, dtype):
    values = values.astype(dtype)
    group = create_root(tmp_path / "s.zarr", kind="stack", fingerprint="f")
    array = create_array(group, "samples", SHAPE, dtype, LAYOUT, AXES, codec=codec)
    for start in range(0, len(values), 4):
        write_shard(array, start, values[start : start + 4])

    read = open_array(tmp_path / "s.zarr" / "samples")
    np.testing.assert_array_equal(read[:], values)
    assert read.dtype == np.dtype(dtype).newbyteorder("=")
    out = np.empty((3, 3, 8), read.dtype)
    read_into(read, (slice(3, 6), slice(0, 3)), out)
    np.testing.assert_array_equal(out, values[3:6, 0:3])


def test_metadata_says_how_it_is_stored(tmp_path):
    group = create_root(tmp_path / "s.zarr", kind="stack", fingerprint="f", axes=AXES)
    create_array(group, "samples", SHAPE, ">f4", LAYOUT, AXES, codec="blosc", attributes={"unit": "K"})
    metadata = json.loads((tmp_path / "s.zarr" / "samples" / "zarr.json").read_text())
    (sharding,) = metadata["codecs"]
    assert sharding["name"] == "sharding_indexed"
    names = [codec["name"] for codec in sharding["configuration"]["codecs"]]
    assert names == ["bytes", "blosc", "crc32c"]
    assert sharding["configuration"]["codecs"][0]["configuration"] == {"endian": "little"}
    blosc = sharding["configuration"]["codecs"][1]["configuration"]
    assert (blosc["cname"], blosc["clevel"], blosc["shuffle"], blosc["typesize"]) == ("lz4", 5, "bitshuffle", 4)
    assert [codec["name"] for codec in sharding["configuration"]["index_codecs"]] == ["bytes", "crc32c"]
    assert metadata["dimension_names"] == list(AXES)
    assert metadata["attributes"]["unit"] == "K"
    assert metadata["fill_value"] == 0
    facts = root_facts(group)
    assert facts.pop("made_with")["zarr"] == zarr.__version__
    assert facts == {"kind": "stack", "version": 1, "fingerprint": "f", "axes": list(AXES)}


def test_plain_zarr_and_xarray_open_it_without_a_warning(tmp_path, array, values):
    group = zarr.open_group(tmp_path / "s.zarr", mode="a")
    write_strings(group, "name", [f"{i}.jpg" for i in range(10)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(zarr.open(tmp_path / "s.zarr", mode="r")["samples"][:], values)
        with xarray.open_zarr(tmp_path / "s.zarr", consolidated=False) as data:
            assert data["samples"].dims == AXES
            np.testing.assert_array_equal(data["samples"].values, values)
            assert data["name"].dims == ("sample",)
            assert data["name"].values[3] == "3.jpg"


def test_empty_shards_are_files_too(tmp_path):
    group = create_root(tmp_path / "s.zarr", kind="stack", fingerprint="f")
    array = create_array(group, "samples", SHAPE, "u1", LAYOUT, AXES)
    # opened again, as tasks do: Zarr forgets that empty chunks are to be written
    write_shard(open_array(tmp_path / "s.zarr" / "samples", "r+"), 0, np.zeros((4, 6, 8), "u1"))
    assert what_is_wrong_with(array, (0, 0, 0)) is None
    assert what_is_wrong_with(array, (1, 0, 0)) == "missing"
    names = write_strings(group, "name", [""] * 10)
    assert what_is_wrong_with(names, (0,)) is None


def test_the_last_shard_holds_nothing_beyond_the_samples(array):
    last, other = (os.path.getsize(f"{path_of(array)}/c/{i}/0/0") for i in (2, 1))
    assert last < other


@pytest.mark.parametrize(
    ("start", "shape", "match"),
    [
        (2, (4, 6, 8), "start of a shard"),
        (12, (4, 6, 8), "start of a shard"),
        (-4, (4, 6, 8), "start of a shard"),
        ((0, 3, 0), (4, 3, 8), "start of a shard"),
        (0, (3, 6, 8), "give (4, 6, 8) uint8"),
        (8, (4, 6, 8), "give (2, 6, 8) uint8"),
        (0, (8, 6, 8), "complete shard"),
    ],
)
def test_misaligned_writes_are_refused(array, start, shape, match):
    with pytest.raises(ValueError) as caught:
        write_shard(array, start, np.zeros(shape, "u1"))
    assert match in str(caught.value)


def test_another_dtype_is_refused(array):
    with pytest.raises(ValueError, match=r"\(4,.6,.8\).uint8"):
        write_shard(array, 0, np.zeros((4, 6, 8), "f4"))


def test_shards_along_several_axes(tmp_path):
    values = np.arange(10 * 7).reshape(10, 7).astype("i4")
    group = create_root(tmp_path / "s.zarr", kind="scores", fingerprint="f")
    array = create_array(group, "scores", values.shape, "i4", Layout((2, 3), (4, 3)), ("sample", "component"))
    for row in (0, 4, 8):
        for column in np.arange(0, 7, 3):
            write_shard(array, (row, column), values[row : row + 4, column : column + 3])
    np.testing.assert_array_equal(array[:], values)


@pytest.mark.parametrize("start", [0, 8])
@pytest.mark.parametrize("kept", [0, 1, 20, 100])
def test_a_torn_shard_is_an_error_to_read_and_no_obstacle_to_write(tmp_path, array, values, start, kept):
    shard = tmp_path / "s.zarr" / "samples" / "c" / str(start // 4) / "0" / "0"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:kept])
    for rows in (1, min(4, 10 - start)):
        with pytest.raises(StoreError, match=r"damaged|missing|empty"):
            read_into(array, slice(start, start + rows), np.empty((rows, 6, 8), "u1"))
    write_shard(array, start, values[start : start + 4])
    assert shard.read_bytes() == whole


def test_a_flipped_bit_is_an_error(tmp_path, array):
    shard = tmp_path / "s.zarr" / "samples" / "c" / "1" / "0" / "0"
    content = bytearray(shard.read_bytes())
    content[10] ^= 4
    shard.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        read_into(array, slice(4, 6), np.empty((2, 6, 8), "u1"))
    out = np.empty((4, 6, 8), "u1")
    read_into(array, slice(0, 4), out)


def test_a_missing_shard_is_an_error_where_zarr_reads_zeros(tmp_path, array):
    (tmp_path / "s.zarr" / "samples" / "c" / "1" / "0" / "0").unlink()
    assert not array[4:8].any()
    with pytest.raises(StoreError, match=r"\(1,.0,.0\).*missing"):
        read_into(array, (slice(2, 5), 3), np.empty((3, 8), "u1"))
    read_into(array, slice(8, 10), np.empty((2, 6, 8), "u1"))


def test_a_missing_chunk_of_a_foreign_array_is_its_fill_value(tmp_path):
    foreign = zarr.create_array(tmp_path / "f.zarr", shape=(4, 6), chunks=(2, 6), dtype="u1", fill_value=7)
    assert not is_dense(foreign)
    out = np.empty((4, 6), "u1")
    read_into(foreign, slice(None), out)
    assert (out == 7).all()


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_read_into_equals_numpy(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "read_into.zarr"
    values = np.arange(10 * 6 * 8).reshape(SHAPE).astype("i4")
    if not path.exists():
        array = create_array(create_root(path, kind="k", fingerprint="f"), "a", SHAPE, "i4", LAYOUT, AXES)
        for start in (0, 4, 8):
            write_shard(array, start, values[start : start + 4])
    array = open_array(path / "a")
    selection = tuple(
        data.draw(
            st.integers(0, n - 1)
            | st.builds(slice, st.integers(0, n), st.none() | st.integers(0, n), st.none() | st.integers(1, 3))
        )
        for n in SHAPE[: data.draw(st.integers(1, 3))]
    )
    expected = values[selection]
    out = np.empty(expected.shape, "i4")
    if out.size:
        read_into(array, selection, out)
        np.testing.assert_array_equal(out, expected)


def test_a_buffer_of_another_dtype_or_shape_is_refused(array):
    with pytest.raises(ValueError, match="float32"):
        read_into(array, slice(0, 2), np.empty((2, 6, 8), "f4"))
    with pytest.raises(ValueError, match=r"\(3,.6,.8\).*\(2,.6,.8\)"):
        read_into(array, slice(0, 2), np.empty((3, 6, 8), "u1"))


def test_an_array_is_created_once_and_continued(tmp_path, array, values):
    before = (tmp_path / "s.zarr" / "samples" / "zarr.json").read_bytes()
    group = create_root(tmp_path / "s.zarr", kind="stack", fingerprint="f")
    again = create_array(group, "samples", SHAPE, "u1", LAYOUT, AXES)
    np.testing.assert_array_equal(again[:], values)
    assert (tmp_path / "s.zarr" / "samples" / "zarr.json").read_bytes() == before
    with pytest.raises(StoreError, match="'samples'"):
        create_array(group, "samples", SHAPE, "f4", LAYOUT, AXES)
    group.create_group("sub")
    with pytest.raises(StoreError, match="'sub'"):
        create_array(group, "sub", SHAPE, "u1", LAYOUT, AXES)


def test_fewer_samples_than_planned_leave_the_bytes_of_a_fresh_array(tmp_path, array, values):
    group = create_root(tmp_path / "s.zarr", kind="stack", fingerprint="f")
    shorter = create_array(group, "samples", (7, 6, 8), "u1", LAYOUT, AXES)
    write_shard(shorter, 4, values[4:7])

    fresh = create_root(tmp_path / "fresh.zarr", kind="stack", fingerprint="f")
    expected = create_array(fresh, "samples", (7, 6, 8), "u1", LAYOUT, AXES)
    for start in (0, 4):
        write_shard(expected, start, values[start : min(start + 4, 7)])
    assert tree(tmp_path / "s.zarr") == tree(tmp_path / "fresh.zarr")


def test_create_array_names_what_does_not_fit(tmp_path):
    group = create_root(tmp_path / "s.zarr", kind="stack", fingerprint="f")
    with pytest.raises(ValueError, match="length"):
        create_array(group, "samples", (10, 6), "u1", LAYOUT, AXES)
    with pytest.raises(ValueError, match="'zip'"):
        create_array(group, "samples", SHAPE, "u1", LAYOUT, AXES, codec="zip")


def test_strings_of_all_kinds(tmp_path):
    group = create_root(tmp_path / "s.zarr", kind="stack", fingerprint="f")
    texts = ["", "a/b.jpg", "Ünï", "名", "line\nbreak", "bad\udcff"]
    write_strings(group, "name", ["other"])
    array = write_strings(group, "name", texts)
    assert array[:].tolist() == [*texts[:-1], "bad\\udcff"]
    assert write_strings(group, "none", [], axis="rejected")[:].tolist() == []


def test_strings_longer_than_a_chunk(tmp_path):
    group = create_root(tmp_path / "s.zarr", kind="stack", fingerprint="f")
    array = write_strings(group, "name", [str(i) for i in range(70_000)])
    assert array[65_535:65_538].tolist() == ["65535", "65536", "65537"]
    assert array[-1] == "69999"


def test_codec_by_trying(values):
    assert choose_codec(values) == "raw"
    assert choose_codec(np.zeros((100, 8), "u1")) == "blosc"
    assert choose_codec(np.arange(100_000, dtype="i4")) == "blosc"
    assert choose_codec(np.zeros((0, 8), "u1")) == "raw"
    assert choose_codec(np.zeros((1000, 8), "u1")[:, ::2]) == "blosc"


def test_version_2_arrays_open(tmp_path):
    old = zarr.create_array(tmp_path / "v2.zarr", shape=(4, 6), chunks=(2, 6), dtype="u1", zarr_format=2)
    old[:] = 3
    assert (open_array(tmp_path / "v2.zarr")[:] == 3).all()


@pytest.mark.parametrize("case", ["nothing", "group", "file", "torn", "folder"])
def test_what_is_no_array_is_one_sentence(tmp_path, array, case):
    path = {"nothing": "none.zarr", "group": "s.zarr", "file": "f.txt", "torn": "torn.zarr", "folder": "d"}[case]
    (tmp_path / "f.txt").write_text("x")
    (tmp_path / "d").mkdir()
    shutil.copytree(tmp_path / "s.zarr" / "samples", tmp_path / "torn.zarr")
    (tmp_path / "torn.zarr" / "zarr.json").write_text("{")
    with pytest.raises(StoreError) as caught:
        open_array(tmp_path / path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def tree(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_shard_that_holds_the_values_already_is_left_alone(tmp_path: Path) -> None:
    """A task that outlived its program must not take away, not even for a moment, what the next run finished."""
    root = create_root(tmp_path / "a.zarr", kind="test", fingerprint="f")
    array = create_array(root, "x", (8, 3), np.uint8, Layout((2, 3), (4, 3)), ("sample", "feature"))
    values = np.arange(12, dtype=np.uint8).reshape(4, 3)
    write_shard(array, 4, values)
    (shard,) = (p for p in (tmp_path / "a.zarr" / "x" / "c").rglob("*") if p.is_file())
    before = shard.stat()
    write_shard(array, 4, values)
    assert (shard.stat().st_ino, shard.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    write_shard(array, 4, values + 1)
    np.testing.assert_array_equal(array[4:], values + 1)
    shard.write_bytes(shard.read_bytes()[:7])
    write_shard(array, 4, values)
    np.testing.assert_array_equal(array[4:], values)


@pytest.mark.parametrize("codec", ["raw", "packed", "blosc"])
def test_a_task_that_outlives_its_program_makes_no_folder_again(tmp_path, codec):
    """Its array was moved to its final path while it computed."""
    group = create_root(tmp_path / "a.partial" / "store", kind="stack", fingerprint="f")
    array = create_array(group, "samples", (8, 6), "i2", Layout((4, 6), (4, 6)), ("sample", "x"), codec=codec)
    write_shard(array, 0, np.ones((4, 6), "i2"))
    (tmp_path / "a.partial" / "store").rename(tmp_path / "a.zarr")
    (tmp_path / "a.partial").rmdir()
    with pytest.raises(FileNotFoundError):
        write_shard(array, 4, np.ones((4, 6), "i2"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.zarr"]
