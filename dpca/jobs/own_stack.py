"""The stack that a job reads: the one that it was given, or one ingested into its own store.

An ingested stack is made once for all jobs on one source: a job of other settings in the same place takes it over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpca.engine.memory import task_budget, thread_count
from dpca.jobs.stages import NOTHING, StageCost, held_by
from dpca.storage.claim import WORK_SUFFIX
from dpca.storage.disk import remove_tree
from dpca.storage.ingest import content_of, ingest, is_made_of
from dpca.storage.inherited import Inherited
from dpca.storage.layout import axes_for
from dpca.storage.manifest import METADATA, NOTHING_CARRIED, Carried, finished_bytes
from dpca.storage.objects import Place
from dpca.storage.outputs import work_folder
from dpca.storage.progress import Progress
from dpca.storage.readers import Reader
from dpca.storage.stack import Stack, open_stack
from dpca.storage.verify import verify
from dpca.storage.workspace import Workspace

#: The ingested stack inside a job's store.
KEPT_STACK = "stack"
_CHECKED = "stack checked"


def inherited_of(given: Stack | Reader, reading: Mapping[str, Any]) -> Inherited | None:
    """Return what a job on a reader takes over from another one in its place; nothing is ingested of a stack.

    Parameters
    ----------
    given : Stack or Reader
    reading : mapping
        Options of `dpca.storage.ingest`: ``color``, ``resize``, ``crop``, ``on_error``, ``data_range``.
    """
    return None if isinstance(given, Stack) else Inherited(KEPT_STACK, _serves(given, reading))


def own_stack(
    given: Stack | Reader,
    work: Workspace,
    reading: Mapping[str, Any],
    *,
    cells: Callable[[Sequence[str]], tuple[int, ...] | None] = lambda axes: None,
    client: Any | None,
    progress: Progress,
    say: Callable[[str], None],
    shard_bytes: int | None = None,
) -> tuple[Stack, StageCost]:
    """Return a given stack, or ingest a reader into a job's store unless it is there; and what ingesting it cost.

    A stack that was taken over is read once to check that it is whole: damage may be why somebody started again.

    Parameters
    ----------
    cells : callable, optional
        Gives the cells that chunks should fit, from the names of a sample's axes.
    shard_bytes : int, optional
        As for `dpca.storage.ingest`.
    """
    if isinstance(given, Stack):
        return given, NOTHING
    target = work.store / KEPT_STACK
    serves = _serves(given, reading)(target)
    if serves and not work.is_done(_CHECKED):
        say(f"found the {len(given):,} samples of {given.name} ingested")
        if problems := verify(target, client=client, progress=progress):
            say(f"but damaged: {problems[0]}")
            remove_tree(target)
            serves = False
        else:
            work.mark_done(_CHECKED)
    if serves:
        # A run that died between the last step of the ingest and its end left a work folder, published otherwise.
        if (left := target.with_name(target.name + WORK_SUFFIX)).exists():
            remove_tree(left)
        return open_stack(target), NOTHING
    if not target.exists():
        say(f"ingest {len(given):,} samples from {given.name}")
    sample_axes = ("y", "x") if given.encoded else given.axes or axes_for(given.sample_shape)
    budget, began = task_budget(client, thread_count()), time.perf_counter()
    how: dict[str, Any] = {"client": client, "budget": budget, "shard_bytes": shard_bytes, "progress": progress}
    stack = ingest(given, target, cell_shape=cells(sample_axes), **how, **reading)
    work.mark_done(_CHECKED)
    return stack, StageCost(time.perf_counter() - began, stack.nbytes, held_by(client))


def paths_of(given: Stack | Reader) -> list[str]:
    """Return the paths of what a job is given."""
    return [given.path] if isinstance(given, Stack) else list(given.paths)


def kept_stack(store: Place) -> Stack | None:
    """Return the stack that a finished job kept, if it did."""
    return open_stack(store / KEPT_STACK) if (store / KEPT_STACK).exists() else None


def _serves(reader: Reader, reading: Mapping[str, Any]) -> Callable[[Place], bool]:
    """Return what tells whether a store holds all of a reader as these options read it."""
    content = content_of(reader, **{name: value for name, value in reading.items() if name != "on_error"})
    stop = reading.get("on_error", "stop") == "stop"
    return lambda path: is_made_of(path, content, stop=stop)


def compressed_bytes(store: Place, carried: Carried = NOTHING_CARRIED) -> int:
    """Return the bytes that a compressed store will have once it is finished, without the stack that is kept in it."""
    root = None if (store / METADATA).is_file() else work_folder(store) / METADATA
    return finished_bytes(store, root, left_out=KEPT_STACK, carried=carried)
