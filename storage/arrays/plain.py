"""Reads parts of chunks of other programs without decoding whole chunks.

A chunk without compression and without a checksum is a file of values. Zarr reads it whole, into a new buffer, for each
part of it. Buffers of more than 32 MiB are returned to the system each time, which takes longer than the read itself
(measured with chunks of 33 MB, halves of them: 3.7 instead of 0.3 seconds per gigabyte).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BytesCodec
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

from dpca.storage.integrity.checked import CheckedStore
from dpca.storage.integrity.unchecked import require_file

Array = np.ndarray[Any, Any]


def read_plain(array: zarr.Array[Any], taken: Sequence[range], out: Array) -> bool:
    """Read a box of an array into ``out`` if its chunks are local files of nothing but values.

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
        False if the array has another form, or a file another size. Zarr must then read the box.

    Raises
    ------
    StoreError
        If a chunk is not a regular file.
    OSError
        If a file cannot be read.
    """
    store, chunks = array.store_path.store, array.chunks
    if not isinstance(store, CheckedStore) or store.root is None or not _is_plain(array):
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
            if os.fstat(handle).st_size != size:
                return False
            _read_part(handle, of, chunks, target)
        finally:
            os.close(handle)
    return True


def _is_plain(array: zarr.Array[Any]) -> bool:
    metadata = array.metadata
    if sys.byteorder != "little" or not array.dtype.isnative or array.dtype.kind not in "buif" or not array.ndim:
        return False
    if isinstance(metadata, ArrayV2Metadata):
        return metadata.compressor is None and not metadata.filters and metadata.order == "C"
    if not isinstance(metadata, ArrayV3Metadata) or len(metadata.codecs) != 1:
        return False
    codec = metadata.codecs[0]
    return isinstance(codec, BytesCodec) and (codec.endian is None or codec.endian.value == "little")


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
