"""Ends a process that outlives the program that started it. This module imports no library."""

from __future__ import annotations

import os
import sys
import threading
import time

_INTERVAL = 0.5


def end_with_parent(last: str | None = None) -> None:
    """End this process as soon as its parent is gone, or at once if that has happened already.

    Processes that wait for their program see its end by themselves, but only after their imports, which take long if
    many of them start at once.

    Parameters
    ----------
    last : str, optional
        Look for the parent only until this module has been imported. Without it, always.
    """
    parent = os.getppid()
    # A program that was killed while this process started has been replaced by one of another process group.
    if os.getpgid(parent) != os.getpgrp():
        os._exit(1)
    threading.Thread(target=_watch, args=(parent, last), name="end-with-parent", daemon=True).start()


def _watch(parent: int, last: str | None) -> None:
    while os.getppid() == parent:
        if last in sys.modules:
            return
        time.sleep(_INTERVAL)
    os._exit(1)
