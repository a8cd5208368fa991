"""Moves an inner store, such as an ingested stack, from one job to another job with other settings.

::

    out.zarr.partial/
        store-<old>/stack      of an unfinished job           renamed to
        kept/stack             of no job                      renamed to
        store-<new>/stack      of the new job

    out.zarr/stack             of a finished job: the old store stays complete until the new one is published, so each
                               file is hard-linked to kept/stack.copy, or copied if the disk does not support links

An inner store is found at any of these places. If a run is killed between two steps, the next run resumes there.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dpca.storage.remote.objects import Place

KEPT = "kept"
_COPY = ".copy"
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True)
class Inherited:
    """An inner store that a job can reuse.

    Parameters
    ----------
    name : str
        Name of its folder in the store of the job.
    serves : callable
        Returns whether the store at a path is complete and identical to the one that the new job would create.
    """

    name: str
    serves: Callable[[Place], bool]

    def is_all(self, work: Path, stores: Iterable[Path]) -> bool:
        """Return whether unfinished jobs contain only an inner store that can be reused."""
        found = list(stores)
        places = [folder / self.name for folder in (work / KEPT, *found)]
        inner = [place for place in places if place.exists()]
        return bool(inner) and all(map(self.serves, inner)) and all(set(os.listdir(s)) <= {self.name} for s in found)

    def keep(self, work: Path, stores: Iterable[Path], finished: Path | None) -> None:
        """Move a reusable inner store of an unfinished job to ``kept``, or copy that of a finished job."""
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
        """Move the inner store of a job to ``kept``, for a run that resumes; otherwise it is removed with ``kept``."""
        if (store / self.name).exists():
            kept = work / KEPT / self.name
            self._make_way(kept)
            os.rename(store / self.name, kept)

    def hand_over(self, work: Path, store: Path) -> None:
        """Move the kept inner store into the store of a job, unless this store already has one."""
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
    """Create a hard link to a file, or copy it if the disk does not support hard links."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target, follow_symlinks=False)
