"""The stack that a job reads: the given one, or one that is ingested into the output.

A reader is ingested once: a job with other settings but the same output reuses the ingested stack.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dpca.jobs.base.stages import NOTHING, StageCost, held_by, stopwatch
from dpca.storage.arrays.layout import axes_for
from dpca.storage.disk import remove_tree
from dpca.storage.ingest import content_of, ingest, is_made_of
from dpca.storage.integrity.manifest import METADATA, NOTHING_CARRIED, Carried, finished_bytes
from dpca.storage.integrity.verify import verify
from dpca.storage.readers import Reader
from dpca.storage.remote.objects import Place
from dpca.storage.run import Run
from dpca.storage.stack import Stack, open_stack
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.claim import WORK_SUFFIX
from dpca.storage.transaction.inherited import Inherited
from dpca.storage.transaction.outputs import work_folder
from dpca.storage.transaction.workspace import Workspace

#: Name of the ingested stack in the output of a job.
KEPT_STACK = "stack"
_CHECKED = "stack checked"


def inherited_of(given: Stack | Reader, reading: ReadOptions) -> Inherited | None:
    """Return the parts of an existing output that a job on a reader can reuse; None for a stack, which is not ingested.

    Parameters
    ----------
    given : Stack or Reader
    reading : ReadOptions
    """
    return None if isinstance(given, Stack) else Inherited(KEPT_STACK, _serves(given, reading))


def open_or_ingest(
    given: Stack | Reader,
    work: Workspace,
    reading: ReadOptions,
    *,
    cells: Callable[[Sequence[str]], tuple[int, ...] | None] = lambda axes: None,
    run: Run,
    shard_bytes: int | None = None,
) -> tuple[Stack, StageCost]:
    """Return a given stack; ingest a reader into the output, unless it is there already. Also return the cost.

    A stack of an earlier job is verified before it is reused, since damage may be the reason for the new run.

    Parameters
    ----------
    cells : callable, optional
        Returns the shape of cells for the names of a sample's axes. Chunks are aligned with cells.
    run : Run
        Nothing is replaced, whatever it allows.
    shard_bytes : int, optional
        As for `dpca.storage.ingest`.
    """
    if isinstance(given, Stack):
        return given, NOTHING
    run = replace(run, overwrite=False)
    target = work.store / KEPT_STACK
    serves = _serves(given, reading)(target)
    if serves and not work.is_done(_CHECKED):
        run.say(f"found the ingested stack of {given.name}: {len(given):,} samples")
        if problems := verify(target, run=run):
            run.say(f"the ingested stack is damaged: {problems[0]}")
            remove_tree(target)
            serves = False
        else:
            work.mark_done(_CHECKED)
    if serves:
        # An interrupted run can leave the work folder of a complete stack. This one removes it.
        if (left := target.with_name(target.name + WORK_SUFFIX)).exists():
            remove_tree(left)
        return open_stack(target), NOTHING
    if not target.exists():
        run.say(f"ingest {len(given):,} samples from {given.name}")
    sample_axes = ("y", "x") if given.encoded else given.axes or axes_for(given.sample_shape)
    cost = stopwatch()
    stack = ingest(given, target, cell_shape=cells(sample_axes), reading=reading, shard_bytes=shard_bytes, run=run)
    work.mark_done(_CHECKED)
    return stack, cost(stack.nbytes, held_by(run.client))


@contextmanager
def temporary_stack(given: Stack | Reader, reading: ReadOptions, run: Run) -> Iterator[Stack]:
    """Yield a given stack, or one in a folder for temporary files into which a reader is ingested by this process."""
    if isinstance(given, Stack):
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        run.say(f"ingest {len(given):,} samples from {given.name} for this command")
        yield ingest(given, Path(folder) / "stack.zarr", reading=reading, run=run.here())


def kept_stack(store: Place) -> Stack | None:
    """Return the stack that a finished job kept, or None."""
    return open_stack(store / KEPT_STACK) if (store / KEPT_STACK).exists() else None


def _serves(reader: Reader, reading: ReadOptions) -> Callable[[Place], bool]:
    """Return a function that checks whether a store holds all samples of a reader, read with these options."""
    content = content_of(reader, reading)
    return lambda path: is_made_of(path, content, stop=reading.stop)


def compressed_bytes(store: Place, carried: Carried = NOTHING_CARRIED) -> int:
    """Return the bytes of a compressed store once it is finished, without the ingested stack in it."""
    root = None if (store / METADATA).is_file() else work_folder(store) / METADATA
    return finished_bytes(store, root, left_out=KEPT_STACK, carried=carried)
