"""Arrays in numpy's files: ``.npy``, and one array of an ``.npz``."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy_format

from dpca.storage.errors import DataError, one_line
from dpca.storage.readers.arrays.raw import (
    LABELS,
    PackedFile,
    Raw,
    RawReader,
    StreamReader,
    choose_key,
    require_possible,
)
from dpca.storage.readers.base import Reader, digest, digest_file, printable
from dpca.storage.readers.format import Format
from dpca.storage.readers.zip import data_start, entries
from dpca.storage.readers.zip import place_of as member_place
from dpca.storage.remote.objects import absolute, place_of

_BLOCK = 4 << 20


class _NpyHeader(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def order(self) -> Literal["C", "F"]:
        return "F" if self.fortran else "C"


def open_npy(path: str, axes: Sequence[str] | None = None) -> Reader:
    """Open a ``.npy`` file; its values are mapped, not loaded.

    Raises
    ------
    DataError
        If it is broken, truncated, or holds Python objects.
    """
    name = os.path.basename(path)
    with place_of(path).open("rb") as file:
        header = _read_header(file, name)
        offset = file.tell()
    raw = Raw(absolute(path), offset, header.shape, header.dtype.str, header.order)
    return RawReader(raw, kind="npy", identity=partial(digest_file, path), name=name, axes=axes)


def open_npz(path: str, key: str | None = None, axes: Sequence[str] | None = None) -> Reader:
    """Open one array of an ``.npz`` file: mapped if it is stored plainly, streamed if it is compressed.

    Parameters
    ----------
    path : str
        The file.
    key : str, optional
        Name of the array, by default as `dpca.storage.readers.arrays.raw.choose_key` says. An array called ``labels``
        (or
        ``label``, ``y``, ``targets``) with one entry a sample becomes the labels.
    axes : sequence of str, optional
        See `dpca.storage.readers.arrays.raw.ArrayReader`.

    Raises
    ------
    DataError
        If the file is broken, or does not say which array is meant.
    """
    name = os.path.basename(path)
    members = {entry.filename.removesuffix(".npy"): entry for entry in entries(path) if entry.filename.endswith(".npy")}
    headers = {}
    for member, entry in members.items():
        with _opened(path, entry, f"{name}/{printable(member)}") as file:
            headers[member] = _read_header(file, f"{name}/{printable(member)}")
    key = choose_key(name, {member: header.shape for member, header in headers.items()}, key)
    entry, header = members[key], headers[key]
    identity = partial(digest, [digest_file(path), key])
    label = f"{name}/{printable(key)}"
    reader: Reader
    if entry.compress_type == zipfile.ZIP_STORED:
        with open(path, "rb", buffering=0) as plain:
            try:
                start = data_start(plain, member_place(entry))
                plain.seek(start)
            except ValueError as error:
                raise DataError(f"'{label}' {error}: get the archive again") from error
            mapped = _read_header(plain, label)
            raw = Raw(os.path.abspath(path), plain.tell(), mapped.shape, mapped.dtype.str, mapped.order)
        reader = RawReader(
            raw,
            kind="npz",
            identity=identity,
            name=label,
            axes=axes,
            end=start + entry.compress_size,
            check=partial(_check, raw.path, entry, label),
        )
    else:
        if header.fortran:
            raise DataError(f"'{label}' is compressed in Fortran order: save it again with numpy.ascontiguousarray")
        reader = StreamReader(
            PackedFile(
                partial(_values, os.path.abspath(path), entry, label),
                (zipfile.BadZipFile, zlib.error, EOFError, OSError),
                entry.compress_size,
            ),
            header.shape,
            header.dtype,
            kind="npz",
            identity=identity,
            name=label,
            axes=axes,
        )
    reader.labels = _labels(path, members, headers, len(reader))
    return reader


@contextmanager
def _opened(path: str, entry: zipfile.ZipInfo, name: str) -> Iterator[IO[bytes]]:
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 1:
        raise DataError(f"'{name}' is neither stored nor deflated, or is encrypted: save it again")
    try:
        archive = zipfile.ZipFile(path)
        file = archive.open(entry)
    except Exception as error:
        # A hostile directory can end in any exception inside zipfile; all of them mean the same here.
        raise DataError(f"'{name}' is truncated or broken ({one_line(error)}): get the archive again") from error
    with archive, file:
        yield file


@contextmanager
def _values(path: str, entry: zipfile.ZipInfo, name: str) -> Iterator[IO[bytes]]:
    with _opened(path, entry, name) as file:
        _read_header(file, name)
        yield file


def _check(path: str, entry: zipfile.ZipInfo, name: str) -> None:
    """Compare the checksum of a member with its bytes, which nothing else does where they are mapped."""
    with _opened(path, entry, name) as file:
        try:
            while file.read(_BLOCK):
                pass
        except (EOFError, OSError, zipfile.BadZipFile) as error:
            raise DataError(f"'{name}' is truncated or broken ({one_line(error)}): get it again") from error


def _read_header(file: IO[bytes], name: str) -> _NpyHeader:
    try:
        version = npy_format.read_magic(file)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        header = _NpyHeader(tuple(map(int, shape)), fortran, dtype)  # truth values are integers to numpy's parser
    except Exception as error:
        # numpy parses the header as Python: what is wrong with it can end in any exception there
        raise DataError(f"'{name}' is not an array that numpy can read ({one_line(error)}): save it again") from error
    if header.dtype.hasobject:
        raise DataError(f"'{name}' holds Python objects, which are never unpickled: save it as numbers")
    return header


def _labels(
    path: str, members: dict[str, zipfile.ZipInfo], headers: dict[str, _NpyHeader], n: int
) -> np.ndarray[Any, Any] | None:
    label = next((label for label in LABELS if label in headers and headers[label].shape in ((n,), (n, 1))), None)
    if label is None:
        return None
    name, entry, claimed = f"{os.path.basename(path)}/{label}", members[label], n * headers[label].dtype.itemsize
    if entry.compress_type == zipfile.ZIP_DEFLATED:
        require_possible(claimed, entry.compress_size, f"'{name}'")
    elif claimed > entry.compress_size:
        raise DataError(f"'{name}' is truncated: it has {entry.compress_size:,} of {claimed:,} bytes; get it again")
    with _opened(path, entry, name) as file:
        try:
            return np.asarray(npy_format.read_array(file, allow_pickle=False)).reshape(n)
        except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"'{name}' is truncated or broken ({one_line(error)}): get it again") from error


FORMATS = (
    Format(
        ".npy",
        lambda file: file.first.startswith(b"\x93NUMPY"),
        lambda path, key, axes: open_npy(path, axes),
        anywhere=True,
    ),
    Format(".npz", lambda file: file.name.endswith(".npz"), open_npz),
)
