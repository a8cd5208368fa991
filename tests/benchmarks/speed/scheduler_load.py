"""What our graphs cost Dask's scheduler with many workers: real scheduler and client, tasks that do nothing.

    python tests/benchmarks/speed/scheduler_load.py                              (1,000 workers, 100,000 tasks)
    python tests/benchmarks/speed/scheduler_load.py --workers 20 --tasks 500

The graph is that of a fold of 50 groups of cells, each of as many segments as there are tasks for, merged as a tree.
Workers are stand-ins in this process: they answer at once that a task is done, and, where it needs states of others,
that they have fetched them. All messages are packed and unpacked as for a network. So what is measured is the
scheduler, its messages, and the client, on one processor.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

import dask
import numpy as np
from distributed import Client, Scheduler
from distributed.comm.core import CommClosedError
from distributed.protocol import dumps, loads
from distributed.versions import get_versions

from dpca.engine.folds.fold_tasks import GroupTask, group_graph
from dpca.engine.folds.plan import Group, Outline
from dpca.partition import CellGrid
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.storage.remote.memory import peak_resident_bytes
from tests.benchmarks.sides import Line, at_most, print_line, ratio_of

_GROUPS, _FIRST_PORT = 50, 10_000
# What a scheduler may take a task: with tasks of 4 GiB, of ten seconds and more, 1,000 workers are then a tenth of what
# it could serve.
_ASKED = 1.5e-3


class Worker:
    """The end of a connection at which a worker would be."""

    name = "stand-in"
    same_host = True

    def __init__(self, address: str) -> None:
        self.peer_address = self.local_address = address
        self._said: asyncio.Queue[Any] = asyncio.Queue()
        self._has: set[Any] = set()
        self._open = True

    async def read(self, deserializers: Any = None) -> Any:
        """Give the scheduler what the worker says."""
        said = await self._said.get()
        if said is None:
            raise CommClosedError("closed")
        return loads(dumps(said), deserialize=False)

    async def write(self, messages: Any, serializers: Any = None, on_error: Any = None) -> int:
        """Take what the scheduler says, and answer."""
        heard = loads(dumps(messages), deserialize=False)
        if isinstance(heard, dict):  # the greeting
            return 0
        answers: list[dict[str, Any]] = []
        for message in heard:
            if message["op"] == "compute-task":
                answers += self._computed(message)
            elif message["op"] == "free-keys":
                self._has -= set(message["keys"])
            elif message["op"] == "steal-request":
                answers.append({"op": "steal-response", **_named(message), "state": None})
        if answers:
            self._said.put_nowait(answers)
        return 0

    def _computed(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        key, now = message["key"], time.time()
        fetched = [one for one in message.get("who_has", {}) if one not in self._has]
        self._has |= {key, *fetched}
        done = {
            **{"op": "task-finished", "status": "OK", "key": key, "run_id": message["run_id"], "nbytes": 1000},
            **{"type": b"", "typename": "tuple", "metadata": {}, "thread": 1, "stimulus_id": "done"},
            "startstops": ({"action": "compute", "start": now, "stop": now},),
        }
        told = {"op": "add-keys", "keys": fetched, "stimulus_id": "fetched"}
        return [told, done] if fetched else [done]

    def closed(self) -> bool:
        return not self._open

    def abort(self) -> None:
        if self._open:
            self._open = False
            self._said.put_nowait(None)

    async def close(self) -> None:
        self.abort()


def _named(message: dict[str, Any]) -> dict[str, Any]:
    return {"key": message["key"], "stimulus_id": message["stimulus_id"]}


async def add_workers(scheduler: Scheduler, count: int) -> list[asyncio.Task[None]]:
    """Register stand-ins."""
    metrics = {
        "bandwidth": {"total": 1e8, "workers": {}, "types": {}},
        **{"cpu": 0, "memory": 0, "time": time.time(), "managed_bytes": 0, "task_counts": {}},
        **{"spilled_bytes": {"memory": 0, "disk": 0}, "event_loop_interval": 0.02, "digests_total_since_heartbeat": {}},
        "transfer": {"incoming_bytes": 0, "incoming_count": 0, "outgoing_bytes": 0, "outgoing_count": 0},
    }
    joined, versions = [], get_versions()
    for i in range(count):
        address = f"tcp://127.0.0.1:{_FIRST_PORT + i}"
        joining = scheduler.add_worker(
            Worker(address),  # type: ignore[arg-type]
            **{"address": address, "status": "running", "server_id": address, "nthreads": 1, "name": address},
            **{"resolve_address": False, "now": time.time(), "resources": {}, "memory_limit": 2**32},
            **{"metrics": metrics, "services": {}, "local_directory": "", "versions": versions, "nanny": ""},
            **{"extra": {}, "stimulus_id": "join"},
        )
        joined.append(asyncio.ensure_future(joining))
    while len(scheduler.workers) < count:
        await asyncio.sleep(0.01)
    return joined


def fold_nodes(tasks: int) -> list[Any]:
    """Return the graph of a fold with about so many tasks."""
    n_segments = max(1, tasks // (2 * _GROUPS))
    source = Outline("nowhere", (n_segments, _GROUPS * 8, 8), np.dtype(np.uint8), (1, 8, 8))
    grid = CellGrid(source.shape[1:], (8, 8))
    cuts = [(s, s + 1) for s in range(n_segments)]
    nodes = []
    for g in range(_GROUPS):
        group = Group((g,), grid.region(g))
        work = GroupTask(CovariancePCA(2), grid, group, 1, 1, 2**62, "nowhere", np.dtype(np.uint8), f"group-{g}", "fit")
        nodes.append(group_graph(work, source, cuts))
    return nodes


async def fold_costs(n_workers: int, tasks: int) -> tuple[dict[str, float], dict[str, float], int]:
    """Return processor seconds a task, bytes, and how many tasks there were."""
    async with Scheduler(
        protocol="inproc", dashboard=False, dashboard_address="127.0.0.1:0", validate=False
    ) as scheduler:
        joined = await add_workers(scheduler, n_workers)
        async with Client(scheduler.address, asynchronous=True, set_as_default=False) as client:
            before, held = time.process_time(), peak_resident_bytes()
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}):
                futures = client.compute(fold_nodes(tasks))
            while len(scheduler.tasks) < tasks // 2:
                await asyncio.sleep(0.05)
            known, sent = len(scheduler.tasks), time.process_time()
            while not all(future.done() for future in futures):
                await asyncio.sleep(0.05)
            ended = time.process_time()
            seconds = {"graph": (sent - before) / known, "tasks": (ended - sent) / known, "asked": _ASKED}
            sizes = {"growth": float(peak_resident_bytes() - held), "of a task": (peak_resident_bytes() - held) / known}
        for future in joined:
            future.cancel()
        await asyncio.gather(*joined, return_exceptions=True)
    return seconds, sizes, known


def lines(n_workers: int, tasks: int) -> list[Line]:
    """Measure and compare."""
    quiet = {
        "distributed.scheduler.worker-ttl": None,
        "distributed.admin.tick.interval": "500 ms",
        "distributed.admin.tick.limit": "1 h",
    }
    with dask.config.set(quiet):
        seconds, sizes, known = asyncio.run(fold_costs(n_workers, tasks))
    where = f"{n_workers:,} workers, {known:,} tasks"
    found = ratio_of([seconds], ["graph", "tasks"], ["asked"])
    spent = at_most(1.0, name="scheduler, seconds of a task", where=where, n=known, **found)
    found = ratio_of([sizes | {"asked": 20_000.0 * known}], ["growth"], ["asked"], "bytes")
    return [spent, at_most(1.0, name="scheduler, memory of a graph", where=where, n=known, **found)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=100_000, metavar="N", help="(default: %(default)s)")
    options = parser.parse_args(argv)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    for line in lines(options.workers, options.tasks):
        print_line(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
