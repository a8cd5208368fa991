"""What a picture shows of a large sample: nothing else of it is in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dpca.kernels.algebra.types import Array, Region
from dpca.storage.arrays.layout import axes_for, count_spatial

#: Samples of more bytes are not read whole for a picture.
LARGE_BYTES = 2**24
# Bytes of a box of such a sample that is read at a time.
_READ_BYTES = 2**24
# Longest sides of an image on a page, and of a curve of a large sample.
_LONGEST, _LONGEST_CURVE = 1600, 2**18


def overview(
    read: Callable[[Region], Array],
    shape: Sequence[int],
    itemsize: int,
    axes: Sequence[str] | None = None,
    units: Sequence[int] | None = None,
) -> Array:
    """Return what `panel` shows of a sample, with as many axes; nothing else of a large sample is in memory.

    Parameters
    ----------
    read : callable
        Returns a box of the sample.
    shape : sequence of int
        Shape of the sample.
    itemsize : int
        Bytes of a value.
    axes : sequence of str, optional
        As for `panel`.
    units : sequence of int, optional
        Lengths that are read together along each axis, such as those of tiles.

    Returns
    -------
    array
        A sample of at most 16 MiB as a whole. Of a larger one the middle slice, and every n-th row and column if an
        image is longer than a page shows.
    """
    whole = tuple((0, n) for n in shape)
    if math.prod(shape) * itemsize <= LARGE_BYTES:
        return read(whole)
    n_spatial = max(1, count_spatial(axes or axes_for(shape)))
    middle = [(n // 2, n // 2 + 1) for n in shape[: max(0, n_spatial - 2)]]
    rest, names = shape[len(middle) :], (axes or axes_for(shape))[len(middle) :]

    def plane(region: Region) -> Array:
        return read((*middle, *region)).reshape([b - a for a, b in region])

    longest, unit = _LONGEST if n_spatial > 1 else _LONGEST_CURVE, 1 if units is None else units[len(middle)]
    shown = strided(plane, rest, itemsize, names, longest, unit)
    return shown.reshape(*(1 for _ in middle), *shown.shape)


def strided(
    read: Callable[[Region], Array],
    shape: Sequence[int],
    itemsize: int,
    axes: Sequence[str],
    longest: int,
    unit: int = 1,
) -> Array:
    """Return every n-th row and column of an image, at most ``longest``, or every n-th value of a curve.

    Parameters
    ----------
    read : callable
        Returns a box of the image. No box has much more than 16 MiB.
    shape, axes : sequence
        Shape of the image, and names of its axes.
    itemsize, longest : int
        Bytes of a value, and the longest side of the result.
    unit : int
        Rows that are read together.
    """
    n_spatial = max(1, count_spatial(axes))
    step = -(-max(shape[:n_spatial]) // longest)
    # Of a band of rows, every n-th is used. If a band is too large, only these are read.
    most = _READ_BYTES // (math.prod(shape[1:]) * itemsize)
    rows = most // unit * unit or most
    thin = tuple(slice(None, None, step if axis < n_spatial else 1) for axis in range(1, len(shape)))
    bands = []
    rows, every = (rows, rows) if rows >= step else (1, step)
    for start in range(0, shape[0], every):
        first, stop = start + -start % step, min(start + rows, shape[0])
        if first < stop:
            bands.append(read(((first, stop), *((0, n) for n in shape[1:])))[(slice(None, None, step), *thin)].copy())
    return np.concatenate(bands)


def thinned(picture: NDArray[np.float64], longest: int = _LONGEST) -> NDArray[np.float64]:
    """Subsample an image that is too large for a page. Curves are not changed."""
    if picture.ndim == 1:
        return picture
    step = -(-max(picture.shape[:2]) // longest)
    return picture[::step, ::step].copy() if step > 1 else picture
