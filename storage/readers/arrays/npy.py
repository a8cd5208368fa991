"""Arrays in files of NumPy: ``.npy``, and one array of an ``.npz``."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy_format

from dpca.storage.errors import DataError
from dpca.storage.readers.arrays.raw import LABELS, Raw, RawReader, choose_key
from dpca.storage.readers.arrays.streamed import StreamReader, require_possible
from dpca.storage.readers.base import Reader, printable, source_errors
from dpca.storage.readers.format import Format
from dpca.storage.readers.zip import ZipPlace, data_start, entries
from dpca.storage.remote.objects import absolute, place_of

_BLOCK = 4 << 20


class _NpyHeader(NamedTuple):
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype[Any]
    offset: int

    def raw(self, path: str) -> Raw:
        """Return the array in a file with this header."""
        return Raw(path, self.offset, self.shape, self.dtype.str, self.order)


def open_npy(path: str, axes: Sequence[str] | None = None) -> Reader:
    """Open a ``.npy`` file. Its values are mapped, not loaded.

    Raises
    ------
    DataError
        If it is broken, truncated, or has Python objects.
    """
    name = os.path.basename(path)
    with place_of(path).open("rb") as file:
        header = _read_header(file, name)
    return RawReader(header.raw(absolute(path)), name, axes, kind="npy")


def open_npz(path: str, key: str | None = None, axes: Sequence[str] | None = None) -> Reader:
    """Open one array of an ``.npz`` file: mapped if it is stored, streamed if it is compressed.

    Parameters
    ----------
    path : str
        The file.
    key : str, optional
        Name of the array. The default is that of `dpca.storage.readers.arrays.raw.choose_key`. An array named
        ``labels`` (or ``label``, ``y``, ``targets``) with one entry per sample becomes the labels.
    axes : sequence of str, optional
        See `dpca.storage.readers.arrays.raw.ArrayReader`.

    Raises
    ------
    DataError
        If the file is broken, or it is unclear which array has the samples.
    """
    name, path = os.path.basename(path), os.path.abspath(path)
    members = {entry.filename.removesuffix(".npy"): entry for entry in entries(path) if entry.filename.endswith(".npy")}
    headers = {}
    for member, entry in members.items():
        with _opened(path, entry, f"{name}/{printable(member)}") as file:
            headers[member] = _read_header(file, f"{name}/{printable(member)}")
    key = choose_key(name, {member: header.shape for member, header in headers.items()}, key)
    entry, header = members[key], headers[key]
    label = f"{name}/{printable(key)}"
    reader: Reader
    if entry.compress_type == zipfile.ZIP_STORED:
        with open(path, "rb", buffering=0) as plain:
            with source_errors(f"'{label}' is truncated or broken", "get the archive again"):
                start = data_start(plain, ZipPlace.of(entry))
                plain.seek(start)
            raw = _read_header(plain, label).raw(path)
        end, check = start + entry.compress_size, partial(_check, path, entry, label)
        reader = RawReader(raw, label, axes, kind="npz", key=key, end=end, check=check)
    else:
        if header.order == "F":
            raise DataError(f"'{label}' is compressed in Fortran order: save it again with numpy.ascontiguousarray")
        opener = partial(_values, path, entry, label)
        reader = StreamReader(opener, header.raw(path), label, axes, kind="npz", key=key, packed=entry.compress_size)
    reader.labels = _labels(path, members, headers, len(reader))
    return reader


@contextmanager
def _opened(path: str, entry: zipfile.ZipInfo, name: str) -> Iterator[IO[bytes]]:
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 1:
        raise DataError(f"'{name}' is neither stored nor deflated, or is encrypted: save it again")
    with ExitStack() as opened:
        with source_errors(f"'{name}' is truncated or broken", "get the archive again"):
            archive = opened.enter_context(zipfile.ZipFile(path))
            file = opened.enter_context(archive.open(entry))
        yield file


@contextmanager
def _values(path: str, entry: zipfile.ZipInfo, name: str) -> Iterator[IO[bytes]]:
    with _opened(path, entry, name) as file:
        _read_header(file, name)
        yield file


def _check(path: str, entry: zipfile.ZipInfo, name: str) -> None:
    """Read a member to verify its checksum, since mapped values are read without it."""
    with _opened(path, entry, name) as file, source_errors(f"'{name}' is truncated or broken"):
        while file.read(_BLOCK):
            pass


def _read_header(file: IO[bytes], name: str) -> _NpyHeader:
    # NumPy parses the header as a Python literal.
    with source_errors(f"'{name}' is not an array that NumPy can read", "save it again"):
        version = npy_format.read_magic(file)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        shape = tuple(map(int, shape))  # for NumPy, truth values are integers
        header = _NpyHeader(shape, "F" if fortran else "C", dtype, file.tell())
    if header.dtype.hasobject:
        raise DataError(f"'{name}' has Python objects, which are never unpickled: save it as numbers")
    return header


def _labels(
    path: str, members: Mapping[str, zipfile.ZipInfo], headers: Mapping[str, _NpyHeader], n: int
) -> np.ndarray[Any, Any] | None:
    label = next((label for label in LABELS if label in headers and headers[label].shape in ((n,), (n, 1))), None)
    if label is None:
        return None
    name, entry, claimed = f"{os.path.basename(path)}/{label}", members[label], n * headers[label].dtype.itemsize
    if entry.compress_type == zipfile.ZIP_DEFLATED:
        require_possible(claimed, entry.compress_size, f"'{name}'")
    elif claimed > entry.compress_size:
        raise DataError(f"'{name}' is truncated: it has {entry.compress_size:,} of {claimed:,} bytes; get it again")
    with _opened(path, entry, name) as file, source_errors(f"'{name}' is truncated or broken"):
        return np.asarray(npy_format.read_array(file, allow_pickle=False)).reshape(n)


FORMATS = (
    Format(
        ".npy",
        lambda file: file.first.startswith(b"\x93NUMPY"),
        lambda path, key, axes: open_npy(path, axes),
        supports_urls=True,
    ),
    Format(".npz", lambda file: file.name.endswith(".npz"), open_npz),
)
