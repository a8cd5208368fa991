"""Two hosts on one machine: each has a network address and a disk of its own, and sees nothing of the other's.

They are namespaces of Linux, joined by a virtual cable, with a file system in memory where they work. That takes the
rights of an administrator. What is installed is seen from both.

::

    host a  10.213.7.1 ------ 10.213.7.2  host b
    a disk of its own                     a disk of its own
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
ADDRESSES = ("10.213.7.1", "10.213.7.2")
_BEGIN = 'mount -t tmpfs tmpfs "$0" && echo ready && exec cat'


def can_make_hosts() -> bool:
    """Say whether this process has the commands and the rights."""
    if os.name != "posix" or os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    return subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True).returncode == 0


class Host:
    """One of the two."""

    def __init__(self, address: str, disk: Path, log: Path) -> None:
        self.address, self.disk, self.log = address, disk, log
        self._first = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", _BEGIN, disk],
            stdin=subprocess.PIPE,  # it ends with this process, which closes its end
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._first.stdout is not None
        assert self._first.stdout.readline() == "ready\n"
        self._started: list[subprocess.Popen[str]] = []

    def connect(self, device: str) -> None:
        """Plug in its end of the cable."""
        _ip("link", "set", device, "netns", str(self._first.pid))
        for words in (["addr", "add", f"{self.address}/24", "dev", device], ["link", "set", device, "up"]):
            self.run(["ip", *words])
        self.run(["ip", "link", "set", "lo", "up"])

    def run(self, command: Sequence[str], **environment: str) -> str:
        """Run a command that must not fail; return what it prints."""
        inside, env = self._inside(command, environment)
        ended = subprocess.run(inside, env=env, capture_output=True, text=True)
        assert ended.returncode == 0, f"{ended.stderr}\n{self.log.read_text() if self.log.exists() else ''}"
        return ended.stdout

    def start(self, command: Sequence[str], *, tells: bool = False, **environment: str) -> str:
        """Start a command that runs until the host is switched off; return the line that it ``tells`` first, if so."""
        inside, env = self._inside(command, environment)
        with open(self.log, "a") as log:
            out = subprocess.PIPE if tells else log
            self._started.append(subprocess.Popen(inside, env=env, stdout=out, stderr=log, text=True))
        told = self._started[-1].stdout
        return "" if told is None else told.readline().strip()

    def close(self) -> None:
        """Switch it off."""
        for process in self._started:
            process.kill()
            process.communicate()
        self._first.communicate()

    def _inside(self, command: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        enter = ["nsenter", "--target", str(self._first.pid), "--net", "--mount", "sh", "-c"]
        # an option of nsenter would mean the folder of this disk
        there, disk = ['cd "$0" && exec "$@"', str(self.disk)], str(self.disk)
        return [*enter, *there, *command], {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": disk, **environment}


class TwoHosts:
    """Both, for the length of a block."""

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "disk").mkdir()
        self.a, self.b = (Host(address, folder / "disk", folder / address) for address in ADDRESSES)
        for host in (self.a, self.b):
            self._stack.callback(host.close)
        ends = [f"dpca{os.getpid()}{side}" for side in "ab"]
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for host, end in zip((self.a, self.b), ends, strict=True):
            host.connect(end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def start_cluster(self, **environment: str) -> str:
        """Start a scheduler on host a and a worker on each; return the scheduler's address."""
        address, options = f"tcp://{self.a.address}:8786", ["--no-dashboard", "--dashboard-address", ":0"]
        self.a.start(
            [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", self.a.address, *options], **environment
        )
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1"]
        for host in (self.a, self.b):
            host.start([*worker, "--host", host.address, *options, "--memory-limit", "1GB"], **environment)
        return address


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
