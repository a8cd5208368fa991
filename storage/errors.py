"""The two ways in which this package says no.

Every message is one sentence that names the value, what was expected, and what to do about it, so that the
command line can print it as it is. Both classes take that one string, which keeps them intact on their way
back from a worker.
"""

from __future__ import annotations

_LONGEST = 300  # some libraries put the file into the message


class DataError(ValueError):
    """The input is wrong: missing, empty, broken, of another size, without images, not finite."""


class StoreError(RuntimeError):
    """A store cannot be read or written.

    It exists and is something else, it comes from a newer version, another run holds it, or the disk is full.
    """


def one_line(error: BaseException) -> str:
    """Return the message of an error without line breaks and of bearable length, to be put inside a sentence."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
