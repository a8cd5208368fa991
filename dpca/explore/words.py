"""What the page says of errors."""

from __future__ import annotations

from dpca.storage.errors import ClusterError, DataError, PlanError, StoreError, one_line, printable


def told(error: Exception) -> str:
    """Say in a sentence what went wrong."""
    if isinstance(error, DataError | PlanError | StoreError | ClusterError):
        return printable(str(error))  # with names of files, which may be no text
    if isinstance(error, MemoryError):
        return "there is not enough memory: end other programs, or fit fewer components (--components)"
    return f"this cannot be shown ({type(error).__name__}: {one_line(error)}): see that the store is whole"
