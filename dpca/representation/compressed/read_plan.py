"""Plan the memory for decoding a part of a compressed store, from the shapes of its arrays alone."""

from __future__ import annotations

import math

import numpy as np

from dpca.codec.slabs import slabs_of
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.pixels import Pixels
from dpca.representation.compressed.lazy_views import LazyViews

# For libraries, and for indexes of samples and positions.
_OVERHEAD = 2**20


def decoding_bytes(store: LazyViews, n: int, box: Region, chosen: Array, at_once: int) -> int:
    """Return the peak memory in bytes of decoding a box of samples, in addition to the opened store.

    The decoded values count twice, since indexes other than slices copy them.

    Parameters
    ----------
    store : LazyViews
    n : int
        Number of samples.
    box : region of a sample
    chosen : array of integers, ascending
        Rows of codes for the box.
    at_once : int
        Upper limit of the samples that are decoded at a time.
    """
    size, itemsize = math.prod(stop - start for start, stop in box), store.dtype.itemsize
    if not n * size:
        return _OVERHEAD
    codes, waves, working = store.stored("codes"), store.codec.waves, store.codec.dtype.itemsize
    wide, at_once = store.rows, min(n, at_once)
    high = min(int(codes.chunks[0]) * len(np.unique(chosen // codes.chunks[0])), codes.shape[0])
    chunk = math.prod(codes.chunks) * codes.dtype.itemsize
    # All rows of the chunks of these samples, as stored and as scores, each with a copy.
    found = len(chosen) * at_once * (working if waves else codes.dtype.itemsize)
    read = high * min(wide, n if not waves else wide) * (codes.dtype.itemsize * 2 + (3 * working if waves else 0))
    slabs = slabs_of(store.codec.components.grid, box).held_bytes(store.codec.dtype)
    total = 2 * n * size * itemsize + found + read + 3 * chunk + slabs + 2 * size * working
    if store.facts["residual_step"] is not None and store.level is None:
        residual = store.stored("residual")
        along = store.facts["differences"]
        reach = math.prod(stop if axis in along else stop - start for axis, (start, stop) in enumerate(box, 1))
        packed = math.prod(residual.chunks) * residual.dtype.itemsize
        # The samples of a chunk: as stored, selected, summed, as scores. Several chunks are decoded at a time.
        left = (1 if n == 1 else wide) * (3 * reach * residual.dtype.itemsize + size * working)
        if store.codec.interpolation is not None:
            # Whole samples of a chunk: as stored, without and with sign, as values, and indices of their neighbors.
            left = min(wide, len(store)) * math.prod(store.shape[1:]) * (4 * residual.dtype.itemsize + 3 * working)
        total += left + 4 * packed + 2 * at_once * size * working
    elif not Pixels(store.dtype, (0, 0)).are_small:
        total += 2 * at_once * size * working
    if store.has_gaps:
        # A mask, with and without margins, and coded; that of infinities has two bits for a value.
        total += (4 + 8 * store.has_infinities) * min(wide, len(store)) * math.prod(store.shape[1:])
    return total + _OVERHEAD
