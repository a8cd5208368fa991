"""Encoded images in an LMDB database, the format of LSUN: the key is a name, the value is a WebP file.

The library LMDB is not used. It maps the file into memory and trusts every offset, so one flipped bit can crash the
process. Here the tree of keys is read once, and every number is checked against the file. Tasks then read images at
their places and need neither the library nor the tree.

::

    page         0      1      2 ...                         a page begins with its number, flags, and the ends of
               +------+------+--------+------+----------+    the list of its nodes and of the nodes themselves
               | meta | meta | branch | leaf | overflow |
               +------+------+--------+------+----------+    node of a branch: number of a page
                 the one with the later transaction is       node of a leaf: key and value, or the page where a
                 valid                                       large value begins
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from dpca.storage.errors import DataError
from dpca.storage.readers.base import (
    MAX_ENCODED,
    Payload,
    Reader,
    digest,
    printable,
    read_extent,
    read_members,
    too_large,
)
from dpca.storage.remote.network import is_url

_DATA = "data.mdb"
_MAGIC, _VERSION = 0xBEEFC0DE, 1

_PAGE_HEADER = struct.Struct("<QHHHH")  # number, padding, flags, end of the list of nodes, begin of the nodes
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_NODE = struct.Struct("<HHHH")  # low and high half of size or page number, flags or its highest part, size of the key
_ELSEWHERE = 1
# magic number, version, address, size of the map, size of a page (in the entry of free pages), ...
_META = struct.Struct("<IIQQI44xIHHQQQQQQQ")
_META_AT = 16
_EMPTY = 2**64 - 1
_DEPTH = 32  # the limit of LMDB


class LmdbReader(Reader):
    """Images in a database, in the order of its keys.

    Opening lists the keys and the places of their values (350 MB for the 3 million bedrooms of LSUN). Tasks read the
    values. Supported are databases of 64-bit machines with one value per key, like all published ones.

    Parameters
    ----------
    path : str
        The folder of ``data.mdb``, or the file itself.

    Raises
    ------
    DataError
        If the database is broken.
    """

    kind = "lmdb"

    def __init__(self, path: str) -> None:
        path = os.path.abspath(path)
        if os.path.basename(path) == _DATA:
            path = os.path.dirname(path)
        self.name = os.path.basename(path)
        self._file = _file(path)
        self._keys: list[bytes] = []
        self._offsets, self._sizes = array("Q"), array("Q")
        for key, offset, size in _Tree(self._file, self.name).values():
            self._keys.append(key)
            self._offsets.append(offset)
            self._sizes.append(size)

    @property
    def names(self) -> Sequence[str]:
        """The keys as text; a key that is not text is in hexadecimal."""
        return _KeyNames(self._keys)

    def fingerprint(self) -> str:
        """Hash of all keys."""
        return digest([self.kind, *self._keys])

    def part(self, indices: Sequence[int]) -> Callable[[], list[Payload]]:
        """Return a function that reads these images at their places in the file."""
        places = [
            (self._offsets[i], size) if (size := self._sizes[i]) <= MAX_ENCODED else too_large(size) for i in indices
        ]
        return partial(read_members, self._file, places, read_extent)


class _KeyNames(Sequence[str]):
    """Keys as text, decoded on access, since a list would double the memory."""

    def __init__(self, keys: list[bytes]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: Any) -> Any:
        keys = self._keys[index]
        return [_text(key) for key in keys] if isinstance(index, slice) else _text(keys)


class _Meta(NamedTuple):
    """The content of a meta page."""

    magic: int
    version: int
    address: int
    map_size: int
    page_size: int
    padding: int
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int
    last_page: int
    transaction: int


class _Tree:
    """The tree of keys in a file. Every number is checked."""

    def __init__(self, path: str, name: str) -> None:
        self._path, self._name = path, name

    def values(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield key, offset and size of every value, in the order of the keys."""
        with open(self._path, "rb", buffering=0) as file:
            self._descriptor, self._size = file.fileno(), os.fstat(file.fileno()).st_size
            meta = self._newest_meta()
            self._page_size, self._last = meta.page_size, meta.last_page
            needed = (meta.last_page + 1) * meta.page_size
            if self._size < needed:
                raise DataError(f"'{self._name}' is truncated: {needed:,} bytes are in use; get it again")
            if meta.root == _EMPTY:
                return
            found, seen = 0, 0
            waiting = [(meta.root, 1)]
            while waiting:
                number, depth = waiting.pop()
                seen += 1
                # A page occurs once in a tree, so there is no cycle, and its depth is limited.
                if not 1 < number <= self._last or seen > self._last or depth > min(meta.depth, _DEPTH):
                    raise self._broken(f"page {number:,} is out of place")
                page, nodes, flags = self._page(number)
                if flags & _BRANCH:
                    children = [low | high << 16 | top << 32 for _, low, high, top, _ in self._nodes(page, nodes)]
                    waiting += [(child, depth + 1) for child in reversed(children)]
                    continue
                for value in self._values(page, nodes, number):
                    found += 1
                    yield value
        if found != meta.entries:
            raise self._broken(f"{found:,} of {meta.entries:,} keys are found")

    def _newest_meta(self) -> _Meta:
        first = self._meta(0)
        sizes = (first.page_size,) if first is not None else (4096, 8192, 16384, 32768, 65536)
        found = [meta for meta in (first, *map(self._meta, sizes)) if meta is not None]
        if not found:
            raise self._broken("it has no valid meta page")
        return max(found, key=lambda meta: meta.transaction)

    def _meta(self, offset: int) -> _Meta | None:
        text = os.pread(self._descriptor, _META.size, offset + _META_AT)
        if len(text) < _META.size:
            return None
        meta = _Meta(*_META.unpack(text))
        size = meta.page_size
        sound = (meta.magic, meta.version) == (_MAGIC, _VERSION) and 256 <= size <= 1 << 16 and not size & (size - 1)
        # No file of 63 bits has more pages.
        return meta if sound and meta.last_page < 1 << 48 else None

    def _page(self, number: int) -> tuple[bytes, int, int]:
        """Return a page of the tree, the number of its nodes, and its kind."""
        page = os.pread(self._descriptor, self._page_size, number * self._page_size)
        own, _, flags, end, _ = _PAGE_HEADER.unpack_from(page)
        kind = flags & (_BRANCH | _LEAF)
        nodes, odd = divmod(end - _PAGE_HEADER.size, 2)
        if own != number or kind not in (_BRANCH, _LEAF) or flags & ~0x13 or nodes < 0 or odd or end > len(page):
            raise self._broken(f"page {number:,} is not a page of the tree")
        return page, nodes, kind

    def _nodes(self, page: bytes, n: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield offset and header of every node, after checking that it is in the page with its key."""
        for at in struct.unpack_from(f"<{n}H", page, _PAGE_HEADER.size):
            if at + _NODE.size > len(page):
                raise self._broken("a node leads out of its page")
            low, high, flags, key = _NODE.unpack_from(page, at)
            if at + _NODE.size + key > len(page):
                raise self._broken("a key leads out of its page")
            yield at, low, high, flags, key

    def _values(self, page: bytes, n: int, number: int) -> Iterator[tuple[bytes, int, int]]:
        for at, low, high, flags, key_size in self._nodes(page, n):
            size = low | high << 16
            start = at + _NODE.size + key_size
            key = page[at + _NODE.size : start]
            if flags & ~_ELSEWHERE:
                raise DataError(f"'{self._name}' has several values or a database under a key: give one value per key")
            if not flags & _ELSEWHERE:
                offset, end = number * self._page_size + start, (number + 1) * self._page_size
            elif start + 8 <= len(page):
                first = int.from_bytes(page[start : start + 8], "little")
                if not 1 < first <= self._last:
                    raise self._broken(f"the value of {_text(key)!r} is outside of the file")
                offset, end = first * self._page_size + _PAGE_HEADER.size, self._size
            else:
                raise self._broken("a node leads out of its page")
            if offset + size > end:
                raise self._broken(f"the value of {_text(key)!r} ends outside of the file")
            yield key, offset, size

    def _broken(self, why: str) -> DataError:
        return DataError(f"'{self._name}' is truncated or no LMDB database ({why}): get it again")


def is_lmdb(path: str) -> bool:
    """Return whether a folder or file is an LMDB database, by its magic number."""
    if is_url(path) or not os.path.isfile(_file(path)) or not os.path.getsize(_file(path)):
        return False
    with open(_file(path), "rb") as data:
        return data.read(20)[16:] == _MAGIC.to_bytes(4, "little")


def _file(path: str) -> str:
    return os.path.join(path, _DATA) if os.path.isdir(path) else path


def _text(key: bytes) -> str:
    try:
        text = key.decode("ascii")
    except UnicodeDecodeError:
        return key.hex()
    return text if text.isprintable() else printable(key.hex())
