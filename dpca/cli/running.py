"""How every program ends: its error message and its exit code. This module imports no library."""

from __future__ import annotations

import atexit
import gc
import os
import shlex
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dpca.cli.starting import is_program
from dpca.engine.folds.stopping import INTERRUPTED, Stopped, interruptible

#: The meaning of each exit code. A run that was interrupted or lost its cluster resumes when the command is run again.
MEANINGS = {
    "0": "success, or nothing to do",
    "1": "verify found damage",
    "2": "invalid command line",
    "3": "invalid input",
    "4": "a file or store cannot be read or written",
    "5": "the job does not fit into memory",
    "6": "the Dask cluster is unreachable, was lost, or cannot run this package",
    "7": "another run uses the same output or job, or replaced the store that was read",
    "70": "a bug in dpca, the only case that shows a traceback",
    "129, 130 or 143": "interrupted by the end of the terminal, Ctrl-C or SIGTERM",
    "141": "the output pipe was closed (| head)",
}
FAULT = 70
UNREAD = 141


_started = time.time()
# Importing the program takes less than this, also on a busy machine.
_START_SECONDS = 5.0


def started() -> float:
    """Return when the program began, as `time.time` tells: when its process was created, if it is its own."""
    if not is_program():
        return _started
    import psutil

    created = float(psutil.Process().create_time())
    if hasattr(time, "CLOCK_BOOTTIME"):
        # Linux states it in seconds since the boot, and psutil adds the time of the boot, rounded to a second.
        created += time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) - psutil.boot_time()
    # A shell that ran for long before it became this program, by exec, has the same process.
    return created if 0 < _started - created < _START_SECONDS else _started


def run_program(job: Callable[[], int]) -> int:
    """Run a program's body. Turn errors into one sentence on standard error and an exit code."""
    global _started
    _started = time.time()
    # Without this, the garbage collector searches all objects at exit, which takes half a second.
    atexit.register(gc.freeze)
    try:
        with interruptible():
            try:
                code = job()
            except SystemExit:  # argparse has printed its message
                _flush()
                raise
            _flush()
            return code
    except BrokenPipeError:
        _discard_buffer(sys.stdout)
        return UNREAD
    except KeyboardInterrupt as stop:
        # An interrupt inside a library leaves unfinished objects, and Python would print a warning for each.
        sys.unraisablehook = lambda _: None
        warnings.simplefilter("ignore")
        _print_error(getattr(stop, "words", INTERRUPTED))
        return 128 + stop.number if isinstance(stop, Stopped) else 130
    except Exception as error:
        return _report(error)


def say(text: str) -> None:
    """Print a line and flush it, also into a pipe."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with _output_errors():
        # File names may contain characters that the terminal cannot show.
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def conclude(result: str, *arguments: str) -> None:
    """Print the last line of a command: its result, and the arguments of a command that follows it."""
    say(f"{result}; next: {shlex.join(('dpca', *arguments))}")


def known_error(error: Exception) -> tuple[int, str] | None:
    """Return the exit code and the message of an error, or None for a bug in this package."""
    from dpca.storage.errors import BusyError, ClusterError, DataError, PlanError, ReplacedError, StoreError

    codes: dict[type[Exception], int] = {BusyError: 7, ReplacedError: 7}
    codes |= {DataError: 3, StoreError: 4, PlanError: 5, ClusterError: 6}
    for kind, code in codes.items():
        if isinstance(error, kind):
            return code, str(error)
    if isinstance(error, MemoryError):
        return codes[PlanError], (
            f"there is not enough memory ({error or 'no size given'}): use fewer workers or smaller parts"
        )
    if isinstance(error, OSError) and error.errno is not None:
        where = "a file" if error.filename is None else f"'{error.filename}'"
        return codes[StoreError], (
            f"{where} cannot be read or written ({error.strerror}): fix this and run the same command again"
        )
    return None


def _report(error: Exception) -> int:
    """Report an error and return the exit code."""
    if (known := known_error(error)) is not None:
        _print_error(f"error: {known[1]}")
        return known[0]
    with suppress(OSError, ValueError):
        traceback.print_exception(error)
    _print_error("error: this is a bug in dpca, not in your input: please report the lines above")
    return FAULT


def _print_error(sentence: str) -> None:
    """Print one line on standard error, if it is still open."""
    if sys.stderr is not None:
        try:
            print("\\n".join(sentence.splitlines()), file=sys.stderr, flush=True)
        except (OSError, ValueError):
            _discard_buffer(sys.stderr)


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

        _discard_buffer(sys.stdout)
        raise StoreError(
            f"standard output cannot be written ({error.strerror}): free some space, or redirect it elsewhere"
        ) from error


def _discard_buffer(stream: Any) -> None:
    """Discard buffered output. The interpreter would write it at exit, fail again and change the exit code."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
