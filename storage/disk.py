"""The file system: atomic writes, free space, and error messages for a full or broken disk.

Functions that read and write whole files also accept objects in object stores, which are atomic anyway.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import IO

from dpca.storage.errors import DataError, StoreError, printable
from dpca.storage.remote.network import is_url
from dpca.storage.remote.objects import ObjectPath, Place, place_of

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# By error number: what cannot be done, the reason if that of the system is unclear, and the remedy.
_REFUSALS = {
    number: refusal
    for numbers, refusal in (
        ((errno.EACCES, errno.EPERM, errno.EROFS), ("written", "", "choose another output or change the permissions")),
        ((errno.ENOTDIR, errno.EEXIST), ("created", "a part of its path is a file", "choose another output")),
        ((errno.ELOOP,), ("created", "its path has a cycle of links", "choose another output")),
        ((errno.ENAMETOOLONG,), ("created", "its name or path is too long", "choose another output")),
        (
            (errno.EBUSY, errno.EIO, errno.EISDIR, errno.ENXIO, errno.ESTALE, errno.EXDEV),
            ("written", "", "choose another output or repair the disk"),
        ),
    )
    for number in numbers
}
# Seconds between attempts to remove a folder while another process writes to it.
_PATIENCE = (0.1, 0.3, 1.0, 3.0)
# The names of incomplete files of Zarr's local store, and of `atomic_write_bytes` for metadata.
_STRAY = re.compile(r"\.[0-9a-f]{32}\.partial$|^\.(zarr|checksums)\.json\.[0-9a-f]{32}$")


@contextmanager
def writing_errors(path: str | os.PathLike[str], needed: int | None = None) -> Iterator[None]:
    """Convert errors of a full, forbidden or broken disk inside the block to a `StoreError`.

    Parameters
    ----------
    path : path-like
        The output, as the user named it.
    needed : int, optional
        Bytes that the whole job writes.

    Raises
    ------
    StoreError
        Instead of an OSError that `refusal_of_disk` supports. Every other error is raised unchanged.
    """
    try:
        yield
    except OSError as error:
        if (refusal := refusal_of_disk(error, path, needed)) is not None:
            raise refusal from error
        raise


def refusal_of_disk(error: OSError, path: str | os.PathLike[str], needed: int | None = None) -> StoreError | None:
    """Return a `StoreError` for a full disk or quota, a missing permission or an invalid path; else None.

    Parameters
    ----------
    error : OSError
        The error of the operating system.
    path, needed
        As for `writing_errors`.
    """
    where = f"'{printable(os.fspath(path))}'"
    if is_full(error):
        room = f"{readable_size(_free(path))} free" + (
            f" of {readable_size(needed)} needed" if needed is not None else ""
        )
        return StoreError(
            f"the disk is full while writing {where} ({error.strerror}, {room}): "
            f"free some space and run the same command again to resume, or choose another output"
        )
    if error.errno is None or error.errno not in _REFUSALS:
        return None
    undone, why, remedy = _REFUSALS[error.errno]
    return StoreError(f"{where} cannot be {undone} ({why or error.strerror}): {remedy}")


def is_full(error: BaseException) -> bool:
    """Return whether an error means a full disk, a full quota or a file above the size limit."""
    return isinstance(error, OSError) and error.errno in _FULL


def require_free_space(path: str | os.PathLike[str], needed_bytes: int, what: str) -> None:
    """Raise an error if the disk has too little free space; object stores have no limit.

    Parameters
    ----------
    path : path-like
        Path of the output. It need not exist yet.
    needed_bytes : int
        Bytes still to be written.
    what : str
        Name of the data in the error message ("the stack", ...).

    Raises
    ------
    StoreError
        If fewer bytes are free.
    """
    if is_url(path):
        return
    free = _free(path)
    if needed_bytes > free:
        raise StoreError(
            f"{what} requires {readable_size(needed_bytes)}, but the disk of '{os.fspath(path)}' has "
            f"{readable_size(free)} free: free some space or choose another output"
        )


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file. Reading a pipe could block indefinitely.

    Raises
    ------
    OSError
        If the file is missing, or is a directory, a device or a pipe.
    """
    if is_url(path):
        return ObjectPath(path).read_bytes()
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError(errno.ENOENT, "it is not a regular file", os.fspath(path))
        return file.readall()


def content_of_file(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file; empty if it is missing or cannot be read."""
    try:
        return read_file(path)
    except OSError:
        return b""


def atomic_write_bytes(path: Place, content: bytes) -> None:
    """Write a file atomically, even if the power fails."""
    if isinstance(path, ObjectPath):
        return path.write_bytes(content)
    # In a folder that others can write to, a link could exist at a predictable name.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return None


def entries_of(folder: Place) -> list[tuple[str, bool]]:
    """Return the sorted names in a folder, each with whether it is a folder."""
    if isinstance(folder, ObjectPath):
        return folder.entries()
    return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in os.scandir(folder))


def exists(path: str | os.PathLike[str]) -> bool:
    """Return whether anything exists at a path, including a broken link."""
    return ObjectPath(path).exists() if is_url(path) else os.path.lexists(path)


def sync_folder(folder: Path) -> None:
    """Flush the renames in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_tree(folder: Place) -> None:
    """Remove a folder, even while a worker of an earlier run still writes its last shard to it."""
    if isinstance(folder, ObjectPath):
        return folder.remove_tree()
    for pause in _PATIENCE:
        try:
            return shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
        if not folder.exists():
            return None
        time.sleep(pause)
    return shutil.rmtree(folder)


def exchanged(one: Path, other: Path) -> bool:
    """Swap two folders atomically, so that both names always exist; return False if the system does not support it."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), swap) == 0


def reserve(file: int, size: int) -> None:
    """Reserve the disk space of an open file that will have ``size`` bytes, if the file system supports it.

    The kernel then finds room for all pages at once, and writing takes two thirds of the processor time.

    Raises
    ------
    OSError
        If the disk or quota is full, or the file would exceed a limit.
    """
    # os.posix_fallocate would write into each block of a file system that lacks this, such as NFS before version 4.2.
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is not None and call(file, 0, ctypes.c_long(0), ctypes.c_long(size)) != 0:
        error = ctypes.get_errno()
        if error in _FULL:
            raise OSError(error, os.strerror(error))


def folder_bytes(folder: str | os.PathLike[str], *, besides: str = "") -> int:
    """Return the bytes of all files below a folder, except files with the name ``besides``."""
    if is_url(folder):
        sizes = ObjectPath(folder).files().items()
        return sum(size for name, size in sizes if name.rpartition("/")[2] != besides)
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.name != besides and file.is_file())


def bytes_at(paths: Sequence[str]) -> int | None:
    """Return the bytes of files and of all files below folders; None if one is missing or its size is unknown."""
    places = list(map(place_of, paths))
    try:
        if not places or not all(place.exists() for place in places):
            return None
        return sum(folder_bytes(place) if place.is_dir() else file_bytes(place) for place in places)
    except (DataError, StoreError, NotImplementedError):  # for example from a web server
        return None


def open_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file or an object to read parts of it with `read_at`."""
    return ObjectPath(path).open() if is_url(path) else open(path, "rb", buffering=0)


def read_at(file: IO[bytes], size: int, offset: int) -> bytes:
    """Return ``size`` bytes of an open file from an offset; fewer at its end."""
    if isinstance(file, FileIO):
        return os.pread(file.fileno(), size, offset)
    file.seek(offset)
    return file.read(size)


def begin_of(path: str | os.PathLike[str], size: int) -> bytes:
    """Return the first bytes of a non-empty file or object."""
    if is_url(path):
        return ObjectPath(path).read_range(0, size)
    with open(path, "rb") as file:
        return file.read(size)


def file_bytes(path: str | os.PathLike[str]) -> int:
    """Return the size of a file."""
    return ObjectPath(path).size() if is_url(path) else os.path.getsize(path)


def readable_size(n: float) -> str:
    """Format a number of bytes with three digits, in the largest unit with a value of at least 1."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if n < 999.5:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:,.0f} PB"


def make_below(top: Path, folder: Path) -> None:
    """Make a folder and those above it, below another one that must exist.

    A task may outlive its program. After the output was published, it must not make the work folder again.
    """
    for name in folder.relative_to(top).parts:
        top /= name
        top.mkdir(exist_ok=True)


def sweep(folder: Path) -> None:
    """Remove the temporary files of writers that were killed."""
    for inner, _, files in os.walk(folder):
        for name in files:
            if _STRAY.search(name):
                os.unlink(os.path.join(inner, name))


def _free(path: str | os.PathLike[str]) -> int:
    folder = Path(os.path.realpath(path))
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
