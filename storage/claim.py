"""Claims a work folder: marks it as ours for its whole life and locks it for one run.

::

    out.zarr.partial/           made, empty                      may be taken over
        lock                    made, empty                      may be taken over while nothing is beside it
        lock                    holds MARK                       ours: only now anything else may appear
        lock                    removed when all else is gone, then the folder

A folder without the mark that holds more than an empty lock belongs to somebody else: it is refused and not changed.
Folders of version 1, whose lock is empty, are recognized by their journal.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpca.storage.disk import read_file
from dpca.storage.errors import BusyError, StoreError, printable
from dpca.storage.objects import Place

MARK = b"work folder of dpca: the output appears beside it when it is whole\n"
LOCK, JOURNAL = "lock", "journal.json"
#: What the name of a work folder adds to that of its output.
WORK_SUFFIX = ".partial"
#: What a store that is replaced is called in the work folder, between two renames.
REPLACED = "replaced"

# How network file systems rename a file that is removed while it is open.
_STALE = ".nfs"


class Claim:
    """A work folder that this run alone may change.

    Parameters
    ----------
    folder : Path
        Absolute; made if it is not there.
    shown : str
        What errors call the output.

    Attributes
    ----------
    created : bool
        Whether the folder was not there before.

    Raises
    ------
    StoreError
        If another run holds the folder, or it is somebody else's, or a link, or a link lies in it.
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
        """Do nothing: nobody can take a lock away."""

    def end(self) -> None:
        """Remove the folder; it may hold nothing but the lock."""
        self._path.unlink(missing_ok=True)
        self.release()
        with suppress(OSError):
            self.folder.rmdir()  # not empty: another run waits in it already

    def _leave_no_trace(self) -> None:
        """Remove what was created before an error, such as that of a full disk."""
        with suppress(OSError):
            if self._handle is not None:
                self._path.unlink(missing_ok=True)
            self.folder.rmdir()

    def _acquire(self) -> int:
        while True:
            with suppress(FileNotFoundError, NotADirectoryError):
                mode = os.lstat(self.folder).st_mode  # once: the run before us may remove it at any moment
                if stat.S_ISLNK(mode):
                    raise self._refusal("is a link, which is never followed")
                if not stat.S_ISDIR(mode):
                    raise self._refusal("is a file")
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except FileExistsError as error:
                if error.filename != os.fspath(self.folder):
                    raise
                continue  # the run before us removed the folder while we looked whether it is one
            except FileNotFoundError as error:  # a folder of the system's, say
                raise StoreError(
                    f"output '{self._shown}' cannot be created (nothing can in its folder): choose another output"
                ) from error
            try:
                # does not create the lock in a folder that may be somebody else's
                handle = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | self._making())
            except FileNotFoundError:
                continue  # the run before us removed the folder just now
            except OSError as error:
                if self._path.is_symlink():
                    raise self._refusal(f"holds the link '{LOCK}', which is never followed") from error
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
                return handle  # a network file system without locks: go on without
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(self._path)):
                    return handle
            os.close(handle)  # locked a file that its holder had removed already: take the new one

    def _making(self) -> int:
        """Return the flag that creates the lock if it is missing and may be created, else 0."""
        with suppress(FileNotFoundError):
            others = self._others()
            if others and not self._path.exists() and not self._is_of_version_1():
                raise self._foreign(others[0])
            if not others or self._is_of_version_1():
                return os.O_CREAT
        return 0

    def _make_ours(self) -> None:
        assert self._handle is not None
        found, others = os.pread(self._handle, len(MARK) + 1, 0), self._others()
        if found != MARK:
            if not MARK.startswith(found) or (others and not self._is_of_version_1()):
                raise self._foreign(others[0] if others else LOCK)
            os.pwrite(self._handle, MARK, 0)
        if (link := _first_link(self.folder)) is not None:
            raise self._refusal(f"holds the link '{printable(link)}', which is never followed")

    def _others(self) -> list[str]:
        names = (entry.name for entry in os.scandir(self.folder))
        return sorted(name for name in names if name != LOCK and not name.startswith(_STALE))

    def _is_of_version_1(self) -> bool:
        """Whether a journal shows that the folder is ours, made before folders were marked."""
        path = self.folder / JOURNAL
        journal = None if path.is_symlink() else read_json(path)
        return (
            journal is not None
            and journal.keys() == {"kind", "fingerprint"}
            and all(isinstance(value, str) for value in journal.values())
        )

    def _foreign(self, name: str) -> StoreError:
        return self._refusal(f"holds {printable(name)!r}, which is not created by dpca")

    def _refusal(self, why: str) -> StoreError:
        return StoreError(f"work folder '{self._shown}.partial' {why}: choose another output or remove it")


def _first_link(folder: Path) -> str | None:
    """Return the path, relative to a folder, of a link anywhere in it."""
    waiting = [os.fspath(folder)]
    while waiting:
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:  # a worker may still be tidying up
            for entry in entries:
                if entry.is_symlink():
                    return os.path.relpath(entry.path, folder)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return None


def read_json(path: Place) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is none, or it is torn."""
    try:
        value = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
