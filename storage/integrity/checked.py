"""A read-only Zarr store that verifies every read against the integrity manifest and allows only known codecs.

Zarr decodes a missing chunk as fill values, also if a directory is at its path. It accepts a chunk from another place
or another store. A `CheckedStore` wraps the store that Zarr reads from. Each read, eager or lazy, returns the values
that were written, or raises an error with the name of the file. It compares the CRC-32C at the end of each chunk with
the manifest. Zarr compares the same CRC-32C with the bytes of the chunk, so the comparison costs almost nothing.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore

from dpca.storage.errors import ReplacedError, StoreError
from dpca.storage.integrity.checksums import Entry, ShardChecksums, crc_at, index_bytes, places_in
from dpca.storage.integrity.codecs import check_codecs
from dpca.storage.integrity.manifest import (
    CHECKSUMS,
    METADATA,
    ZARR_METADATA,
    Manifest,
    digest_of,
    has_manifest,
    read_manifest,
)
from dpca.storage.integrity.misplaced import orphaned, refuse_links, require_known_outside, with_checksums
from dpca.storage.integrity.replaced import refuse_gap
from dpca.storage.integrity.unchecked import (
    ReadOnlyStore,
    content_of,
    missing_file,
    plain_store,
    require_file,
    start_of,
)
from dpca.storage.remote.objects import absolute
from dpca.storage.synthetic.store import with_samples

_METADATA = (*ZARR_METADATA, ".zmetadata")
# The keys of chunks in Zarr version 3, after the path of their array.
_CHUNK = re.compile(r"(?:^|/)c(?:/[0-9]+)*$")
#: Attribute of every array that dpca writes. It makes a missing shard an error; Zarr would decode it as fill values.
DENSE_KEY = "every_shard_is_stored"
# Number of shard indexes, and of files of checksums, that are cached between reads.
_CACHED = 64


class CheckedStore(ReadOnlyStore):
    """Wraps a store for reading and compares its content with its integrity manifest.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The wrapped store. Its root is the root of the manifest, if there is one.
    where : str
        Path or URL of this root.
    manifest : Manifest, optional
        Without a manifest, each read checks only the codecs, and that arrays created by dpca have all shards.

    Raises
    ------
    StoreError
        From any read: if a file is missing, torn, a link, not a regular file, or not the file that was written at its
        place; if a codec is unknown to numcodecs and Zarr, or executes code when it decodes.
    ReplacedError
        From any read, instead of StoreError, if the store was replaced or removed since it was opened.
    """

    def __init__(self, store: Store, where: str, manifest: Manifest | None = None) -> None:
        super().__init__()
        self.held, self.where, self.manifest = with_samples(store, where, manifest), where, manifest
        self._indexes: OrderedDict[str, NDArray[np.int64]] = OrderedDict()
        self._inside: dict[str, CheckedStore] = {}
        self._lock = threading.Lock()

    @property
    def root(self) -> Path | None:
        """Folder of the store; None if it is not local."""
        return self.held.root if isinstance(self.held, LocalStore) else None

    @property
    def supports_listing(self) -> bool:
        """Whether the wrapped store can list its keys."""
        return self.held.supports_listing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CheckedStore) and self.held == other.held

    def __reduce__(self) -> Any:
        return _reopened, (self.where, None if self.manifest is None else self.manifest.digest)

    def __str__(self) -> str:
        return self.where

    def __repr__(self) -> str:
        return f"CheckedStore('{self.where}')"

    # -- reading

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the content of a key after comparing it with the manifest."""
        try:
            return await self._checked(key, prototype or default_buffer_prototype(), byte_range)
        except (StoreError, FileNotFoundError) as error:
            if self.manifest is not None:
                try:
                    content = await self.held.get(METADATA, default_buffer_prototype())
                except FileNotFoundError:  # the whole folder was removed
                    content = None
                self._require_same(None if content is None else content.to_bytes(), error)
            raise

    async def _checked(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None) -> Buffer | None:
        home, inner = self.home(key)
        if home is not self:
            return await home.get(inner, prototype, byte_range)
        entry = self._entry(key)
        if self.root is not None:
            require_file(self.root / key, None if entry is None else entry.size, self.where, key)
        content = await self.held.get(key, prototype, byte_range)
        if entry is not None:
            if content is None:
                raise missing_file(key, self.where)
            await self._check_chunks(key, content, byte_range, entry)
        elif key.rpartition("/")[2] in _METADATA:
            if self.manifest is None and key == METADATA and content and has_manifest(content.to_bytes()):
                raise ReplacedError(f"'{self.where}' was replaced while it was opened: open it again")
            await self._require_covered(key)
            self._check_metadata(key, content)
        elif (
            (content is None or not len(content))
            and (chunk := _CHUNK.search(key))
            and await self._is_dense(key[: chunk.start()])
        ):
            raise missing_file(key, self.where)
        return content

    async def exists(self, key: str) -> bool:
        """Return whether a key exists."""
        return await self.held.exists(key)

    def list(self) -> AsyncIterator[str]:
        """Yield all keys."""
        return self.held.list()

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys with a prefix."""
        return self.held.list_prefix(prefix)

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the entries of a folder."""
        return self.held.list_dir(prefix)

    # -- checking

    def require_same(self, error: Exception | None = None) -> None:
        """Raise `ReplacedError` from ``error`` if the store was replaced or removed since it was opened."""
        if self.manifest is not None:
            self._require_same(self.content(METADATA), error)

    def _require_same(self, content: bytes | None, error: Exception | None) -> None:
        assert self.manifest is not None
        if content is None or digest_of(content) != self.manifest.digest:
            raise ReplacedError(f"'{self.where}' was replaced since it was opened: open it again") from error

    def prepare(self) -> None:
        """Fetch all checksums of a remote store in advance, since one asynchronous read cannot wait for another."""
        if self.root is None and self.manifest is not None:
            for array in self.manifest.arrays:
                self.entries(array)
            for name in self.manifest.stores:
                self.home(f"{name}/")

    def covers(self, array: str) -> bool:
        """Return whether the manifest has the checksums of the array at a path."""
        home, inner = self.home(f"{array}/")
        return home.manifest is not None and inner[:-1] in home.manifest.arrays

    def checksums(self, key: str) -> ShardChecksums | None:
        """Return the expected size and checksums of a file of chunks; None without a manifest.

        Raises
        ------
        StoreError
            If the manifest lists the array without this file, or the file of checksums is damaged.
        """
        home, inner = self.home(key)
        return home._entry(inner)

    def inner(self, name: str, manifest: Manifest | None) -> CheckedStore:
        """Return the store at a path inside this one, with its own manifest. The manifest is not checked here."""
        where = f"{self.where}/{name}"
        return CheckedStore(plain_store(where), where, manifest)

    def home(self, key: str) -> tuple[CheckedStore, str]:
        """Return the innermost store whose manifest covers a key, and the key's path in that store."""
        for name in self.manifest.stores if self.manifest is not None else ():
            if not key.startswith(f"{name}/"):
                continue
            if name not in self._inside:
                assert self.manifest is not None
                where = f"{self.where}/{name}"
                content = content_of(plain_store(where), where, METADATA) or b""
                if digest_of(content) != self.manifest.stores[name]:
                    raise StoreError(f"'{where}' is not the store that was written there: create '{self.where}' again")
                self._inside[name] = self.inner(name, read_manifest(content, where))
                self._inside[name].prepare()
            return self._inside[name], key[len(name) + 1 :]
        return self, key

    def _entry(self, key: str) -> ShardChecksums | None:
        if self.manifest is None:
            return None
        chunk = _CHUNK.search(key)
        if chunk is None or (array := key[: chunk.start()]) not in self.manifest.arrays:
            return None
        entries = self.entries(array)
        name = key[chunk.start() :].lstrip("/")
        if name not in entries:
            raise StoreError(f"{key} of '{self.where}' is not in the integrity manifest: create the store again")
        return ShardChecksums.from_entry(entries[name])

    def entries(self, array: str) -> Mapping[str, Entry]:
        """Return the size and the checksums of each file of chunks of an array, by its path in the array.

        Raises
        ------
        StoreError
            If the file of checksums does not match the manifest.
        """
        assert self.manifest is not None
        name = f"{array}/{CHECKSUMS}"
        digest = self.manifest.files[name]
        with _KNOWN_LOCK:
            if (found := _KNOWN.get(digest)) is not None:
                _KNOWN.move_to_end(digest)
                return found
        content = content_of(self.held, self.where, name)
        self.manifest.check(name, content, self.where)
        assert content is not None
        entries: Mapping[str, Entry] = json.loads(content)
        with _KNOWN_LOCK:
            _KNOWN[digest] = entries
            if len(_KNOWN) > _CACHED:
                _KNOWN.popitem(last=False)
        return entries

    def content(self, name: str) -> bytes | None:
        """Return the content of a file without checking it; None if it does not exist."""
        return content_of(self.held, self.where, name)

    async def _is_dense(self, array: str) -> bool:
        content = await self.held.get(f"{array}/{METADATA}".lstrip("/"), default_buffer_prototype())
        try:
            return content is not None and bool(json.loads(content.to_bytes())["attributes"][DENSE_KEY])
        except (ValueError, KeyError, TypeError, RecursionError):
            return False

    async def _require_covered(self, key: str) -> None:
        """Raise `StoreError` for an array with checksums but without a manifest: its parent metadata was replaced."""
        folder = key.rpartition("/")[0]
        if self.manifest is None and await self.held.exists(f"{folder}/{CHECKSUMS}".lstrip("/")):
            raise orphaned(f"{self.where}/{folder}".rstrip("/"))

    def _check_metadata(self, key: str, content: Buffer | None) -> None:
        text = None if content is None else content.to_bytes()
        if self.manifest is not None:
            self.manifest.check(key, text, self.where)
            if key == METADATA:
                self._require_same(text, None)
        if text is not None:
            check_codecs(text, f"{self.where}/{key}")

    async def _check_chunks(
        self, key: str, content: Buffer, byte_range: ByteRequest | None, entry: ShardChecksums
    ) -> None:
        """Compare the checksums in some bytes of a file with the expected checksums."""
        values = np.asarray(content.as_numpy_array()).view(np.uint8)
        if byte_range is None and len(values) != entry.size:
            raise self._damaged(key, f"it has {len(values):,} bytes, expected {entry.size:,}")
        start = start_of(byte_range, entry.size)
        if entry.index is None:
            if byte_range is not None:
                raise self._damaged(key, "a part of a chunk cannot be compared with its checksum")
            if crc_at(values, entry.size) != int(entry.chunks[0]):
                raise self._damaged(key, "its chunk has another checksum than the chunk that was written")
            return
        if start + len(values) == entry.size and crc_at(values, len(values)) != entry.index:
            raise self._damaged(key, "its index has another checksum than the index that was written")
        places = await self._places(key, values, start, entry)
        stop = start + len(values)
        begins, ends = places[:, 0], places[:, 0] + places[:, 1]
        for chunk in np.flatnonzero((begins < stop) & (ends > start)):
            if begins[chunk] < start or ends[chunk] > stop:
                raise self._damaged(key, "a part of a chunk cannot be compared with its checksum")
            if crc_at(values, int(ends[chunk]) - start) != int(entry.chunks[chunk]):
                raise self._damaged(key, "a chunk has another checksum than the chunk that was written")

    async def _places(
        self, key: str, values: NDArray[np.uint8], start: int, entry: ShardChecksums
    ) -> NDArray[np.int64]:
        """Return (offset, length) of every inner chunk of a shard; the length is 0 for a chunk that is not stored."""
        with self._lock:
            if (known := self._indexes.get(key)) is not None:
                return known
        n_index = index_bytes(len(entry.chunks))
        if start <= entry.size - n_index and start + len(values) == entry.size:
            index = values[len(values) - n_index :]
        else:
            content = await self.held.get(key, default_buffer_prototype(), SuffixByteRequest(n_index))
            index = np.empty(0, np.uint8) if content is None else content.as_numpy_array().view(np.uint8)
        if len(index) != n_index or crc_at(index, n_index) != entry.index:
            raise self._damaged(key, "its index has another checksum than the index that was written")
        found = places_in(index)
        with self._lock:
            self._indexes[key] = found
            if len(self._indexes) > _CACHED:
                self._indexes.popitem(last=False)
        return found

    def _damaged(self, key: str, why: str) -> StoreError:
        return StoreError(f"{key} of '{self.where}' is damaged ({why}): create the store again")


# Checksums of arrays by the digest of their file. All stores of the process share this cache.
_KNOWN: OrderedDict[str, Mapping[str, Entry]] = OrderedDict()
_KNOWN_LOCK = threading.Lock()


def checked_store(where: str) -> tuple[CheckedStore, str]:
    """Return the checked store that contains a path or URL, and the path inside this store.

    Raises
    ------
    StoreError
        If metadata of the store or of a parent was changed, or an array created by dpca is not in a manifest.
    """
    where = absolute(where.rstrip("/") or "/")
    inside: list[str] = []
    root, here = where, plain_store(where)
    store, nothing = here, False
    while True:
        content = content_of(store, root, METADATA)
        nothing |= content is None and not inside
        if content is None and inside:
            break
        manifest = None if content is None else read_manifest(content, root)
        if manifest is not None:
            name = "/".join(reversed(inside))
            checked = CheckedStore(store, root, manifest)
            if isinstance(store, LocalStore):
                refuse_links(root, inside)
                try:
                    require_known_outside(root, manifest)
                except StoreError as error:  # the outer store may have been replaced between the two reads
                    checked.require_same(error)
                    raise
            checked.prepare()
            return checked, name
        parent, _, last = root.rpartition("/")
        if not parent or parent.endswith((":", ":/")):
            break
        inside.append(last)
        root, store = parent, plain_store(parent)
    if nothing and isinstance(here, LocalStore):
        refuse_gap(here.root)
    if content_of(here, where, CHECKSUMS) is not None:
        raise orphaned(where)
    if isinstance(here, LocalStore) and (array := with_checksums(where)):
        raise orphaned(array)
    return CheckedStore(here, where), ""


def _reopened(where: str, digest: str | None) -> CheckedStore:
    store = checked_store(where)[0]
    if digest is not None and (store.manifest is None or store.manifest.digest != digest):
        raise ReplacedError(f"'{where}' was replaced since it was opened: open it again")
    return store
