"""IDX files, the form in which MNIST is published: a tiny header, then the values, gzip or not."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage.errors import DataError
from dpca.storage.readers.arrays.raw import PackedFile, Raw, RawReader, StreamReader, require_possible
from dpca.storage.readers.base import Reader, digest_file
from dpca.storage.readers.format import Format

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_ERRORS = (EOFError, OSError, zlib.error)
_MOST_AXES = 8


def open_idx(path: str, axes: Sequence[str] | None = None) -> Reader:
    """Open an IDX file, compressed by gzip or not.

    The labels are read from the file beside it whose name has ``labels`` for ``images`` and ``idx1`` for
    ``idx3``, if there is one.

    Parameters
    ----------
    path : str
        The file.
    axes : sequence of str, optional
        See `dpca.storage.readers.arrays.raw.ArrayReader`.

    Raises
    ------
    DataError
        If it is broken or truncated, or its labels do not fit.
    """
    name = os.path.basename(path)
    path = os.path.abspath(path)
    identity = partial(digest_file, path)
    with _opened(path) as file:
        shape, dtype = _read_header(file, name)
        offset = file.tell()
    reader: Reader
    if _is_gzip(path):
        reader = StreamReader(
            PackedFile(partial(_values, path, offset), _ERRORS, os.path.getsize(path)),
            shape,
            dtype,
            kind="idx",
            identity=identity,
            name=name,
            axes=axes,
        )
    else:
        reader = RawReader(Raw(path, offset, shape, dtype.str), kind="idx", identity=identity, name=name, axes=axes)
    reader.labels = _labels(path, len(reader))
    return reader


def _is_gzip(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _opened(path: str) -> IO[bytes]:
    return gzip.open(path) if _is_gzip(path) else open(path, "rb")  # type: ignore[return-value]


@contextmanager
def _values(path: str, offset: int) -> Iterator[IO[bytes]]:
    with _opened(path) as file:
        file.read(offset)
        yield file


def _read_header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        head = file.read(4)
        sizes = file.read(4 * head[3]) if _begins(head) else b""
    except _ERRORS as error:
        raise DataError(f"'{name}' is truncated or broken ({error}): get it again") from error
    if not _begins(head) or len(sizes) < 4 * head[3]:
        raise DataError(f"'{name}' has no whole IDX header: get it again")
    return tuple(int(n) for n in np.frombuffer(sizes, ">u4")), np.dtype(_TYPES[head[2]])


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
    with _opened(found) as file:
        shape, dtype = _read_header(file, name)
        if shape != (n,):
            raise DataError(f"'{name}' holds labels of shape {shape} for {n:,} samples: get it again or move it away")
        n_bytes = prod(shape) * dtype.itemsize
        require_possible(n_bytes, os.path.getsize(found), f"'{name}'")
        try:
            values = file.read(n_bytes)
        except _ERRORS as error:
            raise DataError(f"'{name}' is truncated or broken ({error}): get it again") from error
    if len(values) < n_bytes:
        raise DataError(f"'{name}' is truncated: it has fewer than {n:,} labels; get it again")
    return np.frombuffer(values, dtype).astype(dtype.newbyteorder("="))


def _begins(head: bytes) -> bool:
    return len(head) >= 4 and head[:2] == b"\0\0" and head[2] in _TYPES and 1 <= head[3] <= _MOST_AXES


FORMATS = (Format("IDX", lambda file: _begins(file.inner), lambda path, key, axes: open_idx(path, axes)),)
