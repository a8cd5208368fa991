"""Arrays in numpy's files: ``.npy``, and one array of an ``.npz``."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy_format

from storage.errors import DataError, one_line
from storage.readers.base import Reader, digest, digest_file
from storage.readers.raw import LABELS, Raw, RawReader, StreamReader, choose_key
from storage.readers.zip import data_start, entries, place_of


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]


def open_npy(path: str, axes: Sequence[str] | None = None) -> Reader:
    """Open a ``.npy`` file; its values are mapped, not loaded.

    Raises
    ------
    DataError
        If it is broken, truncated, or holds Python objects.
    """
    name = os.path.basename(path)
    with open(path, "rb") as file:
        header = _read_header(file, name)
        offset = file.tell()
    raw = Raw(os.path.abspath(path), offset, header.shape, header.dtype.str, "F" if header.fortran else "C")
    return RawReader(raw, kind="npy", identity=partial(digest_file, path), name=name, axes=axes)


def open_npz(path: str, key: str | None = None, axes: Sequence[str] | None = None) -> Reader:
    """Open one array of an ``.npz`` file: mapped if it is stored plainly, streamed if it is compressed.

    Parameters
    ----------
    path : str
        The file.
    key : str, optional
        Name of the array, by default as `storage.readers.raw.choose_key` says. An array called ``labels`` (or
        ``label``, ``y``, ``targets``) with one entry a sample becomes the labels.
    axes : sequence of str, optional
        See `storage.readers.raw.ArrayReader`.

    Raises
    ------
    DataError
        If the file is broken, or does not say which array is meant.
    """
    name = os.path.basename(path)
    members = {entry.filename.removesuffix(".npy"): entry for entry in entries(path) if entry.filename.endswith(".npy")}
    headers = {}
    for member, entry in members.items():
        with _opened(path, entry) as file:
            headers[member] = _read_header(file, f"{name}/{member}")
    key = choose_key(name, {member: header.shape for member, header in headers.items()}, key)
    entry, header = members[key], headers[key]
    identity = partial(digest, [digest_file(path), key])
    label = f"{name}/{key}"
    reader: Reader
    if entry.compress_type == zipfile.ZIP_STORED:
        with open(path, "rb", buffering=0) as plain:
            plain.seek(data_start(plain.fileno(), place_of(entry)))
            _read_header(plain, label)
            raw = Raw(
                os.path.abspath(path),
                plain.tell(),
                header.shape,
                header.dtype.str,
                "F" if header.fortran else "C",
            )
        reader = RawReader(raw, kind="npz", identity=identity, name=label, axes=axes)
    else:
        if header.fortran:
            raise DataError(f"'{label}' is compressed in Fortran order: save it again with numpy.ascontiguousarray")
        reader = StreamReader(
            partial(_values, os.path.abspath(path), entry, label),
            header.shape,
            header.dtype,
            errors=(zipfile.BadZipFile, zlib.error, EOFError, OSError),
            kind="npz",
            identity=identity,
            name=label,
            axes=axes,
        )
    reader.labels = _labels(path, members, headers, len(reader))
    return reader


@contextmanager
def _opened(path: str, entry: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(path) as archive, archive.open(entry) as file:
        yield file


@contextmanager
def _values(path: str, entry: zipfile.ZipInfo, name: str) -> Iterator[IO[bytes]]:
    with _opened(path, entry) as file:
        _read_header(file, name)
        yield file


def _read_header(file: IO[bytes], name: str) -> _Header:
    try:
        version = npy_format.read_magic(file)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        header = _Header(*read(file))
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"'{name}' is no array numpy can read ({one_line(error)}): save it again") from error
    if header.dtype.hasobject:
        raise DataError(f"'{name}' holds Python objects, which are never unpickled: save it as numbers")
    return header


def _labels(
    path: str, members: dict[str, zipfile.ZipInfo], headers: dict[str, _Header], n: int
) -> np.ndarray[Any, Any] | None:
    for label in LABELS:
        if label in headers and np.prod(headers[label].shape) == n and len(headers[label].shape) <= 2:
            with _opened(path, members[label]) as file:
                return np.asarray(npy_format.read_array(file, allow_pickle=False)).reshape(n)
    return None
