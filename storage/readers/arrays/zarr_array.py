"""A Zarr array, version 2 or 3: a stack store of dpca or any other array."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import compress, islice
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage import cf
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.layout import SAMPLE, SHARD_BYTES, Region
from dpca.storage.arrays.reading import is_dense, model_of, open_array
from dpca.storage.errors import DataError, StoreError, one_line
from dpca.storage.integrity.checksums import shard_grid
from dpca.storage.readers.arrays.raw import ArrayReader, box_slices, gather
from dpca.storage.readers.base import runs
from dpca.storage.stack import Stack, open_stack

# Chunks of zeros need not be stored. An array with fewer than one stored chunk in this number was never written.
_CHUNKS_A_FILE = 1000


class ZarrReader(ArrayReader):
    """Rows of an array, selected like by `dpca.storage.open_stack` and decoded by the conventions of netCDF.

    A task reads the rows of one shard of the new store. A chunk of the source that overlaps several shards is therefore
    decoded several times.

    Parameters
    ----------
    path : str
        An array, or a group with one array of samples.
    key : str, optional
        Path of the array in a group.
    axes : sequence of str, optional
        See `ArrayReader`. The default is the names in the source.

    Attributes
    ----------
    stack : Stack
        The array with its stored values.

    Raises
    ------
    DataError, StoreError
        See `dpca.storage.open_stack`; also if almost all of its chunks are missing.
    """

    kind = "zarr"

    def __init__(self, path: str, key: str | None = None, axes: Sequence[str] | None = None) -> None:
        where = path if key is None else f"{path.rstrip('/')}/{key.strip('/')}"
        try:
            self.stack = open_stack(where, decoded=False)
            _check_chunks(self.stack)
            coding = cf.coding_of_zarr(self.stack.samples, f"'{where}'")
            name = os.path.basename(self.stack.path.rstrip("/"))
            shape, self._kept = self.stack.shape, (True,) * self.stack.samples.ndim
            self._moved = self.stack.moved and axes is None
            if self._moved:  # axes of length 1 are removed, as for TIFF
                named = list(zip(self.stack.axes, shape, strict=True))
                self._kept = tuple(n > 1 or axis in (SAMPLE, "y", "x") for axis, n in named)
                axes, shape = tuple(compress(self.stack.axes, self._kept)), tuple(compress(shape, self._kept))
            super().__init__(name, shape, self.stack.dtype, axes, coding=coding)
            if axes is None:
                self.axes = self.stack.axes[1:]
            if coding is None:
                self.data_range = self.stack.data_range
            if self.order[0] == 0:
                self.labels = self.stack.labels
        except (DataError, StoreError):
            raise
        except Exception as error:
            # Malicious metadata can cause any exception in Zarr.
            raise StoreError(f"'{where}' cannot be opened as a Zarr array ({one_line(error)}): get it again") from error

    @cached_property
    def names(self) -> Sequence[str]:
        """Names of the samples in a stack store; numbers for other arrays."""
        return self.stack.names.tolist() if self.order[0] == 0 else list(self._names)

    @cached_property
    def coordinates(self) -> Coordinates | None:  # type: ignore[override]
        """Coordinates along the axes, from the group of the array."""
        found = (self.stack.ome and self.stack.ome.kept(self._kept)) or self.stack.coordinates
        return found and found.arranged(self.order, self.axes or ())

    @property
    def decodes(self) -> bool:
        """Whether values must be decoded or axes reordered, so that the array must be ingested."""
        return self._coding is not None or self._moved or not self.in_order

    def __len__(self) -> int:
        return len(self._names)  # `names` would read all names

    def fingerprint(self) -> str:
        """Fingerprint of the stack."""
        return self.stack.fingerprint

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Return a function that opens the array and reads these rows."""
        return self.box(indices, ())

    @property
    def reads_boxes(self) -> bool:  # type: ignore[override]
        """Whether chunks are not larger than a shard."""
        return prod(self.stack.samples.chunks) * self.stack.samples.dtype.itemsize <= SHARD_BYTES

    def box(self, indices: Sequence[int], region: Region) -> Callable[[], NDArray[Any]]:
        """Return a function that opens the array and reads a box of these rows."""
        path, wanted = self.stack.array_path, list(runs(indices))
        return partial(_read, path, self._kept, self.order, wanted, self.dtype, self._coding, region)


def _check_chunks(stack: Stack) -> None:
    """Reject an array with almost all chunks missing."""
    wanted = prod(shard_grid(stack.samples))
    least = -(-wanted // _CHUNKS_A_FILE)
    if "://" in stack.array_path or least == 1 or model_of(stack.samples) is not None:
        return
    files = (
        file for _, _, names in os.walk(stack.array_path) for file in names if not file.startswith((".z", "zarr."))
    )
    there = sum(1 for _ in islice(files, least))
    if there < least:
        raise DataError(
            f"'{stack.path}' has {there:,} of {wanted:,} chunks, so it was not written completely: write it first"
        )


def _read(
    path: str,
    kept: tuple[bool, ...],
    order: tuple[int, ...],
    wanted: list[tuple[int, int]],
    dtype: np.dtype[Any],
    coding: cf.Coding | None,
    region: Region = (),
) -> NDArray[Any]:
    array = open_array(path)
    try:
        box: list[Any] = [slice(None) if is_kept else 0 for is_kept in kept]
        axes = list(compress(range(len(kept)), kept))
        samples = axes[order[0]]
        for axis, part in zip(order[1:], box_slices(region), strict=False):
            box[axes[axis]] = part

        def rows(start: int, stop: int) -> NDArray[Any]:
            box[samples] = slice(start, stop)
            return np.asarray(array[tuple(box)]).transpose(order)

        return gather(rows, wanted, dtype, coding)
    except MemoryError as error:
        raise StoreError(f"'{path}' has chunks that do not fit in memory: rechunk it") from error
    except Exception as error:
        if isinstance(error, StoreError) and (error.__cause__ is None or is_dense(array)):
            raise
        # A broken chunk can cause any exception in a codec.
        why = one_line(error.__cause__ or error)
        raise StoreError(
            f"'{path}' cannot be read from sample {wanted[0][0]:,} on ({why}): get the source again"
        ) from error
