"""Claims a work folder: marks it as created by dpca and locks it for one run.

::

    out.zarr.partial/           created, empty                   may be taken over
        lock                    created, empty                   may be taken over while it is the only file
        lock                    contains MARK                    claimed; only now other files may be created
        lock                    removed after all other files, then the folder

A folder that has no mark and more files than an empty lock was not created by dpca. It is rejected and not changed.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpca.storage.disk import content_of_file
from dpca.storage.errors import BusyError, StoreError, printable
from dpca.storage.remote.objects import Place

MARK = b"work folder of dpca: the output appears beside it when it is whole\n"
LOCK, JOURNAL = "lock", "journal.json"
#: Suffix of a work folder, after the name of its output.
WORK_SUFFIX = ".partial"
#: Name in the work folder of a store that is being replaced, between two renames.
REPLACED = "replaced"

# Prefix of a file on a network file system that was removed while it was open.
_STALE = ".nfs"


class Claim:
    """A work folder that only this run may change.

    Parameters
    ----------
    folder : Path
        Absolute path; created if it does not exist.
    shown : str
        Name of the output in error messages.

    Attributes
    ----------
    created : bool
        Whether this call created the folder.

    Raises
    ------
    StoreError
        If another run holds the folder, it was not created by dpca, or it is or contains a link.
    """

    def __init__(self, folder: Path, shown: str) -> None:
        self.folder, self._shown = folder, shown
        self._path = folder / LOCK
        self.created = not os.path.lexists(folder)
        self._handle: int | None = None
        try:
            self._handle = self._acquire()
            self._make_ours()
        except BaseException as error:
            if self.created and isinstance(error, OSError):
                self._leave_no_trace()
            self.release()
            raise

    @property
    def held(self) -> bool:
        """Whether the folder is still held."""
        return self._handle is not None

    def release(self) -> None:
        """Unlock the folder and keep it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def require(self) -> None:
        """Do nothing, since no other process can take over a lock of the operating system."""

    def end(self) -> None:
        """Remove the folder, which must contain only the lock."""
        self._path.unlink(missing_ok=True)
        self.release()
        with suppress(OSError):
            self.folder.rmdir()  # fails if another run created its lock already

    def _leave_no_trace(self) -> None:
        """Remove the lock and the folder after an error such as a full disk."""
        with suppress(OSError):
            if self._handle is not None:
                self._path.unlink(missing_ok=True)
            self.folder.rmdir()

    def _acquire(self) -> int:
        while True:
            with suppress(FileNotFoundError, NotADirectoryError):
                mode = os.lstat(self.folder).st_mode  # one call, since the previous run may remove it at any moment
                if stat.S_ISLNK(mode):
                    raise self._refusal("is a link, which is never followed")
                if not stat.S_ISDIR(mode):
                    raise self._refusal("is a file")
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except FileExistsError as error:
                if error.filename != os.fspath(self.folder):
                    raise
                continue  # the previous run removed the folder in the meantime
            except FileNotFoundError as error:  # for example in /proc
                raise StoreError(
                    f"output '{self._shown}' cannot be created (its folder allows no new files): choose another output"
                ) from error
            try:
                # The lock is not created in a folder that dpca may not have created.
                handle = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | self._making())
            except FileNotFoundError:
                continue  # the previous run just removed the folder
            except OSError as error:
                if self._path.is_symlink():
                    raise self._refusal(f"contains the link '{LOCK}', which is never followed") from error
                raise
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(handle)
                raise BusyError(
                    f"output '{self._shown}' is being written by another run: wait for it, stop it, or "
                    f"choose another output"
                ) from error
            except OSError:
                return handle  # a network file system without locks: continue without a lock
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(self._path)):
                    return handle
            os.close(handle)  # the locked file was already removed: lock the new one

    def _making(self) -> int:
        """Return the flag that creates a missing lock if this is allowed, else 0."""
        with suppress(FileNotFoundError):
            others = self._others()
            if others and not self._path.exists():
                raise self._foreign(others[0])
            return 0 if others else os.O_CREAT
        return 0

    def _make_ours(self) -> None:
        assert self._handle is not None
        found, others = os.pread(self._handle, len(MARK) + 1, 0), self._others()
        if found != MARK:
            if not MARK.startswith(found) or others:
                raise self._foreign(others[0] if others else LOCK)
            os.pwrite(self._handle, MARK, 0)
        if (link := _first_link(self.folder)) is not None:
            raise self._refusal(f"contains the link '{printable(link)}', which is never followed")

    def _others(self) -> list[str]:
        names = (entry.name for entry in os.scandir(self.folder))
        return sorted(name for name in names if name != LOCK and not name.startswith(_STALE))

    def _foreign(self, name: str) -> StoreError:
        return self._refusal(f"contains {printable(name)!r}, which was not created by dpca")

    def _refusal(self, why: str) -> StoreError:
        return StoreError(f"work folder '{self._shown}.partial' {why}: choose another output or remove it")


def _first_link(folder: Path) -> str | None:
    """Return the relative path of the first link anywhere in a folder; None if there is none."""
    waiting = [os.fspath(folder)]
    while waiting:
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:  # a worker may still remove folders
            for entry in entries:
                if entry.is_symlink():
                    return os.path.relpath(entry.path, folder)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return None


def read_json(path: Place) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file is missing or torn."""
    try:
        value = json.loads(content_of_file(path))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
