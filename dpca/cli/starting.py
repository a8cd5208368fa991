"""The first seconds of a program, in which it imports its libraries. This module imports none of them."""

from __future__ import annotations

import os
import signal
import threading
import time

_INTERVAL = 0.5


def start(name: str) -> None:
    """Have a process end as it should while it still imports its libraries.

    Ctrl-C ends a program as SIGTERM does, without a word, wherever `guarded` is not in charge of signals: Python would
    print where it was. A worker process, which imports the program that started it, ends with that one, however it
    ended; Dask sees to that only after the imports, which take long where many begin at once.

    Parameters
    ----------
    name : str
        ``__name__`` of the program's file. A process that only imports it keeps its own ways.
    """
    if name == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    elif name == "__mp_main__":
        threading.Thread(target=_end_with, args=(os.getppid(),), name="end-with-parent", daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_INTERVAL)
    os._exit(1)
