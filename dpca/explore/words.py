"""Error messages of the page."""

from __future__ import annotations

from dpca.storage.errors import ClusterError, DataError, PlanError, StoreError, one_line, printable


def error_text(error: Exception) -> str:
    """Return the message of an error in one sentence."""
    if isinstance(error, DataError | PlanError | StoreError | ClusterError):
        return printable(str(error))  # file names may contain unprintable characters
    if isinstance(error, MemoryError):
        return "there is not enough memory: end other programs, or fit fewer components (--components)"
    return f"this cannot be shown ({type(error).__name__}: {one_line(error)}): check the store with dpca verify"
