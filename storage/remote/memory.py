"""The memory that processes use and may use."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from dpca.storage.errors import ClusterError
from dpca.storage.remote.clusters import cluster_errors, is_watched, run_on_first_worker, worker_threads

# distributed spills a worker's results to disk from 60 % of its limit on, and restarts it at 95 %. Plans stay below.
_USABLE = 0.6
# Usable share of the free memory.
_FREE = 0.8
#: Memory of a worker after its imports (measured: 155 MB).
AT_START = 160 * 10**6
# Results that a worker keeps for others are counted in steps of this size, so that small ones do not change the plan.
_STEP = 64 * 10**6
# Dask's names of the scheduler that runs one task after the other.
_SYNCHRONOUS = frozenset(("sync", "synchronous", "single-threaded"))
# Seconds to wait for the first worker of a cluster.
_PATIENCE = 15


def peak_resident_bytes() -> int:
    """Return the peak memory of this process."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    with suppress(OSError), open("/proc/self/status") as status:
        # On Linux, getrusage includes the memory of the parent process before exec.
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def usable_bytes() -> int:
    """Return the memory that one process may plan with on this machine, in bytes, including limits of containers.

    It depends on other processes only if they leave little memory, because the same input should have the same plan.
    """
    return int(min(_USABLE * memory_of_process(), _FREE * psutil.virtual_memory().available))


@cache
def memory_of_process() -> int:
    """Return the memory limit of this process in bytes: that of the machine, or of its container, job or service."""
    from distributed.system import MEMORY_LIMIT  # supports containers, in which a control group appears as the root

    return min([MEMORY_LIMIT, *group_limits()])


def group_limits(proc: Path = Path("/proc/self")) -> list[int]:
    """Return the limits of all Linux control groups of this process, for example those of Slurm and systemd."""
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
                        with suppress(OSError, ValueError):  # the value is "max" without a limit
                            limits.append(int((one / name).read_text()))
    return limits


def parallel_tasks(client: Any | None, n_threads: int) -> int:
    """Return the number of parallel tasks: with a cluster the number of its worker threads, else ``n_threads``."""
    return n_threads if client is None else worker_threads(client)


def task_budget(client: Any | None, n_threads: int) -> int:
    """Return the memory budget of one task in bytes, in addition to the memory of its process at the start.

    Parameters
    ----------
    client : distributed.Client or None
        With a cluster, the worker with the least memory decides; without one, this machine and ``n_threads`` parallel
        tasks.

    Raises
    ------
    ClusterError
        If the cluster has no workers, or is lost.
    """
    if client is None:
        return usable_bytes() // n_threads
    with cluster_errors(client):
        rooms = list(client.run(_worker_room, on_error="ignore").values())
        if not rooms:
            # All workers may have been killed just now, or an adaptive cluster has none while there is nothing to do.
            # It may retire a new one at once, so the task that starts it is the one that asks.
            found = run_on_first_worker(client, _own_room, None if is_watched(client) else _PATIENCE)
            rooms = [] if found is None else [found]
    if not rooms:
        raise ClusterError("the Dask cluster has no workers yet: start some, or give a memory budget")
    return int(max(0, min(rooms)))


def _worker_room(dask_worker: Any) -> int:
    """Return the memory budget of one task on this worker. Freed memory is reused, so earlier tasks do not count."""
    kept: int = dask_worker.state.nbytes // _STEP * _STEP
    threads: int = dask_worker.state.nthreads
    return (room_within(dask_worker.memory_manager.memory_limit) - kept) // threads


def _own_room() -> int:
    """Return the memory budget of one task on the worker that runs this one."""
    from distributed import get_worker

    return _worker_room(get_worker())


def room_within(limit: int | None) -> int:
    """Return the memory budget of the tasks of a worker with this limit in bytes; None is the limit of the machine."""
    return (int(_USABLE * min(limit, memory_of_process())) if limit else usable_bytes()) - AT_START


def thread_count() -> int:
    """Return the number of threads for tasks of this process.

    It follows Dask's settings "scheduler", if that is synchronous, and "num_workers". By default it is the number of
    processors that this process may use, including limits of containers.
    """
    import dask
    from dask.system import CPU_COUNT

    if dask.config.get("scheduler", None) in _SYNCHRONOUS:
        return 1
    return int(dask.config.get("num_workers", None) or CPU_COUNT)
