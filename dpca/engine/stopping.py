"""A clean stop: a signal ends a program with what is finished kept."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = "stopped: what is finished is kept, the same command goes on from there"

# Seconds after which a repeated signal is somebody's impatience, not one signal that came by two ways.
_IMPATIENCE = 1.0


class Stopped(KeyboardInterrupt):
    """The program was asked to end by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Asked:
    """The signal that came first, when, and what keeps it from being obeyed at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.since = 0.0
        self.shields = 0
        self.obeyed = False

    def obey(self) -> None:
        if self.number is not None and not self.obeyed and not self.shields:
            self.obeyed = True
            raise Stopped(self.number)


_asked: _Asked | None = None


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and the closing of a terminal into `Stopped` for the length of a block.

    Every ``finally`` runs, and further signals do not disturb them; one that comes more than a second after the first
    ends the process at once, which costs the unit of work in progress. A signal that was ignored stays ignored, as for
    programs started in the background or by ``nohup``. Main thread only.
    """
    global _asked
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = _Asked()

    def stop(number: int, frame: FrameType | None) -> None:
        if asked.number is None:
            asked.number, asked.since = number, time.monotonic()
        elif time.monotonic() - asked.since > _IMPATIENCE:
            _end_at_once(asked.number)
        asked.obey()

    def lost(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, Stopped):
            # Raised where nothing can be raised, in a finalizer: once more, where it can.
            asked.obeyed = False
            threading.Timer(0.01, os.kill, (os.getpid(), unraisable.exc_value.number)).start()
        else:
            hook_before(unraisable)

    hook_before = sys.unraisablehook
    outer, _asked = _asked, asked
    before = {number: signal.getsignal(number) for number in SIGNALS}
    obeyed = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    try:
        sys.unraisablehook = lost
        for number in obeyed:
            signal.signal(number, stop)
        yield
    finally:
        asked.shields += 1
        for number in obeyed:
            signal.signal(number, before[number])
        sys.unraisablehook = hook_before
        _asked = outer


@contextmanager
def unstopped() -> Iterator[None]:
    """Put off a stop until the end of a block that must not be left half-way; it has to be short."""
    asked = _asked
    if asked is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    asked.shields += 1
    try:
        yield
    finally:
        asked.shields -= 1
        asked.obey()


def _end_at_once(number: int) -> None:
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(128 + number)
