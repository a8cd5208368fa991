"""Signal handling during the first seconds of a program, while it imports its libraries. This module imports none."""

from __future__ import annotations

import os
import signal
import threading
import time

_INTERVAL = 0.5


def start(name: str) -> None:
    """Let a process end cleanly while it still imports its libraries.

    In a program, Ctrl-C ends the process silently, as SIGTERM does, until `run_program` handles signals. Python alone
    would print a traceback. A worker process imports the program that started it, and ends when that program ends. Dask
    ensures this only after the imports, which take long if many workers start at once.

    Parameters
    ----------
    name : str
        ``__name__`` of the program's file. In a process that only imports the file, nothing changes.
    """
    if name == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    elif name == "__mp_main__":
        parent = os.getppid()
        # A program that was killed while this process started has been replaced by one of another process group.
        if os.getpgid(parent) != os.getpgrp():
            os._exit(1)
        threading.Thread(target=_end_with, args=(parent,), name="end-with-parent", daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_INTERVAL)
    os._exit(1)
