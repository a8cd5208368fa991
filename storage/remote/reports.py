"""Counts that long tasks report while they run, to the process that waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

#: Seconds between two reports of a task. The scheduler sends each of them on.
EVERY = 5.0
# What hears the tasks of this process, by topic.
_heard: dict[str, Callable[[str, int], None]] = {}


class Reporter:
    """Reports the count of a task at intervals.

    Parameters
    ----------
    topic : str
        See `listening`. Nothing is reported if it is empty.
    what : str
        Name of the task. A task that is repeated has the same name.
    """

    def __init__(self, topic: str, what: str) -> None:
        self._topic, self._what, self._next = topic, what, time.monotonic() + EVERY

    def __call__(self, n: int) -> None:
        """Report that the task has finished ``n`` units in all."""
        if not self._topic or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY
        if (hear := _heard.get(self._topic)) is not None:
            hear(self._what, n)
            return
        from distributed import get_worker

        with suppress(ValueError):  # no worker: nobody waits any more
            get_worker().log_event(self._topic, [self._what, n])


@contextmanager
def listening(client: Any | None, told: Callable[[str, int], None]) -> Iterator[str]:
    """Yield a topic; ``told`` receives the names of tasks that report under it, and the increase of their counts.

    Parameters
    ----------
    client : distributed.Client or None
        The cluster of the tasks. None is for threads of this process.
    told : callable
        Is called from several threads, one at a time. A task that is repeated is not counted twice.
    """
    topic, counts, lock = f"dpca-{uuid4().hex}", dict[str, int](), threading.Lock()

    def hear(what: str, n: int) -> None:
        with lock:
            if (more := n - counts.get(what, 0)) > 0:
                counts[what] = n
                told(what, more)

    if client is None:
        _heard[topic] = hear
        try:
            yield topic
        finally:
            del _heard[topic]
        return
    client.subscribe_topic(topic, lambda event: hear(*event[1]))
    try:
        yield topic
    finally:
        with suppress(Exception):  # the cluster may be lost, which others report
            client.unsubscribe_topic(topic)
