"""Hands an inner store, such as an ingested stack, from one job to another with other settings.

::

    out.zarr.partial/
        store-<old>/stack      an unfinished job's            renamed to
        kept/stack             in nobody's store              renamed to
        store-<new>/stack      the new job's

    out.zarr/stack             a finished job's: the old store stays whole until the new one is published, so each file
                               gets a second name (a link) in kept/stack.copy, or is copied where the disk has none

A store is found in any of these places, so that a death between two steps costs nothing but the steps.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dpca.storage.objects import Place

KEPT = "kept"
_COPY = ".copy"
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True)
class Inherited:
    """An inner store that a job may take over.

    Parameters
    ----------
    name : str
        Its path inside the job's store: one folder.
    serves : callable
        Tells of a path whether a store is there that is whole and just what the new job would make.
    """

    name: str
    serves: Callable[[Place], bool]

    def is_all(self, work: Path, stores: Iterable[Path]) -> bool:
        """Return whether unfinished jobs hold nothing but an inner store that can be taken over."""
        found = list(stores)
        places = [folder / self.name for folder in (work / KEPT, *found)]
        inner = [place for place in places if place.exists()]
        return bool(inner) and all(map(self.serves, inner)) and all(set(os.listdir(s)) <= {self.name} for s in found)

    def keep(self, work: Path, stores: Iterable[Path], finished: Path | None) -> None:
        """Move a usable inner store of an unfinished job to ``kept``, or copy that of a finished one."""
        kept = work / KEPT / self.name
        copy = kept.with_name(kept.name + _COPY)
        if copy.exists():
            shutil.rmtree(copy)
        if kept.exists() and self.serves(kept):
            return
        for store in stores:
            if self.serves(store / self.name):
                self._make_way(kept)
                os.rename(store / self.name, kept)
                return
        if finished is not None and self.serves(finished / self.name):
            self._make_way(kept)
            shutil.copytree(finished / self.name, copy, copy_function=link_or_copy)
            os.rename(copy, kept)

    def set_aside(self, work: Path, store: Path) -> None:
        """Move a job's inner store to ``kept``: it is handed over again where the job goes on, else removed with it."""
        if (store / self.name).exists():
            kept = work / KEPT / self.name
            self._make_way(kept)
            os.rename(store / self.name, kept)

    def hand_over(self, work: Path, store: Path) -> None:
        """Move the kept inner store into a job's store, unless the job has its own."""
        kept = work / KEPT
        if (kept / self.name).exists() and not (store / self.name).exists():
            os.rename(kept / self.name, store / self.name)
        if kept.exists():
            shutil.rmtree(kept)

    def _make_way(self, kept: Path) -> None:
        kept.parent.mkdir(exist_ok=True)
        if kept.exists():
            shutil.rmtree(kept)


def link_or_copy(source: str, target: str) -> None:
    """Give a file a second name, or copy it where the disk has none."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target, follow_symlinks=False)
