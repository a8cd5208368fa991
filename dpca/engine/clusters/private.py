"""Private folders for temporary files, closed to other users of the machine."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress

import dask

from dpca.storage.errors import StoreError


def private_folder() -> str:
    """Return a folder for temporary files with access for this user only.

    Dask's own folder is shared by all users. Any of them may have created it, and Python searches it for modules. The
    private folder is the same every time, so that Dask removes the files of killed clusters there. It lies in Dask's
    ``temporary-directory``; the default is the system's folder for temporary files.

    Raises
    ------
    StoreError
        If the folder cannot be created.
    """
    base = dask.config.get("temporary-directory") or tempfile.gettempdir()
    name = f"dpca-{os.getuid()}"
    folder = base if os.path.basename(base) == name else os.path.join(base, name)  # nested clusters share one folder
    try:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return folder
        return tempfile.mkdtemp(prefix="dpca-", dir=base)  # the name belongs to another user
    except OSError as error:
        raise StoreError(
            f"'{base}' cannot hold temporary files ({error.strerror}): set TMPDIR to another folder"
        ) from error
