"""Where a store grows until it is whole, and how it appears under its name: on a disk, and in an object store.

::

    on a disk                                     in an object store
    out.zarr.partial/                             out.zarr.partial/
        lock                                          lock                 see `dpca.storage.lease`
        journal.json                                  journal.json
        done-<hash>/, scratch-<hash>/                 done-<hash>/, scratch-<hash>/
        store-<hash>/  becomes out.zarr               zarr.json            becomes the last object of out.zarr
        replaced/      the old out.zarr               clearing             there while out.zarr is emptied
        kept/          see `dpca.storage.inherited`
                                                  out.zarr/                every other object of the new store

An object store cannot rename. So all objects but one are written where they belong, and nobody takes them for a store
before its `zarr.json` is there, one small object that is written last. A store that is to be replaced loses this object
first, and is gone from then on. An inner store that the new job can use stays where it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from dpca.storage.claim import JOURNAL, LOCK, REPLACED, Claim
from dpca.storage.disk import atomic_write_bytes, exchanged, read_file, remove_tree, sweep, sync_folder
from dpca.storage.inherited import KEPT, Inherited
from dpca.storage.lease import CLEARING, Lease
from dpca.storage.manifest import METADATA, Carried, read_manifest, remove_manifest, write_manifest
from dpca.storage.objects import ObjectPath, Place
from dpca.storage.outputs import work_folder

_PARTS = (REPLACED, KEPT)
# Begins of names that a hash of the job ends: what another job's straggler still writes harms nobody.
_STORE, _DONE, _SCRATCH = _OF_A_JOB = ("store-", "done-", "scratch-")


class Growing(Protocol):
    """What `dpca.storage.workspace.Workspace` asks of the place of a store."""

    @property
    def folder(self) -> Place:
        """The work folder."""

    @property
    def store(self) -> Place:
        """Where the store is written."""

    @property
    def done(self) -> Place:
        """Folder of the markers of this job."""

    @property
    def scratch(self) -> Place:
        """Folder of the checkpoints of this job."""

    @property
    def root(self) -> Place:
        """The metadata of the store's root until it appears."""

    def claim(self, shown: str) -> Claim | Lease:
        """Take the work folder for this run."""

    def foreign(self) -> str | None:
        """Return the name of something in the work folder that is not created by dpca."""

    def repair(self) -> None:
        """Mend what a run left behind that died while it published."""

    def is_begun(self) -> bool:
        """Return whether objects under the final name are those of an unfinished store of ours."""

    def leaves_only(self, inherited: Inherited) -> bool:
        """Return whether an unfinished job holds nothing but what can be taken over."""

    def begin(self, inherited: Inherited | None, journal: bytes, *, replaces: bool) -> None:
        """Make place for a new store, keep what it inherits, and write the journal; ``replaces`` the finished one."""

    def resume(self, inherited: Inherited | None) -> None:
        """Prepare what an interrupted run of the same job left."""

    def set_aside(self, inherited: Inherited) -> None:
        """Take an inner store out of a store that is whole."""

    def publish(self, carried: Carried) -> None:
        """Let the store appear; ``carried`` is what of it comes from a finished one."""

    def discard(self) -> None:
        """Remove the unfinished store, and the work folder but for its lock."""

    def tidy(self, inherited: Inherited | None = None) -> None:
        """Remove the work folder of a finished store but for its lock, and what should not be in the store."""


def growing_at(real: Place, key: str) -> Growing:
    """Return how a store appears at a real path; ``key`` names the job."""
    folder = work_folder(real)
    if isinstance(real, ObjectPath) and isinstance(folder, ObjectPath):
        return InBucket(real, folder, key)
    assert not isinstance(real, ObjectPath)
    assert not isinstance(folder, ObjectPath)
    return OnDisk(real, folder, key)


class OnDisk:
    """A store that grows in its work folder and appears by one rename; see the module."""

    def __init__(self, real: Path, folder: Path, key: str) -> None:
        self._real, self.folder = real, folder
        self.store, self.done, self.scratch = (folder / f"{name}{key}" for name in _OF_A_JOB)
        self.root = self.store / METADATA

    def claim(self, shown: str) -> Claim:
        """Lock the work folder."""
        return Claim(self.folder, shown)

    def foreign(self) -> str | None:
        """Return the first name that is not created by dpca."""
        names = sorted(entry.name for entry in self.folder.iterdir())
        ours = (*_OF_A_JOB, f".{JOURNAL}.", ".nfs")
        return next((n for n in names if n not in (*_PARTS, LOCK, JOURNAL) and not n.startswith(ours)), None)

    def repair(self) -> None:
        """Put the old store back, or remove it: between two renames it has no other place."""
        replaced = self.folder / REPLACED
        if replaced.exists():
            if self._real.exists():
                remove_tree(replaced)
            else:
                os.rename(replaced, self._real)

    def is_begun(self) -> bool:
        """Return False: nothing of an unfinished store is under its name."""
        return False

    def leaves_only(self, inherited: Inherited) -> bool:
        """Ask `Inherited`."""
        return inherited.is_all(self.folder, self._stores())

    def begin(self, inherited: Inherited | None, journal: bytes, *, replaces: bool) -> None:
        """Clear the work folder; the finished store stays until the new one is whole."""
        if inherited is not None:
            inherited.keep(self.folder, self._stores(), self._real if replaces else None)
        self.discard(but=KEPT if inherited is not None else "")
        for folder in (self.store, self.done, self.scratch):
            folder.mkdir()
        if inherited is not None:
            inherited.hand_over(self.folder, self.store)
        atomic_write_bytes(self.folder / JOURNAL, journal)

    def resume(self, inherited: Inherited | None) -> None:
        """Remove what killed writers and a publication that was cut short left."""
        if inherited is not None:
            inherited.hand_over(self.folder, self.store)
        sweep(self.store)
        remove_manifest(self.store)

    def set_aside(self, inherited: Inherited) -> None:
        """Move the inner store away."""
        inherited.set_aside(self.folder, self.store)

    def publish(self, carried: Carried) -> None:
        """Rename the store."""
        sweep(self.store)
        write_manifest(self.store, carried=carried)
        if self._real.exists() and exchanged(self.store, self._real):
            sync_folder(self._real.parent)
            return  # the old store is in the work folder, which is tidied up next
        if self._real.exists():
            os.rename(self._real, self.folder / REPLACED)
        os.rename(self.store, self._real)
        sync_folder(self._real.parent)

    def discard(self, but: str = "") -> None:
        """Remove what is ours in the work folder, the journal first."""
        (self.folder / JOURNAL).unlink(missing_ok=True)
        for entry in self.folder.iterdir():
            if entry.name.startswith(f".{JOURNAL}."):
                entry.unlink()
            elif entry.name != but and (entry.name in _PARTS or entry.name.startswith(_OF_A_JOB)):
                remove_tree(entry)

    def tidy(self, inherited: Inherited | None = None) -> None:
        """Do as `discard`: the finished store is elsewhere."""
        self.discard()

    def _stores(self) -> list[Path]:
        return sorted(entry for entry in self.folder.iterdir() if entry.name.startswith(_STORE))


class InBucket:
    """A store that grows under its name and appears by its last object; see the module."""

    def __init__(self, real: ObjectPath, folder: ObjectPath, key: str) -> None:
        self.store, self.folder, self.root = real, folder, folder / METADATA
        self.done, self.scratch = folder / f"{_DONE}{key}", folder / f"{_SCRATCH}{key}"
        self._set_aside: str | None = None

    def claim(self, shown: str) -> Lease:
        """Write the lock."""
        return Lease(self.folder, shown)

    def foreign(self) -> str | None:
        """Return the first name that is not created by dpca."""
        ours = (JOURNAL, CLEARING, METADATA)
        names = (n for n, _ in self.folder.entries())
        return next((n for n in names if n not in ours and not n.startswith((LOCK, _DONE, _SCRATCH))), None)

    def repair(self) -> None:
        """Do nothing: publishing is one step."""

    def is_begun(self) -> bool:
        """Return whether a journal owns the objects, or they were about to be removed."""
        return (self.folder / JOURNAL).is_file() or (self.folder / CLEARING).is_file()

    def leaves_only(self, inherited: Inherited) -> bool:
        """Return whether nothing but the inner store lies under the name, and it serves."""
        names = [name for name, _ in self.store.entries()]
        return names == [inherited.name] and inherited.serves(self.store / inherited.name)

    def begin(self, inherited: Inherited | None, journal: bytes, *, replaces: bool) -> None:
        """Remove everything but what is inherited; `CLEARING` says meanwhile whose it was."""
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
        """Remove what a publication that was cut short left."""
        (self.folder / CLEARING).unlink(missing_ok=True)
        remove_manifest(self.store)

    def set_aside(self, inherited: Inherited) -> None:
        """Leave the inner store out when the store is published: a run that goes on until then still needs it."""
        self._set_aside = inherited.name

    def publish(self, carried: Carried) -> None:
        """Write the last object."""
        write_manifest(self.store, self.root, left_out=self._set_aside, carried=carried)

    def discard(self) -> None:
        """Remove all objects of the store, while the journal owns them, then the work folder."""
        if not (self.store / METADATA).is_file():  # else it has appeared, and only the end of its run failed
            self.store.remove_tree()
        self.tidy()

    def tidy(self, inherited: Inherited | None = None) -> None:
        """Remove what a run left behind that died between its last object and its end."""
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
