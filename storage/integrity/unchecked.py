"""Reads files of stores from local folders and URLs, without verifying their content."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore

from dpca.storage.disk import read_file
from dpca.storage.errors import StoreError, one_line
from dpca.storage.remote.network import is_url
from dpca.storage.remote.object_store import ObjectStore


class ReadOnlyStore(Store):
    """A Zarr store for reading. Subclasses implement `get`, `exists` and the three methods that list keys."""

    supports_writes = False
    supports_deletes = False

    def __init__(self) -> None:
        super().__init__(read_only=True)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return the content of several keys, one after the other."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def set(self, key: str, value: Buffer) -> None:
        """Raise an error, since this store is read-only."""
        self._check_writable()

    async def delete(self, key: str) -> None:
        """Raise an error, since this store is read-only."""
        self._check_writable()


def start_of(byte_range: ByteRequest | None, size: int) -> int:
    """Return the first byte that a request for a part of ``size`` bytes asks for."""
    if isinstance(byte_range, RangeByteRequest):
        return byte_range.start
    if isinstance(byte_range, OffsetByteRequest):
        return byte_range.offset
    return 0 if byte_range is None else max(0, size - byte_range.suffix)


def plain_store(where: str) -> Store:
    """Return a read-only Zarr store for a path or URL.

    Raises
    ------
    DataError
        If the URL is invalid, or the library for its protocol is missing.
    """
    return ObjectStore(where) if is_url(where) else LocalStore(where, read_only=True)


def written_store(where: str, beside: str | None = None) -> Store:
    """Return a writable Zarr store for a path or URL.

    Parameters
    ----------
    where : str
        Path or URL of the store.
    beside : str, optional
        URL of the folder with the metadata of the root until publication, see `dpca.storage.transaction.growing`.
    """
    return ObjectStore(where, read_only=False, beside=beside) if is_url(where) else LocalStore(where)


def content_of(store: Store, where: str, name: str) -> bytes | None:
    """Return the content of a file of a store; None if it does not exist.

    Raises
    ------
    StoreError
        If it cannot be read.
    """
    if isinstance(store, LocalStore):
        try:
            return read_file(store.root / name)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or one_line(error)
            raise StoreError(f"'{where}/{name}' cannot be read ({reason}): check its path and permissions") from error
    content = sync(store.get(name, default_buffer_prototype()))
    return None if content is None else content.to_bytes()


def require_file(path: Path, size: int | None, where: str, key: str) -> None:
    """Raise `StoreError` if a path is not a regular file, such as a pipe, which could block indefinitely.

    If the size is given, a missing file, a directory, a link and a file of another size are errors, too.
    """
    try:
        status = os.stat(path, follow_symlinks=size is None)
    except (FileNotFoundError, NotADirectoryError):
        if size is None:
            return
        raise missing_file(key, where) from None
    except OSError as error:
        raise StoreError(f"{key} of '{where}' cannot be read ({error.strerror}): check its permissions") from error
    if size is None and stat.S_ISDIR(status.st_mode):
        return
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{key} of '{where}' is not a regular file: create the store again")
    if size is not None and status.st_size != size:
        raise StoreError(
            f"{key} of '{where}' is damaged (it has {status.st_size:,} bytes, expected {size:,}): create the store "
            f"again"
        )


def missing_file(key: str, where: str) -> StoreError:
    """Return the error for a missing or empty file."""
    return StoreError(f"{key} of '{where}' is missing or empty: create the store again")
