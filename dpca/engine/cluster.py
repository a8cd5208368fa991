"""The Dask cluster that a program runs on: a running one by address, or one of its own on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
from dask.utils import parse_bytes

from dpca.engine.memory import thread_count, usable_bytes
from storage.errors import DataError

# glibc returns large blocks to the system at once and so pays a page fault for every 4 KiB of every chunk read:
# keeping them makes reading a store a third faster. Threads that keep heaps of their own would keep too much.
_KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": 32 * 2**20,
    "MALLOC_TRIM_THRESHOLD_": 512 * 2**20,
    "MALLOC_ARENA_MAX": 2,
    "OMP_NUM_THREADS": 1,
    "OPENBLAS_NUM_THREADS": 1,
    "MKL_NUM_THREADS": 1,
}
# A nanny starts its dead worker again by itself; Dask would give the worker up if that takes more than 15 seconds,
# which a busy machine does. Once there really is no worker left, tasks fail rather than wait for ever.
_PATIENCE = {
    "distributed.deploy.lost-worker-timeout": "1 hour",
    "distributed.scheduler.no-workers-timeout": "5 minutes",
}


@contextmanager
def open_client(
    scheduler: str | None = None, *, workers: int | None = None, memory: str | int | None = None
) -> Iterator[Any]:
    """Connect to a cluster for the length of a block.

    Parameters
    ----------
    scheduler : str, optional
        Address of a running scheduler, ``tcp://host:port``. Its workers need this package and see the same files.
        Without one, a cluster of single-threaded processes starts on this machine and ends with the block; it listens
        on the loopback interface only.
    workers : int, optional
        Processes of the cluster on this machine; default one a processor.
    memory : str or int, optional
        Limit of each of them ("2GB"); default an equal share of what the machine can give.

    Yields
    ------
    distributed.Client

    Raises
    ------
    DataError
        If no scheduler answers, or a number makes no sense.
    """
    from distributed import Client, LocalCluster

    if scheduler is not None:
        try:
            client = Client(scheduler, timeout="10s")
        except (OSError, TimeoutError, ValueError) as error:
            raise DataError(
                f"no Dask scheduler answers at '{scheduler}': start one or leave --scheduler out"
            ) from error
        with client:
            yield client
        return
    n_workers = thread_count() if workers is None else workers
    if n_workers < 1:
        raise DataError(f"{n_workers} workers cannot do anything: give at least 1")
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ": _KEEP_FREED_MEMORY, **_PATIENCE}),
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            preload=["dpca.engine.worker_setup"],
            memory_limit=_limit(memory, n_workers),
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _limit(memory: str | int | None, n_workers: int) -> int:
    if memory is None:
        return usable_bytes() // n_workers
    try:
        limit = int(parse_bytes(memory))
    except ValueError as error:
        raise DataError(f"memory '{memory}' is no amount of bytes: write it as 2GB or 500MiB") from error
    if limit < 300e6:
        raise DataError(f"memory '{memory}' is less than a worker process itself takes: give each at least 500MB")
    return limit
