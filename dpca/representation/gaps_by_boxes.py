"""Scores' errors, filled values and their errors of large samples with gaps, box by box, as Dask arrays.

::

    pass 1   a box of samples -> summands      their sums over boxes: what is expected of each sample
    pass 2   a box of samples, and what is expected of them -> the filled box

Cells take the second pass only. Scores are found by `dpca.representation.by_blocks.encoded_by_boxes`.
"""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array, Region
from dpca.representation.by_blocks import (
    boxes_to_encode,
    joined,
    of_summands,
    region_of,
    scored_by_boxes,
    summed_by_boxes,
)
from dpca.representation.gappy import GappyRepresentation, score_errors


def errors_by_boxes(basis: GappyRepresentation, x: Any) -> da.Array:
    """Return `GappyRepresentation.errors` of samples in a Dask or Zarr array; no task holds a whole sample."""
    if not basis.adds_boxes:
        return scored_by_boxes(basis, x, score_errors)
    return of_summands(basis, summed_by_boxes(basis, x), "errors_of_sums", x.dtype)


def filled_by_boxes(basis: GappyRepresentation, x: Any) -> da.Array:
    """Return the filled samples of `GappyRepresentation.filled`, as `errors_by_boxes`."""
    return _filled(basis, x, 0, x.dtype)


def fill_errors_by_boxes(basis: GappyRepresentation, x: Any) -> da.Array:
    """Return the standard errors of `GappyRepresentation.filled`, as `errors_by_boxes`."""
    return _filled(basis, x, 1, np.float32)


def _filled(basis: GappyRepresentation, x: Any, number: int, dtype: DTypeLike) -> da.Array:
    axes, parts, regions, expected = tuple(range(len(x.shape))), list[da.Array](), list[Region](), None
    if basis.adds_boxes:
        sums, length = summed_by_boxes(basis, x), basis.expected_length
        expected = of_summands(basis, sums, "expected_of_sums", x.dtype, length)
    for region, _, rows in boxes_to_encode(basis, x.dtype):
        here = region_of(x, region, rows)
        pairs: list[Any] = [here, axes]
        if expected is not None:
            pairs += [expected.rechunk((here.chunks[0], -1)), (0, len(axes))]
        options = {"basis": delayed(basis.box(region), pure=False), "number": number, "concatenate": True}
        parts.append(
            da.blockwise(_filled_box, axes, *pairs, dtype=dtype, meta=np.empty((0,) * len(axes), dtype), **options)
        )
        regions.append(region)
    return joined(parts, regions)


def _filled_box(samples: Array, expected: Array | None = None, *, basis: GappyRepresentation, number: int) -> Array:
    return basis.filled(samples, "a chunk", expected)[number]
