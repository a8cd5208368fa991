"""The errors of this package, and text inside error messages.

Every message is one sentence that names the value, what was expected, and what to do about it, so that the
command line can print it as it is. Each class takes that one string, which keeps it intact on its way
back from a worker.
"""

from __future__ import annotations

import unicodedata

_LONGEST = 300  # some libraries put the file into the message
# Of a sentence, of which names of files and of what is in them may be any part.
_LONGEST_SENTENCE = 1000


class _Sentence(Exception):
    """Keeps a message one printable line of bearable length, whatever names and texts of files are in it."""

    def __init__(self, message: str) -> None:
        text = printable(message)
        half = _LONGEST_SENTENCE // 2
        super().__init__(text if len(text) <= _LONGEST_SENTENCE else f"{text[:half]}...{text[-half:]}")


class DataError(_Sentence, ValueError):
    """The input is wrong: missing, empty, broken, of another size, without images, not finite."""


class PlanError(_Sentence, ValueError):
    """The work does not fit the memory budget; the message names the number, the limit and the setting that fits."""


class StoreError(_Sentence, RuntimeError):
    """A store cannot be read or written.

    It exists and is something else, it comes from a newer version, another run holds it, or the disk is full.
    """


class BusyError(StoreError):
    """Another run is at work on the same output; it is left to that run."""


class ReplacedError(StoreError):
    """Another store stands where the one that is read was opened: nothing is damaged, and it can be opened again."""


class ClusterError(_Sentence, RuntimeError):
    """The Dask cluster cannot be reached, was lost, or cannot run this package; what was finished is kept."""


def one_line(error: BaseException) -> str:
    """Return the message of an error without line breaks and of bearable length, to be put inside a sentence."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def printable(name: str) -> str:
    """Return a name that can be stored as UTF-8 and printed: undecodable and control characters are escaped."""
    if name.isprintable():
        return name
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cc", "Cs") else c for c in name)
