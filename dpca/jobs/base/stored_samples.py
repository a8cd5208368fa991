"""The samples of a store of any kind, decoded: for jobs that write them somewhere else."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array, Region
from dpca.models.opening import open_store
from dpca.models.scores import Scores
from dpca.representation.compressed.compressed import Compressed
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.reading import read_into
from dpca.storage.errors import DataError
from dpca.storage.stack import Stack
from dpca.storage.transaction.workspace import fingerprint_of

#: Bytes of the boxes of large samples that a task decodes: at most, and at least unless its memory is less.
MOST_DECODED, LEAST_DECODED = 2**27, 2**20


@dataclass(frozen=True, eq=False)
class StoredSamples:
    """Samples of a store, opened for reading in this process.

    Attributes
    ----------
    path : str
    shape : tuple of int
        (n_samples, *sample_shape).
    dtype : numpy dtype
    axes : tuple of str
        Names of the axes, beginning with ``"sample"``.
    data_range : (float, float) or None
    names : sequence of str
        Names of the samples.
    coordinates : Coordinates or None
        Names of the axes in the source, and coordinates along them.
    source : mapping
        What the samples were ingested from: kind, name, count.
    fingerprint : str
        Hash that changes with the content.
    unit : int
        Number of samples that are decoded together.
    part : tuple of int or None
        Lengths of the part of a sample that is decoded together; None if samples are decoded whole.
    read : callable
        Returns a box of the samples from a first one to the one behind the last, (stop - start, *lengths).
    read_bytes : callable
        Returns the memory in bytes that `read` takes for a number of samples and a box, result included.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[str, ...]
    data_range: tuple[float, float] | None
    names: Sequence[str]
    coordinates: Coordinates | None
    source: dict[str, Any]
    fingerprint: str
    unit: int
    part: tuple[int, ...] | None
    read: Callable[[int, int, Region], Array]
    read_bytes: Callable[[int, Region], int]

    @property
    def sample_bytes(self) -> int:
        """Decoded size of one sample in bytes."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def whole(self) -> Region:
        """The box of a whole sample."""
        return tuple((0, length) for length in self.shape[1:])

    def rows(self, wanted: range, region: Region) -> Array:
        """Return a box of the samples with these indices."""
        if wanted.step == 1:
            return self.read(wanted.start, wanted.stop, region)
        return np.concatenate([self.read(i, i + 1, region) for i in wanted])

    def work_bytes(self, n: int) -> int:
        """Return the memory in bytes that `read` takes for whole samples, result included."""
        return self.read_bytes(n, self.whole)


def stored_samples(
    path: str | os.PathLike[str],
    n_components: int | None = None,
    model: str | os.PathLike[str] | None = None,
) -> StoredSamples:
    """Open the samples of a compressed store, of scores (with a model that is not in their store), or of a stack.

    Raises
    ------
    DataError, StoreError
        As `open_store`; also if scores cannot be decoded.
    """
    store = open_store(path, n_components=n_components, model=model)
    if isinstance(store, Compressed):
        return _of_compressed(store)
    return _of_scores(store) if isinstance(store, Scores) else _of_stack(store)


def _of_compressed(store: Compressed) -> StoredSamples:
    low, high = map(float, store.facts["data_range"])
    return StoredSamples(
        store.path,
        store.shape,
        store.dtype,
        store.axes,
        (low, high),
        store.names.tolist(),
        store.coordinates,
        store.facts["source"],
        fingerprint_of(store.facts["fingerprint"], store.level),
        store.chunks[0],
        store.chunks[1:],
        lambda start, stop, region: store.decoded(np.arange(start, stop), region),
        lambda n, region: store.read_bytes((slice(0, n), *(slice(*ends) for ends in region))),
    )


def _of_scores(store: Scores) -> StoredSamples:
    basis = store.model.basis_.leading(store.n_components)
    if not basis.decodes:
        raise DataError(f"'{store.path}' has scores of a {store.model.store_kind} model, which cannot be decoded")
    facts, lazy = store.facts, store.stack()
    unit, dtype = int(lazy.chunks[0][0]), store.pixels.dtype
    sample = math.prod(lazy.shape[1:]) * dtype.itemsize
    read = math.prod(basis.score_shape) * store.array.dtype.itemsize

    def read_bytes(n: int, region: Region) -> int:
        whole = math.ceil(n / unit) * unit  # Dask decodes whole chunks
        chunks = 4 * math.prod(store.array.chunks) * store.array.dtype.itemsize
        return basis.work_bytes(unit, dtype, pixels=True) + 2 * whole * sample + 2 * unit * read + chunks

    return StoredSamples(
        store.path,
        lazy.shape,
        dtype,
        tuple(facts["axes"]),
        store.pixels.data_range,
        store.names.tolist(),
        store.coordinates,
        facts["source"],
        fingerprint_of(facts["fingerprint"], basis.fingerprint(), store.n_components),
        unit,
        None,
        lambda start, stop, region: np.asarray(
            lazy[(slice(start, stop), *(slice(*ends) for ends in region))].compute(scheduler="synchronous")
        ),
        read_bytes,
    )


def _of_stack(stack: Stack) -> StoredSamples:
    def read(start: int, stop: int, region: Region) -> Array:
        values = np.empty((stop - start, *(b - a for a, b in region)), stack.dtype)
        read_into(stack.samples, (slice(start, stop), *(slice(*ends) for ends in region)), values)
        return values

    chunks = math.prod(stack.samples.chunks) * stack.dtype.itemsize
    return StoredSamples(
        stack.path,
        stack.shape,
        stack.dtype,
        stack.axes,
        stack.data_range,
        stack.names_at(range(stack.n_samples)) if stack.name_array is None else stack.names.tolist(),
        stack.coordinates,
        stack.source,
        stack.fingerprint,
        stack.samples.chunks[0],
        tuple(stack.samples.chunks[1:]),
        read,
        lambda n, region: n * math.prod(b - a for a, b in region) * stack.dtype.itemsize + 4 * chunks,
    )
