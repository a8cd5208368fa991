"""Tar archives, plain or compressed, read in place.

A plain archive is indexed once (one header a member) and then read at random. A compressed one can only be
read from its beginning: it is decompressed once for the index and once for the images, and nothing of it is
ever written to disk.
"""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import IO, Any

from dpca.storage.disk import begin_of, open_file, read_at
from dpca.storage.errors import DataError, StoreError, one_line
from dpca.storage.pictures import HEAD
from dpca.storage.readers.base import (
    MAX_ENCODED,
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
from dpca.storage.readers.format import COMPRESSIONS, Format
from dpca.storage.remote.objects import absolute, place_of

_BLOCK = 512
# Long names and headers of pax are texts of some lines.
_MOST_HEADER = 1 << 20


@dataclass
class _Index:
    names: list[str] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)


class TarReader(Reader):
    """Images in a ``.tar``, ``.tar.gz``, ``.tgz``, ``.tar.bz2`` or ``.tar.xz``, in archive order.

    Members that climb out of the archive, links, devices and sparse files are refused by name; an archive
    without its end-of-archive mark is taken for truncated.

    Parameters
    ----------
    path : str
        The archive.
    """

    def __init__(self, path: str) -> None:
        self.name = os.path.basename(path)
        self._path = absolute(path)
        head = begin_of(path, 6)
        self._open: Callable[[Any], IO[bytes]] | None = next(
            (opener for magic, opener in COMPRESSIONS.items() if head.startswith(magic)), None
        )
        self.random_access = self._open is None
        self.kind = "tar" if self.random_access else "compressed tar"

    @cached_property
    def _index(self) -> _Index:
        index = _Index()
        for member, verdict, _ in self._members():
            if verdict is Verdict.OTHER:
                index.others[suffix_of(member.name)] += 1
                continue
            if isinstance(verdict, str):
                index.refused[len(index.names)] = verdict
            index.names.append(printable(member.name))
            index.places.append((member.offset_data, member.size))
        return index

    @property
    def names(self) -> Sequence[str]:
        """Names of the members; the first access reads the archive's headers."""
        return self._index.names

    @cached_property
    def refused(self) -> Mapping[int, str]:  # type: ignore[override]
        """Members refused for what their headers say."""
        return self._index.refused

    @cached_property
    def others(self) -> Mapping[str, int]:  # type: ignore[override]
        """Suffixes of the members that are no images."""
        return self._index.others

    def fingerprint(self) -> str:
        """Hash of size and ends of the file, and of the members' names and sizes where these are cheap to list."""
        parts: list[str | int] = [digest_file(self._path)]
        if self.random_access:
            parts += self._index.names
            parts += [size for _, size in self._index.places]
        return digest(parts)

    def part(self, indices: Sequence[int]) -> Callable[[], list[Payload]]:
        """Ship the places of these members in the file."""
        if not self.random_access:
            raise TypeError(f"{self.name} is compressed: use stream")
        index = self._index
        places: list[tuple[int, int] | str] = [index.refused.get(i, index.places[i]) for i in indices]
        return partial(_read_places, self._path, places)

    def stream(self, requests: Iterable[Sequence[int]]) -> Iterator[list[Payload]]:
        """Decompress the archive once, yielding the requested members."""
        if self.random_access:
            yield from super().stream(requests)  # type: ignore[misc]
            return
        with closing(self._members()) as members:
            images = enumerate(member for member in members if member[1] is not Verdict.OTHER)
            for indices in requests:
                block: list[Payload] = []
                for wanted in indices:
                    member, verdict, tape = next(image for i, image in images if i == wanted)
                    block.append(Refused(verdict) if isinstance(verdict, str) else self._payload(member, tape))
                yield block

    def _payload(self, member: tarfile.TarInfo, tape: _Tape) -> bytes:
        with self._reading():
            # never backward, since a compressed file is then read again from its beginning
            tape.seek(member.offset_data + len(tape.head))
            payload = tape.head + tape.read(member.size - len(tape.head))
        if len(payload) < member.size:
            raise DataError(self._broken("it ends inside a member"))
        return payload

    def _members(self) -> Generator[tuple[tarfile.TarInfo, Verdict | str, _Tape], None, None]:
        """Yield the members that are not hidden, in order, each with its verdict."""
        with self._opened() as file:
            tape = _Tape(file)
            with self._reading():
                archive = tarfile.TarFile(fileobj=tape)  # type: ignore[arg-type]
            while True:
                with self._reading():
                    tape.most = _MOST_HEADER
                    member = archive.next()
                    tape.most = MAX_ENCODED
                if member is None:
                    break
                archive.members.clear()  # type: ignore[attr-defined]  # it would keep every header of the archive
                if member.isdir():
                    continue
                with self._reading():
                    verdict = _judge(member, tape)
                if verdict is not Verdict.HIDDEN:
                    yield member, verdict, tape
            # tarfile takes a cut or a damaged header for the end
            if len(tape.last) != _BLOCK or any(tape.last):
                raise DataError(self._broken("it breaks off without an end-of-archive mark"))
            with self._reading():  # the rest is padding, but reading it checks the compressed file to its end
                while self._open is not None and file.read(1 << 20):
                    pass

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        with place_of(self._path).open("rb") as plain:
            if self._open is None:
                yield plain
            else:
                with self._open(plain) as file:
                    yield file

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (DataError, StoreError, MemoryError):
            raise
        except Exception as error:
            # A hostile header can end in any exception inside tarfile; all of them mean the same here.
            raise DataError(self._broken(one_line(error))) from error

    def _broken(self, why: str) -> str:
        return f"archive '{self.name}' is truncated or broken ({why}): get it again or repack it"


class _Tape:
    """The file under a tarfile: remembers the last block, refuses reads larger than any header or image needs."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.most = _MOST_HEADER
        self.last = b""
        self.head = b""  # of the member at hand, where it was looked at
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.most + _BLOCK:
            raise tarfile.ReadError(f"a header claims {size:,} bytes")
        self.last = self._file.read(size)
        return self.last


def _judge(member: tarfile.TarInfo, tape: _Tape) -> Verdict | str:
    def head() -> bytes:
        tape.seek(member.offset_data)
        tape.head = tape.read(min(HEAD, member.size))
        return tape.head

    tape.head = b""
    nature = "file" if member.isreg() else "link" if member.issym() or member.islnk() else "device"
    verdict = judge_member(member.name, member.size, nature, head)
    if verdict is Verdict.IMAGE and member.issparse():
        return "is stored as a sparse file, which is not read"
    return verdict


def _read_places(path: str, places: Sequence[tuple[int, int] | str]) -> list[Payload]:
    block: list[Payload] = []
    with open_file(path) as file:
        end = file.seek(0, os.SEEK_END)
        for place in places:
            if isinstance(place, str):
                block.append(Refused(place))
                continue
            offset, size = place
            payload = read_at(file, max(0, min(size, end - offset)), offset) if end > offset else b""
            whole = len(payload) == size
            block.append(payload if whole else Refused(f"is cut off after {len(payload)} of {size} bytes"))
    return block


_SUFFIXES = (".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz")
FORMATS = (
    Format(
        ".tar(.gz, .bz2, .xz)",
        lambda file: file.inner[257:262] == b"ustar" or file.name.endswith(_SUFFIXES),
        lambda path, key, axes: TarReader(path),
        anywhere=True,
    ),
)
