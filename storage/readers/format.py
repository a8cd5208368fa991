"""How the format of a file is recognized, and which function opens it. Each module of a reader states its formats."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from dpca.storage.disk import begin_of, open_file
from dpca.storage.readers.base import Reader, source_errors

GZIP = b"\x1f\x8b"
#: First bytes of a compressed file, and the function that decompresses an open file.
COMPRESSIONS: dict[bytes, Callable[[Any], Any]] = {GZIP: gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
_HEAD = 512


class FileHead:
    """The name of a file in lower case, and its first bytes."""

    def __init__(self, path: str) -> None:
        self._path, self.name = path, path.lower()
        self.first = begin_of(path, _HEAD)

    @cached_property
    def inner(self) -> bytes:
        """The first bytes of the content of a compressed file; of any other file, its own first bytes."""
        opener = decompressor(self.first)
        if opener is None:
            return self.first
        broken = source_errors(f"'{self._path}' is truncated or broken")
        with broken, open_file(self._path) as packed, opener(packed) as file:
            return bytes(file.read(_HEAD))


def decompressor(head: bytes) -> Callable[[Any], Any] | None:
    """Return the function that decompresses an open file, from its first bytes; None if it is not compressed."""
    return next((opener for magic, opener in COMPRESSIONS.items() if head.startswith(magic)), None)


class Format(NamedTuple):
    """A format of files."""

    name: str
    """Name in messages."""
    recognized: Callable[[FileHead], bool]
    """Returns whether a file has this format, by its content first and by its name second."""
    open: Callable[[str, str | None, Sequence[str] | None], Reader]
    """Opens a path with the options ``key`` and ``axes``."""
    supports_urls: bool = False
    """Whether URLs are supported, too."""
