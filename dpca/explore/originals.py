"""Samples of a stack and their names, read on demand."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import zarr

from dpca.kernels.algebra.types import Array
from dpca.storage.arrays.layout import MAX_CHUNK
from dpca.storage.arrays.reading import model_of, read_into
from dpca.storage.disk import there_is
from dpca.storage.errors import DataError, ReplacedError, StoreError
from dpca.storage.integrity.manifest import METADATA
from dpca.storage.remote.objects import place_of
from dpca.storage.stack import Stack
from dpca.storage.transaction.claim import read_json

# Bytes of the cache of samples. Neighbors of a sample are kept, because they come from the same chunk.
_KEPT_BYTES = 2**26
#: Most bytes of a sample; with a model, showing it takes about ten times as much memory.
MAX_SAMPLE = 2**30
# Number of names that are read at once.
_NAMES = 2**14


class Originals:
    """The samples of a stack, read chunk by chunk.

    Parameters
    ----------
    stack : Stack

    Raises
    ------
    DataError
        If a sample has more than `MAX_SAMPLE` bytes.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        sample = stack.nbytes // stack.n_samples
        if sample > MAX_SAMPLE:
            raise DataError(
                f"a sample of '{stack.path}' has {sample:,} bytes, and {MAX_SAMPLE:,} are supported: give "
                f"smaller samples, for example a resized copy"
            )
        # Samples of a synthetic stack are computed one by one.
        chunk = stack.samples.chunks[0] if model_of(stack.samples) is None else 1
        # A block is a whole chunk, so that no chunk is decoded twice, unless a chunk is too large for the cache.
        self._rows = max(1, min(chunk, _KEPT_BYTES // (2 * sample)))
        self._block = lru_cache(max(2, _KEPT_BYTES // (self._rows * sample)))(self._read)
        self._guard = StoreGuard(stack.path)

    def __len__(self) -> int:
        return self.stack.n_samples

    def read(self, index: int) -> Array:
        """Return a sample, with the stack's shape and dtype.

        Raises
        ------
        StoreError
            If it cannot be read, or the stack was removed or replaced.
        """
        sample: Array = self._block(index // self._rows)[index % self._rows]
        return sample

    def _read(self, block: int) -> Array:
        self._guard.require()
        start, stop = block * self._rows, min((block + 1) * self._rows, len(self))
        values = np.empty((stop - start, *self.stack.sample_shape), self.stack.dtype)
        read_into(self.stack.samples, slice(start, stop), values)
        return values


class SampleNames:
    """The names of samples, read on demand.

    Parameters
    ----------
    array : zarr.Array or None
        Strings (n,); None if samples have no names, only indices.
    n_samples : int

    Raises
    ------
    StoreError
        If the array has another number of names, or larger chunks than dpca writes.
    """

    def __init__(self, array: zarr.Array[Any] | None, n_samples: int) -> None:
        if array is not None and (
            array.shape != (n_samples,) or array.chunks[0] * np.dtype(array.dtype).itemsize > MAX_CHUNK
        ):
            raise StoreError(
                f"'{array.store_path}' has shape {array.shape} and chunks {array.chunks}, and is not an array of the "
                f"names of {n_samples:,} samples: create the store again"
            )
        self._array, self._n = array, n_samples
        self._block = lru_cache(1)(self._read)

    def __getitem__(self, index: int) -> str:
        return self._block(index // _NAMES)[index % _NAMES]

    def find(
        self,
        text: str,
        *,
        first: int = 0,
        most: int = 200,
        seconds: float = math.inf,
        wanted: Callable[[], bool] = lambda: True,
    ) -> tuple[list[int], int]:
        """Return the samples with a text in their names, ignoring case, and the end of the search.

        Parameters
        ----------
        text : str
        first : int
            Sample to begin with.
        most : int
            Most samples to find.
        seconds : float
            Time limit.
        wanted : callable
            Called at intervals; the search ends when it returns False.

        Returns
        -------
        list of int, int
            Indices of samples, ascending, and the first sample that was not searched. Reads all names up to that one.
        """
        found: list[int] = []
        if self._array is None:
            number = _number(text)
            found = [number] if number is not None and first <= number < self._n else []
            return found, self._n
        needle, until = text.casefold(), time.monotonic() + seconds
        while first < self._n:
            block = first // _NAMES
            names, end = self._read(block), min((block + 1) * _NAMES, self._n)
            for index in range(first, end):
                if needle in names[index - block * _NAMES].casefold():
                    found.append(index)
                    if len(found) == most:
                        return found, index + 1
            first = end
            if time.monotonic() > until or not wanted():
                break
        return found, first

    def _read(self, block: int) -> list[str]:
        start, stop = block * _NAMES, min((block + 1) * _NAMES, self._n)
        if self._array is None:
            return [str(number) for number in range(start, stop)]
        return [str(name) for name in np.asarray(self._array[start:stop]).tolist()]


def _number(text: str) -> int | None:
    """Return the index of a sample in a text such as "4711", "4,711" or "#4711"; None if there is none."""
    digits = text.strip().removeprefix("#").replace(",", "")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


class StoreGuard:
    """Detects that a store was removed or replaced. Zarr itself would read fill values or other data then.

    Parameters
    ----------
    path : str
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._known = self._facts()

    def require(self) -> None:
        """Raise StoreError if the store was removed or replaced. An array may have grown."""
        if not there_is(self._path):
            raise StoreError(
                f"'{self._path}' no longer exists: restore it, or start this program again with another store"
            )
        if self._facts() != self._known:
            raise ReplacedError(f"'{self._path}' was replaced since it was opened: start this program again")

    def _facts(self) -> dict[str, Any]:
        facts = read_json(place_of(os.path.join(self._path, METADATA))) or {}
        facts.pop("shape", None)
        return facts
