"""Parts of chunks without a codec are read from their files, and equal what Zarr reads."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numcodecs  # type: ignore[import-untyped]
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, ZstdCodec

from dpca.storage.arrays import plain
from dpca.storage.arrays.reading import open_array, read_into
from dpca.storage.errors import StoreError


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[slice, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    chunks = tuple(draw(st.integers(1, length)) for length in shape)
    ends = [sorted(draw(st.lists(st.integers(0, length), min_size=2, max_size=2))) for length in shape]
    return shape, chunks, tuple(slice(a, b) for a, b in ends)


@pytest.mark.parametrize("zarr_format", [2, 3])
@settings(max_examples=60, deadline=None)
@given(boxes(), st.sampled_from(["uint16", "int16", "float32", "float64"]))
def test_any_box_is_that_of_the_array(
    tmp_path_factory: pytest.TempPathFactory, zarr_format: Any, box: Any, dtype: str
) -> None:
    shape, chunks, taken = box
    path = tmp_path_factory.mktemp("plain") / "x.zarr"
    x = np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(dtype)
    zarr.create_array(path, data=x, chunks=chunks, compressors=None, zarr_format=zarr_format)
    array = open_array(path)
    for values in (np.empty(x[taken].shape, dtype), np.empty((*x[taken].shape, 2), dtype)[..., 0]):
        if x[taken].size:
            assert plain.read_plain(array, [range(s.start, s.stop) for s in taken], values)
        else:
            read_into(array, taken, values)
        np.testing.assert_array_equal(values, x[taken])


CODECS = {
    "zstd": (ZstdCodec(), numcodecs.Zstd(3)),
    "zstd with checksum": (ZstdCodec(level=5, checksum=True), numcodecs.Zstd(1, checksum=True)),
    "blosc": (BloscCodec(cname="lz4"), numcodecs.Blosc("zstd", shuffle=numcodecs.Blosc.BITSHUFFLE)),
}


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("zarr_format", [2, 3])
@settings(max_examples=25, deadline=None)
@given(boxes(), st.sampled_from(["uint16", "float64"]))
def test_boxes_of_large_compressed_chunks(
    tmp_path_factory: pytest.TempPathFactory, zarr_format: Any, name: str, box: Any, dtype: str
) -> None:
    shape, chunks, taken = box
    path = tmp_path_factory.mktemp("packed") / "x.zarr"
    x = np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(dtype)
    zarr.create_array(path, data=x, chunks=chunks, compressors=CODECS[name][zarr_format == 2], zarr_format=zarr_format)
    array, values = open_array(path), np.full(x[taken].shape, 77, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "_LARGE", 1)
        assert plain.read_plain(array, [range(s.start, s.stop) for s in taken], values) == bool(values.size)
    np.testing.assert_array_equal(values, x[taken])


@pytest.mark.parametrize("name", CODECS)
def test_a_thread_that_keeps_its_memory_reads_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of other sizes and types, in turn, into the memory of larger and of smaller ones."""
    monkeypatch.setattr(plain, "_LARGE", 1)
    rng, arrays = np.random.default_rng(0), []
    for i, (shape, dtype) in enumerate([((40, 50), "float64"), ((9, 11), "uint16"), ((40, 70), "float64")]):
        x = rng.integers(0, 90, shape).astype(dtype)
        zarr.create_array(tmp_path / f"{i}.zarr", data=x, chunks=shape, compressors=CODECS[name][0])
        arrays.append((x, open_array(tmp_path / f"{i}.zarr")))

    def part(x: Any, array: Any) -> Any:
        out = np.empty((4, 6), x.dtype)
        assert plain.read_plain(array, [range(3, 7), range(2, 8)], out)
        return out

    with ThreadPoolExecutor(1, initializer=plain.keep_buffers) as one:
        for x, array in (*arrays, *arrays):
            np.testing.assert_array_equal(one.submit(part, x, array).result(), x[3:7, 2:8])


@pytest.mark.parametrize("name", CODECS)
def test_a_chunk_of_another_size_or_with_a_torn_end_is_never_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "_LARGE", 1)
    x, out = np.arange(1.0, 4097.0).reshape(64, 64), np.empty((64, 64))
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(64, 64), compressors=CODECS[name][0])
    array, chunk = open_array(tmp_path / "x.zarr"), tmp_path / "x.zarr" / "c" / "0" / "0"
    whole = chunk.read_bytes()
    codec = CODECS[name][1]
    for content in (
        codec.encode(x[:63]),
        codec.encode(np.r_[x, x]),
        whole[:-9],
        whole[: len(whole) // 2],
        whole[:5],
        b"",
    ):
        chunk.write_bytes(content)
        with pytest.raises(StoreError):
            read_into(array, (slice(None),) * 2, out)
    chunk.write_bytes(whole)
    read_into(array, (slice(None),) * 2, out)
    np.testing.assert_array_equal(out, x)


def test_sizes_of_frames_of_any_length() -> None:
    for n in (0, 1, 255, 256, 257, 65_535, 65_536, 66_000, 3 * 2**20):
        for checksum in (False, True):
            encoded = np.frombuffer(numcodecs.Zstd(1, checksum=checksum).encode(bytes(n)), np.uint8)
            assert plain._decoded_bytes(encoded, numcodecs.Zstd()) == n


OTHERS: tuple[dict[str, Any], ...] = (
    {"compressors": "auto"},
    {"compressors": None, "shards": (8, 8)},
    {"compressors": None, "dtype": ">f4", "zarr_format": 2},
    {"compressors": None, "zarr_format": 2, "order": "F"},
    {"compressors": None, "filters": [{"name": "transpose", "configuration": {"order": [1, 0]}}]},
)


@pytest.mark.parametrize("form", OTHERS, ids=str)
def test_other_forms_are_left_to_zarr(tmp_path: Path, form: dict[str, Any]) -> None:
    x = np.arange(64.0, dtype=form.get("dtype", "f4")).reshape(8, 8)
    zarr.create_array(tmp_path / "x.zarr", chunks=(4, 4), **{"shape": x.shape, "dtype": x.dtype, **form})[:] = x
    array, out = open_array(tmp_path / "x.zarr"), np.empty((3, 8), x.dtype)
    assert not plain.read_plain(array, [range(1, 4), range(8)], out)
    read_into(array, (slice(1, 4), slice(0, 8)), out)
    np.testing.assert_array_equal(out, x[1:4])


def test_missing_and_short_files_are_left_to_zarr(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", data=np.ones((4, 4), "f4"), chunks=(2, 4), compressors=None, fill_value=7)
    array, out = open_array(tmp_path / "x.zarr"), np.empty((4, 4), "f4")
    chunk = tmp_path / "x.zarr" / "c" / "1" / "0"
    os.truncate(chunk, 20)
    assert not plain.read_plain(array, [range(4)] * 2, out)
    with pytest.raises(StoreError):
        read_into(array, (slice(None),) * 2, out)
    chunk.unlink()
    assert not plain.read_plain(array, [range(4)] * 2, out)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", data=np.ones((4, 4), "f4"), chunks=(2, 4), compressors=None)
    array, chunk = open_array(tmp_path / "x.zarr"), tmp_path / "x.zarr" / "c" / "1" / "0"
    chunk.unlink()
    os.mkfifo(chunk)
    with pytest.raises(StoreError, match="regular"):
        read_into(array, (slice(None),) * 2, np.empty((4, 4), "f4"))
