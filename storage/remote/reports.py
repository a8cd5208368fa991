"""Counts that long tasks report while they run, to the process that waits for them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

#: Seconds between two reports of a task. The scheduler sends each of them on.
EVERY = 5.0
# What hears the reports of a name, in a process: a worker that was forked from this one must not use it.
_heard: dict[tuple[int, str], Callable[[str, int], None]] = {}


class Reporter:
    """Reports the count of a task at intervals.

    Parameters
    ----------
    name : str
        See `listening`. Nothing is reported if it is empty.
    what : str
        Name of the task. A task that is repeated has the same name.
    """

    def __init__(self, name: str, what: str) -> None:
        self._name, self._what, self._next = name, what, time.monotonic() + EVERY

    def __call__(self, n: int, *, ended: bool = False) -> None:
        """Report that the task has finished ``n`` units in all, at once if it has ``ended``."""
        if not self._name or (time.monotonic() < self._next and not ended):
            return
        self._next = time.monotonic() + EVERY
        if (hear := _heard.get((os.getpid(), self._name))) is not None:
            hear(self._what, n)
            return
        from distributed import get_worker

        with suppress(ValueError):  # no worker: nobody waits any more
            get_worker().log_event(_topic_of(self._name), [self._name, self._what, n])


@contextmanager
def listening(client: Any | None, told: Callable[[str, int], None]) -> Iterator[str]:
    """Yield a name; ``told`` receives the names of tasks that report under it, and the increase of their counts.

    Parameters
    ----------
    client : distributed.Client or None
        The cluster of the tasks. None is for threads of this process.
    told : callable
        Is called from several threads, one at a time. A task that is repeated is not counted twice.
    """
    counts, lock = dict[str, int](), threading.Lock()
    name = f"{'' if client is None else client.id} {uuid4().hex}"

    def hear(what: str, n: int) -> None:
        with lock:
            if (more := n - counts.get(what, 0)) > 0:
                counts[what] = n
                told(what, more)

    if client is not None:
        client.subscribe_topic(_topic_of(name), _arrived)
    _heard[os.getpid(), name] = hear
    try:
        yield name
    finally:
        del _heard[os.getpid(), name]


def _topic_of(name: str) -> str:
    """Return the topic of a client. The scheduler keeps some events of every topic, so that it must not have many."""
    return f"dpca-{name.split()[0]}"


def _arrived(event: Sequence[Any]) -> None:
    """Receive an event from the scheduler: its time, and a report."""
    name, what, n = event[1]
    if (hear := _heard.get((os.getpid(), name))) is not None:
        hear(what, n)
