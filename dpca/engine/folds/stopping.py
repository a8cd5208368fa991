"""Clean interruption: a signal ends a program, and finished work is kept."""

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
STOPPED = "stopped"
INTERRUPTED = "stopped: finished work is kept, the same command resumes"

# Seconds after which a repeated signal is a second request, and not the same signal over two ways.
_IMPATIENCE = 1.0


class Stopped(KeyboardInterrupt):
    """A signal asked the program to end. ``words`` tell the user what follows."""

    def __init__(self, number: int, words: str = INTERRUPTED) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.words = number, _told(number, words)


def _told(number: int, words: str) -> str:
    """Name the signal, unless it is Ctrl-C: the reader of a log has not sent it."""
    by = f"{STOPPED} by {signal.Signals(number).name}"
    return words if number == signal.SIGINT else words.replace(STOPPED, by, 1)


class _Asked:
    """The first signal, its time, and the number of blocks that defer it."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.since = 0.0
        self.shields = 0
        self.obeyed = False
        self.words = INTERRUPTED

    def obey(self) -> None:
        if self.number is not None and not self.obeyed and not self.shields:
            self.obeyed = True
            raise Stopped(self.number, self.words)


_asked: _Asked | None = None


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and the closing of a terminal into `Stopped` for the duration of a block.

    Every ``finally`` runs, undisturbed by further signals. A signal more than a second after the first one ends the
    process at once, and the unit of work in progress is lost. Signals that are ignored, as in programs started in the
    background or by ``nohup``, stay ignored. Main thread only.
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
            _end_at_once(asked.number, asked.words)
        asked.obey()

    def lost(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, Stopped):
            # It was raised in a finalizer, which cannot propagate it, so the signal is sent again.
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
def defer_signals() -> Iterator[None]:
    """Defer a stop to the end of a block that must not be interrupted. The block must be short."""
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


def nothing_resumes() -> None:
    """State that the running program keeps nothing from which it resumes after an interruption."""
    if _asked is not None:
        _asked.words = STOPPED


def _end_at_once(number: int, words: str) -> None:
    os.write(2, f"{_told(number, words)}\n".encode())
    os._exit(128 + number)
