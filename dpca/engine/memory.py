"""How much memory processes hold and may hold."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from dpca.storage.clusters import cluster_errors, is_watched, wait_for_worker, worker_threads
from dpca.storage.errors import ClusterError

# distributed spills a worker's results to disk from 60 % of its limit on and restarts it at 95 %: plan to stay below.
_USABLE = 0.6
# Share of the memory that is free at the moment.
_FREE = 0.8
#: What a worker holds when it has imported all that it needs (measured: 155 MB).
AT_START = 160 * 10**6
# Results that a worker keeps for others count in steps of this size: a small one on its way out changes no plan.
_STEP = 64 * 10**6
# Seconds to wait for the first worker of a cluster.
_PATIENCE = 15


def peak_resident_bytes() -> int:
    """Most memory that this process ever held."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    with suppress(OSError), open("/proc/self/status") as status:
        # getrusage on Linux begins with what the parent process held before it became this one.
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def usable_bytes() -> int:
    """Share of this machine's memory that one process may plan with, containers' limits included.

    It depends on what other processes hold only where they leave little: the same input should have the same plan.
    """
    return int(min(_USABLE * memory_of_process(), _FREE * psutil.virtual_memory().available))


@cache
def memory_of_process() -> int:
    """Bytes that this process may hold: those of the machine, or of a container, job or service in which it runs."""
    from distributed.system import MEMORY_LIMIT  # knows containers, which see a control group as the root

    return min([MEMORY_LIMIT, *group_limits()])


def group_limits(proc: Path = Path("/proc/self")) -> list[int]:
    """Return the limits of all control groups of Linux that this process is in, such as those of Slurm and systemd."""
    limits: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        mounts = [line.split() for line in (proc / "mountinfo").read_text().splitlines()]
        for line in (proc / "cgroup").read_text().splitlines():
            number, controllers, group = line.split(":", 2)
            for mount in mounts:
                kind, options = mount[mount.index("-") + 1], mount[-1].split(",")
                if number == "0" and kind == "cgroup2":
                    names: tuple[str, ...] = ("memory.max", "memory.high")
                elif "memory" in controllers.split(",") and kind == "cgroup" and "memory" in options:
                    names = ("memory.limit_in_bytes",)
                else:
                    continue
                top = Path(mount[4])
                inside = Path(os.path.relpath(group, mount[3]))
                folder = top if ".." in inside.parts else top / inside
                for one in (folder, *(above for above in folder.parents if above.is_relative_to(top))):
                    for name in names:
                        with suppress(OSError, ValueError):  # "max" where there is none
                            limits.append(int((one / name).read_text()))
    return limits


def parallel_tasks(client: Any | None, n_threads: int) -> int:
    """Return how many tasks run at once: with a cluster as many as its workers have threads, else ``n_threads``."""
    return n_threads if client is None else worker_threads(client)


def task_budget(client: Any | None, n_threads: int) -> int:
    """Bytes that one task may take beyond what its process already holds.

    Parameters
    ----------
    client : distributed.Client or None
        With a cluster, its tightest worker decides; without, this machine and ``n_threads`` tasks at once.

    Raises
    ------
    ClusterError
        If the cluster has no worker to ask, or is lost.
    """
    if client is None:
        return usable_bytes() // n_threads
    with cluster_errors(client):
        rooms = client.run(_worker_room, on_error="ignore")
        if not rooms:
            # All of them may have been killed just now, and be on their way back.
            wait_for_worker(client, None if is_watched(client) else _PATIENCE)
            rooms = client.run(_worker_room, on_error="ignore")
    if not rooms:
        raise ClusterError("the Dask cluster has no workers yet: start some, or give a memory budget")
    return int(max(0, min(rooms.values())))


def _worker_room(dask_worker: Any) -> int:
    """Bytes that one task on this worker may take, whatever it did before: freed memory is used again."""
    kept: int = dask_worker.state.nbytes // _STEP * _STEP
    threads: int = dask_worker.state.nthreads
    return (room_within(dask_worker.memory_manager.memory_limit) - kept) // threads


def room_within(limit: int | None) -> int:
    """Bytes that tasks may take in a worker that may hold so many, None for as many as the machine lets it."""
    return (int(_USABLE * min(limit, memory_of_process())) if limit else usable_bytes()) - AT_START


def thread_count() -> int:
    """Processors that this process may use, containers' limits included."""
    from dask.system import CPU_COUNT

    return int(CPU_COUNT)
