"""Sources of batches: a Zarr array that each task opens itself, a Dask array, or a numpy array in memory."""

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

from dpca.engine.sources.finite import check_finite, checked_lazily
from dpca.engine.sources.rows import open_rows
from dpca.kernels.algebra.types import Array, Region
from dpca.storage import cf
from dpca.storage.arrays.plain import keep_buffers
from dpca.storage.arrays.reading import array_identity, model_of, open_again, open_array, path_of, read_into
from dpca.storage.errors import DataError, one_line
from dpca.storage.given_numbers import require_one_array
from dpca.storage.readers.arrays.trajectory import is_trajectory
from dpca.storage.readers.opening import is_zarr
from dpca.storage.stack import Stack, open_stack

# Samples are read a few whole chunks at a time, because Zarr holds the encoded bytes and a copy of each request.
_READ_BYTES = 16 * 2**20


class BatchReader(Protocol):
    """Reads a box of samples into an array."""

    def __call__(self, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill ``out`` (stop - start, *region lengths)."""


class Source(ABC):
    """A stack of samples that tasks open and read themselves. It is small, because it is sent to tasks.

    A new kind of source implements `reader`, and overrides further defaults only if it differs from them.

    Parameters
    ----------
    name : str
        Name of the source in errors.
    shape : tuple of int
        Samples first.
    dtype : numpy.dtype, in the byte order of the processor
    chunks : tuple of int, the unit of decoding along each axis
    """

    in_process: bool = False  #: whether the values are in this process, so that tasks of a cluster cannot read them
    segment_bytes: int | None = None  #: most bytes of a segment, for sources with all its values in memory at once
    unit_rows: int = 1  #: samples that belong together: each segment has a multiple of them
    buffered_rows: int = 0  #: further samples in memory of a reader that reorders samples
    n_readers: int = 1  #: number of boxes that are read at once
    synthesis_bytes: int = 0  #: most memory of a process to compute samples of a synthetic stack
    weights: Array | None = None  #: weight of each sample (n,), float64, for estimators that support them
    with_gaps: bool = False  #: whether NaN means a missing value; otherwise NaN is rejected
    complete: bool = False  #: whether estimators that support missing values reject NaN, too
    axes: tuple[str, ...] | None = None  #: names of the axes of one sample, to find the axis of channels
    coordinates: Any = None  #: coordinates of a file along all axes: `dpca.storage.arrays.coordinates.Coordinates`

    def __init__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], chunks: tuple[int, ...]) -> None:
        self.name, self.shape, self.chunks = name, tuple(shape), tuple(chunks)
        self.dtype = np.dtype(dtype).newbyteorder("=")

    @abstractmethod
    def reader(self) -> BatchReader:
        """Open the source in the calling process."""

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return the source for a task that reads this box."""
        return self

    def identity(self) -> Any:
        """Return what identifies this source among others of its kind, see `dpca.engine.folds.identity.digest`."""
        return vars(self)

    def as_dask(self) -> da.Array | None:
        """Return the values as a Dask array, if they are one. Its own tasks can then rearrange them."""
        return None

    def numbers(self, start: int, stop: int) -> tuple[int, int] | None:
        """Return the index range of samples in the stack (start, stop); None if the source reorders samples."""
        return None if self.buffered_rows else (start, stop)

    def decoded_bytes(self, region: Region) -> int:
        """Return the bytes of one sample in all chunks that a region overlaps."""
        lengths = (-(-b // c) * c - a // c * c for (a, b), c in zip(region, self.chunks[1:], strict=True))
        return math.prod(lengths) * self.dtype.itemsize

    def extra_bytes(self, region: Region) -> int:
        """Return the bytes of one reader in addition to the requested samples and their chunks."""
        return self.synthesis_bytes

    def held(self) -> tuple[Array, ...]:
        """Return the arrays of one entry a sample that this source holds in memory for as long as it is read."""
        return ()

    def read_rows(self, region: Region) -> int:
        """Return the number of samples of one read: whole chunks with a decoded size of about 16 MiB."""
        return max(1, _READ_BYTES // (self.chunks[0] * self.decoded_bytes(region))) * self.chunks[0]

    def reads(self, samples: tuple[int, int], region: Region) -> Iterator[tuple[int, int]]:
        """Divide samples into reads of `read_rows` samples. They end at borders of chunks: none is decoded twice."""
        (start, stop), step = samples, self.read_rows(region)
        return itertools.pairwise([start, *range((start // step + 1) * step, stop, step), stop])


class ZarrSource(Source):
    """A Zarr array (v2 or v3) with a path; samples on axis 0.

    ``array_identity`` detects that the array is replaced while tasks read it, see
    `dpca.storage.arrays.reading.array_identity`.
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

    def reader(self) -> BatchReader:
        """Open the array in the calling process."""
        known = self.array_identity
        array = open_array(self.path) if known is None else open_again(self.path, known)

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            box = tuple(slice(a, b) for a, b in region)
            for a, b in self.reads(samples, region):
                read_into(array, (slice(a, b), *box), out[a - samples[0] : b - samples[0]])

        return read

    def identity(self) -> Any:
        """Return the path and the modification time of the array's metadata."""
        for name in ("zarr.json", ".zarray"):
            file = os.path.join(self.path, name)
            if os.path.exists(file):
                return {**vars(self), "written": os.stat(file).st_mtime_ns}
        return vars(self)  # the store is not a folder


class ArraySource(Source):
    """A numpy array (or memory map) in this process, or a Zarr array that only this process can open (memory, ZIP).

    If the array is a piece of a stack, ``corner`` is its position in the stack, samples first.
    """

    in_process = True

    def __init__(
        self, array: Any, name: str = "the array", corner: tuple[int, ...] = (), with_gaps: bool = False
    ) -> None:
        # Arrays in memory have no chunks: the cost of any box is its own size.
        chunks = tuple(array.chunks) if isinstance(array, zarr.Array) else (1,) * array.ndim
        super().__init__(name, tuple(array.shape), np.dtype(array.dtype), chunks)
        self.array, self.corner, self.with_gaps = array, corner or (0,) * array.ndim, with_gaps

    def reader(self) -> BatchReader:
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
        """Return the array, which is hashed by value."""
        return self.array


class DaskSource(Source):
    """A Dask array. Its chunks are computed on the workers that need them."""

    segment_bytes = 128 * 2**20  # a task has its whole segment in memory

    def __init__(self, array: da.Array, name: str = "the Dask array", axes: Any = None, along: Any = None) -> None:
        longest = tuple(max(lengths) for lengths in array.chunks)
        super().__init__(name, tuple(array.shape), np.dtype(array.dtype), longest)
        self.array, self.axes, self.coordinates = array, axes, along

    def reader(self) -> BatchReader:
        """Return a function that computes a box on the current scheduler."""

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            np.copyto(out, self._box(samples, region).compute())

        return read

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return the delayed `ArraySource` of a box."""
        corner = tuple(a for a, _ in (samples, *region))
        return delayed(ArraySource, pure=False)(self._box(samples, region), self.name, corner, self.with_gaps)

    def as_dask(self) -> da.Array:
        """Return the Dask array. When it is computed, values that are not finite raise, with the sample's index."""
        return self.array if self.with_gaps else checked_lazily(self.array, self.name)

    def identity(self) -> Any:
        """Return the Dask array, which is hashed by name."""
        return self.array

    def _box(self, samples: tuple[int, int], region: Region) -> da.Array:
        return cast(da.Array, self.array[tuple(slice(a, b) for a, b in (samples, *region))])


class DerivedStack(Stack):
    """A stack that is read through a source of its own."""

    @abstractmethod
    def opened(self) -> Source:
        """Return that source."""


def as_source(x: Any) -> Source:
    """Return a source for a path, a stack, a Zarr or Dask array, or any array-like object.

    Parameters
    ----------
    x : str, path-like, dpca.storage.Stack, zarr.Array or Group, dask.array.Array, array_like, or Source
        Samples on axis 0. A source is returned as it is.

    Raises
    ------
    DataError
        If it has no samples, a single axis, or values that are not real numbers.
    StoreError
        If a path contains nothing readable.
    """
    x, path, axes = opened(x), None, None
    if isinstance(x, Source):
        return x
    if isinstance(x, DerivedStack):
        return x.opened()
    if isinstance(x, Stack):
        path, axes, x = x.array_path, x.axes[1:], x.samples
    source: Source
    if isinstance(x, zarr.Array):
        path = path or path_of(x)
        source = ZarrSource(path, x.shape, x.dtype, x.chunks, array_identity(x)) if path else ArraySource(x)
        if (model := model_of(x)) is not None:
            source.synthesis_bytes = model.nbytes
    elif isinstance(x, da.Array):
        if any(np.isnan(length) for length in x.shape):
            raise DataError(f"the Dask array has the unknown shape {x.shape}: call compute_chunk_sizes() on it")
        source = DaskSource(x)
    else:
        source = ArraySource(as_dense(x))
    source.axes = axes
    check_numeric(source.shape, source.dtype, source.name)
    return source


def opened(x: Any, key: str | None = None, *, gaps: bool = False) -> Any:
    """Open a path, a Zarr group or atoms; return other objects as they are. ``key`` names one of several arrays.

    Raises
    ------
    DataError
        If there is nothing, several arrays without a ``key``, a group outside of a folder, a source that must be
        ingested, or masked values.
    StoreError
        If a path contains nothing readable.
    """
    if isinstance(x, zarr.Group):
        if (path := path_of(x)) is None:
            raise DataError(f"the Zarr group {x.name!r} is not in a folder: give one of its arrays, group[name]")
        return open_stack(path)
    if isinstance(x, zarr.Array):
        if gaps and cf.coding_of_zarr(x, "x") is not None and (path := path_of(x)) is not None:
            return opened(path, gaps=True)
        cf.require_plain(str(x.store_path), x)
        if not x.dtype.isnative and (path := path_of(x)) is not None:
            x = open_array(path)  # as tasks do, because the dtype of a new Zarr 3 array has another byte order
    if is_trajectory(x):
        return DaskSource(*open_rows(x))
    if isinstance(x, str | os.PathLike):
        if is_zarr(path := os.fspath(x)):
            path, key = f"{path}/{key}" if key else path, None
            stack = open_stack(path, decoded=False)
            if not (stack.moved or (gaps and cf.coding_of_zarr(stack.samples, path) is not None)):
                cf.require_plain(path, stack.samples)
                return stack
        # With samples first and channels last, and with NaN where the file states missing values.
        source = DaskSource(*open_rows(path, key, gaps=gaps))
        source.with_gaps = gaps
        return source
    if isinstance(x, da.Array) and isinstance(x._meta, np.ma.MaskedArray):
        raise DataError(
            f"a Dask array of {x.shape} is masked: fill masked values first, dask.array.ma.filled(x, value)"
        )
    return x


def as_dense(x: Any, name: str = "X") -> Array:
    """Return an array-like object as a numpy array. numpy itself would wrap unknown objects instead of raising.

    Raises
    ------
    DataError
        For objects that are not arrays of samples, and for a list of arrays.
    """
    require_one_array(x, name)
    if issparse(x):
        raise DataError(f"a sparse matrix of {x.shape} is not supported: pass dense samples, x.toarray()")
    if np.ma.is_masked(x):
        raise DataError(f"an array of {x.shape} has masked values: fill them first, x.filled(value)")
    try:
        # Zarr itself would read missing chunks as fill values.
        array = _read_whole(x) if isinstance(x, zarr.Array) else np.asarray(x)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"an object of type {type(x).__name__} is not an array of samples ({one_line(error)}): give samples of one "
            f"shape and one dtype"
        ) from error
    if array.ndim == 0:
        raise DataError(f"an object of type {type(x).__name__} is not a stack: give an array, a Stack or a path")
    if array.dtype.kind in "USTO" and array.ndim == 1:
        raise DataError(f"a list of {len(array)} names or objects is not a stack: give one path, or ingest several")
    return array


def _read_whole(x: zarr.Array[Any]) -> Array:
    stored, path = opened(x), path_of(x)
    stored = stored if path is None else open_array(path)
    read_into(stored, (slice(None),) * stored.ndim, values := np.empty(stored.shape, stored.dtype))
    return values


def as_samples(x: Any, name: str) -> Array:
    """Return samples in memory as a numeric array, or raise; see `as_dense`."""
    array = as_dense(x, name)
    check_numeric(array.shape, array.dtype, name)
    return array


def check_numeric(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    """Reject shapes and dtypes that no rule supports."""
    if len(shape) < 2:
        raise DataError(f"{name} has shape {shape}: give samples on axis 0 and at least one axis of attributes")
    if 0 in shape:
        raise DataError(f"{name} has shape {shape} and so no values: give at least one along every axis")
    if dtype.kind == "c":
        raise DataError(f"Complex data not supported: {name} has dtype {dtype}, pass real and imaginary parts apart")
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise DataError(
            f"{name} has dtype {dtype}: convert it to integers or real floating-point numbers of at most 64 bits"
        )


def batches(source: Source, samples: tuple[int, int], region: Region, rows: int) -> Iterator[tuple[int, Array]]:
    """Yield (first sample, batch) in order. A thread reads one batch ahead of the caller.

    The two buffers are reused: a batch is valid until the next one is requested.

    Raises
    ------
    DataError
        At a value that is not finite. The message names the array and the first such sample.
    """
    (start, stop), n_buffers = samples, 1 if samples[1] - samples[0] <= rows else 2
    read, box = source.reader(), tuple(b - a for a, b in region)
    buffers = [np.empty((min(rows, stop - start), *box), source.dtype) for _ in range(n_buffers)]

    def load(turn: int, first: int) -> Array:
        out = buffers[turn % n_buffers][: min(rows, stop - first)]
        read((first, first + len(out)), region, out)
        return out

    with ThreadPoolExecutor(1, "read-ahead", initializer=keep_buffers) as ahead:
        firsts = range(start, stop, rows)
        coming = ahead.submit(load, 0, start)
        for turn, first in enumerate(firsts):
            batch = coming.result()
            if first + rows < stop:
                coming = ahead.submit(load, turn + 1, first + rows)
            if not source.with_gaps:
                check_finite(batch, first, source.name)
            yield first, batch
