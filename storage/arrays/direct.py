"""Reads the inner chunks of shards directly into the memory of the caller.

Zarr copies every inner chunk through four buffers (the file, the chunk, the selection in the shard, the caller), most
of them newly allocated. If a chunk consists of little-endian values and a CRC-32C, its bytes are the values. Reading
them in place is four times faster (2.7 against 0.65 GB/s on one core, from the page cache). Integers packed by pcodec
are decoded from the bytes of the file without a copy, ten times as fast as by Zarr, and so are kept JPEG files. Every
checksum is still verified. Zarr reads all other forms. `dpca.storage.arrays.shards` writes shards.
"""

from __future__ import annotations

import math
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, BinaryIO, TypeAlias

import google_crc32c
import numpy as np
import zarr
from pcodec import standalone
from zarr.abc.codec import ArrayBytesCodec
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec
from zarr.codecs.numcodecs import PCodec
from zarr.core.metadata import ArrayV3Metadata

from dpca.storage.arrays.kept_jpegs import JPEGCodec, decode_chunk
from dpca.storage.integrity.checked import CheckedStore
from dpca.storage.integrity.checksums import CRC_BYTES, ShardChecksums, index_bytes, places_in
from dpca.storage.integrity.codecs import option_text

Array = np.ndarray[Any, Any]

#: The Zarr codec that packs integers into few bits.
PACKED = PCodec
# Zarr repeats this warning whenever an array is opened. FORMAT.md documents the format.
warnings.filterwarnings("ignore", "Numcodecs codecs are not in the Zarr version 3 specification")

# Small enough for the cache of a core, so that the checksum is computed from the cache.
_PIECE_BYTES = 1 << 18
# Functions that decode the bytes of a chunk into an array, by the codecs whose chunks are not their values.
_DECODERS: dict[Any, Callable[[bytes, Array], object]] = {
    PACKED: lambda content, out: standalone.simple_decompress_into(content, out.reshape(-1)),
    JPEGCodec: decode_chunk,
}


def read_shards(array: zarr.Array[Any], taken: Sequence[range], out: Array) -> bool:
    """Read a box of an array into ``out`` if its chunks are in local files and raw, packed by pcodec, or JPEGs.

    Parameters
    ----------
    array : zarr.Array
        Array to read.
    taken : sequence of range
        The box: one range with step 1 for each axis of the array.
    out : ndarray
        Has the shape of the box and the dtype of the array. A C-ordered buffer avoids a copy.

    Returns
    -------
    bool
        False if the array or the box has another form. Nothing is read in this case.

    Raises
    ------
    ValueError, RuntimeError
        If a chunk is missing or truncated, does not match its checksum or cannot be unpacked.
    OSError
        If a file cannot be read.
    """
    codec = codec_of(array) if is_local(array) else None
    if codec is None or not all(r.step == 1 for r in taken):
        return False
    if out.size == 0:
        return True
    chunks, shards = array.chunks, array.shards or array.chunks
    per_shard = [s // c for s, c in zip(shards, chunks, strict=True)]
    decode = _DECODERS.get(codec)
    length = None if decode else math.prod(chunks) * array.dtype.itemsize + CRC_BYTES
    scratch = np.empty(chunks, array.dtype)
    for shard in product(*(_touched(r, s) for r, s in zip(taken, shards, strict=True))):
        key = array.store_path / array.metadata.encode_chunk_key(shard)
        known = key.store.checksums(key.path) if isinstance(key.store, CheckedStore) else None
        with _opened(os.path.join(os.fspath(key.store.root), key.path), known) as file:  # type: ignore[attr-defined]
            places = _read_index(file, math.prod(per_shard), known)
            along = [_parts(*axis) for axis in zip(taken, shard, shards, chunks, strict=True)]
            for chunk, place, to, of in _joined(along, per_shard):
                offset, packed = places[place].tolist()
                if not packed or packed != (length or packed):
                    raise _misplaced(_name(chunk, codec), packed, length)
                target = out[to]
                belongs = None if known is None else int(known.chunks[place])
                if decode is not None:
                    content = os.pread(file.fileno(), packed, offset)
                    try:
                        _decode_chunk(decode, content, packed, target, of, scratch, belongs)
                    except (ValueError, RuntimeError) as error:
                        raise ValueError(f"{_name(chunk, codec)}: {error}") from error
                else:
                    file.seek(offset)
                    _read_chunk(file, target, of, scratch, belongs)
    return True


def is_local(array: zarr.Array[Any]) -> bool:
    """Return whether an array is in a local folder."""
    return getattr(array.store_path.store, "root", None) is not None


def codec_of(array: zarr.Array[Any]) -> type[ArrayBytesCodec] | None:
    """Return the codec of the chunks of a shard, `BytesCodec`, `PACKED` or `JPEGCodec`; None for any other form."""
    metadata = array.metadata
    if not isinstance(metadata, ArrayV3Metadata):
        return None
    if len(metadata.codecs) != 1 or not isinstance(sharding := metadata.codecs[0], ShardingCodec):
        return None
    codecs = (*sharding.codecs, *sharding.index_codecs)
    forms = tuple(map(type, codecs))
    usual = (
        forms[0] in (BytesCodec, *_DECODERS)
        and forms[1:] == (Crc32cCodec, BytesCodec, Crc32cCodec)
        and option_text(sharding.index_location) == "end"
        and sys.byteorder == "little"
        and array.dtype.isnative
        and all(option_text(c.endian) in (None, "little") for c in codecs if isinstance(c, BytesCodec))
    )
    return forms[0] if usual else None


def _opened(path: str, known: ShardChecksums | None) -> BinaryIO:
    """Open a shard; raise an error for a link or a pipe at its path."""
    if known is None:
        return open(path, "rb", buffering=0)
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size != known.size:
        os.close(handle)
        raise ValueError(f"'{path}' is not a file of {known.size:,} bytes")
    return open(handle, "rb", buffering=0)


def _touched(taken: range, edge: int) -> range:
    return range(taken.start // edge, (taken.stop - 1) // edge + 1)


# A chunk: its number along each axis, its place in the index of its shard, its slices of the box, and the slices of the
# chunk inside the box. A list for one axis has tuples of length 1.
_ShardPart: TypeAlias = tuple[tuple[int, ...], int, tuple[slice, ...], tuple[slice, ...]]


def _parts(taken: range, shard: int, shard_edge: int, edge: int) -> list[_ShardPart]:
    """Return the chunks of a shard that overlap a box along an axis."""
    inside = range(max(taken.start, shard * shard_edge), min(taken.stop, (shard + 1) * shard_edge))
    found: list[_ShardPart] = []
    for i in _touched(inside, edge):
        start, stop = max(inside.start, i * edge), min(inside.stop, (i + 1) * edge)
        to, of = slice(start - taken.start, stop - taken.start), slice(start - i * edge, stop - i * edge)
        found.append(((i,), i % (shard_edge // edge), (to,), (of,)))
    return found


def _joined(along: Sequence[Iterable[_ShardPart]], per_shard: Sequence[int]) -> Iterable[_ShardPart]:
    """Return the chunks of a shard that overlap a box, in C order. Only those of the first axis are computed lazily."""
    found: Iterable[_ShardPart] = [((), 0, (), ())]
    stride = 1
    for parts, n in zip(reversed(along), reversed(per_shard), strict=True):
        found, stride = _product(parts, stride, list(found)), stride * n
    return found


def _product(parts: Iterable[_ShardPart], stride: int, inner: Sequence[_ShardPart]) -> Iterator[_ShardPart]:
    for chunk, place, to, of in parts:
        for others in inner:
            yield chunk + others[0], place * stride + others[1], to + others[2], of + others[3]


def _read_index(file: BinaryIO, n_chunks: int, known: ShardChecksums | None) -> Array:
    """Return the offset and the length of every inner chunk of a shard, shape (n_chunks, 2)."""
    file.seek(-index_bytes(n_chunks), os.SEEK_END)
    index = np.empty(index_bytes(n_chunks) - CRC_BYTES, np.uint8)
    checksum = _read_into(file, index.data, 0)
    _check(file.read(CRC_BYTES), checksum, None if known is None else known.index)
    return places_in(index)


def _name(chunk: tuple[int, ...], codec: Any) -> str:
    return f"sample {chunk[0]}" if codec is JPEGCodec else f"chunk {chunk}"


def _misplaced(chunk: str, length: int, expected: int | None) -> ValueError:
    if not length:
        return ValueError(f"{chunk} is missing")
    return ValueError(f"{chunk} has {length} bytes, expected {expected}")


def _read_chunk(file: BinaryIO, target: Array, of: tuple[slice, ...], scratch: Array, belongs: int | None) -> None:
    """Read one raw chunk at the current file position, and copy a part of it to its target."""
    flat = scratch.data.cast("B")
    if of[0].start == 0 and target.shape[1:] == scratch.shape[1:] and target.flags.c_contiguous:
        # The requested rows are the first of the chunk and are read in place. The rest is read only for the checksum.
        checksum = _read_into(file, target.data.cast("B"), 0)
        checksum = _read_into(file, flat[target.nbytes :], checksum)
        _check(file.read(CRC_BYTES), checksum, belongs)
        return
    checksum = _read_into(file, flat, 0)
    _check(file.read(CRC_BYTES), checksum, belongs)
    np.copyto(target, scratch[of])


def _decode_chunk(
    decode: Callable[[bytes, Array], object],
    content: bytes,
    length: int,
    target: Array,
    of: tuple[slice, ...],
    scratch: Array,
    belongs: int | None,
) -> None:
    """Decode one chunk of ``length`` bytes, and copy a part of it to its target."""
    if len(content) < length:
        raise ValueError("the file ends too early")
    content, stored = content[:-CRC_BYTES], content[-CRC_BYTES:]
    _check(stored, google_crc32c.value(content), belongs)
    if target.shape == scratch.shape and target.flags.c_contiguous:
        decode(content, target)
        return
    decode(content, scratch)
    np.copyto(target, scratch[of])


def _read_into(file: BinaryIO, buffer: memoryview, checksum: int) -> int:
    """Fill a buffer and return the checksum of all bytes so far."""
    for piece in pieces(buffer, _PIECE_BYTES):
        done = 0
        while done < len(piece):
            got = file.readinto(piece[done:])  # type: ignore[attr-defined]
            if not got:
                raise ValueError("the file ends too early")
            done += got
        checksum = google_crc32c.extend(checksum, np.asarray(piece))
    return checksum


def pieces(buffer: memoryview, size: int) -> Iterator[memoryview]:
    """Yield parts of ``size`` bytes."""
    return (buffer[start : start + size] for start in range(0, len(buffer), size))


def _check(stored: bytes, checksum: int, belongs: int | None) -> None:
    """Compare a computed checksum with the stored and the expected checksum."""
    if stored != checksum.to_bytes(CRC_BYTES, "little"):
        raise ValueError(f"stored and computed checksum do not match: {stored!r}, {checksum:#010x}")
    if belongs is not None and checksum != belongs:
        raise ValueError("a chunk has another checksum than the chunk that was written")
