"""Volumes as slices, and as projections along each axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dpca.kernels.algebra.types import Array
from dpca.plots.given import GivenSamples, samples_given
from dpca.plots.layouts import tiles
from dpca.plots.overviews import LARGE_BYTES, thinned
from dpca.plots.panels import extent_of, intensity, panel, range_of, signed, spread_over, strongest
from dpca.storage.arrays.layout import CHANNEL, count_spatial
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_whole, whole_number


def volume_slices(
    samples: Any,
    index: int = 0,
    *,
    axis: int = 0,
    n: int = 12,
    data_range: tuple[float, float] | None = None,
    axes: Sequence[str] | None = None,
) -> Figure:
    """Draw slices of a volume, evenly spaced along one of its axes.

    Parameters
    ----------
    samples : array (n_samples, z, y, x[, channel]), Stack, opened store, or path
        Components are supported as well: ``model.components_.reshape(-1, *model.sample_shape_)``.
    index : int
        Index of the sample.
    axis : int
        The axis along which slices are taken.
    n : int
        Number of slices.
    data_range : tuple of 2 floats, optional
        The values of black and white; the default is that of `dpca.plots.image_grid`. Positive and negative values
        without a stated range are drawn in colors: zero is white, positive values are red, negative values are blue.
    axes : sequence of str, optional
        Names of a sample's axes, as in `dpca.plots.image_grid`.

    Returns
    -------
    matplotlib.figure.Figure
        The caption of each slice is its position.

    Raises
    ------
    DataError
        If samples have fewer than three spatial axes, or the index or the axis is out of range.
    """
    given, chosen = _volume(samples, index, axes)
    names, n_spatial = given.axes, count_spatial(given.axes)
    if not is_whole(axis) or not 0 <= axis < n_spatial:
        raise DataError(f"axis is {axis!r}: give a spatial axis from 0 to {n_spatial - 1}")
    places = spread_over(given.shape[1 + axis], whole_number(n, "the number of slices", 1))
    rest = (*names[:axis], *names[axis + 1 :])
    slices = given.slices(chosen, axis, places)
    every = given.colors is not None
    pictures = [thinned(panel(each, rest, every_channel=every)) for each in slices]
    shown, scale = _shown(given, pictures, data_range)
    return tiles(shown, [f"{names[axis]} = {place}" for place in places], scale=scale)


def maximum_projections(
    samples: Any,
    index: int = 0,
    *,
    data_range: tuple[float, float] | None = None,
    axes: Sequence[str] | None = None,
) -> Figure:
    """Draw the projections of a volume along each of its axes: the value of the largest magnitude on each line.

    Parameters
    ----------
    samples, index, data_range, axes
        As in `volume_slices`.

    Returns
    -------
    matplotlib.figure.Figure
        Projections of equal width. For non-negative values they are maximum-intensity projections; others keep their
        sign, in colors.

    Raises
    ------
    DataError
        Errors of `volume_slices`.
    """
    given, chosen = _volume(samples, index, axes)
    names = given.axes[:-1] if given.axes[-1] == CHANNEL else given.axes
    names, before, n_left = names[-3:], len(names) - 3, 2 if given.colors is None else 3
    shape = given.shape[1:]
    middle = [(n // 2, n // 2 + 1) for n in shape[:before]]
    # Slabs of a large volume are projected one after the other.
    row_bytes = math.prod(shape[before + 1 :]) * given.dtype.itemsize
    rows = max(1, LARGE_BYTES // row_bytes)
    along: list[Array] = []
    others: list[list[Array]] = [[], []]
    for start in range(0, shape[before], rows):
        slab = (*middle, (start, min(start + rows, shape[before])), *((0, n) for n in shape[before + 1 :]))
        volume = given.box(chosen, slab)
        volume = volume.mean(axis=-1) if given.axes[-1] == CHANNEL and given.colors is None else volume
        volume = volume.reshape(volume.shape[before:])
        along = [strongest(np.stack([*along, strongest(volume, n_left=n_left)]), n_left=n_left)]
        for axis, found in enumerate(others, 1):
            found.append(strongest(volume, axis, n_left))
    projections = [*along, *(np.concatenate(found) for found in others)]
    turned = [axis - before for axis in given.flipped if before <= axis < before + 3]
    kept = [tuple(i - (i > axis) for i in turned if i != axis) for axis in range(3)]
    pictures = [thinned(np.flip(each, where)) for each, where in zip(projections, kept, strict=True)]
    shown, scale = _shown(given, pictures, data_range)
    return tiles(shown, [f"along {name}" for name in names], scale=scale)


def _volume(samples: Any, index: int, axes: Sequence[str] | None) -> tuple[GivenSamples, int]:
    given = samples_given(samples, axes)
    n_spatial = count_spatial(given.axes)
    if n_spatial < 3:
        raise DataError(f"samples of {given.shape[1:]} are not volumes: use dpca.plots.image_grid")
    (chosen,) = given.spread([index], 1)
    return given, chosen


def _shown(
    given: GivenSamples, pictures: Sequence[Array], data_range: tuple[float, float] | None
) -> tuple[list[Array], tuple[float, bool] | None]:
    """Return panels in 0..1 of pictures with one channel, or all, and the scale for colors by sign."""
    if given.colors is not None:
        (blended,), bounds = given.panels([pictures], data_range, ("y", "x", CHANNEL))
        return [intensity(picture, bounds) for picture in blended], None
    low, high = range_of(pictures, data_range or given.data_range)
    if data_range is None and given.data_range is None and low < 0 < high and pictures[0].ndim == 2:
        extent = extent_of(pictures)
        return [signed(picture, extent) for picture in pictures], (extent, True)
    bounds = given.bounds(pictures, data_range)
    return [intensity(picture, bounds) for picture in pictures], None
