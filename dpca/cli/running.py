"""How every program here ends: the sentence that it says, and its exit code. Importing it imports no library."""

from __future__ import annotations

import gc
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dpca.engine.stopping import STOPPED, Stopped, stop_on_signals

#: What each exit code means. Work that was stopped or lost its cluster goes on when the same command is given again.
MEANINGS = {
    "0": "done, or found to be done already",
    "1": "verify found damage",
    "2": "wrong command line",
    "3": "wrong input",
    "4": "a file or store cannot be read or written",
    "5": "the work does not fit the memory",
    "6": "the Dask cluster was not reached or was lost, or cannot run this package",
    "7": "another run is at work on the same output or job, or replaced the store that was read",
    "70": "a fault of dpca, the only case that shows a traceback",
    "129, 130 or 143": "stopped by the end of the terminal, Ctrl-C or SIGTERM",
    "141": "nobody reads the output any more (| head)",
}
FAULT = 70
UNREAD = 141


def guarded(job: Callable[[], int]) -> int:
    """Run a program's body; turn what can go wrong into one sentence on standard error and an exit code."""
    gc.freeze()  # else Python searches all that was imported once more when it ends, which takes half a second
    try:
        with stop_on_signals():
            try:
                code = job()
            except SystemExit:  # argparse has said all there is to say
                _flush()
                raise
            _flush()
            return code
    except BrokenPipeError:
        _abandon(sys.stdout)
        return UNREAD
    except KeyboardInterrupt as stop:
        # A library that is interrupted as it starts something leaves halves behind, of which Python tells at length.
        sys.unraisablehook = lambda _: None
        warnings.simplefilter("ignore")
        _complain(STOPPED)
        return 128 + stop.number if isinstance(stop, Stopped) else 130
    except Exception as error:
        return _explained(error)


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with _output_errors():
        # Names of files may hold what the terminal cannot show.
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def known_error(error: Exception) -> tuple[int, str] | None:
    """Return the exit code and the sentence of an error, or None for a fault of this package."""
    from dpca.storage.errors import BusyError, ClusterError, DataError, PlanError, ReplacedError, StoreError

    codes: dict[type[Exception], int] = {BusyError: 7, ReplacedError: 7}
    codes |= {DataError: 3, StoreError: 4, PlanError: 5, ClusterError: 6}
    for kind, code in codes.items():
        if isinstance(error, kind):
            return code, str(error)
    if isinstance(error, MemoryError):
        return codes[PlanError], (
            f"there is not enough memory ({error or 'no size given'}): ask for fewer workers or smaller parts"
        )
    if isinstance(error, OSError) and error.errno is not None:
        where = "a file" if error.filename is None else f"'{error.filename}'"
        return codes[StoreError], (
            f"{where} cannot be read or written ({error.strerror}): see to it and run the same command again"
        )
    return None


def _explained(error: Exception) -> int:
    """Say what went wrong; return the exit code."""
    if (known := known_error(error)) is not None:
        _complain(f"error: {known[1]}")
        return known[0]
    with suppress(OSError, ValueError):
        traceback.print_exception(error)
    _complain("error: this is a fault of dpca, not of what it was given: please report the lines above")
    return FAULT


def _complain(sentence: str) -> None:
    """Print one line on standard error, whatever has become of it."""
    if sys.stderr is not None:
        try:
            print("\\n".join(sentence.splitlines()), file=sys.stderr, flush=True)
        except (OSError, ValueError):
            _abandon(sys.stderr)


def _flush() -> None:
    if sys.stdout is not None:
        with _output_errors():
            sys.stdout.flush()


@contextmanager
def _output_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        from dpca.storage.errors import StoreError

        _abandon(sys.stdout)
        raise StoreError(
            f"standard output cannot be written ({error.strerror}): make room, or send it elsewhere"
        ) from error


def _abandon(stream: Any) -> None:
    """Discard what the interpreter would write at its end: that would fail again, and change the exit code."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
