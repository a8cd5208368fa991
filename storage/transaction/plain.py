"""Workspaces of plain files, which other programs read: a folder of them, or one file.

::

    photos.partial/             during the job            photos/        a folder, when it is complete
        lock, journal.json                                    manifest.json    states the job and the number of files
        done-<hash>/                                          a.jpg, b/c.jpg
        store-<hash>/           becomes photos, or has the one file that becomes all.npy
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dpca.storage.disk import content_of_file, sync_folder, writing_errors
from dpca.storage.errors import StoreError
from dpca.storage.integrity.manifest import FOLDER_MANIFEST, facts_in, write_folder_manifest
from dpca.storage.remote.objects import ObjectPath
from dpca.storage.transaction.workspace import Workspace

_COUNT = "n_files"


class PlainWorkspace(Workspace):
    """A workspace whose output is a folder of plain files, or one file; see `Workspace`.

    An earlier folder is replaced only if it holds nothing but the files that were written to it. A file is never
    replaced, since it does not state who made it.

    Raises
    ------
    StoreError
        Also if the target is in an object store.
    """

    marked_by = (FOLDER_MANIFEST,)
    what = "an earlier export"

    def __init__(self, target: str | os.PathLike[str], *, kind: str, fingerprint: str, overwrite: bool = False) -> None:
        super().__init__(target, kind=kind, fingerprint=fingerprint, overwrite=overwrite)
        if isinstance(self._real, ObjectPath):
            raise StoreError(
                f"output '{target}' is in an object store, but plain files need a disk: give a path on one"
            )

    @property
    def facts(self) -> dict[str, Any]:
        """What the manifest of the complete folder states."""
        return facts_in(content_of_file(self._real / FOLDER_MANIFEST))

    def publish_folder(self, n_files: int, **stated: Any) -> None:
        """Move the complete folder to its target, with a manifest that has ``n_files`` and the facts ``stated``."""
        facts = {"fingerprint": self.fingerprint, _COUNT: n_files, **stated}
        write_folder_manifest(self.store, self.kind, {}, **facts)
        self._move(self._growing.appear)  # type: ignore[union-attr]  # on a disk, see __init__

    def publish_file(self, name: str) -> None:
        """Move the complete file of this name in the folder to the target."""
        self._move(lambda: self._rename(name))

    def _rename(self, name: str) -> None:
        os.rename(self.store / name, self._real)  # not a link, which the file systems of cards and sticks lack
        sync_folder(Path(self._real).parent)

    def _move(self, appear: Any) -> None:
        assert self._claim is not None
        with writing_errors(self.target):
            self._target_is_complete()  # raises an error if the target may no longer be replaced
            self._claim.require()
            appear()
            self._growing.tidy(None)
            self._claim.end()

    def _target_is_complete(self) -> bool:
        facts = self.facts
        if facts and facts.get("kind") != self.kind:
            raise StoreError(f"output '{self.target}' is a {facts.get('kind')}: choose another output or remove it")
        if facts:
            found = sum(len(files) for _, _, files in os.walk(self._real)) - 1
            if found != facts.get(_COUNT):
                raise StoreError(
                    f"output '{self.target}' has {found:,} files, but {facts.get(_COUNT):,} were exported to it: "
                    f"choose another output, or move the others"
                )
        return super()._target_is_complete()

    def _is_whole(self) -> bool:
        return True
