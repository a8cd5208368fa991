"""How processes end during their first seconds, while they import their libraries. This module imports none."""

from __future__ import annotations

import signal

from dpca.engine.clusters.parent import end_with_parent

_is_program = False


def is_program() -> bool:
    """Return whether this process was created to run a program of this package."""
    return _is_program


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
    global _is_program
    _is_program = _is_program or name == "__main__"
    if name == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    elif name == "__mp_main__":
        end_with_parent()
