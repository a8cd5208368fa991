"""The first seconds of a program, in which it imports its libraries. This module imports none of them."""

from __future__ import annotations

import signal


def stop_quietly() -> None:
    """Have Ctrl-C end this process as SIGTERM does, without a word, wherever `guarded` is not in charge of signals.

    That is while libraries are imported, and after all is done. Python would print where it was. For the programs
    themselves: a process that only imports them keeps its own ways.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
