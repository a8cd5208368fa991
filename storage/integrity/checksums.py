"""The CRC-32C at the end of every chunk that dpca writes, and the index of the chunks of a shard.

The index is at the end of a shard: the offset and the length of each inner chunk in C order, 8 bytes each, then the
CRC-32C of the index. A chunk that is not stored has the largest offset and length that 8 bytes can represent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ShardingCodec
from zarr.core.metadata import ArrayV3Metadata

from dpca.storage.errors import StoreError, one_line
from dpca.storage.integrity.unchecked import plain_store, require_file
from dpca.storage.remote.objects import ObjectPath, Place

#: Size of a CRC-32C in bytes.
CRC_BYTES = 4
#: Bytes of the offset and the length of one chunk in the index of its shard.
PLACE_BYTES = 16
#: Offset and length of a chunk that is not stored.
NOT_STORED = np.iinfo(np.uint64).max
_PIECE_BYTES = 1 << 20
# Shards of an object store whose checksums are requested concurrently.
_AT_ONCE = 8

#: Size in bytes, and the CRC-32C of each chunk and of the index as hexadecimal digits.
Entry = tuple[int, str]


@dataclass(frozen=True)
class ShardChecksums:
    """The expected size and checksums of a stored file of chunks.

    Attributes
    ----------
    size : int
        Size of the file in bytes.
    chunks : ndarray of uint32
        CRC-32C of each inner chunk, in C order of their places in the shard, and 0 for a chunk that is not stored. If
        the array is not sharded, the CRC-32C of the whole file.
    index : int or None
        CRC-32C of the index of the shard; None if the array is not sharded.
    """

    size: int
    chunks: NDArray[np.uint32]
    index: int | None

    @classmethod
    def from_entry(cls, entry: Entry) -> ShardChecksums:
        """Convert an entry of a file of checksums to numbers."""
        size, text = entry
        values = np.frombuffer(bytes.fromhex(text), "<u4")
        return cls(size, values, None) if len(values) == 1 else cls(size, values[:-1], int(values[-1]))


def shard_grid(array: zarr.Array[Any]) -> tuple[int, ...]:
    """Return the number of shards (of chunks, if the array is not sharded) along each axis of an array."""
    edges = array.shards or array.chunks
    return tuple(-(-length // edge) for length, edge in zip(array.shape, edges, strict=True))


def index_bytes(n_chunks: int) -> int:
    """Return the size of the index of a shard with ``n_chunks`` inner chunks, including its checksum."""
    return PLACE_BYTES * n_chunks + CRC_BYTES


def places_in(index: Any) -> NDArray[np.int64]:
    """Return the offset and the length of each inner chunk, shape (n_chunks, 2); both are 0 for a missing chunk.

    Parameters
    ----------
    index : bytes-like
        The index of a shard, with or without its checksum.
    """
    places = np.frombuffer(index, "<u8", len(index) // 16 * 2).reshape(-1, 2)
    return np.where(places[:, 1:] != NOT_STORED, places, 0).astype(np.int64)


def crc_at(values: NDArray[np.uint8], end: int) -> int:
    """Return the CRC-32C that ends before ``end``; -1 if there are too few bytes."""
    return int.from_bytes(values[end - CRC_BYTES : end].tobytes(), "little") if end >= CRC_BYTES else -1


def ends_in_checksums(array: zarr.Array[Any]) -> bool:
    """Return whether every stored chunk and every shard index of an array ends in a CRC-32C of its bytes."""
    metadata = array.metadata
    if not isinstance(metadata, ArrayV3Metadata):
        return False
    codecs = metadata.codecs
    if isinstance(codecs[0], ShardingCodec):
        return all(isinstance(chain[-1], Crc32cCodec) for chain in (codecs[0].codecs, codecs[0].index_codecs))
    return isinstance(codecs[-1], Crc32cCodec)


def stored_checksums(folder: Place, known: Mapping[str, Entry] = MappingProxyType({})) -> Mapping[str, Entry]:
    """Return the size and the checksums of each file of chunks of an array, by its path in the array.

    Parameters
    ----------
    folder : Path or ObjectPath
        Root of the array.
    known : mapping, optional
        Entries from a manifest. They are returned unchanged, and these files are not read.

    Raises
    ------
    StoreError
        If chunks have no checksums, or a file is missing or torn.
    """
    array = zarr.open_array(plain_store(os.fspath(folder)), mode="r", zarr_format=3)
    if not ends_in_checksums(array):
        raise StoreError(
            f"the chunks of '{folder}' have no CRC-32C: create arrays with dpca.storage.arrays.arrays.create_array"
        )
    per_shard = 0
    if array.shards is not None:
        per_shard = int(np.prod([shard // chunk for shard, chunk in zip(array.shards, array.chunks, strict=True)]))
    keys = [array.metadata.encode_chunk_key(place) for place in np.ndindex(*shard_grid(array))]
    if isinstance(folder, ObjectPath):
        sizes = folder.files()
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            found = threads.map(lambda key: known.get(key) or _entry_of(folder, key, per_shard, sizes), keys)
            return dict(zip(keys, found, strict=True))
    return {key: known.get(key) or _entry_of(folder, key, per_shard) for key in keys}


def _entry_of(folder: Place, key: str, per_shard: int, sizes: Mapping[str, int] | None = None) -> Entry:
    path = folder / key
    try:
        if isinstance(path, ObjectPath):
            size = (sizes or {}).get(key, 0)
            return _stored_in(path.read_ranges, size, per_shard)
        with open(path, "rb", buffering=0) as file:
            read = partial(_pread, file.fileno())
            return _stored_in(read, os.fstat(file.fileno()).st_size, per_shard)
    except (OSError, ValueError) as error:
        raise StoreError(f"'{path}' is missing or torn ({one_line(error)}): run the same command again") from error


def _stored_in(read: Callable[[list[tuple[int, int]]], list[bytes]], size: int, per_shard: int) -> Entry:
    """Return the entry of a file. ``read`` returns the bytes of several (start, stop) ranges."""
    if not per_shard:
        return size, _whole(read, [(size - CRC_BYTES, size)])[0].hex()
    n_index = index_bytes(per_shard)
    (index,) = _whole(read, [(size - n_index, size)])
    places = places_in(index)
    if int(places[:, 1].sum()) + n_index != size:
        raise ValueError(f"its chunks do not add up to its {size:,} bytes")
    ends = places.sum(axis=1).tolist()
    found = iter(_whole(read, [(end - CRC_BYTES, end) for end in ends if end]))
    return size, (b"".join(next(found) if end else bytes(CRC_BYTES) for end in ends) + index[-CRC_BYTES:]).hex()


def _whole(read: Callable[[list[tuple[int, int]]], list[bytes]], places: list[tuple[int, int]]) -> list[bytes]:
    if any(start < 0 for start, _ in places):
        raise ValueError("it is truncated")
    pieces = read(places)
    if any(len(piece) != stop - start for piece, (start, stop) in zip(pieces, places, strict=True)):
        raise ValueError("it is truncated")
    return pieces


def _pread(file: int, places: list[tuple[int, int]]) -> list[bytes]:
    return [os.pread(file, stop - start, start) for start, stop in places]


def compare_stored(where: str, array: str, known: Mapping[str, Entry]) -> None:
    """Compare the sizes and the stored checksums of files of chunks with the manifest, without reading the chunks.

    Parameters
    ----------
    where, array : str
        Path of the store, and path of the array in the store.
    known : mapping
        Entries of the manifest, by the path of the file in the array.

    Raises
    ------
    StoreError
        If a file is missing, cannot be read, or is not the file that was written at its place.
    """
    for key, (size, text) in known.items():
        name = f"{array}/{key}"
        path = Path(where, name)
        require_file(path, size, where, name)
        values = len(bytes.fromhex(text)) // CRC_BYTES
        try:
            with open(path, "rb", buffering=0) as file:
                found = _stored_in(partial(_pread, file.fileno()), size, values - 1)
        except (OSError, ValueError) as error:
            raise StoreError(f"{name} of '{where}' is damaged ({one_line(error)}): create the store again") from error
        if found[1] != text:
            raise StoreError(
                f"{name} of '{where}' is damaged (its checksums are not those of the file that was written): create "
                f"the store again"
            )


def compare_file(path: str, known: ShardChecksums) -> None:
    """Compare every byte of a file of chunks with its expected checksums.

    Raises
    ------
    OSError, ValueError
        If the file cannot be read, or is not the file that was written.
    """
    with open(path, "rb", buffering=0) as opened:
        file = opened.fileno()
        size = os.fstat(file).st_size
        if size != known.size:
            raise ValueError(f"it has {size:,} bytes, expected {known.size:,}")
        if known.index is None:
            _compare_run(file, 0, size, int(known.chunks[0]))
            return
        n_index = index_bytes(len(known.chunks))
        _compare_run(file, size - n_index, size, known.index)
        places = places_in(_whole(partial(_pread, file), [(size - n_index, size)])[0])
        for (offset, length), checksum in zip(places.tolist(), known.chunks.tolist(), strict=True):
            if length:
                _compare_run(file, offset, offset + length, checksum)


def _compare_run(file: int, start: int, stop: int, expected: int) -> None:
    """Compare bytes that end in their own CRC-32C with the expected CRC-32C."""
    checksum = 0
    for first in range(start, stop - CRC_BYTES, _PIECE_BYTES):
        checksum = google_crc32c.extend(checksum, os.pread(file, min(_PIECE_BYTES, stop - CRC_BYTES - first), first))
    stored = int.from_bytes(os.pread(file, CRC_BYTES, stop - CRC_BYTES), "little")
    if not checksum == stored == expected:
        raise ValueError(f"bytes {start:,} to {stop:,} do not match the checksum of the bytes that were written")
