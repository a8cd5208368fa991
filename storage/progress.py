"""Progress of long jobs.

The parameter `progress` of a job is a function that opens a stage and returns a `Stage`. This module has a progress bar
for terminals, and one that reports nothing. Notebooks and services can pass their own.
"""

from __future__ import annotations

import sys
from threading import Event, Thread
from typing import Protocol

from tqdm import tqdm

# Seconds between two drawings of a bar.
_REFRESHED = 1.0


class Stage(Protocol):
    """One stage of a job while it runs."""

    def advance(self, n: int) -> None:
        """Report `n` more finished units."""

    def close(self) -> None:
        """End the stage, finished or not."""


class JobProgress(Protocol):
    """A function that opens a stage."""

    def __call__(self, stage: str, total: int, unit: str) -> Stage:
        """Open the stage ``stage`` with ``total`` units of work (``"samples"``, ``"shards"``, ...)."""


class _Silence:
    def advance(self, n: int) -> None:
        pass

    def close(self) -> None:
        pass


class _Bar:
    def __init__(self, stage: str, total: int, unit: str) -> None:
        # With disable=None, tqdm draws the bar only if standard error is a terminal.
        scaled = unit == "B"
        shown = unit if scaled else f" {unit}"
        self._bar = tqdm(total=total, desc=stage, unit=shown, unit_scale=scaled, disable=None, dynamic_ncols=True)
        self._ended = Event()
        # The bar shows the time while a task takes long: without this, the program looks as if it hangs.
        self._clock = Thread(target=self._tick, name="bar", daemon=True)
        if not self._bar.disable:
            self._clock.start()

    def advance(self, n: int) -> None:
        self._bar.update(n)

    def close(self) -> None:
        self._ended.set()
        if self._clock.is_alive():
            self._clock.join()
        self._bar.close()

    def _tick(self) -> None:
        while not self._ended.wait(_REFRESHED):
            self._bar.refresh()


def no_progress(stage: str, total: int, unit: str) -> Stage:
    """Report nothing."""
    return _Silence()


def bar_progress(stage: str, total: int, unit: str) -> Stage:
    """Draw a bar on standard error if it is a terminal."""
    return _Silence() if sys.stderr is None else _Bar(stage, total, unit)  # a shell can close it
