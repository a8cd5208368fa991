"""Programs that start at once: forks of a process that has imported what they import, and has no threads.

Imports are most of what a program on a small stack takes. What is forked is a process of its own, with its own session,
memory and end; its pictures are empty. Programs whose start is the point are started as people start them.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

import dask
import numpy as np

ROOT = Path(__file__).parents[2]
IMPORTED = [
    "distributed.cli.dask_scheduler",
    "distributed.cli.dask_worker",
    "distributed.dashboard.scheduler",
    "dpca.cli.commands",
    "dpca.cli.explore",
    "dpca.cli.model_commands",
    "dpca.cli.program",
    "dpca.explore.page",
    "dpca.jobs.scores.report",
    "dpca.pipelines.celeba_cpca",
    "dpca.pipelines.lsun_streaming",
    "dpca.pipelines.studies.convergence.study",
]


class Program:
    """A forked program, with the methods of `subprocess.Popen`."""

    def __init__(self, ended: int, *pipes: int) -> None:
        self._pipes = [os.fdopen(pipe) for pipe in pipes]
        self._ended = os.fdopen(ended, buffering=1)
        self.pid = int(self._ended.readline())
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait()
        for pipe in self._pipes:
            pipe.close()

    @property
    def stdout(self) -> TextIO:
        """What it prints, unless it goes to a log."""
        return self._pipes[0]

    @property
    def stderr(self) -> TextIO:
        """What it prints on standard error, unless it goes to a log."""
        return self._pipes[1]

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""
        ready = self.returncode is None and select.select([self._ended], [], [], 0)[0]
        return self.wait() if ready else self.returncode

    def wait(self) -> int:
        """Wait for the end; return the exit code."""
        if self.returncode is None:
            with self._ended:
                self.returncode = int(self._ended.readline())
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """Wait for the end; return what it printed, and that on standard error."""
        with self:
            return self.stdout.read(), self.stderr.read()

    def send_signal(self, number: int) -> None:
        """Send a signal to a program that runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Programs:
    """Starts programs for the length of a block."""

    def __enter__(self) -> Self:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.helpers.forked", str(theirs.fileno())]
            self._server = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()
        self._server.wait()

    def start(self, command: Sequence[str], log: int | None = None) -> Program:
        """Start ``python FILE ...``, ``python -m MODULE ...`` or ``python -c CODE ...``.

        ``log`` is a file descriptor that takes what it prints, in the place of its pipes.
        """
        pipes = [os.pipe() for _ in range(3 if log is None else 1)]
        theirs = [end for _, end in pipes]
        given = theirs if log is None else [*theirs, log, log]
        message = [command[1:], dask.config.get("distributed.comm.tls", {})]
        socket.send_fds(self._channel, [json.dumps(message).encode()], given)
        for end in theirs:
            os.close(end)
        return Program(*(end for end, _ in pipes))


def printed_by(programs: Programs, command: Sequence[str]) -> str:
    """Run a program that must not fail; return what it prints."""
    program = programs.start(command)
    printed, errors = program.communicate()
    assert program.returncode == 0, errors
    return printed


def _next_command(channel: socket.socket) -> list[str]:
    """Fork a process for every command; return the command in that process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that wait for the programs
    while True:
        message, given, *_ = socket.recv_fds(channel, 2**16, 3)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            break
        for handle in given:
            os.close(handle)
    channel.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ended, output, errors = given
    pid = os.fork()
    if pid:
        os.write(ended, b"%d\n" % pid)
        for handle in (output, errors):
            os.close(handle)
        os.write(ended, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    os.setsid()  # it can be sent what a terminal sends to a program and all of its workers
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for handle in given:
        os.close(handle)
    arguments: list[str]
    arguments, credentials = json.loads(message)
    dask.config.update(dask.config.config, {"distributed": {"comm": {"tls": credentials}}})
    return arguments


def _run(arguments: list[str]) -> None:
    kind = arguments[0]
    sys.argv = arguments[1:] if kind == "-m" else [kind, *arguments[2:]] if kind == "-c" else arguments
    if kind == "-m":
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(arguments[1], {"__name__": "__main__"})
    else:
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    os.fsync = lambda handle: None  # no power is cut here
    for module in IMPORTED:
        importlib.import_module(module)
    from dpca.kernels.quality import ssim_per_sample
    from tests.helpers.pictures import leave_pictures_empty

    leave_pictures_empty()
    # Most of the rest of a job on a small stack would go into loading these loops.
    black = np.zeros((1, 7, 7), np.uint8)
    ssim_per_sample(black, black, data_range=255, n_spatial=2)
    gc.freeze()  # else every fork would visit all that was imported when it ends
    _run(_next_command(socket.socket(fileno=int(sys.argv[1]))))
