"""Boxes of samples of a source as chunks of Dask arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator

import dask.array as da
import numpy as np
from dask.delayed import delayed

from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array, Region, blocks

#: Bytes of the samples of a task.
TASK_BYTES = 2**26


def lazy_box(source: Source, samples: tuple[int, int], region: Region) -> da.Array:
    """Return a box of samples (n, *lengths) as one chunk of a Dask array, which is checked when it is read."""
    shape = samples[1] - samples[0], *(b - a for a, b in region)
    read = delayed(_read, pure=False)(source.piece(samples, region), samples, region)
    return da.from_delayed(read, shape, meta=np.empty((0,) * len(shape), source.dtype))


def lazily(source: Source) -> da.Array:
    """Return all samples as a Dask array, cut along the first axis of a sample, in boxes of about 64 MiB.

    Boxes consist of whole chunks of the source, unless a chunk has more than twice as many bytes.
    """
    (n, length, *rest), (rows, unit) = source.shape, source.chunks[:2]
    rows, unit = min(rows, n), min(unit, length)
    each = math.prod(rest) * source.dtype.itemsize
    if rows * unit * each > 2 * TASK_BYTES:
        unit = max(1, TASK_BYTES // (rows * each))
    along = min(length, max(1, TASK_BYTES // (rows * unit * each)) * unit)
    rows *= max(1, TASK_BYTES // (rows * along * each))

    def row_of(samples: slice) -> Iterator[da.Array]:
        for part in blocks(length, along):
            region = (part.start, part.stop), *((0, other) for other in rest)
            yield lazy_box(source, (samples.start, samples.stop), region)

    whole: da.Array = da.concatenate([da.concatenate([*row_of(samples)], axis=1) for samples in blocks(n, rows)])
    return whole


def _read(source: Source, samples: tuple[int, int], region: Region) -> Array:
    out = np.empty((samples[1] - samples[0], *(b - a for a, b in region)), source.dtype)
    source.reader()(samples, region, out)
    check_finite(out, samples[0], source.name)
    return out
