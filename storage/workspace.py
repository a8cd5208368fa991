"""Jobs that can be killed at any moment and resumed: a journal beside the growing store.

On a disk; `dpca.storage.growing` says what differs in an object store.

::

    out.zarr.partial/          while the job works                out.zarr/    when it is whole
        lock                   held (flock) by the one that works, and the mark of the folder: see `dpca.storage.claim`
        journal.json           kind and fingerprint of the job
        done-<hash>/<unit>.json    one marker a finished unit of work
        scratch-<hash>/        checkpoints
        store-<hash>/          becomes out.zarr by one rename
        replaced/              the old out.zarr, between two renames, where the system cannot swap folders in one step
        kept/                  what a job of other settings leaves to this one, see `dpca.storage.inherited`

The order of the steps is what makes it safe. A journal appears after its folders and disappears before
them, so a journal means that the rest can be trusted, and a folder without one is swept. A marker appears
after its unit's files. The journal never lies inside the store, so the store of a resumed job is byte for
byte that of an undisturbed one. What is written for the store is named by the job, so that a worker on a cluster that
outlives its program can finish its last shard without harm to a job of other settings that has begun since.

This guards against the death of processes. What a power cut took from the disk's cache is found by
`dpca.storage.verify`. POSIX only (flock, rename over the same file system).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from types import TracebackType
from typing import Any, Literal, Self

from dpca.storage.claim import JOURNAL, Claim, read_json
from dpca.storage.disk import atomic_write_bytes, is_full, refusal_of_disk, there_is, writing_errors
from dpca.storage.errors import ReplacedError, StoreError
from dpca.storage.growing import growing_at
from dpca.storage.inherited import Inherited
from dpca.storage.lease import Lease
from dpca.storage.manifest import METADATA, NOTHING_CARRIED, Carried, check_metadata
from dpca.storage.objects import ObjectPath, Place, place_of
from dpca.storage.outputs import check_outside_stores, resolved_output, work_folder

State = Literal["new", "resumed", "complete"]

_ZARR_METADATA = ("zarr.json", ".zgroup", ".zarray")


def fingerprint_of(*parts: Any) -> str:
    """Return a short hash of JSON-able values (equal values, equal hash, on every machine).

    Parameters
    ----------
    *parts : JSON-able
        Settings, names, sizes; tuples count as lists, mappings regardless of their order.

    Returns
    -------
    str
        32 hexadecimal digits (BLAKE2b).

    Raises
    ------
    TypeError, ValueError
        If a part is not JSON-able, or holds a number that is not finite.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Workspace:
    """Context in which a store is made, resumed, or found to be complete.

    Parameters
    ----------
    target : path-like or URL
        Where the store is to appear; parents are created.
    kind : str
        What is made ("stack", "scores", ...). A complete target states it in its root attributes, see
        `dpca.storage.arrays.create_root`.
    fingerprint : str
        Hash of everything that determines the content: input and settings.
    overwrite : bool
        Whether another Zarr store at the target, or an unfinished one of other settings, may be replaced. A
        file or a folder that is no Zarr store is never replaced; nor is a complete store of these very
        settings, which is kept.
    inherited : Inherited, optional
        A store inside the store that is taken over from an unfinished job of other settings or a store that is being
        replaced. An unfinished job that holds nothing else is taken over without `overwrite`.
    look_only : bool
        Whether only `state` is wanted, or what stands in the way: nothing is begun, and nothing may be written.

    Attributes
    ----------
    state : {"new", "resumed", "complete"}
        Set on entry. ``"complete"``: there is nothing to do, and nothing was touched.
    target : Path or ObjectPath
        As given.
    store : Path or ObjectPath
        Zarr group to write to, absolute.
    scratch : Path or ObjectPath
        Folder for checkpoints, absolute; gone after `publish`.

    Raises
    ------
    StoreError
        On entry, if the target or the work folder is something else or another run holds it.

    Examples
    --------
    >>> from dpca.storage.arrays import create_root
    >>> from dpca.storage.workspace import Workspace
    >>> with Workspace("new.zarr", kind="stack", fingerprint="4f2a") as work:
    ...     if work.state != "complete":
    ...         root = create_root(work.store, kind="stack", fingerprint=work.fingerprint)
    ...         if not work.is_done("shard 0"):  # and each other unit: write it, then
    ...             work.mark_done("shard 0")
    ...         work.publish()
    """

    state: State

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
        # Beside the target of a link, which the store replaces.
        self._growing = growing_at(self._real, fingerprint_of(kind, fingerprint)[:12])
        self._folder = self._growing.folder
        self.store = self._growing.store
        self.scratch, self._done = self._growing.scratch, self._growing.done
        self._claim: Claim | Lease | None = None
        self._marked: set[str] | None = None

    def __enter__(self) -> Self:
        with writing_errors(self.target):
            if not there_is(self._folder):
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
            self._claim.require()  # or another run, which took the folder, has removed it
        if self._claim is not None and self._claim.held:
            with suppress(OSError, StoreError):  # somebody may have removed it under our feet, or the network is cut
                if self._look_only:
                    if self._claim.created:
                        self._claim.end()
                elif not self._holds_finished_work():
                    # nothing that a later run could use (the first image was broken, say): leave no trace
                    self._growing.discard()
                    self._claim.end()
        self._release()
        # Converted here for everything that was written inside the block, on any thread or worker.
        if error is not None and (refusal := self._refusal(error)) is not None:
            raise refusal from error

    def _holds_finished_work(self) -> bool:
        """Whether there are finished units, checkpoints, or inner stores, complete or not."""
        if any(any(folder.iterdir()) for folder in (self._done, self.scratch)):
            return True
        inner = [entry for entry in self.store.iterdir() if entry.is_dir()]
        return any(entry.suffix == self._folder.suffix or _root_facts(entry / METADATA) for entry in inner)

    def _refusal(self, error: BaseException) -> StoreError | None:
        """Return the `StoreError` for an error whose chain of causes holds one of the disk; else None."""
        seen: BaseException | None = error
        while seen is not None and not isinstance(seen, StoreError):
            ours = isinstance(seen, OSError) and str(seen.filename).startswith(os.fspath(self._folder))
            if isinstance(seen, OSError) and (ours or is_full(seen)):
                return refusal_of_disk(seen, self.target)
            seen = seen.__cause__
        return None

    def is_done(self, unit: str, fingerprint: str = "") -> bool:
        """Tell whether an earlier run, or this one, finished a unit of work with this fingerprint."""
        marker = self._read_marker(unit)
        return marker is not None and marker.get("fingerprint") == fingerprint

    def mark_done(self, unit: str, fingerprint: str = "", record: Mapping[str, Any] | None = None) -> None:
        """Note that a unit of work is finished; its files must be whole by now.

        Parameters
        ----------
        unit : str
            Name of the unit, any text.
        fingerprint : str
            Hash of what this unit was made from, where the job's own does not tell.
        record : mapping, optional
            JSON-able results to keep, see `record`.
        """
        marker = {"unit": unit, "fingerprint": fingerprint, "record": dict(record or {})}
        with writing_errors(self.target):
            atomic_write_bytes(self._marker(unit), json.dumps(marker).encode())
        if self._marked is not None:
            self._marked.add(self._marker(unit).name)

    def record(self, unit: str) -> dict[str, Any]:
        """Return what was recorded with a finished unit.

        Raises
        ------
        KeyError
            If the unit is not done.
        """
        marker = self._read_marker(unit)
        if marker is None:
            raise KeyError(unit)
        return dict(marker["record"])

    def set_aside(self) -> None:
        """Take what other jobs may inherit out of a store that is whole, and not to be published with it."""
        if self._inherited is not None:
            with writing_errors(self.target):
                self._growing.set_aside(self._inherited)

    def publish(self, carried: Carried = NOTHING_CARRIED) -> None:
        """Move the complete store, of which ``carried`` comes from a finished one, to its target; end the work folder.

        Raises
        ------
        StoreError
            If the target became something else meanwhile.
        RuntimeError
            If the store does not state its kind and fingerprint (a mistake of the caller).
        """
        if self._claim is None or not self._claim.held:
            raise RuntimeError("publish() outside of the workspace's with block, or of a complete store")
        if _root_facts(self._growing.root) != (self.kind, self.fingerprint):
            self._claim.require()
            raise RuntimeError(f"'{self.store}' does not state its kind and fingerprint: use create_root")
        with writing_errors(self.target):
            self._target_is_complete()  # raises if something that may not be replaced has appeared
            self._claim.require()
            self._growing.publish(carried)
            self._growing.tidy(self._inherited)
            self._claim.end()

    # -- what is there

    def _target_is_complete(self) -> bool:
        """Whether the target is this job's store; raises if it is another one that may not be replaced."""
        facts = _root_facts(self._real / METADATA)
        if facts == (self.kind, self.fingerprint):
            return self._is_whole()
        if not there_is(self._real):
            return False
        if not self._real.is_dir():
            raise StoreError(f"output '{self.target}' is a file: choose another output or remove it")
        if not any((self._real / name).exists() for name in _ZARR_METADATA):
            if any(self._real.iterdir()) and not self._growing.is_begun():
                raise StoreError(
                    f"output '{self.target}' is a folder that is not a Zarr store: choose another output or remove it"
                )
            return False
        if not self.overwrite:
            what = f"a Zarr store, but not a {self.kind} store"
            if facts is not None and facts[0] == self.kind:
                what = f"a {self.kind} store made from other input or with other settings"
            elif facts is not None:
                what = f"a store of kind {facts[0]!r}, not {self.kind!r}"
            raise StoreError(
                f"output '{self.target}' is {what}: choose another output or pass --overwrite (overwrite=True)"
            )
        return False

    def _is_whole(self) -> bool:
        """Whether the metadata of the target is intact; raises if it is not and may not be replaced."""
        try:
            check_metadata(self._real)
        except StoreError as error:
            if isinstance(error, ReplacedError):
                raise
            if self.overwrite:
                return False
            raise StoreError(
                f"output '{self.target}' was made with these settings and is damaged ({error}), or pass --overwrite "
                f"(overwrite=True)"
            ) from error
        return True

    def _begin(self) -> None:
        """Repair what a killed run left behind, then set the state; the lock is held."""
        if (foreign := self._growing.foreign()) is not None:
            raise StoreError(
                f"work folder '{self._display_folder}' holds {foreign!r}, which is not created by dpca: "
                f"choose another output or remove it"
            )
        self._growing.repair()
        journal = read_json(self._folder / JOURNAL)
        mine = {"kind": self.kind, "fingerprint": self.fingerprint}
        ours = journal == mine
        if self._target_is_complete():
            self.state = "complete"
            if ours or journal is None:
                self._growing.tidy(self._inherited)
                self._end()
            self._release()
            return  # an unfinished run of other settings stays as it is
        if journal is not None and not ours and not self.overwrite and not self._leaves_only_what_is_inherited():
            raise StoreError(
                f"'{self._display_folder}' is an unfinished {journal.get('kind')} store made from other input or with "
                f"other settings: choose another output, or pass --overwrite (overwrite=True) to discard it"
            )
        self.state = "resumed" if ours else "new"
        if self._look_only:
            return
        if ours:
            self._growing.resume(self._inherited)
        else:
            self._growing.begin(self._inherited, json.dumps(mine).encode(), replaces=self.overwrite)

    def _leaves_only_what_is_inherited(self) -> bool:
        return self._inherited is not None and self._growing.leaves_only(self._inherited)

    @property
    def _display_folder(self) -> Place:
        return self.target.with_name(self.target.name + ".partial") if self.target.name else self._folder

    # -- markers

    def _marker(self, unit: str) -> Place:
        return self._done / f"{fingerprint_of(unit)}.json"

    def _read_marker(self, unit: str) -> dict[str, Any] | None:
        if isinstance(self._done, ObjectPath) and self._marked is None:
            self._marked = {name for name, _ in self._done.entries()}  # sooner than to ask for each
        if self._marked is not None and self._marker(unit).name not in self._marked:
            return None
        marker = read_json(self._marker(unit))
        # a marker that is torn, or not of the expected form, is none: the unit is done again
        if marker is None or marker.get("unit") != unit or not isinstance(marker.get("record"), dict):
            return None
        return marker

    # -- the end of the work folder

    def _release(self) -> None:
        if self._claim is not None:
            self._claim.release()

    def _end(self) -> None:
        if self._claim is not None:
            self._claim.end()


def unfinished_work(target: str | os.PathLike[str], kind: str) -> Workspace | None:
    """Return the workspace of a store that another run makes, only to be read; None where there is none of this kind.

    A store that has appeared is finished, even if its run died before its work folder was gone.
    """
    journal = read_json(work_folder(resolved_output(target)) / JOURNAL)
    if journal is None or journal.get("kind") != kind or not isinstance(journal.get("fingerprint"), str):
        return None
    work = Workspace(target, kind=kind, fingerprint=journal["fingerprint"])
    root = work.store / METADATA
    appeared = root.is_file() if isinstance(work.store, ObjectPath) else not root.is_file()
    return None if appeared else work


def _root_facts(root: Place) -> tuple[Any, Any] | None:
    metadata = read_json(root)
    attributes = metadata.get("attributes") if metadata is not None else None
    facts = attributes.get("dpca") if isinstance(attributes, dict) else None
    return (facts.get("kind"), facts.get("fingerprint")) if isinstance(facts, dict) else None
