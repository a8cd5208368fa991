"""A Dask cluster as an operator starts one, with ``dask scheduler`` and ``dask worker``, on the loopback interface."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from distributed import Client

from tests.helpers.forked import ROOT, Program, Programs

_SCHEDULER = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
_WORKER = [sys.executable, "-m", "distributed.cli.dask_worker"]


class GivenCluster:
    """Processes of a scheduler and its workers, started and ended one by one."""

    def __init__(self, workers: int, log: Path, programs: Programs) -> None:
        self._log = open(log, "ab")  # noqa: SIM115
        self._address_file = log.with_suffix(".json")
        self._programs = programs
        self.workers: list[Program | subprocess.Popen[bytes]] = []
        self._n_workers = workers

    def __enter__(self) -> Self:
        options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        command = [*_SCHEDULER, *options, "--scheduler-file", str(self._address_file)]
        self.scheduler = self._programs.start(command, self._log.fileno())
        while not self._address_file.exists():
            assert self.scheduler.poll() is None
            time.sleep(0.05)
        with Client(scheduler_file=str(self._address_file), set_as_default=False) as client:
            self.address = str(client.scheduler.address)
        for _ in range(self._n_workers):
            self.add_worker()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self.workers, self.scheduler):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self._log.close()

    def add_worker(self, **environment: str) -> Program | subprocess.Popen[bytes]:
        """Start a worker that dies for good when it is killed, and wait until the scheduler knows it.

        One with an environment of its own is started anew.
        """
        known = self._known()
        options = ["--nthreads", "1", "--no-nanny", "--host", "127.0.0.1", "--no-dashboard", "--memory-limit", "1GB"]
        command = [*_WORKER, self.address, *options]
        if environment:
            env = {**os.environ, **environment}
            self.workers.append(subprocess.Popen(command, stdout=self._log, stderr=self._log, env=env, cwd=ROOT))
        else:
            self.workers.append(self._programs.start(command, self._log.fileno()))
        # Not their number: one that was killed a moment ago may leave while this one joins.
        while self._known() <= known:
            assert self.workers[-1].poll() is None
            time.sleep(0.05)
        return self.workers[-1]

    def remove_worker(self, worker: Program | subprocess.Popen[bytes]) -> None:
        """Kill a worker, and wait until the scheduler knows of it."""
        known = self._known()
        worker.kill()
        worker.wait()
        while self._known() >= known:
            time.sleep(0.05)

    def _known(self) -> set[str]:
        with Client(self.address, set_as_default=False) as client:
            return set(client.nthreads())
