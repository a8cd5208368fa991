"""Reading a stack while it grows: how far it has come, and its samples as they arrive."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.reading import group_facts, open_array, read_into
from dpca.storage.disk import exists
from dpca.storage.errors import DataError, StoreError
from dpca.storage.growth.appending import UNIT
from dpca.storage.integrity.manifest import METADATA
from dpca.storage.stack import STACK_KIND, open_stack
from dpca.storage.transaction.workspace import unfinished_work


class Growth(NamedTuple):
    """The progress of a stack that grows.

    Attributes
    ----------
    array_path : str
        Path or URL of the samples.
    n_samples : int
        Committed samples. Later samples are incomplete.
    closed : bool
        Whether no more samples will follow.
    run : str or None
        Fingerprint of the settings of the run that writes the stack; None for an array not created by dpca.
    """

    array_path: str
    n_samples: int
    closed: bool
    run: str | None


def growth_of(path: str | os.PathLike[str]) -> Growth | None:
    """Return the progress of a stack that a `dpca.storage.Appender` writes; None before the first committed sample.

    A finished stack, and any other Zarr array, counts as closed.

    Raises
    ------
    DataError, StoreError
        If the path is not a stack, as `dpca.storage.open_stack`.
    """
    if (work := unfinished_work(path, STACK_KIND)) is not None:
        samples = work.store / UNIT
        counted = work.is_done(UNIT) and (samples / METADATA).is_file()
        return Growth(os.fspath(samples), work.record(UNIT)["n_samples"], False, work.fingerprint) if counted else None
    if not exists(path):
        return None
    stack = open_stack(path)
    return Growth(stack.array_path, stack.n_samples, True, group_facts(stack.samples).get("fingerprint"))


def arrivals(
    path: str | os.PathLike[str], start: int = 0, *, poll: float = 1.0, patience: float = math.inf
) -> Iterator[NDArray[Any]]:
    """Yield each sample of a growing stack once, in order, until its writer closes it.

    Parameters
    ----------
    path : path-like or URL
        Target of the `dpca.storage.Appender`. It need not exist yet.
    start : int
        First sample to yield.
    poll : float
        Seconds between two checks while there is nothing new.
    patience : float
        Seconds without a new sample after which the writer counts as lost. The default is no limit: the writer may be
        killed and resume.

    Yields
    ------
    ndarray (n, *sample_shape)
        The samples of one chunk. The division into chunks does not depend on when they are read, so results computed
        from them are reproducible.

    Raises
    ------
    DataError
        If the stack has fewer samples than ``start``, or another run restarted it.
    StoreError
        If a sample cannot be read, or no new sample arrives within ``patience``.
    """
    n, run, silent = start, None, time.monotonic()
    while True:
        found = growth_of(path)
        if found is not None and found.n_samples < n:
            raise DataError(
                f"'{path}' has {found.n_samples:,} samples, but {n:,} were read before: its writer started again; "
                f"follow it from 0"
            )
        if found is not None and found.run != run is not None:
            raise DataError(
                f"the writer of '{path}' started again with other settings after {n:,} samples: follow it from 0"
            )
        if found is not None and found.n_samples > n:
            run = found.run
            for samples in _chunks(path, found, n):
                yield samples
                n, silent = n + len(samples), time.monotonic()
        elif found is not None and found.closed:
            return
        elif time.monotonic() - silent > patience:
            raise StoreError(
                f"'{path}' had no new sample for {patience:g} seconds: check its writer, and follow it again when the "
                f"writer resumes"
            )
        else:
            time.sleep(poll)


def _chunks(path: str | os.PathLike[str], found: Growth, start: int) -> Iterator[NDArray[Any]]:
    """Yield the committed samples from ``start`` on, chunk by chunk; fewer if the stack is closed meanwhile."""
    try:
        array = open_array(found.array_path)
        while start < found.n_samples:
            stop = min(found.n_samples, (start // array.chunks[0] + 1) * array.chunks[0])
            samples = np.empty((stop - start, *array.shape[1:]), array.dtype)
            read_into(array, slice(start, stop), samples)
            yield samples
            start = stop
    except StoreError:
        if growth_of(path) == found:
            raise
        # Otherwise the writer just moved the store to its final name, and the caller reads the remaining samples there.
