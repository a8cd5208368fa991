"""Checks that samples are finite numbers: in memory, and lazily."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import dask.array as da
import numpy as np

from dpca.kernels.algebra.types import Array, blocks
from dpca.storage import cf
from dpca.storage.errors import DataError


class NotFiniteError(DataError):
    """A value is NaN or infinity."""


# Values of one search for NaN; its result takes a byte per value.
_CHECKED_AT_ONCE = 2**20
_INFINITE = f"holds an infinite value, but only NaN is a missing value: {cf.INFINITE_REMEDY}"
_NOT_FINITE = f"holds a value that is not finite (NaN or infinity): {cf.REMEDY}"


def check_finite(batch: Array, first: int, name: str, what: str = _NOT_FINITE, counts: Array | None = None) -> None:
    """Reject NaN and infinity. The error names the first such sample, followed by ``what``; integers have none.

    ``counts`` (n,) are how often the samples of the batch are used. Those of 0 may hold any value.
    """
    _check_none(batch, first, name, lambda part: ~np.isfinite(part), NotFiniteError, what, counts)


def check_no_infinity(batch: Array, first: int, name: str) -> None:
    """Reject infinity. The error names the first such sample."""
    _check_none(batch, first, name, np.isinf, DataError, _INFINITE)


def _check_none(
    batch: Array,
    first: int,
    name: str,
    is_wrong: Callable[[Array], Array],
    error: type[DataError],
    what: str,
    counts: Array | None = None,
) -> None:
    if batch.dtype.kind != "f":
        return
    for rows in blocks(len(batch), max(1, _CHECKED_AT_ONCE // max(1, math.prod(batch.shape[1:])))):
        wrong = is_wrong(part := batch[rows]).reshape(len(part), -1).any(axis=1)
        if counts is not None:
            wrong &= counts[rows] > 0
        if wrong.any():
            raise error(f"sample {first + rows.start + int(wrong.argmax())} of {name} {what}")


def checked_lazily(x: da.Array, name: str, counts: Array | None = None) -> da.Array:
    """Return a Dask array that rejects NaN and infinity when it is computed. The error names the sample.

    ``counts`` are as in `check_finite`.
    """
    if x.dtype.kind != "f":
        return x
    meta = np.empty((0,) * x.ndim, x.dtype)
    used = [] if counts is None else [da.from_array(counts, chunks=(x.chunks[0],)).reshape(-1, *(1,) * (x.ndim - 1))]
    return cast(da.Array, da.map_blocks(_checked, x, *used, called=name, dtype=x.dtype, meta=meta))


def _checked(block: Array, *counts: Array, called: str, block_info: Any = None) -> Array:
    used = counts[0].ravel() if counts else None
    check_finite(block, block_info[0]["array-location"][0][0], called, counts=used)
    return block
