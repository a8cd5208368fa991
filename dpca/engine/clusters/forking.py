"""The process from which the workers of this machine are forked. This module imports no library."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker

#: On Linux, workers are forked from one process that has imported their libraries. Elsewhere forking is not safe.
CAN_FORK = sys.platform == "linux"
_FIRST = "dpca.engine.clusters.preloading"
#: The last module that this process imports.
LAST = "dpca.engine.clusters.worker_setup"
#: Without these, glibc frees large blocks immediately, and each new block costs a page fault for every 4 KiB. If it
#: keeps them, a store is read a third faster. The number of arenas is limited, because each keeps its freed memory.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": 32 * 2**20,
    "MALLOC_TRIM_THRESHOLD_": 512 * 2**20,
    "MALLOC_ARENA_MAX": 2,
    "OMP_NUM_THREADS": 1,
    "OPENBLAS_NUM_THREADS": 1,
    "MKL_NUM_THREADS": 1,
}


def share_modules(names: Iterable[str]) -> None:
    """Preload modules in the process from which workers are forked. No effect if it is already running."""
    multiprocessing.set_forkserver_preload([_FIRST, "distributed", *sorted(names), LAST])


def start_forking(*names: str) -> None:
    """Start the process from which workers are forked: it imports modules while this process imports its own.

    Each of them takes seconds. Programs call this when they know that they will start workers.
    """
    if not CAN_FORK:
        return
    share_modules(names)
    missing = {name: str(value) for name, value in KEEP_FREED_MEMORY.items() if name not in os.environ}
    with workers_ignore(signal.SIGINT, signal.SIGHUP):
        os.environ.update(missing)
        try:
            forkserver.ensure_running()
        finally:
            for name in missing:
                del os.environ[name]


@contextmanager
def workers_ignore(*signals: signal.Signals) -> Iterator[None]:
    """Block these signals in processes that are started within the block.

    A terminal sends signals to every process of a program, including workers that are still importing. Workers end
    with their cluster anyway.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        # Workers share this process, which ignores SIGINT and SIGTERM but not SIGHUP. Python unblocks SIGINT after it
        # has started it.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
