"""Samples of a stack and their names, read on demand."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import zarr

from dpca.kernels.algebra.types import Array, Region
from dpca.plots.overviews import strided
from dpca.storage.arrays.layout import MAX_CHUNK
from dpca.storage.arrays.reading import model_of, read_into
from dpca.storage.disk import exists
from dpca.storage.errors import DataError, ReplacedError, StoreError
from dpca.storage.integrity.manifest import METADATA
from dpca.storage.remote.objects import place_of
from dpca.storage.stack import Stack
from dpca.storage.transaction.claim import read_json

# Bytes of the cache of samples. Neighbors of a sample are kept, because they come from the same chunk.
_KEPT_BYTES = 2**26
#: Most bytes of a sample that is read whole; with a model, showing it takes about ten times as much memory.
WHOLE_SAMPLE = 2**26
#: Most bytes of a chunk of larger samples, and of samples that are decoded whole.
MAX_SAMPLE = 2**30
# Number of names that are read at once.
_NAMES = 2**14


@dataclass(frozen=True)
class LargeSample:
    """A large sample. Only its pixels on the page are read.

    Parameters
    ----------
    shape : tuple of int
    dtype : dtype
    read : callable
        Returns a box of the sample.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[Region], Array]

    def plane(self, number: int | None, axes: tuple[str, ...], longest: int) -> Array:
        """Return an image of the sample with every n-th row and column, at most ``longest`` of each.

        ``number`` is that of a slice of a volume; None is the maximum of all slices. ``axes`` are those of an image.
        """
        leading, rest = self.shape[: -len(axes)], self.shape[-len(axes) :]
        places = range(math.prod(leading)) if number is None else [min(number, math.prod(leading) - 1)]
        shown: Array | None = None
        for place in places:
            at = tuple((int(i), int(i) + 1) for i in np.unravel_index(place, leading)) if leading else ()

            def read(region: Region, at: Region = at) -> Array:
                return self.read((*at, *region)).reshape([b - a for a, b in region])

            image = strided(read, rest, self.dtype.itemsize, axes, longest)
            shown = image if shown is None else np.fmax(shown, image)
        assert shown is not None
        return shown

    def whole(self) -> Array:
        """Return the whole sample.

        Raises
        ------
        DataError
            If it has more than `MAX_SAMPLE` bytes.
        """
        require_small(math.prod(self.shape) * self.dtype.itemsize, "a sample, which this model decodes whole,")
        return self.read(tuple((0, n) for n in self.shape))


def require_small(size: int, what: str) -> None:
    """Raise DataError if something has more than `MAX_SAMPLE` bytes."""
    if size > MAX_SAMPLE:
        raise DataError(
            f"{what} has {size:,} bytes, and {MAX_SAMPLE:,} are supported: give smaller ones, for example a resized "
            f"or rechunked copy"
        )


class Originals(ABC):
    """The samples of a stack, read on demand.

    Parameters
    ----------
    name : str
        Name of the source in errors.
    n_samples : int
    sample_shape : tuple of int
    dtype : dtype
    rows : int
        Samples of a chunk, which are read together.
    in_boxes : bool
        Whether boxes of samples can be read without the rest.

    Raises
    ------
    DataError
        If samples have more than `MAX_SAMPLE` bytes, and are only read whole.
    """

    def __init__(
        self,
        name: str,
        n_samples: int,
        sample_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        rows: int = 1,
        in_boxes: bool,
    ) -> None:
        self.n_samples, self.sample_shape, self.dtype = n_samples, tuple(sample_shape), dtype
        size = math.prod(self.sample_shape) * dtype.itemsize
        self.are_large = in_boxes and size > WHOLE_SAMPLE
        if not in_boxes:
            require_small(size, f"a sample of '{name}'")
        # A block is a whole chunk, so that no chunk is decoded twice, unless a chunk is too large for the cache.
        self._rows = max(1, min(rows, _KEPT_BYTES // (2 * size)))
        self._block = lru_cache(max(2, _KEPT_BYTES // (self._rows * size)))(self._kept)

    def read(self, index: int) -> Array | LargeSample:
        """Return a sample; of a large one only the metadata.

        Raises
        ------
        DataError, StoreError
            If it cannot be read, or the stack was removed or replaced.
        """
        if self.are_large:
            return LargeSample(self.sample_shape, self.dtype, partial(self.box, index))
        sample: Array = self._block(index // self._rows)[index % self._rows]
        return sample

    def whole(self, index: int) -> Array:
        """Return a whole sample, or raise as `LargeSample.whole`."""
        sample = self.read(index)
        return sample.whole() if isinstance(sample, LargeSample) else sample

    @abstractmethod
    def box(self, index: int, region: Region) -> Array:
        """Return a box of a sample."""

    @abstractmethod
    def _samples(self, start: int, stop: int) -> Array:
        """Read samples."""

    def _kept(self, block: int) -> Array:
        return self._samples(block * self._rows, min((block + 1) * self._rows, self.n_samples))


class StackOriginals(Originals):
    """The samples of an open stack, read chunk by chunk.

    Parameters
    ----------
    stack : Stack

    Raises
    ------
    DataError
        If a chunk of large samples has more than `MAX_SAMPLE` bytes.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        # Samples of a synthetic stack are computed one by one.
        rows = stack.samples.chunks[0] if model_of(stack.samples) is None else 1
        super().__init__(stack.path, stack.n_samples, stack.sample_shape, stack.dtype, rows=rows, in_boxes=True)
        if self.are_large:
            require_small(math.prod(stack.samples.chunks) * stack.dtype.itemsize, f"a chunk of '{stack.path}'")
        self._guard = StoreGuard(stack.path)

    def box(self, index: int, region: Region) -> Array:
        """Return a box of a sample."""
        self._guard.require()
        values = np.empty([b - a for a, b in region], self.dtype)
        read_into(self.stack.samples, (index, *(slice(a, b) for a, b in region)), values)
        return values

    def _samples(self, start: int, stop: int) -> Array:
        self._guard.require()
        values = np.empty((stop - start, *self.sample_shape), self.dtype)
        read_into(self.stack.samples, slice(start, stop), values)
        return values


class SampleNames:
    """The names of samples, read on demand.

    Parameters
    ----------
    array : zarr.Array, sequence of str, or None
        Strings (n,); None if samples have no names, only indices.
    n_samples : int

    Raises
    ------
    StoreError
        If the array has another number of names, or larger chunks than dpca writes.
    """

    def __init__(self, array: zarr.Array[Any] | Sequence[str] | None, n_samples: int) -> None:
        if isinstance(array, zarr.Array) and (
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
        if not exists(self._path):
            raise StoreError(
                f"'{self._path}' no longer exists: restore it, or start this program again with another store"
            )
        if self._facts() != self._known:
            raise ReplacedError(f"'{self._path}' was replaced since it was opened: start this program again")

    def _facts(self) -> dict[str, Any]:
        facts = read_json(place_of(os.path.join(self._path, METADATA))) or {}
        facts.pop("shape", None)
        return facts
