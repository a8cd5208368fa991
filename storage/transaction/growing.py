"""Partial stores, and their publication under their final name: on a disk and in an object store.

::

    on a disk                                     in an object store
    out.zarr.partial/                             out.zarr.partial/
        lock                                          lock                 see `dpca.storage.transaction.lease`
        journal.json                                  journal.json
        done-<hash>/, scratch-<hash>/                 done-<hash>/, scratch-<hash>/
        store-<hash>/  becomes out.zarr               zarr.json            becomes the last object of out.zarr
        replaced/      the old out.zarr               clearing             exists while out.zarr is emptied
        kept/          see `dpca.storage.transaction.inherited`
                                                  out.zarr/                every other object of the new store

An object store cannot rename. All objects except one are therefore written at their final place. They do not form a
store before the small object `zarr.json` is written last. When a store is replaced, this object is removed first. An
inner store that the new job can use stays at its place.
"""

from __future__ import annotations

import os
from pathlib import Path

from dpca.storage.disk import atomic_write_bytes, exchanged, read_file, remove_tree, sweep, sync_folder
from dpca.storage.integrity.manifest import METADATA, Carried, read_manifest, remove_manifest, write_manifest
from dpca.storage.remote.objects import ObjectPath, Place
from dpca.storage.transaction.claim import JOURNAL, LOCK, REPLACED, Claim
from dpca.storage.transaction.inherited import KEPT, Inherited
from dpca.storage.transaction.lease import CLEARING, Lease
from dpca.storage.transaction.outputs import work_folder

_PARTS = (REPLACED, KEPT)
# Prefixes of names that end in a hash of the job, so that a late worker of another job cannot write into this store.
_STORE, _DONE, _SCRATCH = _OF_A_JOB = ("store-", "done-", "scratch-")


def growing_store(real: Place, key: str) -> GrowingOnDisk | GrowingInBucket:
    """Return the partial store for a real path. ``key`` identifies the job."""
    return GrowingInBucket(real, key) if isinstance(real, ObjectPath) else GrowingOnDisk(real, key)


class GrowingOnDisk:
    """A store on a disk: it is written in its work folder and published by one rename; see the module.

    `GrowingInBucket` has the same methods and attributes.

    Attributes
    ----------
    folder : Path
        The work folder.
    store : Path
        The partial store.
    root : Path
        The metadata of the root of the store until publication.
    done, scratch : Path
        Folders of the done-markers and of the checkpoints of this job.
    """

    def __init__(self, real: Path, key: str) -> None:
        self._real, self.folder = real, (folder := work_folder(real))
        self.store, self.done, self.scratch = (folder / f"{name}{key}" for name in _OF_A_JOB)
        self.root = self.store / METADATA

    def claim(self, shown: str) -> Claim:
        """Lock the work folder."""
        return Claim(self.folder, shown)

    def foreign(self) -> str | None:
        """Return the first name in the work folder that was not created by dpca; None if there is none."""
        names = sorted(entry.name for entry in self.folder.iterdir())
        known = (*_OF_A_JOB, f".{JOURNAL}.", ".nfs")
        return next((n for n in names if n not in (*_PARTS, LOCK, JOURNAL) and not n.startswith(known)), None)

    def repair(self) -> None:
        """Restore the old store if the run was killed between two renames; else remove it."""
        replaced = self.folder / REPLACED
        if replaced.exists():
            if self._real.exists():
                remove_tree(replaced)
            else:
                os.rename(replaced, self._real)

    def is_begun(self) -> bool:
        """Return False, since an unfinished store is not under its final name."""
        return False

    def leaves_only(self, inherited: Inherited) -> bool:
        """See `Inherited.is_all`."""
        return inherited.is_all(self.folder, self._stores())

    def begin(self, inherited: Inherited | None, journal: bytes, *, replaces: bool) -> None:
        """Clear the work folder, keep the inherited store and write the journal.

        A finished store, which ``replaces`` states, stays until the new store is complete.
        """
        if inherited is not None:
            inherited.keep(self.folder, self._stores(), self._real if replaces else None)
        self.discard(but=KEPT if inherited is not None else "")
        for folder in (self.store, self.done, self.scratch):
            folder.mkdir()
        if inherited is not None:
            inherited.hand_over(self.folder, self.store)
        atomic_write_bytes(self.folder / JOURNAL, journal)

    def resume(self, inherited: Inherited | None) -> None:
        """Remove temporary files of killed writers, and the manifest of an interrupted publication."""
        if inherited is not None:
            inherited.hand_over(self.folder, self.store)
        sweep(self.store)
        remove_manifest(self.store)

    def set_aside(self, inherited: Inherited) -> None:
        """Move the inner store out of the store."""
        inherited.set_aside(self.folder, self.store)

    def publish(self, carried: Carried) -> None:
        """Write the manifest and rename the store. ``carried`` lists the files from a finished store."""
        sweep(self.store)
        write_manifest(self.store, carried=carried)
        self.appear()

    def appear(self) -> None:
        """Rename the complete store to its final name, and move an old store to the work folder."""
        if self._real.exists() and exchanged(self.store, self._real):
            sync_folder(self._real.parent)
            return  # the old store is now in the work folder, which `tidy` removes
        if self._real.exists():
            os.rename(self._real, self.folder / REPLACED)
        os.rename(self.store, self._real)
        sync_folder(self._real.parent)

    def discard(self, but: str = "") -> None:
        """Remove all files of dpca in the work folder, the journal first."""
        (self.folder / JOURNAL).unlink(missing_ok=True)
        for entry in self.folder.iterdir():
            if entry.name.startswith(f".{JOURNAL}."):
                entry.unlink()
            elif entry.name != but and (entry.name in _PARTS or entry.name.startswith(_OF_A_JOB)):
                remove_tree(entry)

    def tidy(self, inherited: Inherited | None = None) -> None:
        """Call `discard`, since the finished store is not in the work folder."""
        self.discard()

    def _stores(self) -> list[Path]:
        return sorted(entry for entry in self.folder.iterdir() if entry.name.startswith(_STORE))


class GrowingInBucket:
    """A store in a bucket: it is written under its final name and published by its last object; see the module."""

    def __init__(self, real: ObjectPath, key: str) -> None:
        self.store, self.folder = real, (folder := work_folder(real))
        self.root = folder / METADATA
        self.done, self.scratch = folder / f"{_DONE}{key}", folder / f"{_SCRATCH}{key}"
        self._set_aside: str | None = None

    def claim(self, shown: str) -> Lease:
        """Write the lock."""
        return Lease(self.folder, shown)

    def foreign(self) -> str | None:
        """Return the first name in the work folder that was not created by dpca; None if there is none."""
        known = (JOURNAL, CLEARING, METADATA)
        names = (n for n, _ in self.folder.entries())
        return next((n for n in names if n not in known and not n.startswith((LOCK, _DONE, _SCRATCH))), None)

    def repair(self) -> None:
        """Do nothing, since publication is atomic."""

    def is_begun(self) -> bool:
        """Return whether there is a journal for the objects, or their removal was interrupted."""
        return (self.folder / JOURNAL).is_file() or (self.folder / CLEARING).is_file()

    def leaves_only(self, inherited: Inherited) -> bool:
        """Return whether only the inner store is under the name, and the new job can use it."""
        names = [name for name, _ in self.store.entries()]
        return names == [inherited.name] and inherited.serves(self.store / inherited.name)

    def begin(self, inherited: Inherited | None, journal: bytes, *, replaces: bool) -> None:
        """Remove everything except the inherited store. Meanwhile, `CLEARING` marks the objects as created by dpca."""
        names = [name for name, _ in self.store.entries()]
        if names or any(not name.startswith(LOCK) for name, _ in self.folder.entries()):
            (self.folder / CLEARING).write_bytes(b"")
            (self.folder / JOURNAL).unlink(missing_ok=True)
            (self.store / METADATA).unlink(missing_ok=True)
            for name in names:
                if inherited is None or name != inherited.name or not inherited.serves(self.store / name):
                    (self.store / name).remove_tree()
            self._empty(but=CLEARING)
        (self.folder / JOURNAL).write_bytes(journal)
        (self.folder / CLEARING).unlink(missing_ok=True)

    def resume(self, inherited: Inherited | None) -> None:
        """Remove the files of an interrupted publication."""
        (self.folder / CLEARING).unlink(missing_ok=True)
        remove_manifest(self.store)

    def set_aside(self, inherited: Inherited) -> None:
        """Leave the inner store out of the published store. It stays until then, for a run that resumes."""
        self._set_aside = inherited.name

    def publish(self, carried: Carried) -> None:
        """Write the last object."""
        write_manifest(self.store, self.root, left_out=self._set_aside, carried=carried)

    def discard(self) -> None:
        """Remove all objects of the store, then the work folder with the journal."""
        if not (self.store / METADATA).is_file():  # otherwise the store is complete, and only the cleanup failed
            self.store.remove_tree()
        self.tidy()

    def tidy(self, inherited: Inherited | None = None) -> None:
        """Remove the work folder, and an inner store that is not part of the published store."""
        if inherited is not None:
            manifest = read_manifest(read_file(self.store / METADATA), str(self.store))
            if manifest is not None and inherited.name not in manifest.stores:
                (self.store / inherited.name).remove_tree()
        self._empty(but=JOURNAL)
        (self.folder / JOURNAL).unlink(missing_ok=True)

    def _empty(self, but: str) -> None:
        for name, _ in self.folder.entries():
            if name != but and not name.startswith(LOCK):
                (self.folder / name).remove_tree()
