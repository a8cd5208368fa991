"""Writes shards chunk by chunk, some rows at a time.

Zarr copies every chunk of a shard twice. Raw chunks that are written from one buffer take two fifths of the processor
time, little more than the file itself. Shards of object stores are written here, too, so that their bytes are identical
to those on a disk. Zarr writes all other forms.
"""

from __future__ import annotations

import io
import math
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import google_crc32c
import numpy as np
import zarr
from numcodecs.registry import get_codec  # type: ignore[import-untyped]

from dpca.storage.arrays.direct import PACKED, codec_of, is_local, pieces
from dpca.storage.arrays.kept_jpegs import JPEGCodec, exact_chunk
from dpca.storage.disk import make_below, reserve
from dpca.storage.integrity.checksums import CRC_BYTES, NOT_STORED, index_bytes
from dpca.storage.remote.object_store import ObjectStore
from dpca.storage.remote.objects import ObjectPath

Array = np.ndarray[Any, Any]

# Small enough for the cache of a core, so that the checksum is computed from the cache, and large enough for the kernel
# to use large pages.
_PIECE_BYTES = 1 << 20
# Most bytes objects that the system writes together.
_MOST_PIECES = 1000


class ShardRows(Protocol):
    """Values of a shard that are computed while it is written, some rows at a time."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    step: int
    """Most rows that are computed at once."""
    encoded_bytes: int
    """Bytes of the chunks for the codec "jpeg", about."""

    def read(self, first: int, stop: int) -> Array:
        """Compute the rows ``first`` to ``stop``. The array is valid until the next call."""

    def encoded(self, row: int) -> bytes:
        """Return the chunk of a row for the codec "jpeg"."""


def whole(values: Array | ShardRows) -> Array:
    """Return all values of a shard."""
    if isinstance(values, np.ndarray):
        return values
    joined = np.empty(values.shape, values.dtype)
    for first, stop in _steps(0, len(joined), values.step):
        joined[first:stop] = values.read(first, stop)
    return joined


def _steps(start: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + step, end)) for first in range(start, end, step))


def write_raw_shard(array: zarr.Array[Any], shard: tuple[int, ...], values: Array | ShardRows) -> bool:
    """Write one complete shard atomically if its chunks are raw, packed by pcodec, or JPEG files.

    Parameters
    ----------
    array : zarr.Array
        Open for writing.
    shard : tuple of int
        Index of the shard along each axis.
    values : ndarray or ShardRows
        All values of the shard inside the array, in the dtype of the array.

    Returns
    -------
    bool
        False if the array has another form. Nothing is written in this case.

    Notes
    -----
    Memory: one inner chunk in addition to the values; for an object store, also a copy of the shard. Only a step of
    `ShardRows` is in memory, unless chunks are packed, and a single row for JPEG files. Chunks are in C order. Chunks
    entirely outside the array are not stored.
    """
    codec = codec_of(array)
    if codec is None:
        return False
    key = array.store_path / array.metadata.encode_chunk_key(shard)
    write = {PACKED: _write_packed, JPEGCodec: _write_jpegs}.get(codec, _write_raw)
    if isinstance(key.store, ObjectStore):
        content = io.BytesIO()
        write(content, array, values)
        ObjectPath(f"{key.store.url}/{key.path}").write_bytes(content.getvalue())
        return True
    if not is_local(array):
        return False
    folder = Path(os.fspath(key.store.root)) / array.path  # type: ignore[attr-defined]
    place = array.metadata.encode_chunk_key(shard)
    # Zarr uses the same suffix for incomplete files. The next run removes the files of writers that were killed. The
    # folder of a shard is made last, so that none is left if an image is rejected while its shard is written.
    temporary = folder / f"{place.replace('/', '.')}.{uuid.uuid4().hex}.partial"
    try:
        with open(temporary, "xb", buffering=0) as file:
            write(file, array, values)
        make_below(folder, (folder / place).parent)
        os.replace(temporary, folder / place)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return True


def _chunks_of(array: zarr.Array[Any], shape: Sequence[int]) -> tuple[list[int], Array]:
    """Return the number of chunks of a shard inside the array along each axis, and the places of all, not stored."""
    per_shard = [s // c for s, c in zip(array.shards or array.chunks, array.chunks, strict=True)]
    places = np.full((*per_shard, 2), NOT_STORED, "<u8")
    return [-(-n // c) for n, c in zip(shape, array.chunks, strict=True)], places


def _part(values: Array, chunk: Sequence[int], scratch: Array) -> Array:
    """Return a chunk of some values, in C order; those outside the array are zero. It may be ``scratch``."""
    part = values[tuple(slice(i * c, i * c + c) for i, c in zip(chunk, scratch.shape, strict=True))]
    if part.shape[1:] == scratch.shape[1:] and part.flags.c_contiguous and part.dtype == scratch.dtype:
        return part
    if part.shape[1:] != scratch.shape[1:]:
        scratch[...] = 0
    scratch[tuple(slice(0, n) for n in part.shape)] = part
    return scratch[: len(part)]


def _write_raw(file: BinaryIO, array: zarr.Array[Any], values: Array | ShardRows) -> None:
    """Write the raw chunks of a shard, some rows at a time, and its index."""
    counts, places = _chunks_of(array, values.shape)
    chunks = array.chunks or (1,)
    if isinstance(values, np.ndarray) and not values.ndim:  # a scalar is one row
        counts, places, values = [1], places.reshape(1, -1), values.reshape(1)
    rows, row_bytes = chunks[0], math.prod(chunks[1:]) * array.dtype.itemsize
    length = rows * row_bytes + CRC_BYTES
    end = math.prod(counts) * length
    stored = places[tuple(map(slice, counts))]
    stored[..., 0], stored[..., 1] = np.arange(0, end, length).reshape(counts), length
    if not isinstance(file, io.BytesIO):
        reserve(file.fileno(), end + index_bytes(places.size // 2))
    step = rows if isinstance(values, np.ndarray) else min(rows, values.step)
    scratch = np.zeros((step, *chunks[1:]), array.dtype)
    for i, top in enumerate(range(0, values.shape[0], rows)):
        bottom, checksums = min(top + rows, values.shape[0]), np.zeros(counts[1:], np.int64)
        for first, stop in _steps(top, bottom, step):
            block = values[first:stop] if isinstance(values, np.ndarray) else values.read(first, stop)
            for chunk in np.ndindex(*counts[1:]):
                file.seek(int(stored[(i, *chunk, 0)]) + (first - top) * row_bytes)
                part = _part(block, (0, *chunk), scratch).data.cast("B")
                checksums[chunk] = _write(file, part, int(checksums[chunk]))
        # Rows that no value was written to are zero.
        missing = np.zeros((top + rows - bottom) * row_bytes, np.uint8)
        for chunk in np.ndindex(*counts[1:]):
            file.seek(int(stored[(i, *chunk, 0)]) + length - CRC_BYTES)
            _write_checksum(file, google_crc32c.extend(int(checksums[chunk]), missing))
    file.seek(end)
    _write_checksum(file, _write(file, places.data.cast("B")))


def _write_packed(file: BinaryIO, array: zarr.Array[Any], values: Array | ShardRows) -> None:
    """Write the packed chunks of a shard, and its index."""
    values = whole(values)
    counts, places = _chunks_of(array, values.shape)
    first = array.metadata.codecs[0].codecs[0]  # type: ignore[union-attr]
    pack = get_codec(dict(first.codec_config)).encode
    scratch = np.zeros(array.chunks, array.dtype)
    for chunk in np.ndindex(*counts):
        part = _part(values, chunk, scratch)
        if len(part) < len(scratch):
            scratch[: len(part)] = part
            scratch[len(part) :] = 0
            part = scratch
        content = memoryview(pack(part))
        places[chunk] = file.tell(), len(content) + CRC_BYTES
        _write_checksum(file, _write(file, content))
    _write_checksum(file, _write(file, places.data.cast("B")))


def _write_jpegs(file: BinaryIO, array: zarr.Array[Any], values: Array | ShardRows) -> None:
    """Write the chunks of a shard, one for each sample, and its index."""
    _, places = _chunks_of(array, values.shape)
    n, waiting = values.shape[0], 0
    lengths = np.empty(n, np.int64)
    pieces: list[bytes] = []
    if not isinstance(file, io.BytesIO):
        expected = values.nbytes if isinstance(values, np.ndarray) else values.encoded_bytes
        reserve(file.fileno(), expected + n * CRC_BYTES + index_bytes(places.size // 2))
    for i in range(n):
        content = exact_chunk(values[i]) if isinstance(values, np.ndarray) else values.encoded(i)
        pieces += content, google_crc32c.value(content).to_bytes(CRC_BYTES, "little")
        lengths[i] = length = len(content) + CRC_BYTES
        waiting += length
        # Small files are written together, in a third of the time.
        if waiting >= _PIECE_BYTES or len(pieces) >= _MOST_PIECES or i == n - 1:
            _write_together(file, pieces, waiting)
            waiting, pieces = 0, []
    stored = places.reshape(-1, 2)[:n]
    stored[:, 0], stored[:, 1] = np.cumsum(lengths) - lengths, lengths
    _write_checksum(file, _write(file, places.data.cast("B")))
    file.truncate()  # samples that are not kept may take fewer bytes than their files


def _write(file: BinaryIO, content: memoryview, checksum: int = 0) -> int:
    """Write bytes, and return the checksum of all bytes so far."""
    for piece in pieces(content, _PIECE_BYTES):
        checksum = google_crc32c.extend(checksum, np.asarray(piece))
        _write_all(file, piece)
    return checksum


def _write_together(file: BinaryIO, pieces: Sequence[bytes], size: int) -> None:
    """Write several bytes objects of ``size`` bytes together, without joining them first."""
    done = 0 if isinstance(file, io.BytesIO) else os.writev(file.fileno(), pieces)
    if done < size:
        _write_all(file, memoryview(b"".join(pieces))[done:])


def _write_checksum(file: BinaryIO, checksum: int) -> None:
    _write_all(file, memoryview(checksum.to_bytes(CRC_BYTES, "little")))


def _write_all(file: BinaryIO, content: memoryview) -> None:
    # A disk that becomes full accepts a part and raises an error for the rest.
    while content:
        content = content[file.write(content) :]
