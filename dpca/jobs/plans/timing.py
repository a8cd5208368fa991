"""Processor seconds of work on a few samples, and what they say about many."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
# Number of repetitions of each trial.
_TURNS = 3


def fewest_seconds(parts: Sequence[T], work: Callable[[T, Path], object], target: Path) -> list[float]:
    """Return the processor seconds of work on each part, with a target for each; the minimum of several turns.

    The first turn includes imports, compilation and memory allocation. Other programs can only add time, through the
    caches.
    """
    spent: list[list[float]] = [[] for _ in parts]
    for turn in range(_TURNS):
        for number, part in enumerate(parts):
            began = time.process_time()
            work(part, target.with_name(f"{target.name} {turn} {number}.zarr"))
            spent[number].append(time.process_time() - began)
    return list(map(min, spent))


def line(counts: Sequence[int], spent: Sequence[float]) -> tuple[float, float]:
    """Return the fixed seconds and the seconds of each sample, from the times of two numbers of samples."""
    (few, many), (less, more) = counts, spent
    if many == few:
        return 0.0, max(less, more) / many
    each = max(more - less, 0.0) / (many - few)
    return max(0.0, more - many * each), each
