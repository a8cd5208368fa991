"""Lazy Dask arrays of stacks, Zarr arrays and paths, and the current cluster."""

from __future__ import annotations

import math
import os
from typing import Any

import dask.array as da
import numpy as np
import zarr
from dask.delayed import delayed

from dpca.engine.sources.source import Source, opened
from dpca.kernels.algebra.types import Array
from dpca.representation.base import Representation
from dpca.representation.on_disk import ArrayOnDisk
from dpca.storage.readers.arrays.trajectory import is_trajectory
from dpca.storage.stack import Stack

# Decoded bytes of a chunk of a lazy array: enough work for a task, and several fit into memory.
_CHUNK_BYTES = 64 * 2**20


def as_lazy(x: Any) -> da.Array:
    """Return a Dask array of samples over a stack, a Zarr array or a path; a Dask array is returned unchanged."""
    array = lazily_opened(x)
    if isinstance(array, da.Array):
        return array
    sample_bytes = math.prod(array.shape[1:]) * np.dtype(array.dtype).itemsize
    return lazy_chunks(array, (rows_of_a_task(array, sample_bytes), *array.shape[1:]))


def lazy_chunks(array: zarr.Array[Any], chunks: tuple[Any, ...]) -> da.Array:
    """Return a Dask array over a Zarr array. Its tasks check chunks, see `dpca.storage.arrays.reading.read_into`.

    Each process opens an array in a local store by its path.
    """
    return ArrayOnDisk.of(array).as_dask(chunks)


def lazily_opened(x: Any) -> zarr.Array[Any] | da.Array:
    """Return a Zarr array, or the one in a stack or at a path; a Dask array if the path holds something else."""
    x = opened(x)
    x = x.as_dask() if isinstance(x, Source) else x
    return x.samples if isinstance(x, Stack) else x


def rows_of_a_task(array: zarr.Array[Any], sample_bytes: int) -> int:
    """Return the number of samples, in whole chunks, for a task."""
    unit = array.chunks[0]
    return max(1, _CHUNK_BYTES // max(1, sample_bytes) // unit) * unit


def default_client() -> Any | None:
    """Return the current ``distributed.Client``, None if there is none."""
    from distributed import default_client as current

    try:
        return current()
    except ValueError:
        return None


def is_lazy(x: Any) -> bool:
    """Return whether results for these samples are Dask arrays: if they are lazy or in a store."""
    return isinstance(x, str | os.PathLike | Stack | zarr.Array | zarr.Group | da.Array) or is_trajectory(x)


def map_samples(
    lazy: da.Array, function: Any, representation: Representation, shape: tuple[int, ...], dtype: Any
) -> da.Array:
    """Apply ``function(representation, samples)``, which returns samples of ``shape``, to chunks of whole samples."""
    rows = lazy.rechunk(dict.fromkeys(range(1, lazy.ndim), -1))
    # All chunks share one node of the graph for the representation.
    shared = delayed(representation, pure=False)
    axes_in, axes_out = range(lazy.ndim), (0, *range(lazy.ndim, lazy.ndim + len(shape)))
    return da.blockwise(
        _apply,
        tuple(axes_out),
        rows,
        tuple(axes_in),
        function=function,
        representation=shared,
        new_axes=dict(zip(axes_out[1:], shape, strict=True)),
        concatenate=True,
        dtype=dtype,
        meta=np.empty((0,) * (len(shape) + 1), dtype),
    )


def _apply(block: Array, *, function: Any, representation: Representation) -> Array:
    return function(representation, block)
