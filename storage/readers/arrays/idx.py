"""IDX files, the format of MNIST: a small header, then the values, plain or compressed by gzip."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage.errors import DataError
from dpca.storage.readers.arrays.raw import Raw
from dpca.storage.readers.arrays.streamed import open_plain_or_gzip, require_possible, unzipped
from dpca.storage.readers.base import Reader, source_errors
from dpca.storage.readers.format import Format

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST_AXES = 8


def open_idx(path: str, axes: Sequence[str] | None = None) -> Reader:
    """Open an IDX file, plain or compressed by gzip.

    Labels are read from a file beside it, if it exists. Its name has ``labels`` instead of ``images`` and ``idx1``
    instead of ``idx3``.

    Parameters
    ----------
    path : str
        The file.
    axes : sequence of str, optional
        See `dpca.storage.readers.arrays.raw.ArrayReader`.

    Raises
    ------
    DataError
        If it is broken or truncated, or the number of labels is wrong.
    """
    name, path = os.path.basename(path), os.path.abspath(path)
    with source_errors(f"'{name}' is truncated or broken"), unzipped(path) as file:
        raw = _read_header(file, path)
    reader = open_plain_or_gzip(raw, "idx", axes)
    reader.labels = _labels(path, len(reader))
    return reader


def _read_header(file: IO[bytes], path: str) -> Raw:
    head = file.read(4)
    sizes = file.read(4 * head[3]) if _is_header(head) else b""
    if not _is_header(head) or len(sizes) < 4 * head[3]:
        raise DataError(f"'{os.path.basename(path)}' has no complete IDX header: get it again")
    return Raw(path, 4 + len(sizes), tuple(int(n) for n in np.frombuffer(sizes, ">u4")), _TYPES[head[2]])


def _labels(path: str, n: int) -> NDArray[Any] | None:
    folder, name = os.path.split(path)
    beside = name.replace("images", "labels").replace("idx3", "idx1")
    if beside == name:
        return None
    candidates = [os.path.join(folder, b) for b in (beside, beside.removesuffix(".gz"), beside + ".gz")]
    found = next((candidate for candidate in candidates if os.path.isfile(candidate)), None)
    if found is None:
        return None
    name = os.path.basename(found)
    with source_errors(f"'{name}' is truncated or broken"), unzipped(found) as file:
        raw = _read_header(file, found)
        if raw.shape != (n,):
            raise DataError(f"'{name}' has labels of shape {raw.shape} for {n:,} samples: get it again or move it away")
        dtype = np.dtype(raw.dtype)
        n_bytes = prod(raw.shape) * dtype.itemsize
        require_possible(n_bytes, os.path.getsize(found), f"'{name}'")
        values = file.read(n_bytes)
    if len(values) < n_bytes:
        raise DataError(f"'{name}' is truncated: it has fewer than {n:,} labels; get it again")
    return np.frombuffer(values, dtype).astype(dtype.newbyteorder("="))


def _is_header(head: bytes) -> bool:
    return len(head) >= 4 and head[:2] == b"\0\0" and head[2] in _TYPES and 1 <= head[3] <= _MOST_AXES


FORMATS = (Format("IDX", lambda file: _is_header(file.inner), lambda path, key, axes: open_idx(path, axes)),)
