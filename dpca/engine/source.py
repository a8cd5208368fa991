"""Where batches come from: a Zarr array that each task opens for itself, a Dask array, or a numpy array in memory."""

from __future__ import annotations

import itertools
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, cast

import dask.array as da
import numpy as np
import zarr
from dask.delayed import delayed
from scipy.sparse import issparse

from dpca.engine.rows import open_rows
from dpca.kernels.types import Array, Region
from dpca.storage import cf
from dpca.storage.errors import DataError, one_line
from dpca.storage.given_numbers import require_one_array
from dpca.storage.readers.opening import is_zarr
from dpca.storage.readers.trajectory import is_trajectory
from dpca.storage.reading import array_identity, model_of, open_again, open_array, path_of, read_into
from dpca.storage.stack import Stack, open_stack

# Samples are read a few whole chunks at a time: Zarr holds the encoded bytes and a copy of all it is asked for at once.
_READ_BYTES = 16 * 2**20
# Values of one look for NaN, whose answers take a byte each.
_CHECKED_AT_ONCE = 2**20
_NOT_FINITE = f"holds a value that is not finite (NaN or infinity): {cf.REMEDY}"


class Reader(Protocol):
    """Reads a box of samples into an array."""

    def __call__(self, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill ``out`` (stop - start, *region lengths)."""


class Source(ABC):
    """A stack of samples that tasks can read for themselves; small to ship.

    A new kind of source implements `reader`. It overrides, beside that, only what differs from the defaults below.

    Parameters
    ----------
    name : str
        What errors call it.
    shape : tuple of int
        Samples first.
    dtype : numpy.dtype
    chunks : tuple of int
        Unit of decoding along each axis.
    """

    in_process: bool = False  #: whether the values are in this process, where tasks of a cluster cannot read them
    segment_bytes: int | None = None
    """Most bytes of a segment, for sources that give a task all values of its segment at once."""
    held_rows: int = 0  #: samples that a reader holds beside those it is asked for, in an order of its own
    n_readers: int = 1  #: how many boxes are read at once
    making_bytes: int = 0  #: most bytes that a process holds to make samples that are not stored
    with_gaps: bool = False
    """Whether NaN stands for missing values, which what reads them knows; otherwise it is refused."""
    axes: tuple[str, ...] | None = None  #: of one sample, for estimators that ask which one holds channels
    coordinates: Any = None  #: of a file, what stands along all axes: `dpca.storage.coordinates.Coordinates`

    def __init__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], chunks: tuple[int, ...]) -> None:
        self.name, self.shape, self.dtype, self.chunks = name, tuple(shape), np.dtype(dtype), tuple(chunks)

    @abstractmethod
    def reader(self) -> Reader:
        """Open the source in the calling process."""

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return what a task that reads this box is given as its source."""
        return self

    def identity(self) -> Any:
        """Return what tells this source from others of its kind, to be hashed by `dpca.engine.identity.digest`."""
        return vars(self)

    def as_dask(self) -> da.Array | None:
        """Return the values as a Dask array, where one holds them: they are rearranged by its own tasks."""
        return None

    def numbers(self, start: int, stop: int) -> tuple[int, int] | None:
        """Return the numbers of samples in the stack, first and behind the last; None where their order is another."""
        return None if self.held_rows else (start, stop)

    def decoded_bytes(self, region: Region) -> int:
        """Return the bytes of one sample in all the chunks that a region touches."""
        lengths = (-(-b // c) * c - a // c * c for (a, b), c in zip(region, self.chunks[1:], strict=True))
        return math.prod(lengths) * self.dtype.itemsize

    def further_bytes(self, region: Region) -> int:
        """Return the bytes that one reader takes beside the samples that it is asked for, and their chunks."""
        return self.making_bytes

    def read_rows(self, region: Region) -> int:
        """Return how many samples are read at a time: whole chunks that take about 16 MiB decoded."""
        return max(1, _READ_BYTES // (self.chunks[0] * self.decoded_bytes(region))) * self.chunks[0]


class ZarrSource(Source):
    """A Zarr array (v2 or v3) named by its path; samples on axis 0.

    ``array_identity`` tells the array from one that takes its place while tasks read it, see
    `dpca.storage.reading.array_identity`.
    """

    def __init__(
        self,
        path: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        chunks: tuple[int, ...],
        array_identity: str | None = None,
    ) -> None:
        super().__init__(path, shape, dtype, chunks)
        self.path, self.array_identity = path, array_identity

    def reader(self) -> Reader:
        """Open the array in the calling process."""
        known = self.array_identity
        array = open_array(self.path) if known is None else open_again(self.path, known)

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            (start, stop), box = samples, tuple(slice(a, b) for a, b in region)
            step = self.read_rows(region)
            # From one whole chunk to the next, so that none is decoded twice.
            edges = [start, *range((start // step + 1) * step, stop, step), stop]
            for a, b in itertools.pairwise(edges):
                read_into(array, (slice(a, b), *box), out[a - start : b - start])

        return read

    def identity(self) -> Any:
        """Return the path and the time at which the array's metadata were written."""
        for name in ("zarr.json", ".zarray"):
            file = os.path.join(self.path, name)
            if os.path.exists(file):
                return {**vars(self), "written": os.stat(file).st_mtime_ns}
        return vars(self)  # a store that is no folder


class ArraySource(Source):
    """A numpy array (or memory map) in this process, or a Zarr array that only it can open (in memory, in a ZIP).

    ``corner`` is where the array begins in the whole stack, samples first, when it is a piece of one.
    """

    in_process = True

    def __init__(self, array: Any, name: str = "the array", corner: tuple[int, ...] = ()) -> None:
        # Memory has no chunks: any box costs what it holds.
        chunks = tuple(array.chunks) if isinstance(array, zarr.Array) else (1,) * array.ndim
        super().__init__(name, tuple(array.shape), np.dtype(array.dtype), chunks)
        self.array, self.corner = array, corner or (0,) * array.ndim

    def reader(self) -> Reader:
        """Return a function that copies boxes."""

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            box = zip((samples, *region), self.corner, strict=True)
            selection = tuple(slice(a - c, b - c) for (a, b), c in box)
            if isinstance(self.array, zarr.Array):
                read_into(self.array, selection, out)
            else:
                np.copyto(out, self.array[selection])

        return read

    def identity(self) -> Any:
        """Return the array, whose values count."""
        return self.array


class DaskSource(Source):
    """A Dask array: its chunks are computed where the tasks that need them run."""

    segment_bytes = 128 * 2**20  # a task holds a segment whole

    def __init__(self, array: da.Array, name: str = "the Dask array", axes: Any = None, along: Any = None) -> None:
        longest = tuple(max(lengths) for lengths in array.chunks)
        super().__init__(name, tuple(array.shape), np.dtype(array.dtype), longest)
        self.array, self.axes, self.coordinates = array, axes, along

    def reader(self) -> Reader:
        """Return a function that computes a box on the current scheduler."""

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            np.copyto(out, self._box(samples, region).compute())

        return read

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return the delayed `ArraySource` of a box."""
        corner = tuple(a for a, _ in (samples, *region))
        return delayed(ArraySource, pure=False)(self._box(samples, region), self.name, corner)

    def as_dask(self) -> da.Array:
        """Return the Dask array; values that are not finite are refused with the number of the sample."""
        return self.array if self.with_gaps else checked_lazily(self.array, self.name)

    def identity(self) -> Any:
        """Return the Dask array, whose name counts."""
        return self.array

    def _box(self, samples: tuple[int, int], region: Region) -> da.Array:
        box: da.Array = self.array[tuple(slice(a, b) for a, b in (samples, *region))]
        return box


def as_source(x: Any) -> Source:
    """Return a source for what people have: a path, a stack, a Zarr array on disk, or anything numpy can hold.

    Parameters
    ----------
    x : str, path-like, dpca.storage.Stack, zarr.Array or Group, dask.array.Array, array_like, or Source
        Samples on axis 0. A source is returned as it is.

    Raises
    ------
    DataError
        If it has no samples, a single axis, or values that are not real numbers.
    StoreError
        If a path holds nothing readable.
    """
    x, path, axes = opened(x), None, None
    if isinstance(x, Source):
        return x
    if isinstance(x, Stack):
        path, axes, x = x.array_path, x.axes[1:], x.samples
    source: Source
    if isinstance(x, zarr.Array):
        path = path or path_of(x)
        source = ZarrSource(path, x.shape, x.dtype, x.chunks, array_identity(x)) if path else ArraySource(x)
        if (model := model_of(x)) is not None:
            source.making_bytes = model.nbytes
    elif isinstance(x, da.Array):
        if any(np.isnan(length) for length in x.shape):
            raise DataError(f"the Dask array has shape {x.shape}, of unknown lengths: call compute_chunk_sizes() on it")
        source = DaskSource(x)
    else:
        source = ArraySource(as_dense(x))
    source.axes = axes
    check_numeric(source.shape, source.dtype, source.name)
    return source


def opened(x: Any, key: str | None = None) -> Any:
    """Open what only says where a stack is: a Zarr group, atoms, or a path, of whose arrays ``key`` names one.

    Raises
    ------
    DataError
        If there is nothing, no obvious array, a group that is no folder, what must be ingested, or masked values.
    StoreError
        If a path holds nothing readable.
    """
    if isinstance(x, zarr.Group):
        path = path_of(x)
        if path is None:
            raise DataError(f"the Zarr group {x.name!r} is not in a folder: give one of its arrays, group[name]")
        return open_stack(path)
    if isinstance(x, zarr.Array):
        cf.require_plain(str(x.store_path), x)
        if not x.dtype.isnative and (path := path_of(x)) is not None:
            x = open_array(path)  # as tasks do: then the type of a new array of Zarr 3 has another order of bytes
    if is_trajectory(x):
        return DaskSource(*open_rows(x))
    if isinstance(x, str | os.PathLike):
        path = os.fspath(x)
        return open_stack(f"{path}/{key}" if key else path) if is_zarr(path) else DaskSource(*open_rows(path, key))
    if isinstance(x, da.Array) and isinstance(x._meta, np.ma.MaskedArray):
        raise DataError(
            f"a Dask array of {x.shape} is masked, and masked values are no data: fill them first, "
            f"dask.array.ma.filled(x, value)"
        )
    return x


def as_dense(x: Any, name: str = "X") -> Array:
    """Return what numpy can hold as an array; numpy itself would wrap what it does not know.

    Raises
    ------
    DataError
        For what is no array of samples, whatever its values, and for a list of arrays.
    """
    require_one_array(x, name)
    if issparse(x):
        raise DataError(f"a sparse matrix of {x.shape} is not supported: pass dense samples, x.toarray()")
    if np.ma.is_masked(x):
        raise DataError(f"an array of {x.shape} has masked values, which are no data: fill them first, x.filled(value)")
    try:
        # A Zarr array of somebody's own reads missing chunks as fill values.
        array = _read_whole(x) if isinstance(x, zarr.Array) else np.asarray(x)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"an object of type {type(x).__name__} is no array of samples ({one_line(error)}): give samples of one "
            f"shape and one type"
        ) from error
    if array.ndim == 0:
        raise DataError(f"an object of type {type(x).__name__} is no stack of samples: give an array, Stack or path")
    if array.dtype.kind in "USTO" and array.ndim == 1:
        raise DataError(
            f"a list of {len(array)} names or other objects is no stack of samples: give one path, or ingest several"
        )
    return array


def _read_whole(x: zarr.Array[Any]) -> Array:
    stored, path = opened(x), path_of(x)
    stored = stored if path is None else open_array(path)
    read_into(stored, (slice(None),) * stored.ndim, values := np.empty(stored.shape, stored.dtype))
    return values


def as_samples(x: Any, name: str) -> Array:
    """Return samples in memory as an array that a rule or a basis can take in, or refuse them; see `as_dense`."""
    array = as_dense(x, name)
    check_numeric(array.shape, array.dtype, name)
    return array


def check_numeric(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    """Refuse what no rule could take in."""
    if len(shape) < 2:
        raise DataError(f"{name} has shape {shape}: samples on axis 0 and at least one axis of attributes are needed")
    if 0 in shape:
        raise DataError(f"{name} has shape {shape} and so no values: every axis needs at least one")
    if dtype.kind == "c":
        raise DataError(f"Complex data not supported: {name} holds {dtype} values, pass real and imaginary parts apart")
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise DataError(
            f"{name} holds {dtype} values: convert them to integers or real floating-point numbers of at most 64 bits"
        )


def batches(source: Source, samples: tuple[int, int], region: Region, rows: int) -> Iterator[tuple[int, Array]]:
    """Yield (first sample, batch) in order, reading one batch ahead of the caller in a thread.

    The two buffers are reused: a batch is valid until the next one is asked for.

    Raises
    ------
    DataError
        At a value that is not finite; it names the array and the first such sample of the batch.
    """
    start, stop = samples
    box = tuple(b - a for a, b in region)
    read = source.reader()
    n_buffers = 1 if stop - start <= rows else 2
    buffers = [np.empty((min(rows, stop - start), *box), source.dtype) for _ in range(n_buffers)]

    def load(turn: int, first: int) -> Array:
        last = min(first + rows, stop)
        out = buffers[turn % n_buffers][: last - first]
        read((first, last), region, out)
        return out

    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as ahead:
        firsts = range(start, stop, rows)
        coming = ahead.submit(load, 0, start)
        for turn, first in enumerate(firsts):
            batch = coming.result()
            if first + rows < stop:
                coming = ahead.submit(load, turn + 1, first + rows)
            if not source.with_gaps:
                check_finite(batch, first, source.name)
            yield first, batch


def check_finite(batch: Array, first: int, name: str, what: str = _NOT_FINITE) -> None:
    """Refuse NaN and infinity, naming the first sample that holds one and saying ``what`` of it; integers hold none."""
    if batch.dtype.kind != "f":
        return
    rows = max(1, _CHECKED_AT_ONCE // max(1, math.prod(batch.shape[1:])))
    for start in range(0, len(batch), rows):
        part = batch[start : start + rows]
        finite = np.isfinite(part).reshape(len(part), -1).all(axis=1)
        if not finite.all():
            raise DataError(f"sample {first + start + int(finite.argmin())} of {name} {what}")


def checked_lazily(x: da.Array, name: str) -> da.Array:
    """Return a Dask array that refuses NaN and infinity when it is computed, naming the sample."""
    if x.dtype.kind != "f":
        return x
    return cast(da.Array, da.map_blocks(_checked, x, called=name, dtype=x.dtype, meta=np.empty((0,) * x.ndim, x.dtype)))


def _checked(block: Array, called: str, block_info: Any = None) -> Array:
    check_finite(block, block_info[0]["array-location"][0][0], called)
    return block
