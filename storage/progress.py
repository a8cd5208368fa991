"""Progress of long jobs.

A job takes `progress`, a function that opens a stage and returns something to advance. The two here are a
bar in a terminal and silence; a notebook or a service can pass its own.
"""

from __future__ import annotations

from typing import Protocol

from tqdm import tqdm


class Stage(Protocol):
    """One stage of a job while it runs."""

    def advance(self, n: int) -> None:
        """Count `n` further units as done."""

    def close(self) -> None:
        """End the stage, finished or not."""


class Progress(Protocol):
    """Open a stage."""

    def __call__(self, stage: str, total: int, unit: str) -> Stage:
        """Announce `total` units (``"samples"``, ``"shards"``, ...) of work called `stage`."""


class _Silence:
    def advance(self, n: int) -> None:
        pass

    def close(self) -> None:
        pass


class _Bar:
    def __init__(self, stage: str, total: int, unit: str) -> None:
        # disable=None: a bar where standard error is a terminal, else nothing
        self._bar = tqdm(total=total, desc=stage, unit=f" {unit}", disable=None, dynamic_ncols=True)

    def advance(self, n: int) -> None:
        self._bar.update(n)

    def close(self) -> None:
        self._bar.close()


def no_progress(stage: str, total: int, unit: str) -> Stage:
    """Report nothing."""
    return _Silence()


def bar_progress(stage: str, total: int, unit: str) -> Stage:
    """Draw a bar on standard error if it is a terminal."""
    return _Bar(stage, total, unit)
