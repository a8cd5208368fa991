"""Lazy views of what people have, and the cluster that is at hand."""

from __future__ import annotations

import math
import os
from typing import Any

import dask.array as da
import numpy as np
import zarr

from storage.arrays import open_array
from storage.stack import Stack, open_stack

# Decoded bytes of one chunk of a lazy array: enough work for a task, little enough to hold several.
_CHUNK_BYTES = 64 * 2**20


def as_lazy(x: Any) -> da.Array:
    """Return a Dask array of whole samples over a stack, a Zarr array, a path, or a Dask array as it is."""
    if isinstance(x, da.Array):
        return x
    if isinstance(x, str | os.PathLike):
        x = open_stack(x)
    array: zarr.Array[Any] = x.samples if isinstance(x, Stack) else x
    sample_bytes = math.prod(array.shape[1:]) * np.dtype(array.dtype).itemsize
    unit = array.chunks[0]
    rows = max(1, _CHUNK_BYTES // max(1, sample_bytes) // unit) * unit
    lazy: da.Array = da.from_zarr(array, chunks=(rows, *array.shape[1:]))
    return lazy


def lazy_array(path: str | os.PathLike[str]) -> da.Array:
    """Return a Dask array over the Zarr array at a path."""
    return as_lazy(open_array(path))


def default_client() -> Any | None:
    """Return the current ``distributed.Client``, None if there is none."""
    from distributed import default_client as current

    try:
        return current()
    except ValueError:
        return None
