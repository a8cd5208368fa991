"""Batches of the samples of a stored array for training: shuffled, divided among processes, resumable.

::

    chunks      0 1 2 3 4 5 6 7 8             the order of an epoch, see `dpca.storage.arrays.windows`: chunks in random
    windows     7 2 5 | 0 8 3 | 6 1 4         order, one window read at once, its samples shuffled
    part 0, 1   ----------|----------         each part is a run of this order and reads only its own windows
    batches      0 1 2 3 ...                  the order does not depend on the number of workers

The order depends only on the chunks of the array, the seed and the epoch. A reader of every fourth batch, such as one
of four workers, reads only the windows of its own batches.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import zarr

from dpca.storage.arrays.reading import array_identity, open_again, path_of, read_into
from dpca.storage.arrays.windows import (
    Array,
    chunk_edges,
    drawn_windows,
    sample_order,
    window_chunks,
    windowed,
    windows_in_order,
)
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number

# Zarr holds the encoded bytes and a copy of everything that one call reads.
_READ_BYTES = 4 * 2**20
# The attributes that differ between epochs, processes or workers.
_CHANGED = ("epoch", "part", "start", "shuffle", "every")


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of samples in a reproducible order; can be iterated any number of times.

    The array is opened when the first batch is read. An object is small, except for its labels, and can be pickled. One
    thread reads ahead by one batch. Memory: the window (32 MiB, but at least 4 chunks of the array), the current batch
    and the next one. Each batch is a separate array.

    Attributes
    ----------
    path : str
        Path or URL of the array.
    shape : tuple of int
        Shape of all batches together, without the components that are left out.
    dtype : numpy.dtype
        Type of the batches.
    channels_last : bool
        Whether the last axis of a sample holds channels or components, after axes of space.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    channels_last: bool
    batch_size: int
    labels: Array | None
    shuffle: int | None
    epoch: int
    part: tuple[int, int]
    start: int
    every: int
    moments: tuple[Array, Array] | None
    _stored: np.dtype[Any]
    _chunk: int
    _identity: str

    def __len__(self) -> int:
        """Return the number of batches from ``start`` on."""
        return len(self._numbers())

    @property
    def n_samples(self) -> int:
        """Number of samples of the part."""
        first, last = self._run()
        return last - first

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values of ``epoch``, ``part``, ``start``, ``shuffle`` or ``every``.

        ``every`` is the step from one batch to the next: ``replace(start=w, every=4)`` returns the batches of
        worker w of four.

        Raises
        ------
        DataError
            For any other name, and for invalid values.
        """
        if others := sorted(changes.keys() - _CHANGED):
            raise DataError(
                f"{others[0]} cannot be changed: give {', '.join(_CHANGED)}, or call batches() of the store again"
            )
        changed = replace(self, **changes)
        _check(changed)
        return changed

    def __iter__(self) -> Iterator[Any]:
        """Yield batches ``x`` (m, *sample_shape), or ``(x, y)`` with labels ``y`` (m,) if there are labels.

        Raises
        ------
        StoreError
            If the array is damaged or was replaced.
        """
        numbers = self._numbers()
        if not numbers:
            return
        take = self._opened()
        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as ahead:
            coming = ahead.submit(self._batch, take, numbers[0])
            for following in (*numbers[1:], None):
                batch = coming.result()
                if following is not None:
                    coming = ahead.submit(self._batch, take, following)
                yield batch
                del batch  # a reference here would keep two batches in memory

    def _run(self) -> tuple[int, int]:
        rank, world = self.part
        return rank * self.shape[0] // world, (rank + 1) * self.shape[0] // world

    def _numbers(self) -> range:
        first, last = self._run()
        return range(self.start, -(-(last - first) // self.batch_size), self.every)

    def _opened(self) -> Callable[[int, int, Array], Array]:
        array, sample_shape = open_again(self.path, self._identity), self.shape[1:]
        edges, box = chunk_edges(self.shape[0], self._chunk), tuple(slice(0, length) for length in sample_shape)
        chunk_bytes = self._chunk * math.prod(sample_shape) * self._stored.itemsize
        step, size = max(1, _READ_BYTES // chunk_bytes) * self._chunk, window_chunks(chunk_bytes)

        def read(start: int, stop: int, out: Array) -> None:
            for a in range(start, stop, step):
                read_into(array, (slice(a, min(a + step, stop)), *box), out[a - start : a - start + step])

        def order(window: int) -> Array:
            n = lengths[window]
            return np.arange(n) if seed is None else sample_order(n, seed, window)

        seed = None if self.shuffle is None else (self.shuffle, self.epoch)
        windows, lengths = windows_in_order(edges, size) if seed is None else drawn_windows(edges, size, seed)
        return windowed(read, edges, windows, lengths, order, sample_shape, self._stored)

    def _batch(self, take: Callable[[int, int, Array], Array], number: int) -> Any:
        first, last = self._run()
        start = first + number * self.batch_size
        stop = min(start + self.batch_size, last)
        x = np.empty((stop - start, *self.shape[1:]), self._stored)
        samples = take(start, stop, x)
        if self.moments is not None:
            mean, deviation = self.moments
            x = np.subtract(x, mean, out=x if x.dtype == self.dtype else None, dtype=self.dtype)
            x /= deviation
        return x if self.labels is None else (x, self.labels[samples])


@dataclass(frozen=True)
class BatchOrder:
    """Which samples are in which batch; see `dpca.storage.Stack.batches`."""

    shuffle: int | None = None
    epoch: int = 0
    part: tuple[int, int] = (0, 1)
    start: int = 0


def batches_of(
    array: zarr.Array[Any],
    batch_size: int,
    *,
    n_components: int | None = None,
    channels_last: bool = False,
    labels: Any = None,
    order: BatchOrder = BatchOrder(),
    standardize: tuple[Any, Any] | None = None,
) -> Batches:
    """Return the batches of a stored array with samples along its first axis; see `dpca.storage.Stack.batches`.

    Raises
    ------
    DataError
        For arguments that do not match the array.
    """
    path = path_of(array)
    if path is None:
        raise DataError("an array in memory has no path, and batches() requires a stored array: index the array")
    shape = (*array.shape[:-1], array.shape[-1] if n_components is None else n_components)
    stored = dtype = np.dtype(array.dtype)
    moments = None
    if standardize is not None:
        dtype = np.dtype(np.float32 if stored.itemsize <= 2 or stored == np.float32 else np.float64)
        moments = _moments(standardize, shape[1:], dtype)
    batches = Batches(
        path=path,
        shape=shape,
        dtype=dtype,
        channels_last=channels_last,
        batch_size=batch_size,
        labels=None if labels is None else _labels(labels),
        **vars(order),
        every=1,
        moments=moments,
        _stored=stored,
        _chunk=array.chunks[0],
        _identity=array_identity(array),
    )
    _check(batches)
    return batches


def _labels(given: Any) -> Array:
    try:
        return np.asarray(given)
    except ValueError as error:  # rows of different lengths
        raise DataError(f"labels are not an array ({error}): give one label for each sample") from error


def _moments(given: Any, sample_shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, Array]:
    try:
        mean, deviation = (np.broadcast_to(np.asarray(values, dtype), sample_shape) for values in given)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"standardize is not a pair of a mean and a standard deviation for samples of {sample_shape}: give two "
            f"numbers, or two arrays of this shape"
        ) from error
    if not (np.isfinite(mean).all() and np.isfinite(deviation).all() and (deviation >= 0).all()):
        raise DataError("standardize has a value that is not finite, or a negative deviation: compute them again")
    # A deviation of 0 is replaced by 1, as in scikit-learn.
    return mean, np.where(deviation > 0, deviation, 1).astype(dtype)


def _check(batches: Batches) -> None:
    """Raise `DataError` for invalid attributes."""
    for name, least in (("batch_size", 1), ("epoch", 0), ("start", 0), ("every", 1)):
        whole_number(getattr(batches, name), name, least)
    if batches.shuffle is not None:
        whole_number(batches.shuffle, "shuffle", 0, ", the seed, or None for the order of the store")
    try:
        rank, world = map(operator.index, batches.part)
    except (TypeError, ValueError) as error:
        raise DataError(f"part is {batches.part!r}: give a pair (rank, number of parts)") from error
    if not 0 <= rank < world:
        world = max(world, 1)
        raise DataError(
            f"part is {batches.part!r}: parts count from 0, give one of (0, {world}) to ({world - 1}, {world})"
        )
    if batches.labels is not None and batches.labels.shape[:1] != batches.shape[:1]:
        raise DataError(
            f"labels have the shape {batches.labels.shape}, but there are {batches.shape[0]} samples: give one label "
            f"for each sample"
        )
