"""One pass over the shards of a store: tasks write them, done-markers record them, and an interrupted pass resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dpca.kernels.algebra.types import Array
from dpca.storage.errors import StoreError
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.remote.tasks import map_shards
from dpca.storage.run import Run
from dpca.storage.transaction.workspace import Workspace

Unit = tuple[int, ...]
"""The number of a shard, and integers that say how it is written."""

# Least seconds of a task for each worker of a cluster, if it can have several shards. The scheduler spends 4 to 6 ms on
# a task and its result (measured, on busy processors): a tenth of its time.
_TASK_SECONDS = 0.05


class ShardJob(Protocol):
    """The data that all tasks of a pass share. They are small, since stacks, models and stores are given by path."""

    def span(self, shard: int) -> tuple[int, int]:
        """Return the first sample that is written to a shard, and the one behind the last."""

    @property
    def write(self) -> Callable[..., dict[str, Array]]:
        """Write the files of a `Unit`, the body of a task; return the quality of its samples, for its marker."""


@dataclass(frozen=True)
class ShardPass:
    """A pass over shards. Each finished shard has a done-marker with the quality of its samples.

    Parameters
    ----------
    name : str
        Name of the stage and of its tasks.
    work : Workspace
        Keeps the done-markers.
    run : Run
        Where the tasks run. Its progress counts samples.
    attempt : str
        Fingerprint of what the workspace does not determine: markers of another attempt do not count.
    counted : str
        What the progress counts, if units are parts of samples.
    """

    name: str
    work: Workspace
    run: Run
    attempt: str = ""
    counted: str = "samples"

    def write(self, job: ShardJob, units: Iterable[Unit]) -> int:
        """Write every shard without a done-marker; return the peak memory of a process in bytes.

        If the scheduler of a cluster could not serve a task for each shard, tasks write several successive shards: as
        many as take 50 ms for each worker, by the mean time of the shards so far, but no more than a worker has written
        on average.
        """
        lengths: dict[Unit, int] = {}
        for unit in units:
            start, stop = job.span(unit[0])
            lengths[unit] = stop - start
        client, n_parallel, written, spent = self.run.client, self.run.n_parallel(), 0, 0.0
        wanted = 0.0 if client is None else n_parallel * _TASK_SECONDS

        def calls() -> Iterator[tuple[list[Unit], int, tuple[Any, ...] | None]]:
            several: list[Unit] = []
            for unit, length in lengths.items():
                if self.work.is_done(self._marker(unit), self.attempt):
                    yield [unit], length, None
                    continue
                several.append(unit)
                if len(several) * spent >= wanted * written or len(several) >= written // n_parallel:
                    yield several, sum(map(lengths.__getitem__, several)), (job, several)
                    several = []
            if several:
                yield several, sum(map(lengths.__getitem__, several)), (job, several)

        def finished(several: list[Unit], outcome: tuple[list[dict[str, Array]], float, int]) -> None:
            nonlocal written, spent
            qualities, seconds, _ = outcome
            written, spent = written + len(several), spent + seconds
            for unit, quality in zip(several, qualities, strict=True):
                self.work.mark_done(self._marker(unit), self.attempt, arrays=quality)

        outcomes = map_shards(
            write_shards,
            calls(),
            finished,
            stage=self.run.progress(self.name, sum(lengths.values()), self.counted),
            client=client,
            threads=self.run.n_threads,
            name=self.name,
        )
        return max([*(peak for _, _, peak in outcomes), peak_resident_bytes() if client is None else 0])

    def quality(self, *unit: int) -> dict[str, Array]:
        """Return the quality of the samples of a finished shard.

        Raises
        ------
        StoreError
            If its marker is missing.
        """
        try:
            return self.work.arrays(self._marker(unit))
        except KeyError:
            raise StoreError(
                f"the record '{self._marker(unit)}' of '{self.work.target}' is gone: run the same command again"
            ) from None

    def _marker(self, unit: Unit) -> str:
        return f"{self.name} shard {' '.join(map(str, unit))}"


def write_shards(job: ShardJob, units: Sequence[Unit]) -> tuple[list[dict[str, Array]], float, int]:
    """Write some shards, a task; return the quality of the samples of each, the seconds, and the peak memory."""
    began = time.perf_counter()
    qualities = [job.write(*unit) for unit in units]
    return qualities, time.perf_counter() - began, peak_resident_bytes()
