"""The range of the values of a stack that does not state one: what they span."""

from __future__ import annotations

import math
from typing import Any

from dpca.engine.folds.fold import fold
from dpca.engine.sources.source import Source
from dpca.partition.cells import CellGrid
from dpca.rules.covariance.extremes import Extremes
from dpca.storage.ranges import found_range

# Bytes of a sample that are looked at together, whole chunks unless one is larger.
_TOGETHER = 2**24


def spanned_range(source: Source, **running: Any) -> tuple[float, float]:
    """Return the lowest and the highest value of all samples, found in a pass over them.

    Parameters
    ----------
    source : Source
    **running
        As for `dpca.engine.folds.fold.fold`: client, checkpoints, progress.

    Raises
    ------
    DataError
        At a value that is not finite.
    """
    shape = tuple(source.shape[1:])
    chunk, row_bytes = source.chunks[1], math.prod(shape[1:]) * source.dtype.itemsize
    length = min(shape[0], max(1, _TOGETHER // row_bytes // chunk) * chunk)
    found, _ = fold(Extremes(), source, CellGrid(shape, (length,)), stage="range", **running)
    return found_range(min(float(one["low"][0]) for one in found), max(float(one["high"][0]) for one in found))
