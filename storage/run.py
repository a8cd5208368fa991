"""How a job runs: what every stage of it needs, and no stage decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpca.storage.errors import DataError
from dpca.storage.progress import JobProgress, no_progress
from dpca.storage.remote.memory import parallel_tasks, task_budget, thread_count
from dpca.storage.transaction.checkpoints import Checkpoints

if TYPE_CHECKING:
    from distributed import Client


def say_nothing(text: str) -> None:
    """Ignore a line of text."""


@dataclass(frozen=True)
class Run:
    """How a job runs: where, with how much memory, what it reports, and what it may overwrite.

    Every fit and every job accepts one and passes it to its stages. The results do not depend on it, apart from the
    rounding errors of another plan for another ``memory`` or number of workers. `dataclasses.replace` makes a variant.

    Parameters
    ----------
    client : distributed.Client, optional
        Client of the Dask cluster that runs the tasks. The default is threads of this process.
    threads : int, optional
        Number of these threads. The default is one per processor, or by Dask's settings, see
        `dpca.storage.remote.memory.thread_count`.
    memory : int, optional
        Most bytes that one task may use. The default depends on the worker with the least memory, or on this machine.
        The parameter ``memory_budget`` of an estimator takes precedence in its fits.
    progress : callable
        Opens a stage of the job and receives its finished units, see `dpca.storage.progress`. The default reports
        nothing.
    checkpoints : Checkpoints, optional
        Folder of the checkpoints from which an interrupted fit resumes. The default keeps none. Jobs keep their
        checkpoints beside their output.
    overwrite : bool
        Whether a job may replace another output at its target, or an unfinished one with other settings.
    say : callable
        Receives a line of text for each event. The default ignores it.
    started : float, optional
        When the program began, as `time.time` tells, for the times in reports. The default is the beginning of the job.

    Raises
    ------
    DataError
        If `threads` is below 1.

    Examples
    --------
    >>> import dpca
    >>> from dpca.storage.progress import bar_progress
    >>> dpca.Run(progress=bar_progress, overwrite=True).overwrite
    True
    """

    client: Client | None = None
    threads: int | None = None
    memory: int | None = None
    progress: JobProgress = no_progress
    checkpoints: Checkpoints | None = None
    overwrite: bool = False
    say: Callable[[str], None] = say_nothing
    started: float | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise DataError(f"threads is {self.threads}: give at least 1")

    @property
    def n_threads(self) -> int:
        """Number of threads of this process that run tasks without a cluster."""
        return thread_count() if self.threads is None else self.threads

    def n_parallel(self) -> int:
        """Return the number of tasks that run at once: one for each thread of the workers, or of this process."""
        return parallel_tasks(self.client, self.n_threads)

    def task_bytes(self) -> int:
        """Return the most bytes that one task may use.

        Raises
        ------
        ClusterError
            If ``memory`` is not given and the cluster has no workers, or is lost.
        """
        return task_budget(self.client, self.n_threads) if self.memory is None else self.memory

    def limited_to(self, memory: int | None) -> Run:
        """Return this run with another limit of memory, if one is given."""
        return self if memory is None else replace(self, memory=memory)

    def here(self) -> Run:
        """Return this run without its cluster, for data in the memory of this process."""
        return self if self.client is None else replace(self, client=None)

    def below(self, name: str) -> Run:
        """Return this run with its checkpoints in a subfolder of this name."""
        kept = self.checkpoints
        return self if kept is None else replace(self, checkpoints=replace(kept, folder=f"{kept.folder}/{name}"))
