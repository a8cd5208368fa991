"""How every program here ends: what is said, and with which exit code.

====  ===========================================================================
code  meaning
====  ===========================================================================
0     done, or found to be done already
1     ``dpca verify`` found damage
2     the command line is wrong
3     the input is wrong
4     a store cannot be read or written (exists, damaged, newer version, disk full)
5     the work does not fit the memory it may take
130   stopped by Ctrl-C; 143 by SIGTERM. The same command goes on where it was
====  ===========================================================================
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dpca.engine.cluster import open_client
from dpca.engine.plan import PlanError
from dpca.engine.stopping import Stopped, stop_on_signals
from storage.errors import DataError, StoreError

EXIT_CODES: dict[type[BaseException], int] = {DataError: 3, StoreError: 4, PlanError: 5}


def guarded(job: Callable[[], int]) -> int:
    """Run a program's body; turn what can go wrong into one sentence on standard error and an exit code."""
    try:
        with stop_on_signals():
            return job()
    except tuple(EXIT_CODES) as error:
        print(f"error: {error}", file=sys.stderr)
        return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    except KeyboardInterrupt as stop:
        print("stopped: what is finished is kept, the same command goes on from there", file=sys.stderr)
        return 128 + stop.number if isinstance(stop, Stopped) else 130


@contextmanager
def cluster(scheduler: str | None, workers: int | None, memory: str | None) -> Iterator[Any]:
    """Open the cluster that the options ask for and say where to watch it."""
    # Workers that end with their cluster, or are replaced, say so at length; what matters reaches the caller.
    for name in ("distributed.nanny", "distributed.worker", "distributed.scheduler", "distributed.core"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with open_client(scheduler, workers=workers, memory=memory) as client:
        threads = client.nthreads()
        say(f"{len(threads)} worker(s), dashboard {client.dashboard_link}")
        yield client


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    print(text, flush=True)
