"""Encoded images in an LMDB database, the form in which LSUN is published: key = name, value = WebP file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from storage.errors import DataError
from storage.readers.base import MAX_ENCODED, Payload, Reader, Refused, digest, printable, require, too_large

_DATA = "data.mdb"


class LmdbReader(Reader):
    """Images in a database, in the order of its keys.

    Opening lists the keys (for LSUN's 3 million bedrooms they fit in 300 MB); values are read by the tasks.

    Parameters
    ----------
    path : str
        Folder that holds ``data.mdb``, or the file itself.

    Raises
    ------
    DataError
        If lmdb is missing or the database is broken.
    """

    kind = "lmdb"

    def __init__(self, path: str) -> None:
        path = os.path.abspath(path)
        if os.path.basename(path) == _DATA:
            path = os.path.dirname(path)
        self.name = os.path.basename(path)
        self._path = path
        lmdb = require("lmdb", "lmdb", f"'{self.name}'")
        try:
            environment = _environment(path)
            # the file is mapped: reading past its end would kill the process
            needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
            if os.path.getsize(_file(path)) < needed:
                raise DataError(f"'{self.name}' is truncated: {needed:,} bytes are in use; get it again")
            with environment.begin() as view, view.cursor() as cursor:
                self._keys: list[bytes] = list(cursor.iternext(keys=True, values=False))
        except lmdb.Error as error:
            raise DataError(f"'{self.name}' is truncated or no LMDB database ({error}): get it again") from error

    @property
    def names(self) -> Sequence[str]:
        """The keys as text; in hexadecimal where a key is none."""
        return _Names(self._keys)

    def fingerprint(self) -> str:
        """Hash of all keys."""
        return digest([self.kind, *self._keys])

    def part(self, indices: Sequence[int]) -> Callable[[], list[Payload]]:
        """Ship the keys of these images."""
        return partial(_read, self._path, [self._keys[i] for i in indices])


class _Names(Sequence[str]):
    """Keys as text, made when asked for: as a list they would take as much memory again."""

    def __init__(self, keys: list[bytes]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: Any) -> Any:
        keys = self._keys[index]
        return [_text(key) for key in keys] if isinstance(index, slice) else _text(keys)


def is_lmdb(path: str) -> bool:
    """Tell an LMDB database (folder or file) by its magic number."""
    if not os.path.isfile(_file(path)):
        return False
    with open(_file(path), "rb") as data:
        return data.read(20)[16:] == b"\xde\xc0\xef\xbe"


def _file(path: str) -> str:
    return os.path.join(path, _DATA) if os.path.isdir(path) else path


def _text(key: bytes) -> str:
    try:
        text = key.decode("ascii")
    except UnicodeDecodeError:
        return key.hex()
    return text if text.isprintable() else printable(key.hex())


_opening = threading.Lock()


def _environment(path: str) -> Any:
    # LMDB forbids opening a file twice in one process; the lock keeps two threads from doing it at once
    with _opening:
        status = os.stat(_file(path))
        return _opened(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4)
def _opened(path: str, *version: int) -> Any:
    import lmdb  # an optional library, and only tasks on LMDB databases get here

    # lock=False: the database is only read, and often lies on a disk where no lock file can be made
    return lmdb.open(path, subdir=os.path.isdir(path), readonly=True, lock=False, readahead=False, create=False)


def _read(path: str, keys: Sequence[bytes]) -> list[Payload]:
    block: list[Payload] = []
    with _environment(path).begin(buffers=True) as view:
        for key in keys:
            value = view.get(key)
            if value is None:
                block.append(Refused("is gone from the database"))
            else:
                block.append(bytes(value) if len(value) <= MAX_ENCODED else Refused(too_large(len(value))))
    return block
