"""Zip archives, read in place: the directory once, then every member on its own.

Members are read here and not by `zipfile`, so that a task needs no directory (CelebA's has 202,599 entries),
threads share nothing, and no member can grow beyond the size that its entry claims.
"""

from __future__ import annotations

import itertools
import os
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, NamedTuple

from dpca.storage.disk import open_file, read_at
from dpca.storage.errors import DataError, StoreError, one_line
from dpca.storage.pictures import HEAD
from dpca.storage.readers.base import (
    Payload,
    Reader,
    Refused,
    Verdict,
    digest,
    digest_file,
    judge_member,
    printable,
    suffix_of,
)
from dpca.storage.readers.format import Format
from dpca.storage.remote.objects import absolute

_LOCAL_HEADER = 30


class Place(NamedTuple):
    """Position, size and checksum of a member."""

    offset: int
    packed: int
    size: int
    method: int
    crc: int


class ZipReader(Reader):
    """Images in a ``.zip``, in the order of its directory.

    Members that climb out of the archive, links, devices and encrypted members are refused by name.

    Parameters
    ----------
    path : str
        The archive.
    """

    kind = "zip"

    def __init__(self, path: str) -> None:
        self.name = os.path.basename(path)
        self._path = absolute(path)
        self._names: list[str] = []
        self._places: list[Place] = []
        others: Counter[str] = Counter()
        refused: dict[int, str] = {}
        with open_file(path) as file:
            for entry in entries(path):
                verdict = _judge(entry, file)
                if entry.filename.endswith("/") or verdict is Verdict.HIDDEN:
                    continue
                if verdict is Verdict.OTHER:
                    others[suffix_of(entry.filename)] += 1
                    continue
                if isinstance(verdict, str):
                    refused[len(self._names)] = verdict
                self._names.append(printable(entry.filename))
                self._places.append(place_of(entry))
        self.refused, self.others = refused, others

    @property
    def names(self) -> Sequence[str]:
        """Names of the members."""
        return self._names

    def fingerprint(self) -> str:
        """Hash of size and ends of the file, and of the names, sizes and checksums of the members."""
        parts: list[str | int] = [digest_file(self._path), *self._names]
        for place in self._places:
            parts += (place.size, place.crc)
        return digest(parts)

    def part(self, indices: Sequence[int]) -> Callable[[], list[Payload]]:
        """Ship the places of these members in the file."""
        places: list[Place | str] = [self.refused.get(i, self._places[i]) for i in indices]
        return partial(_read_places, self._path, places)


def entries(path: str) -> list[zipfile.ZipInfo]:
    """List the directory of a zip archive.

    Raises
    ------
    DataError
        If it has none, which is how a truncated archive shows, or members lie over each other: so a few bytes could
        stand for any number of large members.
    """
    name = os.path.basename(path)
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            found = archive.infolist()
    except (PermissionError, StoreError):
        raise
    except Exception as error:
        # A hostile directory can end in any exception inside zipfile; all of them mean the same here.
        raise DataError(
            f"archive '{name}' is truncated or broken ({one_line(error)}): get it again or repack it"
        ) from error
    placed = sorted(found, key=lambda entry: entry.header_offset)
    for one, other in itertools.pairwise(placed):
        if one.header_offset + _LOCAL_HEADER + one.compress_size > other.header_offset:
            raise DataError(
                f"archive '{name}' is broken ('{one.filename}' and '{other.filename}' lie over each other in it): get "
                f"it again or repack it"
            )
    return found


def place_of(entry: zipfile.ZipInfo) -> Place:
    """Return where a member lies."""
    return Place(entry.header_offset, entry.compress_size, entry.file_size, entry.compress_type, entry.CRC)


def data_start(file: IO[bytes], place: Place) -> int:
    """Return where the bytes of a member begin, from its local header.

    Raises
    ------
    ValueError
        If there is no local header.
    """
    header = read_at(file, _LOCAL_HEADER, place.offset) if 0 <= place.offset < 1 << 63 else b""
    if len(header) < _LOCAL_HEADER or header[:4] != b"PK\x03\x04":
        raise ValueError("has no header in the archive")
    return place.offset + _LOCAL_HEADER + sum(int.from_bytes(header[i : i + 2], "little") for i in (26, 28))


def _judge(entry: zipfile.ZipInfo, file: IO[bytes]) -> Verdict | str:
    mode = entry.external_attr >> 16 if entry.create_system == 3 else 0
    kind = stat.S_IFMT(mode)
    nature = "file" if kind in (0, stat.S_IFREG, stat.S_IFDIR) else "link" if kind == stat.S_IFLNK else "device"
    size = max(entry.file_size, entry.compress_size)
    verdict = judge_member(entry.orig_filename, size, nature, lambda: _head(file, place_of(entry)))
    if verdict is Verdict.IMAGE:
        if entry.flag_bits & 1:
            return "is encrypted"
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return f"is packed by zip method {entry.compress_type}: only stored and deflated members are read"
    return verdict


def _head(file: IO[bytes], place: Place) -> bytes:
    """Return the first bytes of a member, nothing where they are encrypted or broken."""
    try:
        head = read_at(file, 2 * HEAD, data_start(file, place))
        return (
            head if place.method == zipfile.ZIP_STORED else zlib.decompressobj(-zlib.MAX_WBITS).decompress(head, HEAD)
        )
    except (ValueError, zlib.error):
        return b""


def _read_places(path: str, places: Sequence[Place | str]) -> list[Payload]:
    with open_file(path) as file:
        return [Refused(p) if isinstance(p, str) else _read_place(file, p) for p in places]


def _read_place(file: IO[bytes], place: Place) -> Payload:
    try:
        start = data_start(file, place)
        payload = read_at(file, max(0, min(place.packed, file.seek(0, os.SEEK_END) - start)), start)
        if place.method == zipfile.ZIP_DEFLATED:
            # one byte more than claimed is enough to see that the claim is false
            payload = zlib.decompressobj(-zlib.MAX_WBITS).decompress(payload, place.size + 1)
    except (ValueError, zlib.error) as error:
        return Refused(f"is broken in the archive ({error})")
    if len(payload) != place.size or zlib.crc32(payload) != place.crc:
        return Refused("is broken in the archive (its size or checksum is wrong)")
    return payload


FORMATS = (
    Format(
        ".zip",
        lambda file: file.name.endswith(".zip") or file.first.startswith((b"PK\x03\x04", b"PK\x05\x06")),
        lambda path, key, axes: ZipReader(path),
        anywhere=True,
    ),
)
