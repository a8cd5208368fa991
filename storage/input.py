"""Opens the input of a job: a stack that is read in place, or a reader of a source that is ingested first."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dpca.storage.errors import DataError
from dpca.storage.readers import Reader, open_reader
from dpca.storage.readers.arrays.zarr_array import ZarrReader
from dpca.storage.readers.masked import MaskedReader
from dpca.storage.stack import Stack, open_stack
from dpca.storage.survey import require_samples

PathLike = str | os.PathLike[str]


def open_input(
    source: PathLike | Sequence[PathLike] | Stack | Reader,
    *,
    key: str | None = None,
    axes: tuple[str, ...] | None = None,
    data_range: tuple[float, float] | None = None,
    mask: str | None = None,
) -> Stack | Reader:
    """Open plain Zarr sources as stacks, which are read in place, and other sources as readers, which are ingested.

    Parameters
    ----------
    source : path-like, sequence of these, Stack, or Reader
        See `dpca.storage.readers.open_reader`. Stacks and readers are returned unchanged.
    key, axes, data_range
        As for `dpca.storage.ingest`.
    mask : str, optional
        Path of a region, see `MaskedReader`. The samples are then ingested, whatever the source is.

    Raises
    ------
    DataError
        If the source is missing, has no samples or has no supported format.
    """
    if isinstance(source, Stack):
        return source
    if not isinstance(source, Reader | str | os.PathLike | list | tuple):
        raise DataError(f"the source is of type {type(source).__name__}: give a path, several, a Stack or a Reader")
    if isinstance(source, list | tuple) and len(source) == 1:
        source = source[0]
    reader = source if isinstance(source, Reader) else open_reader(source, key=key, axes=axes)
    require_samples(reader)
    if mask is not None:
        return MaskedReader(reader, mask)
    if source is reader or not isinstance(reader, ZarrReader) or reader.decodes:
        return reader
    if not isinstance(source, str | os.PathLike):
        raise DataError(f"{len(source)} sources were given, and one is a Zarr array: give only the Zarr array")
    if reader.patterns:
        raise DataError(f"the pattern '{os.fspath(source)}' matches one Zarr store, '{reader.paths[0]}': give its path")
    return open_stack(os.path.join(source, key) if key else source, data_range=data_range, axes=axes and reader.axes)


def fingerprint_of_input(given: Stack | Reader) -> str:
    """Return the fingerprint of the content of an input."""
    return given.fingerprint if isinstance(given, Stack) else given.fingerprint()


def samples_of_input(given: Stack | Reader) -> int:
    """Return the number of samples of an input."""
    return given.n_samples if isinstance(given, Stack) else len(given)


def require_varied(given: Stack | Reader) -> None:
    """Raise `DataError` if an input has one sample, before the workers of a fit start."""
    if samples_of_input(given) == 1:
        raise DataError("the input has 1 sample: a fit requires at least 2 samples, so add more")


def paths_of_input(given: Stack | Reader) -> list[str]:
    """Return the paths of an input."""
    return [given.path] if isinstance(given, Stack) else list(given.paths)
