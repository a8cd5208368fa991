"""How the format of a file is known, and what opens it: each reader of files states its own."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from dpca.storage.disk import begin_of, open_file
from dpca.storage.errors import DataError
from dpca.storage.readers.base import Reader

#: First bytes of a compressed file, and what decompresses an open one.
COMPRESSIONS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
DECOMPRESSION_ERRORS = (EOFError, OSError, zlib.error, lzma.LZMAError)
_HEAD = 512


class FileHead:
    """The name, in lower case, and the first bytes of a file."""

    def __init__(self, path: str) -> None:
        self._path, self.name = path, path.lower()
        self.first = begin_of(path, _HEAD)

    @cached_property
    def inner(self) -> bytes:
        """The first bytes of what a compressed file holds; of another file, its own."""
        for magic, opener in COMPRESSIONS.items():
            if self.first.startswith(magic):
                try:
                    with open_file(self._path) as packed, opener(packed) as file:
                        return bytes(file.read(_HEAD))
                except DECOMPRESSION_ERRORS as error:
                    raise DataError(f"'{self._path}' is truncated or broken ({error}): get it again") from error
        return self.first


class Format(NamedTuple):
    """A format of files."""

    name: str
    """What messages call it."""
    recognized: Callable[[FileHead], bool]
    """Whether a file is of this format: by its content first, by its name second."""
    open: Callable[[str, str | None, Sequence[str] | None], Reader]
    """What opens a path, given the key and the axes that were asked for."""
    anywhere: bool = False
    """Whether it opens URLs, too."""
