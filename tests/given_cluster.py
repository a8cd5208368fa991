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

ROOT = Path(__file__).parents[1]


class GivenCluster:
    """Processes of a scheduler and its workers, started and ended one by one."""

    def __init__(self, workers: int, log: Path) -> None:
        self._log = open(log, "ab")  # noqa: SIM115
        self._address_file = log.with_suffix(".json")
        self.workers: list[subprocess.Popen[bytes]] = []
        self._n_workers = workers

    def __enter__(self) -> Self:
        options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        self.scheduler = self._start("scheduler", *options, "--scheduler-file", str(self._address_file))
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

    def add_worker(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start a worker that dies for good when it is killed, and wait until the scheduler knows it."""
        n = self._known()
        options = ["--nthreads", "1", "--no-nanny", "--host", "127.0.0.1", "--no-dashboard", "--memory-limit", "1GB"]
        self.workers.append(self._start("worker", self.address, *options, **environment))
        while self._known() == n:
            assert self.workers[-1].poll() is None
            time.sleep(0.05)
        return self.workers[-1]

    def remove_worker(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker, and wait until the scheduler knows of it."""
        n = self._known()
        worker.kill()
        worker.wait()
        while self._known() == n:
            time.sleep(0.05)

    def _known(self) -> int:
        with Client(self.address, set_as_default=False) as client:
            return len(client.nthreads())

    def _start(self, kind: str, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_" + kind, *options],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            cwd=self._address_file.parent,
        )
