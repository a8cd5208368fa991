"""The cluster of a command, and its progress: a bar in a terminal, lines in a log."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from threading import Event, Thread
from typing import Any

from dpca.cli.running import say, started
from dpca.plots.numbers import counted, duration
from dpca.storage.disk import readable_size
from dpca.storage.errors import StoreError
from dpca.storage.progress import Stage, bar_progress
from dpca.storage.run import Run

#: The line of a command that starts workers on this machine.
STARTING = "start workers"
# Seconds between the lines of a stage.
_HEARTBEAT = 60.0


class Heartbeat:
    """A stage that reports its beginning, and its progress once a minute, however long one task takes.

    Parameters
    ----------
    tell : callable
        Receives the number of finished units, None at the beginning. It is called from another thread.
    """

    def __init__(self, tell: Callable[[int | None], None]) -> None:
        self._tell, self._n, self._ended = tell, 0, Event()
        tell(None)
        self._heart = Thread(target=self._beat, name="progress", daemon=True)
        self._heart.start()

    def advance(self, n: int) -> None:
        """Count finished units."""
        self._n += n

    def close(self) -> None:
        """End the stage."""
        self._ended.set()
        self._heart.join()

    def _beat(self) -> None:
        with suppress(StoreError, BrokenPipeError):  # the main thread raises them, too
            while not self._ended.wait(_HEARTBEAT):
                self._tell(self._n)


class _LazyClient:
    """A cluster's client that is opened on first use. A finished job never opens one."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        self._opened = cache(opened)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened(), name)


@contextmanager
def run_of(options: argparse.Namespace, report: Callable[[str], None] = say) -> Iterator[Run]:
    """Yield how a command runs. Its cluster opens on first use; ``report`` receives a line about it."""
    with ExitStack() as stack:
        client: Any = _LazyClient(lambda: stack.enter_context(_cluster(options, report)))
        overwrite = getattr(options, "overwrite", False)  # some commands replace nothing
        yield Run(client=client, progress=shown_progress, overwrite=overwrite, say=say, started=started())


@contextmanager
def _cluster(options: argparse.Namespace, report: Callable[[str], None]) -> Iterator[Any]:
    """Open the cluster of the options, and ``report`` its number of workers and its dashboard."""
    # Imported here, because it takes seconds and not every command needs a cluster.
    from dpca.engine.clusters.cluster import open_client
    from dpca.engine.clusters.tls import TlsFiles
    from dpca.storage.remote.clusters import cluster_errors

    files = (options.tls_ca_file, options.tls_cert, options.tls_key)
    tls = TlsFiles(*files) if any(files) else None
    where = {"cluster": options.cluster, "workers": options.workers, "memory": options.memory}
    given = options.scheduler or options.cluster  # a cluster that dpca starts has no dashboard
    if not given and not getattr(options, "starts", False):
        report(STARTING)
    with open_client(options.scheduler, tls=tls, **where) as client:
        with cluster_errors(client):
            threads, dashboard = client.nthreads(), f", dashboard {client.dashboard_link}" if given else ""
        report(f"{counted(len(threads), 'worker')}{dashboard}")
        yield client


def shown_progress(stage: str, total: int, unit: str) -> Stage:
    """Draw a bar on standard error if it is a terminal; otherwise print lines with the time."""
    known: list[tuple[float, int]] = []
    noun = re.sub(r"s\b", "", unit, count=1) if total == 1 else unit  # "groups of cells"
    amount, noun = (readable_size, "") if unit == "B" else ("{:,}".format, f" {noun}")

    def tell(done: int | None) -> None:
        finished = left = ""
        if done is not None:
            finished = f"{amount(done)} of "
            # Not since the beginning: a resumed stage begins with what earlier runs have finished.
            known.append((time.monotonic(), done))
            (began, first), now = next((at for at in known if at[1]), known[-1]), known[-1][0]
            if done > first:
                left = f", about {duration((total - done) * (now - began) / (done - first))} left"
        say(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {stage}: {finished}{amount(total)}{noun}{left}")

    terminal = sys.stderr is not None and sys.stderr.isatty()
    return bar_progress(stage, total, unit) if terminal else Heartbeat(tell)
