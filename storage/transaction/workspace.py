"""Workspaces of jobs, which resume after they are killed at any moment: a journal beside the partial store.

This describes a disk. See `dpca.storage.transaction.growing` for object stores.

::

    out.zarr.partial/          during the job                     out.zarr/    when it is complete
        lock                   marks the folder, and is locked (flock) by the current run: see
        `dpca.storage.transaction.claim`
        journal.json           kind and fingerprint of the job
        done-<hash>/<unit>.npz     done-marker of a finished unit of work, with its results
        scratch-<hash>/        checkpoints
        store-<hash>/          becomes out.zarr by one rename
        replaced/              the old out.zarr, between two renames, if the system cannot swap folders atomically
        kept/                  inner store of a job with other settings, see `dpca.storage.transaction.inherited`

The order of the steps makes this safe. A journal is created after its folders and removed before them. If it exists,
the folders are valid; without it, they are removed. A done-marker is created after the files of its unit. The journal
is outside the store, so the store of a resumed job is bit-identical to that of an uninterrupted one. The names of the
folders depend on the job. A worker on a cluster that outlives its program can therefore finish its last shard without
affecting a later job with other settings.

This protects against killed processes. After a power failure, `dpca.storage.verify` finds data missing on
the disk.
POSIX only (flock, rename within a file system).
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

from dpca.storage.disk import content_of_file, exists, is_full, refusal_of_disk, writing_errors
from dpca.storage.errors import ReplacedError, StoreError
from dpca.storage.integrity.manifest import (
    METADATA,
    NOTHING_CARRIED,
    ZARR_METADATA,
    Carried,
    check_metadata,
    digest_of,
    facts_in,
)
from dpca.storage.remote.objects import ObjectPath, Place, place_of
from dpca.storage.transaction.claim import JOURNAL, Claim, read_json
from dpca.storage.transaction.growing import growing_store
from dpca.storage.transaction.inherited import Inherited
from dpca.storage.transaction.lease import Lease
from dpca.storage.transaction.markers import DoneMarkers
from dpca.storage.transaction.outputs import check_outside_stores, resolved_output, work_folder

State = Literal["new", "resumed", "complete"]


def fingerprint_of(*parts: Any) -> str:
    """Return a short hash of JSON-able values, which is the same on every machine.

    Parameters
    ----------
    *parts : JSON-able
        Settings, names, sizes. Tuples are equal to lists, and the order of mappings is ignored.

    Returns
    -------
    str
        32 hexadecimal digits (BLAKE2b).

    Raises
    ------
    TypeError, ValueError
        If a part is not JSON-able, or contains a number that is not finite.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return digest_of(text.encode("utf-8", "surrogatepass"))


class Workspace(DoneMarkers):
    """Context manager that creates a store, resumes an unfinished one, or finds a complete one.

    Parameters
    ----------
    target : path-like or URL
        Path of the store. Parents are created.
    kind : str
        Kind of the store ("stack", "scores", ...). The root attributes of a complete store have it, see
        `dpca.storage.arrays.arrays.create_root`.
    fingerprint : str
        Hash of everything that determines the content: input and settings.
    overwrite : bool
        Whether to replace another Zarr store at the target, or an unfinished one with other settings. Other files and
        folders are never replaced. A complete store with the same settings is always kept.
    inherited : Inherited, optional
        An inner store to reuse from an unfinished job with other settings, or from the store that is being replaced. An
        unfinished job that contains nothing else is replaced without `overwrite`.
    look_only : bool
        Whether to determine only `state`, or to raise the error of a real run. Nothing is started, and the caller must
        not write.

    Attributes
    ----------
    state : {"new", "resumed", "complete"}
        Set on entry. With ``"complete"``, there is nothing to do.
    target : Path or ObjectPath
        The path as given.
    store : Path or ObjectPath
        Absolute path of the Zarr group to write to.
    scratch : Path or ObjectPath
        Absolute path of the folder for checkpoints, which `publish` removes.

    Raises
    ------
    StoreError
        On entry, if the target or the work folder may not be replaced, or another run holds it.

    Examples
    --------
    >>> from dpca.storage.arrays.arrays import create_root
    >>> from dpca.storage.transaction.workspace import Workspace
    >>> with Workspace("new.zarr", kind="stack", fingerprint="4f2a") as work:
    ...     if work.state != "complete":
    ...         root = create_root(work.store, kind="stack", fingerprint=work.fingerprint)
    ...         if not work.is_done("shard 0"):  # for each unit: write its files, then mark it
    ...             work.mark_done("shard 0")
    ...         work.publish()
    """

    state: State
    #: Files that mark a complete output. The first one states its kind and its fingerprint.
    marked_by: tuple[str, ...] = ZARR_METADATA
    #: A complete output, in messages.
    what = "a Zarr store"

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        kind: str,
        fingerprint: str,
        overwrite: bool = False,
        inherited: Inherited | None = None,
        look_only: bool = False,
    ) -> None:
        self._real = resolved_output(target)
        self.target = place_of(target)
        self.kind = kind
        self.fingerprint = fingerprint
        self.overwrite = overwrite
        self._inherited = inherited
        self._look_only = look_only
        # If the target is a link, the work folder is beside the real path, which the store replaces.
        self._growing = growing_store(self._real, fingerprint_of(kind, fingerprint)[:12])
        self._folder = self._growing.folder
        self.store = self._growing.store
        self.scratch = self._growing.scratch
        self._claim: Claim | Lease | None = None
        super().__init__(self._growing.done, self.target)

    def __enter__(self) -> Self:
        with writing_errors(self.target):
            if not exists(self._folder):
                complete = self._target_is_complete()
                if complete or self._look_only:
                    self.state = "complete" if complete else "new"
                    return self
            check_outside_stores(self.target, self._real)
            claim = self._claim = self._growing.claim(os.fspath(self.target))
            try:
                self._begin()
            except BaseException:
                if claim.created and not self._growing.is_begun():
                    self._growing.tidy()
                    claim.end()
                self._release()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, FileNotFoundError) and self._claim is not None and self._claim.held:
            self._claim.require()  # raises a better error if another run took over the folder
        if self._claim is not None and self._claim.held:
            with suppress(OSError, StoreError):  # the folder may be removed meanwhile, or the network may fail
                if self._look_only:
                    if self._claim.created:
                        self._claim.end()
                elif not self._holds_finished_work():
                    # There is no work to resume, for example if the first image was broken.
                    self._growing.discard()
                    self._claim.end()
        self._release()
        # This converts errors of all writes inside the block, on any thread or worker.
        if error is not None and (refusal := self._refusal(error)) is not None:
            raise refusal from error

    def _holds_finished_work(self) -> bool:
        """Whether there are finished units, checkpoints, or inner stores, complete or not."""
        if any(any(folder.iterdir()) for folder in (self._done, self.scratch)):
            return True
        inner = [entry for entry in self.store.iterdir() if entry.is_dir()]
        return any(entry.suffix == self._folder.suffix or _root_facts(entry / METADATA) for entry in inner)

    def _refusal(self, error: BaseException) -> StoreError | None:
        """Return a `StoreError` if an error, or one of its causes, is an error of the disk; else None."""
        seen: BaseException | None = error
        while seen is not None and not isinstance(seen, StoreError):
            inside = isinstance(seen, OSError) and str(seen.filename).startswith(os.fspath(self._folder))
            if isinstance(seen, OSError) and (inside or is_full(seen)):
                return refusal_of_disk(seen, self.target)
            seen = seen.__cause__
        return None

    def forget(self) -> None:
        """Remove all done-markers and checkpoints, from which no other job can resume.

        The end of the block then removes the work folder, unless it has an inner store.
        """
        self._forget(self.scratch)

    def set_aside(self) -> None:
        """Move the inner store out of a complete store: it is kept for other jobs, but not published."""
        if self._inherited is not None:
            with writing_errors(self.target):
                self._growing.set_aside(self._inherited)

    def publish(self, carried: Carried = NOTHING_CARRIED) -> None:
        """Move the complete store to its target and remove the work folder. ``carried`` lists reused files.

        Raises
        ------
        StoreError
            If the target may no longer be replaced.
        RuntimeError
            If the attributes of the store lack its kind and fingerprint, which is a mistake of the caller.
        """
        if self._claim is None or not self._claim.held:
            raise RuntimeError("publish() was called outside of the with block, or for a complete store")
        if _root_facts(self._growing.root) != (self.kind, self.fingerprint):
            self._claim.require()
            raise RuntimeError(f"the attributes of '{self.store}' lack its kind and fingerprint: use create_root")
        with writing_errors(self.target):
            self._target_is_complete()  # raises an error if the target may no longer be replaced
            self._claim.require()
            self._growing.publish(carried)
            self._growing.tidy(self._inherited)
            self._claim.end()

    # -- state of the target

    def _target_is_complete(self) -> bool:
        """Return whether the target is the complete store of this job; raise `StoreError` if it may not be replaced."""
        facts = _root_facts(self._real / self.marked_by[0])
        if facts == (self.kind, self.fingerprint):
            return self._is_whole()
        if not exists(self._real):
            return False
        if not self._real.is_dir():
            raise StoreError(f"output '{self.target}' is a file: choose another output or remove it")
        if not any((self._real / name).exists() for name in self.marked_by):
            if any(self._real.iterdir()) and not self._growing.is_begun():
                raise StoreError(
                    f"output '{self.target}' is a folder that is not {self.what}: choose another output or remove it"
                )
            return False
        if not self.overwrite:
            what = f"{self.what}, but not a {self.kind} store"
            if facts is not None and facts[0] == self.kind:
                what = f"a {self.kind} store of other input or with other settings"
            elif facts is not None:
                what = f"a store of kind {facts[0]!r}, not {self.kind!r}"
            raise StoreError(
                f"output '{self.target}' is {what}: choose another output or give --overwrite (overwrite=True)"
            )
        return False

    def _is_whole(self) -> bool:
        """Return whether the metadata of the target is intact; raise `StoreError` if it may not be replaced."""
        try:
            check_metadata(self._real)
        except StoreError as error:
            if isinstance(error, ReplacedError):
                raise
            if self.overwrite:
                return False
            raise StoreError(
                f"output '{self.target}' has the same settings but is damaged ({error}), or give --overwrite "
                f"(overwrite=True)"
            ) from error
        return True

    def _begin(self) -> None:
        """Recover from a killed run, then set the state. The lock must be held."""
        if (foreign := self._growing.foreign()) is not None:
            raise StoreError(
                f"work folder '{self._display_folder}' contains {foreign!r}, which was not created by dpca: "
                f"choose another output or remove it"
            )
        self._growing.repair()
        journal = read_json(self._folder / JOURNAL)
        job = {"kind": self.kind, "fingerprint": self.fingerprint}
        same_job = journal == job
        if self._target_is_complete():
            self.state = "complete"
            if same_job or journal is None:
                self._growing.tidy(self._inherited)
                self._end()
            self._release()
            return  # an unfinished run with other settings is not changed
        if journal is not None and not same_job and not self.overwrite and not self._leaves_only_inherited():
            raise StoreError(
                f"'{self._display_folder}' is an unfinished {journal.get('kind')} store of other input or with other "
                f"settings: choose another output, or give --overwrite (overwrite=True) to discard it"
            )
        self.state = "resumed" if same_job else "new"
        if self._look_only:
            return
        if same_job:
            self._growing.resume(self._inherited)
        else:
            self._growing.begin(self._inherited, json.dumps(job).encode(), replaces=self.overwrite)

    def _leaves_only_inherited(self) -> bool:
        return self._inherited is not None and self._growing.leaves_only(self._inherited)

    @property
    def _display_folder(self) -> Place:
        return self.target.with_name(self.target.name + ".partial") if self.target.name else self._folder

    # -- the end of the work folder

    def _release(self) -> None:
        if self._claim is not None:
            self._claim.release()

    def _end(self) -> None:
        if self._claim is not None:
            self._claim.end()


def unfinished_work(target: str | os.PathLike[str], kind: str) -> Workspace | None:
    """Return the workspace of an unfinished store of this kind for reading; None if there is none.

    A published store is finished, even if its run was killed before it removed the work folder.
    """
    journal = read_json(work_folder(resolved_output(target)) / JOURNAL)
    if journal is None or journal.get("kind") != kind or not isinstance(journal.get("fingerprint"), str):
        return None
    work = Workspace(target, kind=kind, fingerprint=journal["fingerprint"])
    root = work.store / METADATA
    appeared = root.is_file() if isinstance(work.store, ObjectPath) else not root.is_file()
    return None if appeared else work


def _root_facts(root: Place) -> tuple[Any, Any] | None:
    facts = facts_in(content_of_file(root))
    return (facts.get("kind"), facts.get("fingerprint")) if facts else None
