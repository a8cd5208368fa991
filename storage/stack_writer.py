"""Writes the samples of a stack: each task writes one complete shard, until all accepted samples are stored.

::

    items of the source   0 1 2 3 | 4 5 6 7 | 8 9          planned as shards of 4
    item 2 is rejected    0 1 3 4 | 5 6 7 8 | 9            the items of all later shards change

A done-marker records the items of each shard. After a rejection, the plan of all shards that are not submitted yet
changes immediately, so that a rare rejection only costs the shards in flight. The next pass writes the shards with
other items again, until a pass rejects nothing. Without rejections there is one pass.

A sample that is larger than a shard has several shards, its *parts*. Each is read and written by its own task.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError
from hashlib import blake2b
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.arrays import create_array, create_root
from dpca.storage.arrays.layout import Layout
from dpca.storage.decoded_shard import ShardResult, write_decoded
from dpca.storage.errors import ClusterError
from dpca.storage.progress import Stage
from dpca.storage.ranges import found_range
from dpca.storage.readers import Block, Reader
from dpca.storage.readers.base import within_memory
from dpca.storage.remote.clusters import cluster_errors, worker_threads
from dpca.storage.remote.tasks import map_shards
from dpca.storage.run import Run
from dpca.storage.stack import STACK_KIND, STACK_VERSION
from dpca.storage.survey import SampleForm, nothing_left, refusal
from dpca.storage.transaction.workspace import Workspace

# Memory for the blocks of a sequential source that wait for their tasks.
_WAITING_BYTES = 1 << 30
_ATTEMPTS = 3
PlannedShard = tuple[int, int, NDArray[np.int64]]
"""The number of the shards of some samples, the number of a part, and the items of the source in this shard."""


class StackWriter:
    """Writes the samples of one stack.

    Parameters
    ----------
    work : Workspace
        An entered workspace.
    reader : Reader
        Source of the samples.
    form : SampleForm
        Shape, type and axes of the samples.
    layout : Layout
        Chunks and shards for all samples of the source, including those that are rejected later.
    stop : bool
        Whether the first rejection is an error.
    run : Run
        Its cluster or threads write the shards, and its progress counts samples.

    Attributes
    ----------
    rejected : dict of int to str
        Rejected items of the source, with their reasons.
    kept : ndarray of int64
        Accepted items, in order.
    """

    def __init__(
        self,
        work: Workspace,
        reader: Reader,
        form: SampleForm,
        layout: Layout,
        *,
        stop: bool,
        run: Run,
    ) -> None:
        self._work, self._reader, self._form, self._layout = work, reader, form, layout
        self._stop, self._run = stop, run
        self._path = str(work.store / "samples")
        self._boxes = layout.boxes(form.sample_shape)
        with within_memory(f"'{reader.name}'"):
            self.rejected = dict(reader.refused)
            for shard in range(layout.n_shards(len(reader))):
                self.rejected.update(self._recorded(shard))
            self._recount()

    def write(self) -> None:
        """Write all shards.

        Raises
        ------
        DataError
            For the first rejected sample, if ``stop``; if all samples are rejected; if the source ends early.
        """
        lost = 0
        while True:
            if self.rejected and (self._stop or not len(self.kept)):
                first = min(self.rejected)
                error = refusal if self._stop else nothing_left
                raise error(self._reader, first, self.rejected[first])
            self._size_array()
            try:
                with within_memory(f"'{self._reader.name}'"):
                    if self._run_pass():
                        return
            except CancelledError as error:
                # A worker died with the only copy of blocks of a sequential source. Stream the missing blocks again.
                lost += 1
                if self._reader.random_access or lost == _ATTEMPTS:
                    raise ClusterError(
                        f"workers of the Dask cluster died {lost} times with blocks of the source: give each worker "
                        f"more memory, and run the same command again to resume"
                    ) from error

    def data_range(self) -> tuple[float, float]:
        """Return the data range of the form, or else the range of all stored values."""
        if self._form.data_range is not None:
            return self._form.data_range
        units = product(range(self._layout.n_shards(len(self.kept))), range(len(self._boxes)))
        records = [self._work.record(self._unit(*unit)) for unit in units]
        return found_range(min(record["low"] for record in records), max(record["high"] for record in records))

    def _size_array(self) -> None:
        """Create the array, or resize it to the accepted samples. No task may have it open."""
        form = self._form
        root = create_root(self._work.store, kind=STACK_KIND, fingerprint=self._work.fingerprint, version=STACK_VERSION)
        shape = (len(self.kept), *form.sample_shape)
        stated: dict[str, Any] = {} if form.coordinates is None else form.coordinates.stated
        stated = {**stated, "may_be_missing": True} if form.gaps else stated
        stated = {**stated, "may_be_infinite": True} if form.infinite else stated
        create_array(root, "samples", shape, form.dtype, self._layout, form.dims, codec=form.codec, attributes=stated)

    def _run_pass(self) -> bool:
        """Write all shards that are missing or changed; return whether no sample was rejected."""
        n_rejected = len(self.rejected)
        stage = self._run.progress("ingest", len(self.kept), "samples")
        map_shards(
            write_decoded,
            self._shards(stage),
            self._finished,
            stage=stage,
            client=self._run.client,
            threads=self._run.threads,
            window=self._window(),
            name="ingest",
        )
        return len(self.rejected) == n_rejected

    def _finished(self, filled: PlannedShard, outcome: ShardResult) -> None:
        shard, part, items = filled
        if outcome.rejected:
            self._reject(shard, {int(items[i]): reason for i, reason in outcome.rejected})
        else:
            self._work.mark_done(self._unit(shard, part), _mark(items), {"low": outcome.low, "high": outcome.high})

    def _shards(self, stage: Stage) -> Iterator[tuple[PlannedShard, int, tuple[Any, ...]]]:
        """Yield the shards that one pass writes, each with the arguments of `write_decoded`."""
        planned: deque[PlannedShard] = deque()
        wanted = self._wanted(planned, stage)
        sources: Iterator[Any]
        if len(self._boxes) > 1:
            sources = (self._reader.box(items, self._boxes[planned[-1][1]]) for items in wanted)
        elif self._reader.random_access:
            sources = map(self._reader.part, wanted)
        else:
            sources = map(self._shipped, self._reader.stream(wanted))
        for source in sources:
            shard, part, items = planned.popleft()
            start = (shard * self._layout.rows_per_shard, *(a for a, _ in self._boxes[part]))
            finished = len(items) if self._is_last(part) else 0
            yield (shard, part, items), finished, (self._path, start, source, self._form, self._stop)

    def _wanted(self, planned: deque[PlannedShard], stage: Stage) -> Iterator[list[int]]:
        """Yield the items of each shard that is missing or changed, by the current plan."""
        rows, n_rows = self._layout.rows_per_shard, len(self.kept)
        shard = 0
        while shard * rows < len(self.kept):
            for part in range(len(self._boxes)):
                items = self.kept[shard * rows : (shard + 1) * rows]
                # After a rejection, the end of the last shard and the end of the array differ until the next pass.
                if not len(items) or not (len(items) == rows or len(self.kept) == n_rows):
                    continue
                if not self._work.is_done(self._unit(shard, part), _mark(items)):
                    planned.append((shard, part, items))
                    yield items.tolist()
                elif self._is_last(part):
                    stage.advance(len(items))
            shard += 1

    def _is_last(self, part: int) -> bool:
        return part == len(self._boxes) - 1

    def _unit(self, shard: int, part: int) -> str:
        return f"shard {shard}" if len(self._boxes) == 1 else f"shard {shard} {part}"

    def _reject(self, shard: int, found: dict[int, str]) -> None:
        self.rejected.update(found)
        if self._stop:
            first = min(found)
            raise refusal(self._reader, first, found[first])
        # A resumed run reads these records. Otherwise it would find the rejections again, one window at a time.
        known = self._recorded(shard) | found
        self._work.mark_done(_rejections(shard), record={str(i): why for i, why in known.items()})
        self._recount()

    def _recorded(self, shard: int) -> dict[int, str]:
        unit = _rejections(shard)
        if not self._work.is_done(unit):
            return {}
        return {int(item): reason for item, reason in self._work.record(unit).items()}

    def _recount(self) -> None:
        keep = np.ones(len(self._reader), bool)
        keep[list(self.rejected)] = False
        self.kept = np.flatnonzero(keep).astype(np.int64)

    def _shipped(self, block: Block) -> Any:
        """Send a block directly to a worker, so that it does not pass through the task graph of the scheduler."""
        if self._run.client is None:
            return block
        with cluster_errors(self._run.client):
            try:
                return self._run.client.scatter([block], hash=False)[0]
            except (OSError, TimeoutError) as error:
                # The receiving worker died, or no worker is left until a new one has started.
                raise CancelledError(str(error)) from error

    def _window(self) -> int | None:
        if self._reader.random_access:
            return None
        threads = self._run.threads or os.cpu_count() or 1
        if self._run.client is not None:
            threads = worker_threads(self._run.client)
        # Encoded images are smaller than their pixels, so this bound holds for them, too.
        shard_bytes = prod(self._layout.shards) * self._form.dtype.itemsize
        return max(2, min(2 * threads, _WAITING_BYTES // shard_bytes))


def _rejections(shard: int) -> str:
    return f"rejected {shard}"


def _mark(items: NDArray[np.int64]) -> str:
    return blake2b(items.tobytes(), digest_size=16).hexdigest()
