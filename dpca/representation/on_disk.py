"""Arrays in Zarr stores that are read where they are used: components and means that do not fit into memory."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self

import dask.array as da
import numpy as np
import zarr

from dpca.kernels.algebra.types import Array, Region
from dpca.storage.arrays.reading import array_identity, open_again, open_array, path_of, read_into
from dpca.storage.integrity.checksums import ends_in_checksums, stored_checksums
from dpca.storage.remote.objects import place_of

# Bytes of a chunk of a flat view.
_FLAT_BYTES = 2**26


@dataclass(frozen=True, eq=False)
class ArrayOnDisk:
    """A stored array that each process opens itself. Slices are read from the store, and checked.

    Parameters
    ----------
    array : str or zarr.Array
        Its path; or itself, if only this process can open it.
    identity : str
        See `dpca.storage.arrays.reading.array_identity`.
    shape : tuple of int
        That of the array, or fewer entries along the first axis.
    dtype : dtype
    edges : tuple of int
        Lengths of the boxes that are best read at once.
    owner : object, optional
        Is kept as long as this object: the array may be removed with it.
    """

    array: Any
    identity: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    edges: tuple[int, ...]
    owner: Any = field(default=None, repr=False)

    @classmethod
    def of(cls, array: zarr.Array[Any], owner: Any = None) -> Self:
        """Return the array that is opened by its path, if it has one."""
        path, edges = path_of(array), tuple(array.shards or array.chunks)
        given = array if path is None else path
        return cls(given, array_identity(array), tuple(array.shape), np.dtype(array.dtype), edges, owner)

    def __dask_tokenize__(self) -> Any:
        return self.array, self.identity, self.shape

    def __reduce__(self) -> Any:
        return type(self), (self.array, self.identity, self.shape, self.dtype, self.edges)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all values, decoded."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, selection: Any) -> Array:
        array = _opened_once(self.array, self.identity) if isinstance(self.array, str) else self.array
        parts = selection if isinstance(selection, tuple) else (selection,)
        parts += (slice(None),) * (self.ndim - len(parts))
        taken = tuple(
            slice(*p.indices(n)) if isinstance(p, slice) else p for p, n in zip(parts, self.shape, strict=True)
        )
        lengths = [len(range(n)[p]) for p, n in zip(taken, self.shape, strict=True) if isinstance(p, slice)]
        read_into(array, taken, out := np.empty(lengths, self.dtype))
        return out

    def first(self, count: int) -> Self:
        """Return the array of the first entries along the first axis."""
        return replace(self, shape=(count, *self.shape[1:]))

    def checksums(self) -> str | None:
        """Return the checksums of all chunks as text, or None if there are none, or this is a part of the stored array.

        Of the chunks, only the checksums are read. Equal texts mean equal values, in the same layout.

        Raises
        ------
        StoreError
            If a shard is missing or torn.
        """
        if not isinstance(self.array, str):
            return None
        array = open_array(self.array)
        if tuple(array.shape) != self.shape or not ends_in_checksums(array):
            return None
        return json.dumps([array.chunks, stored_checksums(place_of(self.array))], sort_keys=True)

    def boxes(self) -> Iterator[tuple[slice, ...]]:
        """Yield the boxes that cover the array."""
        for corner in itertools.product(*(range(0, n, e) for n, e in zip(self.shape, self.edges, strict=True))):
            yield tuple(slice(c, min(c + e, n)) for c, e, n in zip(corner, self.edges, self.shape, strict=True))

    def as_dask(self, chunks: tuple[int, ...]) -> da.Array:
        """Return a Dask array with these chunks."""
        return da.from_array(self, chunks=chunks, fancy=False, meta=np.empty((0,) * self.ndim, self.dtype))

    def region_as_dask(self, region: Region, rows: int) -> da.Array:
        """Return a region of all entries of the first axis as a Dask array with chunks of some entries."""
        view, chunks = _RegionView(self, region), (rows, *(b - a for a, b in region))
        return da.from_array(view, chunks=chunks, fancy=False, meta=np.empty((0,) * self.ndim, self.dtype))

    def flat(self, n_leading: int) -> da.Array:
        """Return a Dask array of the first ``n_leading`` axes, and of all others as one."""
        view = _FlatView(self, n_leading)
        rows = math.prod(self.shape[:n_leading]) * self.dtype.itemsize
        *_, last = view.shape
        # Whole entries of the first axis that is short enough, as many as in a box of the store.
        run = last
        for axis in range(n_leading, self.ndim):
            inner = math.prod(self.shape[axis + 1 :])
            if inner * rows <= _FLAT_BYTES:
                run = inner * max(1, min(self.edges[axis], _FLAT_BYTES // (inner * rows)))
                break
        chunks = (*self.shape[:n_leading], min(run, last))
        return da.from_array(view, chunks=chunks, fancy=False, meta=np.empty((0,) * len(chunks), self.dtype))


@dataclass(frozen=True, eq=False)
class _RegionView:
    """A region of all entries of an array, which are taken whole."""

    stored: ArrayOnDisk
    region: Region

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.stored.shape[0], *(b - a for a, b in self.region))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.stored.dtype

    @property
    def ndim(self) -> int:
        return self.stored.ndim

    def __getitem__(self, selection: tuple[slice, ...]) -> Array:
        moved = (slice(a + part.start, a + part.stop) for part, (a, _) in zip(selection[1:], self.region, strict=True))
        return self.stored[(selection[0], *moved)]


@dataclass(frozen=True, eq=False)
class _FlatView:
    """An array with its last axes as one."""

    stored: ArrayOnDisk
    n_leading: int

    @property
    def shape(self) -> tuple[int, ...]:
        lengths = self.stored.shape
        return (*lengths[: self.n_leading], math.prod(lengths[self.n_leading :]))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.stored.dtype

    @property
    def ndim(self) -> int:
        return self.n_leading + 1

    def __getitem__(self, selection: tuple[Any, ...]) -> Array:
        *leading, last = selection
        taken = range(self.shape[-1])[last] if isinstance(last, slice) else range(last, last + 1)
        begin, end = (min(taken), max(taken) + 1) if len(taken) else (0, 0)
        pieces = [
            self.stored[(*leading, *(slice(*span) for span in box))]
            for box in _boxes_of(begin, end, self.stored.shape[self.n_leading :])
        ]
        kept = sum(isinstance(index, slice) for index in leading)
        flat = [piece.reshape(*piece.shape[:kept], -1) for piece in pieces]
        values = np.concatenate(flat, axis=-1) if flat else np.empty((*self.shape[:kept], 0), self.dtype)
        return values[..., :: taken.step] if isinstance(last, slice) else values[..., 0]


def _boxes_of(begin: int, end: int, shape: tuple[int, ...]) -> Iterator[Region]:
    """Yield the boxes with the values ``begin`` to ``end`` of a flat array, in their order."""
    if len(shape) == 1:
        if begin < end:
            yield ((begin, end),)
        return
    row = math.prod(shape[1:])
    while begin < end:
        i, offset = divmod(begin, row)
        whole = 0 if offset else (end - begin) // row
        if whole:
            yield ((i, i + whole), *((0, length) for length in shape[1:]))
            begin += whole * row
        else:
            stop = min(end, (i + 1) * row)
            for box in _boxes_of(offset, stop - i * row, shape[1:]):
                yield ((i, i + 1), *box)
            begin = stop


@lru_cache(maxsize=16)
def _opened_once(path: str, identity: str) -> zarr.Array[Any]:
    """Open an array once in each process."""
    return open_again(path, identity)
