"""One pass over the shards of a store: tasks write them, done-markers record them, and an interrupted pass resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
        """Write every shard without a done-marker; return the peak memory of a process in bytes."""
        lengths: dict[Unit, int] = {}
        for unit in units:
            start, stop = job.span(unit[0])
            lengths[unit] = stop - start

        def calls() -> Iterator[tuple[Unit, int, tuple[Any, ...] | None]]:
            for unit, length in lengths.items():
                done = self.work.is_done(self._marker(unit), self.attempt)
                yield unit, length, None if done else (job, unit)

        def finished(unit: Unit, outcome: tuple[dict[str, Array], int]) -> None:
            self.work.mark_done(self._marker(unit), self.attempt, arrays=outcome[0])

        outcomes = map_shards(
            write_shard,
            calls(),
            finished,
            stage=self.run.progress(self.name, sum(lengths.values()), self.counted),
            client=self.run.client,
            threads=self.run.n_threads,
            name=self.name,
        )
        return max([*(peak for _, peak in outcomes), peak_resident_bytes() if self.run.client is None else 0])

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


def write_shard(job: ShardJob, unit: Unit) -> tuple[dict[str, Array], int]:
    """Write one shard, a task; return the quality of its samples, and the peak memory of this process."""
    return job.write(*unit), peak_resident_bytes()
