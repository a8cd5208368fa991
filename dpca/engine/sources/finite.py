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

# Values of one search for NaN; its result takes a byte per value.
_CHECKED_AT_ONCE = 2**20
_INFINITE = f"holds an infinite value, but only NaN is a missing value: {cf.INFINITE_REMEDY}"
_NOT_FINITE = f"holds a value that is not finite (NaN or infinity): {cf.REMEDY}"


def check_finite(batch: Array, first: int, name: str, what: str = _NOT_FINITE) -> None:
    """Reject NaN and infinity. The error names the first such sample, followed by ``what``; integers have none."""
    _check_none(batch, first, name, lambda part: ~np.isfinite(part), what)


def check_no_infinity(batch: Array, first: int, name: str) -> None:
    """Reject infinity. The error names the first such sample."""
    _check_none(batch, first, name, np.isinf, _INFINITE)


def _check_none(batch: Array, first: int, name: str, is_wrong: Callable[[Array], Array], what: str) -> None:
    if batch.dtype.kind != "f":
        return
    for rows in blocks(len(batch), max(1, _CHECKED_AT_ONCE // max(1, math.prod(batch.shape[1:])))):
        wrong = is_wrong(part := batch[rows]).reshape(len(part), -1).any(axis=1)
        if wrong.any():
            raise DataError(f"sample {first + rows.start + int(wrong.argmax())} of {name} {what}")


def checked_lazily(x: da.Array, name: str) -> da.Array:
    """Return a Dask array that rejects NaN and infinity when it is computed. The error names the sample."""
    if x.dtype.kind != "f":
        return x
    return cast(da.Array, da.map_blocks(_checked, x, called=name, dtype=x.dtype, meta=np.empty((0,) * x.ndim, x.dtype)))


def _checked(block: Array, called: str, block_info: Any = None) -> Array:
    check_finite(block, block_info[0]["array-location"][0][0], called)
    return block
