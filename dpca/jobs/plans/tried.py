"""Trials of the stages of a job on some samples of its input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dpca.engine.folds.rehearsal import FoldCost, Workers
from dpca.engine.sources.sampling import spread_runs
from dpca.engine.sources.source import Source, as_source
from dpca.jobs.base.stages import StagePlan
from dpca.jobs.plans.few_samples import RUN, FewSamples, Repeated
from dpca.jobs.plans.timing import fewest_seconds, line
from dpca.storage.ingest import ingest, plan_ingest
from dpca.storage.ingest import task_bytes as ingest_bytes
from dpca.storage.readers import Reader
from dpca.storage.remote.memory import AT_START, peak_resident_bytes
from dpca.storage.stack import Stack
from dpca.storage.survey import ReadOptions

# Upper limits of the samples, and of their bytes, for trials of a pass over shards. A quarter of them is tried too, for
# the fixed part of the time.
_MOST, _MOST_BYTES, _PART = 192, 2**26, 4
# Bytes of the libraries that a worker loads and compiles after its start (measured in jobs on 80 samples: up to
# 149 MB).
_COMPILED = 192 * 10**6


@dataclass(frozen=True)
class TriedStage:
    """A stage and its parts: work in one process, folds, and a pass over shards."""

    name: str
    bytes: int
    alone: float = 0.0
    folds: tuple[FoldCost, ...] = ()
    samples: int = 0
    shard: int = 1
    each: float = 0.0
    """Processor seconds of one sample in the pass over shards."""
    task_bytes: int = 0
    here: bool = False
    """Whether the work is done in this process. Its peak memory is then measured, not planned."""
    second_pass: Callable[[Workers], tuple[float, int]] | None = None
    """Returns the seconds of a pass that follows, and the bytes of one of its tasks."""

    def planned(self, workers: Workers) -> StagePlan:
        """Return the plan of the stage for some workers."""
        seconds, task = self.alone + sum(fold.seconds(workers) for fold in self.folds), self.task_bytes
        if self.samples:
            seconds += pass_seconds(self.samples * self.each, math.ceil(self.samples / self.shard), workers)
        if self.second_pass is not None:
            further, need = self.second_pass(workers)
            seconds, task = seconds + further, max(task, need)
        task = max([task, *(fold.planned(workers).task_bytes for fold in self.folds)])
        return StagePlan(seconds, self.bytes, peak_resident_bytes() if self.here else task + AT_START + _COMPILED)


def pass_seconds(spent: float, tasks: int, workers: Workers) -> float:
    """Return the seconds of a pass that takes ``spent`` processor seconds in equal tasks."""
    turns, busy = math.ceil(tasks / workers.n) / tasks, min(tasks, workers.n)
    return spent * turns * max(1, busy / workers.cores)


class TriedInput:
    """The input of a job, and some samples of it.

    Parameters
    ----------
    given : Stack or Reader
    reading : ReadOptions
        How the samples of a reader are read.
    workers : Workers
    folder : Path
        A temporary folder.
    shard_bytes : int, optional
        Most bytes of a shard of the ingested stack.
    """

    source: Source
    axes: tuple[str, ...]

    def __init__(
        self,
        given: Stack | Reader,
        reading: ReadOptions,
        workers: Workers,
        folder: Path,
        shard_bytes: int | None = None,
    ) -> None:
        self.given, self.reading, self.workers, self.folder = given, reading, workers, folder
        self.shard_bytes, self.data_range = shard_bytes, given.data_range

    def cell_shape(self, axes: Sequence[str]) -> tuple[int, ...] | None:
        """Return the cells of an ingested stack, from the names of the axes of a sample."""
        return None

    @property
    def decoded(self) -> int:
        """Bytes of all samples."""
        return math.prod(self.source.shape) * self.source.dtype.itemsize

    @cached_property
    def few(self) -> list[Stack]:
        """Some samples of the source, as stacks."""
        return self._of_source()

    def _of_source(self) -> list[Stack]:
        return [self._some(part) for part in self._parts(self.source.shape[0], self.decoded)]

    def _parts(self, n: int, size: int) -> list[int]:
        """Return the two numbers of samples to try."""
        most = max(1, min(_MOST, n, _MOST_BYTES * n // size))
        return [max(1, most // _PART), most]

    def _some(self, count: int) -> Stack:
        """Write some samples of the given stack to a new stack."""
        name = self.folder / f"few {count}"
        run = min(RUN, count)
        np.save(name.with_suffix(".npy"), spread_runs(self.source, count, run)[:count])
        cells, axes = self.cell_shape(self.axes[1:]), self.axes[1:]
        reading = ReadOptions(data_range=self.data_range)
        return ingest(name.with_suffix(".npy"), name.with_suffix(".zarr"), cell_shape=cells, axes=axes, reading=reading)

    def ingested(self, reader: Reader) -> TriedStage:
        """Ingest some samples of a reader, of which the source is then made."""
        shape, dtype, layout, self.axes = plan_ingest(
            reader, self.reading, self.cell_shape, self.workers.budget, self.shard_bytes
        )
        size = math.prod(shape) * dtype.itemsize
        cells = self.cell_shape(("y", "x") if reader.encoded else self.axes[1:])
        parts, made = self._parts(len(reader), size), {}

        def work(count: int, target: Path) -> None:
            made[count] = ingest(FewSamples(reader, count), target, cell_shape=cells, reading=self.reading)

        spent = fewest_seconds(parts, work, self.folder / "few")
        self.few = [made[count] for count in parts]
        self.source = Repeated(as_source(self.few[-1]), reader.name, shape, layout.chunks)
        alone, each = line(parts, spent)
        need = ingest_bytes(reader, dtype, layout)
        return TriedStage("ingest", size, alone, (), shape[0], layout.rows_per_shard, each, need)
