"""A Zarr array, version 2 or 3: our own stack store or anyone's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.arrays import open_array
from storage.errors import StoreError, one_line
from storage.readers.base import runs
from storage.readers.raw import ArrayReader, gather
from storage.stack import open_stack


class ZarrReader(ArrayReader):
    """Rows of an array, chosen as `storage.open_stack` does.

    Rows are read in the shards of the new store, so a chunk of the source that spans several of them is
    decoded several times.

    Parameters
    ----------
    path : str
        Array, or group with an obvious one.
    key : str, optional
        Path of the array inside a group.
    axes : sequence of str, optional
        See `ArrayReader`; by default what the source states.

    Raises
    ------
    DataError, StoreError
        See `storage.open_stack`.
    """

    kind = "zarr"

    def __init__(self, path: str, key: str | None = None, axes: Sequence[str] | None = None) -> None:
        self._stack = open_stack(path if key is None else f"{path.rstrip('/')}/{key.strip('/')}")
        name = os.path.basename(self._stack.path.rstrip("/"))
        super().__init__(name, self._stack.shape, self._stack.dtype, axes)
        if axes is None:
            self.axes = self._stack.axes[1:]
        self.data_range = self._stack.data_range
        if self.axis == 0:
            self.labels = self._stack.labels

    @cached_property
    def names(self) -> Sequence[str]:
        """Names of the samples where the source is a stack store, else their numbers."""
        return self._stack.names.tolist() if self.axis == 0 else list(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def fingerprint(self) -> str:
        """Fingerprint of the stack."""
        return self._stack.fingerprint

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Ship the array's path and which rows are wanted."""
        return partial(_read, self._stack.array_path, self.axis, list(runs(indices)), self.dtype)


def _read(path: str, axis: int, wanted: list[tuple[int, int]], dtype: np.dtype[Any]) -> NDArray[Any]:
    array = open_array(path)
    before = (slice(None),) * axis

    def rows(start: int, stop: int) -> NDArray[Any]:
        return np.moveaxis(np.asarray(array[(*before, slice(start, stop))]), axis, 0)

    try:
        return gather(rows, wanted, dtype)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise StoreError(
            f"'{path}' cannot be read from sample {wanted[0][0]:,} on ({one_line(error)}): get the source again"
        ) from error
