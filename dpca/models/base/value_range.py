"""The data range of a stack without one in its metadata: the span of its values."""

from __future__ import annotations

import math

from dpca.engine.folds.fold import fold
from dpca.engine.sources.source import Source
from dpca.partition.cells import CellGrid
from dpca.rules.covariance.extremes import Extremes
from dpca.storage.arrays.layout import box_shape
from dpca.storage.errors import DataError
from dpca.storage.ranges import found_range
from dpca.storage.run import Run

# Bytes of a sample in one partition; whole chunks, unless a chunk is larger.
_TOGETHER = 2**24


def spanned_range(source: Source, run: Run, *, finite: bool = False) -> tuple[float, float]:
    """Return the smallest and the largest value of all samples, in one pass.

    Parameters
    ----------
    source : Source
    run : Run
    finite : bool
        Whether infinities are left out.

    Raises
    ------
    DataError
        If a value is not finite.
    """
    shape = tuple(source.shape[1:])
    chunk, row_bytes = source.chunks[1], math.prod(shape[1:]) * source.dtype.itemsize
    length = min(shape[0], max(1, _TOGETHER // row_bytes // chunk) * chunk)
    box: tuple[int, ...] = (length,)
    if length * row_bytes > _TOGETHER:  # even one row of chunks is too large
        box = box_shape(shape, _TOGETHER // source.dtype.itemsize, source.chunks[1:])
    found, _ = fold(Extremes(finite), source, CellGrid(shape, box), run=run, stage="range")
    low, high = min(float(one["low"][0]) for one in found), max(float(one["high"][0]) for one in found)
    if source.with_gaps and not (math.isfinite(low) and math.isfinite(high)):
        raise DataError(f"{source.name} has an infinite value, or none at all: mark missing values by NaN")
    return found_range(low, high)
