"""Zip archives, which are not unpacked: the directory is read once, then each member on its own.

Members are read here and not by `zipfile`. A task then needs no directory (that of CelebA has 202,599 entries), threads
share nothing, and no member can exceed the size that its entry claims.
"""

from __future__ import annotations

import itertools
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, NamedTuple

from dpca.storage.disk import open_file, read_at
from dpca.storage.errors import DataError
from dpca.storage.pictures import HEAD
from dpca.storage.readers.base import (
    Members,
    Payload,
    Reader,
    Refused,
    Verdict,
    digest,
    digest_file,
    judge_member,
    listed,
    read_members,
    source_errors,
)
from dpca.storage.readers.format import Format
from dpca.storage.remote.objects import absolute

_LOCAL_HEADER = 30


class ZipPlace(NamedTuple):
    """Position, size and checksum of a member."""

    offset: int
    packed: int
    size: int
    method: int
    crc: int

    @classmethod
    def of(cls, entry: zipfile.ZipInfo) -> ZipPlace:
        """Return the place of a member from its entry in the directory."""
        return cls(entry.header_offset, entry.compress_size, entry.file_size, entry.compress_type, entry.CRC)


class ZipReader(Reader):
    """Images in a ``.zip``, in the order of its directory.

    Members with a path out of the archive, links, devices and encrypted members are refused by name.

    Parameters
    ----------
    path : str
        The archive.
    """

    kind = "zip"

    def __init__(self, path: str) -> None:
        self.name = os.path.basename(path)
        self._path = absolute(path)
        self._members: Members[ZipPlace] = Members()
        with open_file(path) as file:
            for entry in entries(path):
                verdict = Verdict.HIDDEN if entry.filename.endswith("/") else _judge(entry, file)
                self._members.add(entry.filename, ZipPlace.of(entry), verdict)
        self.refused, self.others = self._members.refused, self._members.others

    @property
    def names(self) -> Sequence[str]:
        """Names of the members."""
        return self._members.names

    def fingerprint(self) -> str:
        """Hash of size and ends of the file, and of the names, sizes and checksums of the members."""
        checksums = (value for place in self._members.places for value in (place.size, place.crc))
        return digest([digest_file(self._path), listed(self._members.names), listed(checksums)])

    def part(self, indices: Sequence[int]) -> Callable[[], list[Payload]]:
        """Return a function that reads these members at their places in the file."""
        return partial(read_members, self._path, self._members.places_of(indices), _read_member)


def entries(path: str) -> list[zipfile.ZipInfo]:
    """List the directory of a zip archive.

    Raises
    ------
    DataError
        If there is no directory, since the archive is truncated, or if members overlap: a small file could then
        contain any number of large members.
    """
    name = os.path.basename(path)
    broken = source_errors(f"archive '{name}' is truncated or broken", "get it again or repack it")
    with broken, open_file(path) as file, zipfile.ZipFile(file) as archive:
        found = archive.infolist()
    placed = sorted(found, key=lambda entry: entry.header_offset)
    for one, other in itertools.pairwise(placed):
        if one.header_offset + _LOCAL_HEADER + one.compress_size > other.header_offset:
            raise DataError(
                f"archive '{name}' is broken ('{one.filename}' and '{other.filename}' overlap in it): get it again or "
                f"repack it"
            )
    return found


def data_start(file: IO[bytes], place: ZipPlace) -> int:
    """Return the offset of the first byte of a member, from its local header.

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
    verdict = judge_member(entry.orig_filename, size, nature, lambda: _head(file, ZipPlace.of(entry)))
    if verdict is Verdict.IMAGE:
        if entry.flag_bits & 1:
            return "is encrypted"
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return f"is packed by zip method {entry.compress_type}: only stored and deflated members are supported"
    return verdict


def _inflated(payload: bytes, place: ZipPlace, most: int) -> bytes:
    """Decompress at most ``most`` bytes of a deflated member; return a stored member unchanged."""
    if place.method == zipfile.ZIP_STORED:
        return payload
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(payload, most)


def _head(file: IO[bytes], place: ZipPlace) -> bytes:
    """Return the first bytes of a member; empty if they are encrypted or broken."""
    try:
        return _inflated(read_at(file, 2 * HEAD, data_start(file, place)), place, HEAD)
    except (ValueError, zlib.error):
        return b""


def _read_member(file: IO[bytes], file_size: int, place: ZipPlace) -> Payload:
    try:
        start = data_start(file, place)
        payload = read_at(file, max(0, min(place.packed, file_size - start)), start)
        # One byte more than claimed is enough to detect a false claim.
        payload = _inflated(payload, place, place.size + 1)
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
        supports_urls=True,
    ),
)
