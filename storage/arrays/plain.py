"""Reads boxes of arrays of other programs from their files, without the buffers of Zarr.

Zarr reads each chunk into a new buffer, and decodes it into another one. The C library returns buffers of more than 32
MiB to the system each time, which takes longer than to read and decode them. A chunk without compression is a file of
values: only the bytes of the box are read (measured with chunks of 33 MB, halves of them: 0.3 instead of 3.7 seconds
per gigabyte). A large compressed chunk is decoded into an array of numpy, which has large pages.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import zarr
from numcodecs import Blosc, Zstd  # type: ignore[import-untyped]
from zarr.codecs import BytesCodec
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

from dpca.storage.integrity.checked import CheckedStore
from dpca.storage.integrity.codecs import option_text
from dpca.storage.integrity.unchecked import require_file

Array = np.ndarray[Any, Any]

#: Stands for no codec.
RAW = object()
# Decoders by the names of the codecs of Zarr 3 and of numcodecs. Their parameters are in the encoded bytes.
_DECODERS = {"ZstdCodec": Zstd(), "Zstd": Zstd(), "BloscCodec": Blosc(), "Blosc": Blosc()}
_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_local = threading.local()
# Bytes of a compressed chunk that is decoded here, in half of Zarr's time. Zarr reads smaller ones, several at once,
# which takes less time if each file comes over a network.
_LARGE = 2**20


def keep_buffers() -> None:
    """Let this thread reuse the memory of encoded and decoded chunks until it ends.

    New memory costs a page fault every 4 KiB or 2 MiB: a tenth of the time of reading (measured).
    """
    _local.buffers = {}


def _buffer(name: str, size: int) -> Array:
    """Return bytes of arbitrary content, which are valid until the next call with this name in this thread."""
    kept: dict[str, Array] = getattr(_local, "buffers", {})
    if name not in kept or kept[name].size < size:
        kept[name] = np.empty(size, np.uint8)
    return kept[name][:size]


def read_plain(array: zarr.Array[Any], taken: Sequence[range], out: Array) -> bool:
    """Read a box of an array into ``out`` if its chunks are local files of values, or large and of one codec.

    Parameters
    ----------
    array : zarr.Array
    taken : sequence of range
        The box: one range with step 1 for each axis of the array.
    out : ndarray
        Has the shape of the box and the dtype of the array.

    Returns
    -------
    bool
        False if the array has another form, or a file another size. Zarr must then read the box, or raise its error.

    Raises
    ------
    StoreError
        If a chunk is not a regular file.
    OSError
        If a file cannot be read.
    """
    store, chunks = array.store_path.store, array.chunks
    codec = _codec(array) if isinstance(store, CheckedStore) and store.root is not None else None
    if codec is None or not isinstance(store, CheckedStore) or store.root is None:
        return False
    if out.size == 0 or not all(r.step == 1 for r in taken) or store.home(f"{array.path}/")[0].manifest is not None:
        return False
    size = math.prod(chunks) * array.dtype.itemsize
    for number in product(*(range(r.start // c, (r.stop - 1) // c + 1) for r, c in zip(taken, chunks, strict=True))):
        key = f"{array.path}/{array.metadata.encode_chunk_key(number)}".lstrip("/")
        path = store.root / key
        if not path.exists():
            return False
        require_file(path, None, store.where, key)
        inside = [
            range(max(r.start, i * c), min(r.stop, (i + 1) * c)) for r, i, c in zip(taken, number, chunks, strict=True)
        ]
        target = out[tuple(slice(p.start - r.start, p.stop - r.start) for p, r in zip(inside, taken, strict=True))]
        of = [range(p.start - i * c, p.stop - i * c) for p, i, c in zip(inside, number, chunks, strict=True)]
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            stored = os.fstat(handle).st_size
            if codec is not RAW:
                _fill(handle, encoded := _buffer("encoded", stored), 0)
                if _decoded_bytes(encoded, codec) != size:
                    return False
                _decode_part(encoded, codec, of, chunks, target)
            elif stored == size:
                _read_part(handle, of, chunks, target)
            else:
                return False
        finally:
            os.close(handle)
    return True


def _codec(array: zarr.Array[Any]) -> Any:
    """Return the codec of the chunks of an array, `RAW` for none; None for any other form."""
    metadata = array.metadata
    if sys.byteorder != "little" or not array.dtype.isnative or array.dtype.kind not in "buif" or not array.ndim:
        return None
    found: list[Any]
    if isinstance(metadata, ArrayV2Metadata):
        if metadata.filters or metadata.order != "C":
            return None
        found = [] if metadata.compressor is None else [metadata.compressor]
    elif isinstance(metadata, ArrayV3Metadata) and isinstance(metadata.codecs[0], BytesCodec):
        values, found = metadata.codecs[0], list(metadata.codecs[1:])
        if option_text(values.endian) not in (None, "little"):
            return None
    else:
        return None
    if not found:
        return RAW
    large = math.prod(array.chunks) * array.dtype.itemsize >= _LARGE
    return _DECODERS.get(type(found[0]).__name__) if large and len(found) == 1 else None


def _decoded_bytes(encoded: Array, codec: Any) -> int | None:
    """Return the number of bytes in an encoded chunk by its header, None if it does not tell, or is damaged.

    Decoders do not complain about fewer bytes than the array has that they fill.
    """
    head = encoded[:18].tobytes()
    if isinstance(codec, Blosc):
        # The numbers of bytes decoded and encoded stand after 4 and 12 bytes.
        return int.from_bytes(head[4:8], "little") if int.from_bytes(head[12:16], "little") == len(encoded) else None
    # RFC 8878, section 3.1.1: the descriptor of the frame, the window, the number of a dictionary, and the size.
    if len(head) < 6 or head[:4] != _ZSTD_MAGIC:
        return None
    single, size_flag = head[4] >> 5 & 1, head[4] >> 6
    start = 5 + (not single) + (0, 1, 2, 4)[head[4] & 3]
    length = (single, 2, 4, 8)[size_flag]
    size = int.from_bytes(head[start : start + length], "little") + (256 if length == 2 else 0)
    return size if length else None


def _decode_part(encoded: Array, codec: Any, of: Sequence[range], chunk: Sequence[int], target: Array) -> None:
    """Decode a chunk, and copy a box of it."""
    whole = target.flags.c_contiguous and target.shape == tuple(chunk)
    size = math.prod(chunk) * target.itemsize
    values = target if whole else _buffer("decoded", size).view(target.dtype).reshape(chunk)
    codec.decode(encoded, out=values)
    if not whole:
        target[...] = values[tuple(slice(r.start, r.stop) for r in of)]


def _read_part(handle: int, of: Sequence[range], chunk: Sequence[int], target: Array) -> None:
    """Read a box of a chunk: for each index of the first axis, the rows of the second axis between its ends."""
    first, *others = of
    row = math.prod(chunk[2:])
    rows = others[0] if others else range(1)
    length = chunk[1] * row if others else 1
    in_place = all(len(r) == c for r, c in zip(of[2:], chunk[2:], strict=True))
    if in_place and (not others or len(rows) == chunk[1]) and target.flags.c_contiguous:
        _fill(handle, target, first.start * length)
        return
    scratch = np.empty((len(rows), *chunk[2:]), target.dtype)
    for i, values in zip(first, target.reshape(len(first), len(rows), *target.shape[2:]), strict=True):
        here = values if in_place and values.flags.c_contiguous else scratch
        _fill(handle, here, i * length + rows.start * row)
        if here is scratch:
            values[...] = scratch[(slice(None), *(slice(r.start, r.stop) for r in of[2:]))]


def _fill(handle: int, values: Array, first: int) -> None:
    """Fill a contiguous array with the values of a file from number ``first`` on."""
    buffer, offset = values.reshape(-1).data.cast("B"), first * values.itemsize
    while buffer:
        got = os.preadv(handle, [buffer], offset)
        if not got:
            raise ValueError("the file ends too early")
        buffer, offset = buffer[got:], offset + got
