"""The CRC-32C at the end of every chunk that this package writes, and where the chunks lie in a shard.

The index of a shard stands at its end: offset and length of each inner chunk in C order, 8 bytes each, then its own
CRC-32C. A chunk that is not stored has the largest offset and length that 8 bytes can hold.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ShardingCodec
from zarr.core.metadata import ArrayV3Metadata

from dpca.storage.errors import StoreError, one_line

#: Bytes of a CRC-32C.
CRC_BYTES = 4
#: Bytes of the offset and the length of a chunk in the index of its shard.
PLACE_BYTES = 16
#: Offset and length of a chunk that is not stored.
NOT_STORED = np.iinfo(np.uint64).max
_PIECE_BYTES = 1 << 20

#: Size in bytes, and in hexadecimal digits the CRC-32C of each chunk and of the index.
Entry = tuple[int, str]


@dataclass(frozen=True)
class ShardChecksums:
    """The expected size and checksums of a stored file of chunks.

    Attributes
    ----------
    size : int
        Bytes.
    chunks : ndarray of uint32
        CRC-32C of each inner chunk, in C order of their places in the shard, 0 where none is stored; of the whole file
        where the array is not sharded.
    index : int or None
        CRC-32C of the shard's index; None where the array is not sharded.
    """

    size: int
    chunks: NDArray[np.uint32]
    index: int | None

    @classmethod
    def from_entry(cls, entry: Entry) -> ShardChecksums:
        """Return an entry of a file of checksums in numbers."""
        size, text = entry
        values = np.frombuffer(bytes.fromhex(text), "<u4")
        return cls(size, values, None) if len(values) == 1 else cls(size, values[:-1], int(values[-1]))


def shard_grid(array: zarr.Array[Any]) -> tuple[int, ...]:
    """Return how many shards (chunks, where it has none) an array has along each axis."""
    edges = array.shards or array.chunks
    return tuple(-(-length // edge) for length, edge in zip(array.shape, edges, strict=True))


def index_bytes(n_chunks: int) -> int:
    """Return the size of the index of a shard with ``n_chunks`` inner chunks, checksum included."""
    return PLACE_BYTES * n_chunks + CRC_BYTES


def places_in(index: Any) -> NDArray[np.int64]:
    """Return offset and length of each inner chunk, shape (n_chunks, 2); both 0 where a chunk is not stored.

    Parameters
    ----------
    index : bytes-like
        The index of a shard, with or without its checksum.
    """
    places = np.frombuffer(index, "<u8", len(index) // 16 * 2).reshape(-1, 2)
    return np.where(places[:, 1:] != NOT_STORED, places, 0).astype(np.int64)


def crc_at(values: NDArray[np.uint8], end: int) -> int:
    """Return the CRC-32C that ends before ``end``; -1 where there is none."""
    return int.from_bytes(values[end - CRC_BYTES : end].tobytes(), "little") if end >= CRC_BYTES else -1


def ends_in_checksums(array: zarr.Array[Any]) -> bool:
    """Tell whether every stored chunk of an array, and every index of a shard, ends in a CRC-32C of its bytes."""
    metadata = array.metadata
    if not isinstance(metadata, ArrayV3Metadata):
        return False
    codecs = metadata.codecs
    if isinstance(codecs[0], ShardingCodec):
        return all(isinstance(chain[-1], Crc32cCodec) for chain in (codecs[0].codecs, codecs[0].index_codecs))
    return isinstance(codecs[-1], Crc32cCodec)


def stored_checksums(folder: Path) -> Mapping[str, Entry]:
    """Return the size and the checksums that each file of chunks of an array holds, by its path in the array.

    Raises
    ------
    StoreError
        If the chunks end in no checksums, or a file is missing or torn.
    """
    array = zarr.open_array(os.fspath(folder), mode="r")
    if not ends_in_checksums(array):
        raise StoreError(
            f"the chunks of '{folder}' end in no CRC-32C: make arrays with dpca.storage.arrays.create_array"
        )
    per_shard = 0
    if array.shards is not None:
        per_shard = int(np.prod([shard // chunk for shard, chunk in zip(array.shards, array.chunks, strict=True)]))
    entries = {}
    for place in np.ndindex(*shard_grid(array)):
        key = array.metadata.encode_chunk_key(place)
        try:
            with open(folder / key, "rb", buffering=0) as file:
                entries[key] = _stored_in(file.fileno(), per_shard)
        except (OSError, ValueError) as error:
            raise StoreError(
                f"'{folder / key}' is missing or torn ({one_line(error)}): run the same command again"
            ) from error
    return entries


def _stored_in(file: int, per_shard: int) -> Entry:
    size = os.fstat(file).st_size
    if not per_shard:
        return size, _pread(file, CRC_BYTES, size - CRC_BYTES).hex()
    n_index = index_bytes(per_shard)
    index = _pread(file, n_index, size - n_index)
    places = places_in(index)
    if int(places[:, 1].sum()) + n_index != size:
        raise ValueError(f"its chunks do not fill its {size:,} bytes")
    ends = places.sum(axis=1).tolist()
    found = [_pread(file, CRC_BYTES, end - CRC_BYTES) if end else bytes(CRC_BYTES) for end in ends]
    return size, (b"".join(found) + index[-CRC_BYTES:]).hex()


def _pread(file: int, size: int, offset: int) -> bytes:
    if offset < 0 or len(content := os.pread(file, size, offset)) != size:
        raise ValueError("it is cut short")
    return content


def compare_file(path: str, known: ShardChecksums) -> None:
    """Compare every byte of a file of chunks with its expected checksums.

    Raises
    ------
    OSError, ValueError
        If the file cannot be read, or is not the one that was written.
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
        places = places_in(_pread(file, n_index, size - n_index))
        for (offset, length), checksum in zip(places.tolist(), known.chunks.tolist(), strict=True):
            if length:
                _compare_run(file, offset, offset + length, checksum)


def _compare_run(file: int, start: int, stop: int, expected: int) -> None:
    """Compare bytes that end in their own CRC-32C with the expected one."""
    checksum = 0
    for first in range(start, stop - CRC_BYTES, _PIECE_BYTES):
        checksum = google_crc32c.extend(checksum, os.pread(file, min(_PIECE_BYTES, stop - CRC_BYTES - first), first))
    stored = int.from_bytes(os.pread(file, CRC_BYTES, stop - CRC_BYTES), "little")
    if not checksum == stored == expected:
        raise ValueError(f"bytes {start:,} to {stop:,} are not those that were written, by their checksum")
