"""How busy Dask's scheduler is during jobs of terabytes on many workers: a real scheduler, tasks with planned times.

    python tests/benchmarks/speed/scheduler_share.py                        (64 and 512 workers, 1 TB and 100 TB)
    python tests/benchmarks/speed/scheduler_share.py --workers 20 --terabytes 0.01 --seconds 1

The scheduler is a process of its own. Workers are stand-ins in this process with real connections: each runs one task
at a time, which takes as long as the plan of the job says, and sends heartbeats and results as a worker does. The
fold of a fit runs in full, with time shortened so that it takes some seconds. A pass over shards runs for some seconds
at the planned pace, after a start that is left out. The share is the processor time of the scheduler by the time of the
job. Heartbeats are measured alone, and count at their real pace.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
from distributed import Client
from distributed.comm import connect
from distributed.core import Server, Status
from distributed.protocol import to_serialize
from distributed.scheduler import heartbeat_interval
from distributed.versions import get_versions
from sklearn.base import clone

from dpca import CellPCA, StreamingPCA
from dpca.engine.folds.fold_tasks import GroupTask, group_graph
from dpca.engine.folds.rehearsal import MOVING, FoldCost, Workers, rehearsing
from dpca.engine.sources.source import Source, as_source
from dpca.jobs import CompressionSettings, plan_job
from dpca.jobs.base.shards import ShardPass
from dpca.partition import CellGrid
from dpca.partition.whole import Whole
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.storage import Stack, create_synthetic
from dpca.storage.arrays.layout import choose_layout
from dpca.storage.run import Run
from dpca.storage.transaction.workspace import Workspace
from tests.benchmarks.sides import Line, at_most, print_line, ratio_of

_BUDGET, _ASKED = 4 * 2**30, 0.2
_QUALITY = np.zeros(640, np.float32)  # of the samples of a shard of 128 MiB
MODELS: dict[str, Any] = {"streaming": StreamingPCA(5, method="incremental-svd"), "cells": CellPCA(5, cell_shape=5)}
_METRICS: dict[str, Any] = {
    "bandwidth": {"total": 1e8, "workers": {}, "types": {}},
    **{"cpu": 0, "memory": 0, "time": 0.0, "managed_bytes": 0, "task_counts": {}},
    **{"spilled_bytes": {"memory": 0, "disk": 0}, "event_loop_interval": 0.02, "digests_total_since_heartbeat": {}},
    "transfer": {"incoming_bytes": 0, "incoming_count": 0, "outgoing_bytes": 0, "outgoing_count": 0},
}


class Crew:
    """Stand-ins for workers, in a thread of their own.

    Parameters
    ----------
    scheduler : str
        Address.
    n : int
    """

    def __init__(self, scheduler: str, n: int) -> None:
        self.scheduler, self.n = scheduler, n
        self.seconds: dict[str, float] = {}
        """Seconds of a task, or of a shard of a pass, by the name of the task."""
        self.results: dict[str, Any] = {}
        self._ready, self._ended = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Crew:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = Server(
            {"get_data": self._give, "plugin-add": self._accept}, connection_limit=2 * self.n, needs_workdir=False
        )
        joined = []
        for _ in range(self.n):
            await server.listen("tcp://127.0.0.1:0")
            joined.append(asyncio.ensure_future(self._work(server.listeners[-1].contact_address)))
        self._ready.set()
        await self._ended.wait()
        for one in joined:
            one.cancel()
        await asyncio.gather(*joined, return_exceptions=True)
        await server.close()

    async def _give(self, comm: Any, keys: Sequence[str], **_: Any) -> Any:
        await comm.write({"status": "OK", "data": {key: to_serialize(self.results.pop(key, None)) for key in keys}})
        await comm.read()
        return Status.dont_reply

    async def _accept(self, **_: Any) -> dict[str, str]:
        """Say that a plugin, such as that of storage options, was added."""
        return {"status": "OK"}

    async def _work(self, address: str) -> None:
        stream, beating = await connect(self.scheduler), await connect(self.scheduler)
        joining = {
            **{"op": "register-worker", "reply": False, "address": address, "status": "running", "nthreads": 1},
            **{"server_id": address, "name": address, "now": time.time(), "resources": {}, "memory_limit": 2**33},
            **{"metrics": _METRICS, "services": {}, "local_directory": "", "versions": get_versions(), "nanny": ""},
            **{"extra": {}, "stimulus_id": "join", "pid": 0},
        }
        await stream.write(joining)
        await stream.read()
        worker = _Worker(self, stream)
        beat = asyncio.ensure_future(self._beat(beating, address))
        try:
            with suppress(OSError):
                while True:
                    worker.hear(await stream.read())
        finally:
            beat.cancel()
            stream.abort()
            beating.abort()

    async def _beat(self, comm: Any, address: str) -> None:
        while True:
            await asyncio.sleep(heartbeat_interval(self.n))
            said = {"op": "heartbeat_worker", "reply": True, "address": address, "now": time.time()}
            await comm.write({**said, "metrics": _METRICS, "executing": {}, "extensions": {}})
            await comm.read()


class _Worker:
    """One stand-in: its queue, its task, and what it says."""

    def __init__(self, crew: Crew, stream: Any) -> None:
        self._crew, self._stream = crew, stream
        self._waiting: deque[dict[str, Any]] = deque()
        self._busy = False
        self._has: set[str] = set()
        self._said: list[dict[str, Any]] = []
        self._saying: asyncio.Future[None] | None = None

    def hear(self, messages: Sequence[dict[str, Any]]) -> None:
        for message in messages:
            if message["op"] == "compute-task":
                self._waiting.append(message)
                self._begin()
            elif message["op"] == "free-keys":
                self._has -= set(message["keys"])
                for key in message["keys"]:
                    self._crew.results.pop(key, None)
            elif message["op"] == "steal-request":
                waiting = [one for one in self._waiting if one["key"] == message["key"]]
                for one in waiting:
                    self._waiting.remove(one)
                state = "ready" if waiting else "executing"
                self._say(
                    {**{name: message[name] for name in ("key", "stimulus_id")}, "op": "steal-response", "state": state}
                )

    def _begin(self) -> None:
        if self._busy or not self._waiting:
            return
        self._busy, message = True, self._waiting.popleft()
        key = message["key"]
        name = key.rsplit("-", 1)[0]
        seconds = self._crew.seconds[name]
        if name == "scores":
            units = message["run_spec"].args[-1]
            n = len(getattr(units, "args", units))
            quality = {"mse": _QUALITY}
            # What `write_shards` returns.
            self._crew.results[key] = [quality] * n, n * seconds, 1
            seconds *= n
        asyncio.get_running_loop().call_later(seconds, self._finish, message, time.time())

    def _finish(self, message: dict[str, Any], began: float) -> None:
        key = message["key"]
        fetched = [one for one in message.get("who_has", {}) if one not in self._has]
        self._has |= {key, *fetched}
        if fetched:
            self._say({"op": "add-keys", "keys": fetched, "stimulus_id": "fetched"})
        self._say(
            {
                **{"op": "task-finished", "status": "OK", "key": key, "run_id": message["run_id"], "nbytes": 10_000},
                **{"type": b"", "typename": "tuple", "metadata": {}, "thread": 1, "stimulus_id": "done"},
                "startstops": ({"action": "compute", "start": began, "stop": time.time()},),
            }
        )
        self._busy = False
        self._begin()

    def _say(self, message: dict[str, Any]) -> None:
        self._said.append(message)
        if self._saying is None:
            self._saying = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        while self._said:
            said, self._said = self._said, []
            with suppress(OSError):
                await self._stream.write(said)
        self._saying = None


class _Scores:
    """What a pass asks a job on shards that nothing is written of: see `dpca.jobs.base.shards.ShardJob`."""

    def span(self, shard: int) -> tuple[int, int]:
        return shard, shard + 1

    def write(self, shard: int) -> dict[str, Any]:
        raise NotImplementedError


class _Marks:
    """A stage of progress that notes the processor time of the scheduler. A shard counts as a sample."""

    def __init__(self, process: psutil.Process, total: int) -> None:
        self._process, self._total, self._done = process, total, 0
        self._seen: list[tuple[float, float, int]] = []

    def advance(self, n_shards: int) -> None:
        self._done += n_shards
        # At first, the times of shards are not known.
        if 3 * self._done >= self._total and (not self._seen or time.perf_counter() - self._seen[-1][0] > 0.1):
            self._seen.append((time.perf_counter(), _spent(self._process), self._done))

    def close(self) -> None:
        pass

    def spent(self) -> tuple[float, float, int]:
        """Return seconds, processor seconds of the scheduler, and shards."""
        first, last = self._seen[0], self._seen[-1]
        return last[0] - first[0], last[1] - first[1], last[2] - first[2]


def planned_folds(stack: Stack, workers: Workers) -> dict[str, FoldCost]:
    """Return the costs of the fits of a stack, measured on a few batches."""
    costs = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, model in MODELS.items():
            with rehearsing(workers, folder) as rehearsal:
                clone(model).fit(stack, run=Run(memory=_BUDGET, threads=1))
            costs[name] = rehearsal.costs[0]
    return costs


def planned_shard(stack: Stack) -> float:
    """Return the seconds of a shard of scores."""
    (plan,) = plan_job(stack, CompressionSettings(MODELS["streaming"]), workers=[1], budget=_BUDGET)
    layout = choose_layout(stack.shape, stack.dtype.itemsize, stack.axes, part_bytes=None)
    return plan.stages["scores"].seconds / layout.n_shards(stack.n_samples)


@contextmanager
def scheduler_of(n_workers: int, folder: Path) -> Iterator[tuple[psutil.Process, Client, Crew]]:
    """Start a scheduler with stand-ins."""
    stated = folder / f"scheduler-{n_workers}.json"
    # Without its dashboard it still answers by HTTP, by default at port 8787 for every other machine.
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    options += ["--no-show", "--scheduler-file", str(stated)]
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not stated.exists():
            time.sleep(0.1)
        with Client(scheduler_file=str(stated)) as client, Crew(client.scheduler.address, n_workers) as crew:
            client.wait_for_workers(n_workers)
            yield psutil.Process(process.pid), client, crew
    finally:
        process.terminate()
        process.wait()


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def fold_nodes(name: str, cost: FoldCost, source: Source, workers: Workers) -> tuple[list[Any], dict[str, float]]:
    """Return the graph of a fit by its plan, and seconds of its tasks."""
    plan = cost.planned(workers)
    shape = source.shape[1:]
    partition = Whole(shape) if name == "streaming" else CellGrid(shape, (5, 5))
    nodes = []
    for g, group in enumerate(plan.groups):
        work = GroupTask(CovariancePCA(2), partition, group, 1, 1, 2**62, "", np.dtype(np.uint8), f"{g}", "fit")
        nodes.append(group_graph(work, source, plan.segments))
    groups, length = len(plan.groups), plan.segments[0][1]
    merging = (cost.merging + cost.state_bytes / MOVING) / groups
    leaf = length * (cost.reading + cost.folding) / groups
    return nodes, {"fit": leaf, "fit-merge": merging, "fit-finish": cost.finishing / groups}


def fold_line(
    name: str, stack: Stack, cost: FoldCost, on: tuple[psutil.Process, Client, Crew], idle: float, seconds: float
) -> Line:
    """Run the fold of a fit."""
    process, client, crew = on
    nodes, tasks = fold_nodes(name, cost, as_source(stack), Workers(crew.n, crew.n, _BUDGET))
    factor = max(1.0, tasks["fit"] / seconds)
    crew.seconds = {task: of / factor for task, of in tasks.items()}
    before, began = _spent(process), time.perf_counter()
    futures = client.compute(nodes)
    while not all(future.done() for future in futures):
        time.sleep(0.05)
    wall = time.perf_counter() - began
    busy = max(0.0, _spent(process) - before - idle * wall) + idle * wall * factor
    found = ratio_of([{"scheduler": busy, "job": wall * factor, "a task": tasks["fit"]}], ["scheduler"], ["job"])
    where = f"{stack.nbytes / 1e12:.4g} TB, {crew.n} workers"
    return at_most(_ASKED, name=f"scheduler, fit of {name}, {where}", where=where, n=stack.n_samples, **found)


def pass_line(shard: float, on: tuple[psutil.Process, Client, Crew], seconds: float, folder: Path) -> Line:
    """Run a part of a pass over shards."""
    process, client, crew = on
    crew.seconds = {"scores": shard}
    units = [(i,) for i in range(math.ceil(5 * seconds * crew.n / shard))]
    marks = _Marks(process, len(units))
    with Workspace(folder / f"{crew.n}.zarr", kind="scores", fingerprint="none") as work:
        ShardPass("scores", work, Run(client=client, progress=lambda *_: marks)).write(_Scores(), units)
    wall, busy, n = marks.spent()
    sides = {"scheduler": busy, "job": wall, "planned": n * shard / crew.n, "a shard": shard}
    where = f"{crew.n} workers"
    return at_most(
        _ASKED,
        name=f"scheduler, pass over shards, {where}",
        where=where,
        n=n,
        **ratio_of([sides], ["scheduler"], ["planned"]),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[64, 512], metavar="N")
    parser.add_argument("--terabytes", type=float, nargs="+", default=[1, 100], metavar="TB")
    parser.add_argument("--side", type=int, default=256, metavar="N", help="pixels (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of one measurement, about")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=".") as given, dask.config.set({"distributed.worker.use-file-locking": False}):
        folder = Path(given).resolve()
        stacks, shape = [], (options.side, options.side, 3)
        for size in options.terabytes:
            n = round(size * 1e12 / math.prod(shape))
            stacks.append(create_synthetic(folder / f"{size}.zarr", n_samples=n, sample_shape=shape))
        few = Workers(min(options.workers), min(options.workers), _BUDGET)
        costs, shard = [planned_folds(stack, few) for stack in stacks], planned_shard(stacks[0])
        for n_workers in options.workers:
            with scheduler_of(n_workers, folder) as on:
                before, began = _spent(on[0]), time.perf_counter()
                time.sleep(options.seconds)
                idle = (_spent(on[0]) - before) / (time.perf_counter() - began)
                for stack, of_stack in zip(stacks, costs, strict=True):
                    for name, cost in of_stack.items():
                        print_line(fold_line(name, stack, cost, on, idle, options.seconds))
                print_line(pass_line(shard, on, options.seconds, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
