"""The stack that a job makes inside its own store, of a source that is none: made once for all jobs on one source."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpca.engine.memory import task_budget, thread_count
from dpca.jobs.stages import NOTHING, StageCost, held_by
from storage.ingest import content_of, ingest, is_made_of
from storage.inherited import Inherited
from storage.layout import axes_for
from storage.progress import Progress
from storage.readers import Reader
from storage.stack import Stack, open_stack
from storage.verify import verify
from storage.workspace import Workspace

_NAME, _CHECKED = "stack", "stack checked"


def inherited_of(given: Stack | Reader, reading: Mapping[str, Any]) -> Inherited | None:
    """Return what a job on a reader takes over from another one in its place; nothing is ingested of a stack.

    Parameters
    ----------
    given : Stack or Reader
    reading : mapping
        Options of `storage.ingest`: ``color``, ``resize``, ``crop``, ``on_error``, ``data_range``.
    """
    if isinstance(given, Stack):
        return None
    content, stop = _content(given, reading), reading.get("on_error", "stop") == "stop"
    return Inherited(_NAME, lambda path: is_made_of(path, content, stop=stop))


def own_stack(
    reader: Reader,
    work: Workspace,
    reading: Mapping[str, Any],
    *,
    cells: Callable[[Sequence[str]], tuple[int, ...] | None] | None = None,
    client: Any | None,
    progress: Progress,
    say: Callable[[str], None],
) -> tuple[Stack, StageCost]:
    """Ingest a reader into a job's store, or find it there; return the stack and what ingesting it cost.

    One that was taken over is read once, to know that it is whole: it may be that damage to it made somebody start
    again.

    Parameters
    ----------
    cells : callable, optional
        Gives the cells that chunks should fit, from the names of a sample's axes.
    """
    target = work.store / _NAME
    stop = reading.get("on_error", "stop") == "stop"
    serves = is_made_of(target, _content(reader, reading), stop=stop)
    if serves and not work.is_done(_CHECKED):
        say(f"found the {len(reader):,} samples of {reader.name} ingested")
        if problems := verify(target, client=client, progress=progress):
            say(f"but damaged: {problems[0]}")
            shutil.rmtree(target)
            serves = False
        else:
            work.mark_done(_CHECKED)
    if serves:
        return open_stack(target), NOTHING
    if not target.exists():
        say(f"ingest {len(reader):,} samples from {reader.name}")
    sample_axes = ("y", "x") if reader.encoded else reader.axes or axes_for(reader.sample_shape)
    began = time.perf_counter()
    stack = ingest(
        reader,
        target,
        cell_shape=None if cells is None else cells(sample_axes),
        client=client,
        budget=task_budget(client, thread_count()),
        progress=progress,
        **reading,
    )
    work.mark_done(_CHECKED)
    return stack, StageCost(time.perf_counter() - began, stack.nbytes, held_by(client))


def _content(reader: Reader, reading: Mapping[str, Any]) -> str:
    return content_of(reader, **{name: value for name, value in reading.items() if name != "on_error"})
