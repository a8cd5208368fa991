"""The exceptions of dpca, and helpers for error messages.

Every message is one sentence with the given value, the allowed values, and a remedy. The command line prints it
unchanged. The message is the only argument of each class, so that an exception can be pickled by a worker.
"""

from __future__ import annotations

import unicodedata

_LONGEST = 300  # some libraries put the content of the file into the message
# Longest message, which may contain arbitrary names of files and parts of their content.
_LONGEST_MESSAGE = 1000


class _OneLineError(Exception):
    """Limits a message to one printable line of at most 1000 characters, with any file name in it."""

    def __init__(self, message: str) -> None:
        text = printable(message)
        half = _LONGEST_MESSAGE // 2
        super().__init__(text if len(text) <= _LONGEST_MESSAGE else f"{text[:half]}...{text[-half:]}")


class DataError(_OneLineError, ValueError):
    """The input is invalid, for example missing, empty, broken, of another size or not finite."""


class PlanError(_OneLineError, ValueError):
    """A job exceeds the memory budget. The message states the required memory, the limit and a setting that fits."""


class StoreError(_OneLineError, RuntimeError):
    """A store cannot be read or written.

    For example, it is damaged, it is another kind of store or of a newer version, another run writes it, or the disk
    is full.
    """


class BusyError(StoreError):
    """Another run is writing the same output. The output is not changed."""


class ReplacedError(StoreError):
    """The store was replaced or removed since it was opened. Nothing is damaged; open it again."""


class ClusterError(_OneLineError, RuntimeError):
    """The Dask cluster cannot be reached, was lost, or cannot import dpca. Finished work is kept."""


def one_line(error: BaseException) -> str:
    """Return the message of an error without line breaks, shortened to be part of another message."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def printable(name: str) -> str:
    """Return a name that can be stored as UTF-8 and printed. Undecodable and control characters are escaped."""
    if name.isprintable():
        return name
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cc", "Cs") else c for c in name)
