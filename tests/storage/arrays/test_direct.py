"""Direct reads and writes must agree with Zarr, and must detect the same errors."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec

from dpca.storage.arrays import shards
from dpca.storage.arrays.arrays import create_array, create_root, write_shard
from dpca.storage.arrays.direct import read_shards
from dpca.storage.arrays.layout import Layout
from dpca.storage.arrays.reading import open_array
from dpca.storage.arrays.shards import ShardRows, write_raw_shard
from dpca.storage.integrity.checksums import places_in
from dpca.storage.integrity.codecs import option_text


def store(
    path: Path, shape: tuple[int, ...], dtype: str, chunks: tuple[int, ...], times: tuple[int, ...], codec: str = "raw"
) -> zarr.Array:
    shards = tuple(c * t for c, t in zip(chunks, times, strict=True))
    group = create_root(path, kind="stack", fingerprint="f")
    array = create_array(group, "samples", shape, dtype, Layout(chunks, shards), "sabcd"[: len(shape)], codec=codec)
    values = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    for start in range(0, shape[0], shards[0]):
        write_shard(array, start, values[start : start + shards[0]])
    return open_array(path / "samples")


@st.composite
def cases(draw):
    n_axes = draw(st.integers(1, 4))
    axis = st.integers(1, 4)
    chunks = tuple(draw(axis) for _ in range(n_axes))
    times = tuple(draw(st.integers(1, 3)) for _ in range(n_axes))
    shape = (
        draw(st.integers(1, 9)),
        *(draw(st.integers(1, c * t)) for c, t in zip(chunks[1:], times[1:], strict=True)),
    )
    box = []
    for length in shape:
        start = draw(st.integers(0, length - 1))
        box.append(range(start, draw(st.integers(start, length))))
    return shape, draw(st.sampled_from(["u1", "?", "<i2", "<f4", "<f8"])), chunks, times, box


@given(cases(), st.sampled_from("CF"))
@settings(deadline=None, max_examples=60)
def test_any_box_equals_what_zarr_reads(tmp_path_factory, case, order):
    shape, dtype, chunks, times, box = case
    array = store(tmp_path_factory.mktemp("s") / "s.zarr", shape, dtype, chunks, times)
    out = np.empty([len(r) for r in box], array.dtype, order)
    assert read_shards(array, box, out)
    np.testing.assert_array_equal(out, array[tuple(slice(r.start, r.stop) for r in box)])


def stored_chunks(shard: Path, n_chunks: int) -> list[bytes]:
    """Return the bytes of each chunk of a shard and of its size, whatever their order in the file."""
    content = shard.read_bytes()
    places = places_in(content[-16 * n_chunks - 4 :])
    return [content[start : start + length] for start, length in places.tolist()] + [b"%d" % len(content)]


class Computed(ShardRows):
    """Rows in a buffer that the next call overwrites."""

    def __init__(self, values: np.ndarray[Any, Any], step: int) -> None:
        self.shape, self.dtype, self.step = values.shape, values.dtype, step
        self._values, self._buffer = values, np.empty((step, *values.shape[1:]), values.dtype)

    def read(self, first: int, stop: int) -> np.ndarray[Any, Any]:
        self._buffer[: stop - first] = self._values[first:stop]
        return self._buffer[: stop - first]


@pytest.mark.parametrize("codec", ["raw", "packed", "blosc"])
def test_computed_rows_replace_what_is_there(tmp_path, codec):
    array = store(tmp_path / "s.zarr", (8, 9), "<i4", (4, 5), (2, 2), codec)
    shard = tmp_path / "s.zarr" / "samples" / "c" / "0" / "0"
    before = shard.read_bytes()
    for values in (np.arange(72, dtype="<i4").reshape(8, 9), array[:]):
        shard.write_bytes(before[:-5])
        write_shard(open_array(tmp_path / "s.zarr" / "samples", "r+"), 0, Computed(values, 3))
        np.testing.assert_array_equal(open_array(tmp_path / "s.zarr" / "samples")[:], values)
    assert shard.read_bytes() == before
    os.utime(shard, (0, 0))
    write_shard(open_array(tmp_path / "s.zarr" / "samples", "r+"), 0, Computed(values, 3))
    assert shard.stat().st_mtime == 0  # a finished shard is left unchanged


@given(cases(), st.booleans(), st.integers(0, 4))
@settings(deadline=None, max_examples=60)
def test_what_is_written_is_what_zarr_writes(tmp_path_factory, case, swapped, step):
    shape, dtype, chunks, times, _ = case
    folder, shards = tmp_path_factory.mktemp("s"), tuple(c * t for c, t in zip(chunks, times, strict=True))
    group = create_root(folder / "s.zarr", kind="stack", fingerprint="f")
    ours, zarrs = (
        create_array(group, name, shape, dtype, Layout(chunks, shards), "sabcd"[: len(shape)]) for name in ("a", "b")
    )
    values = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    for i, start in enumerate(range(0, shape[0], shards[0])):
        part = values[start : start + shards[0]]
        given = part.astype(part.dtype.newbyteorder()) if swapped else np.asfortranarray(part)
        assert write_raw_shard(ours, (i,) + (0,) * (len(shape) - 1), Computed(given, step) if step else given)
        zarrs[start : start + shards[0]] = part
    np.testing.assert_array_equal(ours[:], values)
    n_chunks = int(np.prod(times))
    for i in range(-(-shape[0] // shards[0])):
        key = ours.metadata.encode_chunk_key((i,) + (0,) * (len(shape) - 1))
        mine, theirs = (stored_chunks(folder / "s.zarr" / name / key, n_chunks) for name in ("a", "b"))
        assert mine == theirs


def test_what_is_packed_is_what_zarr_packs(tmp_path):
    group = create_root(tmp_path / "s.zarr", kind="stack", fingerprint="f")
    ours, zarrs = (
        create_array(group, name, (7, 50), "i2", Layout((4, 20), (8, 60)), "sa", codec="packed") for name in "ab"
    )
    values = np.random.default_rng(0).integers(-9, 10, (7, 50)).astype("i2")
    assert write_raw_shard(ours, (0, 0), values)
    zarrs[:] = values
    np.testing.assert_array_equal(ours[:], values)
    mine, theirs = (stored_chunks(tmp_path / "s.zarr" / name / "c" / "0" / "0", 6) for name in "ab")
    assert mine == theirs


def test_a_shard_that_cannot_be_written_whole_leaves_nothing(tmp_path):
    group = create_root(tmp_path / "s.zarr", kind="stack", fingerprint="f")
    array = create_array(group, "samples", (4, 5000), "u1", Layout((4, 5000), (4, 5000)), "sa")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            write_shard(array, 0, np.ones((4, 5000), "u1"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path / "s.zarr" / "samples") == ["zarr.json"]


def test_the_size_of_a_shard_is_known_before_it_is_written(tmp_path, monkeypatch):
    reserved = []
    monkeypatch.setattr(shards, "reserve", lambda file, size: reserved.append(size))
    store(tmp_path / "s.zarr", (7, 50, 30), "<i2", (4, 20, 30), (2, 3, 1))
    assert reserved == [(tmp_path / "s.zarr" / "samples" / "c" / "0" / "0" / "0").stat().st_size]
    store(tmp_path / "packed.zarr", (7, 50, 30), "<i2", (4, 20, 30), (2, 3, 1), "packed")
    assert len(reserved) == 1


def test_whole_chunks_of_many_pieces(tmp_path):
    """Chunks longer than one piece of the checksum, the last one only half full."""
    array = store(tmp_path / "s.zarr", (300, 50, 50), "u1", (256, 50, 50), (2, 1, 1))
    out = np.empty(array.shape, "u1")
    assert read_shards(array, [range(n) for n in array.shape], out)
    np.testing.assert_array_equal(out, array[:])


@pytest.mark.parametrize("at", [0, 100, 1_279, -1, -5, -20])
def test_a_flipped_bit_anywhere_is_noticed(tmp_path, at):
    array = store(tmp_path / "s.zarr", (10, 8, 16), "u1", (10, 8, 16), (1, 1, 1))
    (shard,) = (p for p in (tmp_path / "s.zarr" / "samples" / "c").rglob("*") if p.is_file())
    content = bytearray(shard.read_bytes())
    content[at] ^= 4
    shard.write_bytes(content)
    with pytest.raises(ValueError, match=r"checksum|bytes"):
        read_shards(array, [range(5), range(8), range(16)], np.empty((5, 8, 16), "u1"))


def test_a_short_file_is_noticed(tmp_path):
    array = store(tmp_path / "s.zarr", (10, 8, 16), "u1", (10, 8, 16), (1, 1, 1))
    (shard,) = (p for p in (tmp_path / "s.zarr" / "samples" / "c").rglob("*") if p.is_file())
    shard.write_bytes(shard.read_bytes()[:1000])
    with pytest.raises(ValueError, match="checksum"):
        read_shards(array, [range(10), range(8), range(16)], np.empty((10, 8, 16), "u1"))


def test_other_forms_are_left_to_zarr(tmp_path):
    packed = store(tmp_path / "p.zarr", (10, 8), "u1", (5, 8), (1, 1), codec="blosc")
    assert not read_shards(packed, [range(10), range(8)], np.empty((10, 8), "u1"))
    assert not write_raw_shard(packed, (0, 0), np.empty((5, 8), "u1"))
    plain = zarr.create_array(str(tmp_path / "z.zarr"), data=np.ones((4, 4)), chunks=(2, 2))
    assert not read_shards(plain, [range(4), range(4)], np.empty((4, 4)))
    memory = zarr.create_array({}, data=np.ones((4, 4), "u1"), chunks=(2, 2), shards=(4, 4))
    assert not read_shards(memory, [range(4), range(4)], np.empty((4, 4), "u1"))
    raw = store(tmp_path / "r.zarr", (10, 8), "u1", (5, 8), (1, 1))
    assert not read_shards(raw, [range(0, 10, 2), range(8)], np.empty((5, 8), "u1"))


def test_options_of_codecs_are_enums_or_texts() -> None:
    """Before zarr 3.4, and from then on."""
    assert option_text(BytesCodec().endian) == option_text("little") == sys.byteorder
    assert option_text(None) is None
