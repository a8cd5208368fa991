"""The cluster of a command, and its progress: a bar in a terminal, lines in a log."""

from __future__ import annotations

import argparse
import re
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from functools import cache
from http import HTTPStatus
from http.client import HTTPException
from threading import Event, Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from tqdm import tqdm

from dpca.cli.running import say, started
from dpca.plots.numbers import counted, duration
from dpca.storage.disk import readable_size
from dpca.storage.errors import StoreError
from dpca.storage.progress import JobProgress, Stage, bar_progress, no_progress
from dpca.storage.remote.memory import thread_count
from dpca.storage.run import Run

# The stage in which workers start.
_STARTING = "start workers"
# Seconds that a dashboard has to answer.
_ANSWER = 1.0
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
def run_of(
    options: argparse.Namespace,
    report: Callable[[str], None] = say,
    progress: JobProgress | None = None,
    starting: Stage | None = None,
) -> Iterator[Run]:
    """Yield how a command runs. Its cluster opens on first use; ``report`` receives a line about it.

    ``starting`` is the stage in which workers start, if it has begun, see `begin_start`.
    """
    shown = progress or shown_progress
    with ExitStack() as stack:
        client: Any = _LazyClient(
            lambda: stack.enter_context(_cluster(options, report, starting or begin_start(options, shown)))
        )
        overwrite = getattr(options, "overwrite", False)  # some commands replace nothing
        yield Run(client=client, progress=shown, overwrite=overwrite, say=_say_above_bars, started=started())


def begin_start(options: argparse.Namespace, progress: JobProgress) -> Stage:
    """Begin the stage in which the workers of the options start. It ends when there are workers."""
    if options.scheduler:
        return no_progress(_STARTING, 0, "workers")
    # The cluster of a file begins with one worker.
    return progress(_STARTING, 1 if options.cluster else options.workers or thread_count(), "workers")


@contextmanager
def _cluster(options: argparse.Namespace, report: Callable[[str], None], starting: Stage) -> Iterator[Any]:
    """Open the cluster of the options, and ``report`` its number of workers and its dashboard."""
    with ExitStack() as stack:
        with closing(starting):
            # Imported here, because it takes seconds and not every command needs a cluster.
            from dpca.engine.clusters.cluster import open_client
            from dpca.engine.clusters.tls import TlsFiles
            from dpca.storage.remote.clusters import cluster_errors

            files = (options.tls_ca_file, options.tls_cert, options.tls_key)
            tls = TlsFiles(*files) if any(files) else None
            where = {"cluster": options.cluster, "workers": options.workers, "memory": options.memory}
            client = stack.enter_context(open_client(options.scheduler, tls=tls, **where))
            given = options.scheduler or options.cluster  # a cluster that dpca starts has no dashboard
            with cluster_errors(client):
                threads, dashboard = client.nthreads(), _dashboard(client.dashboard_link) if given else ""
            starting.advance(len(threads))
        report(f"{counted(len(threads), 'worker')}{dashboard}")
        yield client


def _dashboard(link: str) -> str:
    """Return words for a dashboard if there is one. Dask states an address also for a scheduler without one."""
    try:
        with build_opener(ProxyHandler({})).open(Request(link, method="HEAD"), timeout=_ANSWER):
            pass
    except HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND:  # pages of a dashboard answer that they support no HEAD
            return ""
    except (OSError, HTTPException) as error:
        if not isinstance(getattr(error, "reason", None), ssl.SSLError):  # its certificate is not checked here
            return ""
    return f", dashboard {link}"


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _say_above_bars(text: str) -> None:
    """Print a line. In a terminal, bars move below it."""
    with tqdm.external_write_mode() if _on_terminal() else nullcontext():
        say(text)


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

    return bar_progress(stage, total, unit) if _on_terminal() else Heartbeat(tell)
