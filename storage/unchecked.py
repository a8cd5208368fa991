"""The bytes of stores as they lie there, before anything vouches for them: local folders, and what URLs lead to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore
from zarr.storage._common import make_store

from storage.disk import read_file
from storage.errors import DataError, StoreError, one_line


def plain_store(where: str) -> Store:
    """Return the store of Zarr's at a path or URL, for reading.

    Raises
    ------
    DataError
        If an address is none, or what its protocol needs is missing.
    """
    if "://" not in where:
        return LocalStore(where, read_only=True)
    try:
        return sync(make_store(where, mode="r"))
    except Exception as error:  # of a protocol, or of what it needs
        raise DataError(f"'{where}' cannot be opened ({one_line(error)}): check the address") from error


def content_of(store: Store, where: str, name: str) -> bytes | None:
    """Return a file of a store, whole; None where there is none.

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
    try:
        content = sync(store.get(name, default_buffer_prototype()))
    except Exception as error:  # of the network, or of what serves the store
        raise StoreError(f"'{where}/{name}' cannot be read ({one_line(error)}): check the address") from error
    return None if content is None else content.to_bytes()


def require_file(path: Path, size: int | None, where: str, key: str) -> None:
    """Refuse what is no file, such as a pipe that would never end; where the size is known, also all but this file.

    A directory, a link and a file of another size are then in its place, or nothing.
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
        raise StoreError(f"{key} of '{where}' is no file, or a link to one: make the store again")
    if size is not None and status.st_size != size:
        raise StoreError(
            f"{key} of '{where}' is damaged (it has {status.st_size:,} bytes, expected {size:,}): make the store again"
        )


def missing_file(key: str, where: str) -> StoreError:
    """Return the error for a file that is not there, or holds nothing."""
    return StoreError(f"{key} of '{where}' is missing or empty: make the store again")
