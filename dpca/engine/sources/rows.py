"""Arrays in other files than Zarr stores, opened without a copy as a Dask array. Its tasks read rows of the file."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed

from dpca.kernels.algebra.types import Array
from dpca.storage import cf
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.layout import box_shape, boxes_of
from dpca.storage.errors import DataError
from dpca.storage.readers import open_reader
from dpca.storage.survey import require_samples

_BLOCK_BYTES, _LARGE_BYTES = 32 * 2**20, 64 * 2**20


def open_rows(
    path: Any, key: str | None = None, *, gaps: bool = False
) -> tuple[da.Array, str, tuple[str, ...] | None, Coordinates | None]:
    """Open an array in a format of `dpca.storage.ingest`, without a copy.

    Parameters
    ----------
    path : path-like, MDAnalysis.AtomGroup or MDAnalysis.Universe
        An array in a format with random access; or atoms, in all frames of their trajectory.
    key : str, optional
        Name of the array, if the file has several.
    gaps : bool
        Whether values that the file states as missing become NaN.

    Returns
    -------
    rows : dask.array.Array (n_samples, ...)
        In blocks of about 32 MiB: of whole samples, or boxes of a sample of more than 64 MiB if the format allows. A
        block is read when it is computed.
    name : str
        Name of the array in messages.
    axes : tuple of str or None
        Names of the axes of a sample, if the source states them.
    coordinates : Coordinates or None
        Coordinates along all axes.

    Raises
    ------
    DataError
        For images, and for formats without random access: these must be ingested first. When a block is computed, for
        missing values, without ``gaps``.
    """
    reader = open_reader(path, key=key)
    require_samples(reader)
    if reader.encoded or not reader.random_access:
        why = "contains encoded images" if reader.encoded else "can only be read from its beginning"
        raise DataError(
            f"'{os.fspath(path)}' {why}: make a stack of it first, `dpca ingest {os.fspath(path)} STACK.zarr` "
            f"(dpca.storage.ingest)"
        )
    shape, n = reader.sample_shape, len(reader)
    dtype = reader.dtype_with_gaps() if gaps else reader.dtype
    step = max(1, _BLOCK_BYTES // (math.prod(shape) * dtype.itemsize))
    name, meta = f"rows-{reader.fingerprint()}{'-gaps' * gaps}", np.empty((0,) * (len(shape) + 1), dtype)
    box = shape
    if reader.reads_boxes and math.prod(shape) * dtype.itemsize > _LARGE_BYTES:
        box = box_shape(shape, _BLOCK_BYTES // dtype.itemsize, (1,) * len(shape))
    grid = [-(-length // b) for length, b in zip(shape, box, strict=True)]
    blocks = np.empty((-(-n // step), *grid), object)
    for start, (place, region) in itertools.product(
        range(0, n, step), zip(np.ndindex(*grid), boxes_of(shape, box), strict=True)
    ):
        indices = range(start, min(start + step, n))
        part = reader.part(indices) if box == shape else reader.box(indices, region)
        own = f"{start}-{step}" if box == shape else f"{start}-{region}"
        task = delayed(_read, pure=True)(part, start, reader.name, dtype, gaps, dask_key_name=f"{name}-{own}")
        lengths = (len(indices), *(b - a for a, b in region))
        blocks[(start // step, *place)] = da.from_delayed(task, lengths, meta=meta, name=f"{name}-block-{own}")
    rows = da.concatenate(list(blocks.flat)) if box == shape else da.block(blocks.tolist())
    return rows, reader.name, reader.axes, reader.coordinates


def _read(part: Callable[[], Any], start: int, name: str, dtype: np.dtype[Any], gaps: bool) -> Array:
    rows: Array = part()
    if gaps and dtype.kind == "f":
        return np.ma.filled(rows.astype(dtype, copy=False), np.nan)
    if np.ma.is_masked(rows):
        absent = np.ma.getmaskarray(rows).reshape(len(rows), -1).any(axis=1)
        raise DataError(f"sample {start + int(absent.argmax())} of '{name}' holds a missing value: {cf.REMEDY}")
    return np.ma.getdata(rows)
