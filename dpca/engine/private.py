"""Folders for temporary files that no other user of the machine can reach."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress

import dask

from dpca.storage.errors import StoreError


def private_folder() -> str:
    """Return a folder for temporary files that this user alone can reach.

    Dask would share a folder with others, which any of them may have made, and in which Python then looks for modules.
    The folder is the same one every time, so that Dask removes there what a killed cluster has left behind. It lies
    where Dask's ``temporary-directory`` says, else where temporary files are.

    Raises
    ------
    StoreError
        If there can be none.
    """
    base = dask.config.get("temporary-directory") or tempfile.gettempdir()
    name = f"dpca-{os.getuid()}"
    folder = base if os.path.basename(base) == name else os.path.join(base, name)  # inside another cluster, its own
    try:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return folder
        return tempfile.mkdtemp(prefix="dpca-", dir=base)  # somebody else was here first
    except OSError as error:
        raise StoreError(f"'{base}' takes no temporary files ({error.strerror}): set TMPDIR to a folder") from error
