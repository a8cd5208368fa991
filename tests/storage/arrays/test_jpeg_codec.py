"""The Zarr codec of kept JPEG files, with content that no ingest writes."""

from __future__ import annotations

import json
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.registry import get_codec_class

from dpca.storage.arrays.arrays import create_array, create_root, write_shard
from dpca.storage.arrays.direct import codec_of, read_shards
from dpca.storage.arrays.kept_jpegs import NAME, JPEGCodec, decode_chunk, exact_chunk
from dpca.storage.arrays.layout import Layout
from dpca.storage.arrays.reading import open_array, read_into
from dpca.storage.errors import StoreError
from dpca.storage.ingest import ingest
from dpca.storage.integrity.verify import verify
from dpca.storage.stack import Stack
from dpca.storage.survey import ReadOptions
from tests.storage.sources.made_sources import contents, encoded, jpeg_bomb, jpegs, pixels, truth, write_tar

ROOT = Path(__file__).parents[3]
AXES = ("sample", "y", "x", "channel")


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    """Ten photographs in shards of four."""
    source = write_tar(tmp_path / "a.tar", jpegs(10))
    shard = 4 * 24 * 20 * 3
    return ingest(source, tmp_path / "s.zarr", reading=ReadOptions(keep_jpegs=True), shard_bytes=shard)


@pytest.fixture
def values() -> np.ndarray[Any, Any]:
    return np.stack([truth(payload) for payload in jpegs(10).values()])


def test_zarr_finds_the_codec_of_an_installed_dpca() -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["zarr.codecs"]
    module, _, name = stated[NAME].partition(":")
    assert getattr(import_module(module), name) is JPEGCodec is get_codec_class(NAME)


@pytest.mark.parametrize(
    "box",
    [
        np.s_[:],
        np.s_[3],
        np.s_[-1, 4:9, 2:5],
        np.s_[2:9, 5],
        np.s_[..., 1],
        np.s_[1:8:3, ::2],
        np.s_[[5, 0, 5]],
        np.s_[3:3],
    ],
)
def test_any_part_is_read(stack: Stack, values: np.ndarray[Any, Any], box: Any) -> None:
    for array in (stack.samples, zarr.open_array(stack.array_path, mode="r")):
        found = array.oindex[box] if isinstance(box, list) else array[box]
        np.testing.assert_array_equal(found, values[box])


@pytest.mark.parametrize("order", ["C", "F"])
def test_parts_are_read_into_any_buffer(stack: Stack, values: np.ndarray[Any, Any], order: Any) -> None:
    out = np.empty((5, 24, 20, 3), "u1", order)
    read_into(stack.samples, np.s_[2:7], out)
    np.testing.assert_array_equal(out, values[2:7])
    assert read_shards(stack.samples, [range(2, 7), range(24), range(20), range(3)], out)


@pytest.mark.parametrize("shape", [(4, 24, 20, 3), (3, 24, 20), (6, 5)])
def test_written_values_are_exact(tmp_path: Path, shape: tuple[int, ...]) -> None:
    group, given = create_root(tmp_path / "s.zarr", kind="x", fingerprint="0"), np.random.default_rng(0)
    noise = given.integers(0, 256, shape, np.uint8)
    layout = Layout((1, *shape[1:]), (2, *shape[1:]))
    array = create_array(group, "samples", shape, "u1", layout, AXES[: len(shape)], codec="jpeg")
    for start in range(0, shape[0], 2):
        write_shard(array, start, noise[start : start + 2])
    by_dpca = contents(tmp_path / "s.zarr")
    np.testing.assert_array_equal(open_array(f"{tmp_path}/s.zarr/samples")[:], noise)
    array[:] = noise[::-1]
    np.testing.assert_array_equal(array[:], noise[::-1])
    array[:] = noise
    assert contents(tmp_path / "s.zarr") == by_dpca


def test_an_array_without_shards(tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    chunks = (2, 24, 10, 3)
    array = zarr.create_array(
        str(tmp_path / "z.zarr"), data=values, chunks=chunks, serializer=JPEGCodec(), compressors=None, filters=None
    )
    np.testing.assert_array_equal(array[:], values)
    assert json.loads((tmp_path / "z.zarr" / "zarr.json").read_text())["codecs"] == [{"name": NAME}]


def test_only_bytes_and_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="uint16"):
        zarr.create_array(
            str(tmp_path / "z.zarr"),
            shape=(4, 8, 8),
            chunks=(1, 8, 8),
            dtype="u2",
            serializer=JPEGCodec(),
            filters=None,
        )
    with pytest.raises(ValueError, match="quality"):
        JPEGCodec.from_dict({"name": NAME, "configuration": {"quality": 90}})


COLOR, GRAY = pixels(3), pixels(3, channels=1)


@pytest.mark.parametrize(
    ("content", "shape", "why"),
    [
        (b"", (1, 24, 20, 3), "neither"),
        (b"\xff", (1, 24, 20, 3), "neither"),
        (b"\1" + COLOR.tobytes(), (1, 24, 20, 3), "neither"),
        (encoded(COLOR), (1, 24, 20, 3), "neither"),
        (exact_chunk(COLOR)[:-1], (1, 24, 20, 3), "values"),
        (exact_chunk(COLOR) + b"\0", (1, 24, 20, 3), "values"),
        (encoded(COLOR, "JPEG"), (2, 24, 20, 3), "neither"),
        (encoded(COLOR, "JPEG"), (1, 24, 20, 4), "neither"),
        (encoded(GRAY, "JPEG"), (1, 480), "neither"),
        (encoded(COLOR, "JPEG"), (1, 24, 21, 3), r"24.x.20"),
        (encoded(COLOR, "JPEG"), (1, 20, 24, 3), r"24.x.20"),
        (encoded(COLOR, "JPEG"), (1, 12, 40, 3), r"24.x.20"),
        (encoded(COLOR, "JPEG"), (1, 24, 20), "color"),
        (jpeg_bomb(), (1, 24, 20, 3), "65500"),
        (encoded(COLOR, "JPEG")[:400], (1, 24, 20, 3), "broken"),
    ],
)
def test_other_content_is_refused(content: bytes, shape: tuple[int, ...], why: str) -> None:
    out = np.full((2, *shape), 7, np.uint8)
    with pytest.raises(ValueError, match=why):
        decode_chunk(content, out[0])
    assert (out[1] == 7).all()


@pytest.mark.parametrize("at", [3, 700, -60, -1])
def test_a_flipped_bit_is_named(stack: Stack, at: int) -> None:
    shard = Path(stack.array_path, "c/1/0/0/0")
    content = bytearray(shard.read_bytes())
    content[at] ^= 1
    shard.write_bytes(content)
    with pytest.raises(StoreError, match="sample.4|checksum"):
        _ = stack.samples[:]
    assert stack.samples[:4].any()
    (problem,) = verify(stack.path)
    assert problem.startswith("samples/c/1")
    if at == 3:
        for box in (np.s_[4], np.s_[2:9, 5:7]):
            with pytest.raises(StoreError, match=r"sample.4:.*checksum"):
                _ = stack.samples[box]
        np.testing.assert_array_equal(stack.samples[6], truth(jpegs(7)["img/000007.jpg"]))


def test_a_missing_shard_is_an_error(stack: Stack) -> None:
    Path(stack.array_path, "c/1/0/0/0").unlink()
    with pytest.raises(StoreError, match=r"missing|No.such"):
        _ = stack.samples[5]
    assert len(verify(stack.path)) == 1


def test_a_missing_chunk_is_an_error(tmp_path: Path) -> None:
    group = create_root(tmp_path / "s.zarr", kind="x", fingerprint="0")
    array = create_array(group, "samples", (4, 8, 8), "u1", Layout((1, 8, 8), (4, 8, 8)), AXES[:3], codec="jpeg")
    array.with_config({"write_empty_chunks": False})[:2] = 1
    assert codec_of(array) is JPEGCodec
    found = open_array(f"{tmp_path}/s.zarr/samples")
    assert (found[:2] == 1).all()
    with pytest.raises(StoreError, match=r"sample.2.is.missing"):
        _ = found[:]
