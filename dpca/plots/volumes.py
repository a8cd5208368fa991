"""Volumes as slices, and as projections along each axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dpca.kernels.types import Array
from dpca.plots.given import Samples, samples_given
from dpca.plots.layouts import tiles
from dpca.plots.panels import extent_of, intensity, panel, range_of, signed, strongest, thinned
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_whole, whole_number
from dpca.storage.layout import CHANNEL, count_spatial


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
        Components take part as well: ``model.components_.reshape(-1, *model.sample_shape_)``.
    index : int
        Which sample.
    axis : int
        Across which axis of a sample it is cut.
    n : int
        How many slices.
    data_range : tuple of 2 floats, optional
        The values shown as black and as white; default as in `dpca.plots.image_grid`. Values
        on both sides of zero of which no range is stated are drawn in colors: zero white, above it red, below it blue.
    axes : sequence of str, optional
        Names of a sample's axes, as in `dpca.plots.image_grid`.

    Returns
    -------
    matplotlib.figure.Figure
        Under each slice stands where it is.

    Raises
    ------
    DataError
        If samples have fewer than three axes of space, or there is no such sample or axis.
    """
    volume, names, given = _volume(samples, index, axes)
    n_spatial = count_spatial(names)
    if not is_whole(axis) or not 0 <= axis < n_spatial:
        raise DataError(f"axis is {axis!r} but a sample has the axes of space 0 to {n_spatial - 1}: name one")
    length = volume.shape[axis]
    count = min(whole_number(n, "the number of slices", 1), length)
    places = np.linspace(0, length - 1, count).round().astype(int).tolist()
    rest = (*names[:axis], *names[axis + 1 :])
    pictures = [thinned(panel(np.take(volume, place, axis), rest)) for place in places]
    shown, scale = _shown(given, pictures, data_range)
    return tiles(shown, [f"{names[axis]} = {place}" for place in places], scale=scale)


def maximum_projections(
    samples: Any,
    index: int = 0,
    *,
    data_range: tuple[float, float] | None = None,
    axes: Sequence[str] | None = None,
) -> Figure:
    """Draw the projections of a volume along each of its axes: of each line the value farthest from zero.

    Parameters
    ----------
    samples, index, data_range, axes
        As in `volume_slices`.

    Returns
    -------
    matplotlib.figure.Figure
        All as wide; of values that are not negative these are maximum-intensity projections, others keep their sign,
        in colors.

    Raises
    ------
    DataError
        As `volume_slices`.
    """
    volume, names, given = _volume(samples, index, axes)
    if names[-1] == CHANNEL:
        volume, names = volume.mean(axis=-1), names[:-1]
    while volume.ndim > 3:
        volume, names = volume[len(volume) // 2], names[1:]
    pictures = [thinned(strongest(volume, axis)) for axis in range(3)]
    shown, scale = _shown(given, pictures, data_range)
    return tiles(shown, [f"along {name}" for name in names], scale=scale)


def _volume(samples: Any, index: int, axes: Sequence[str] | None) -> tuple[Array, tuple[str, ...], Samples]:
    given = samples_given(samples, axes)
    n_spatial = count_spatial(given.axes)
    if n_spatial < 3:
        raise DataError(f"samples of {given.shape[1:]} are no volumes: show them with dpca.plots.image_grid")
    (chosen,) = given.spread([index], 1)
    return given.upright(given.read(chosen)), given.axes, given


def _shown(
    given: Samples, pictures: Sequence[Array], data_range: tuple[float, float] | None
) -> tuple[list[Array], tuple[float, bool] | None]:
    """Return panels in 0..1, and the scale of colors by sign."""
    low, high = range_of(pictures, data_range or given.data_range)
    if data_range is None and given.data_range is None and low < 0 < high and pictures[0].ndim == 2:
        extent = extent_of(pictures)
        return [signed(picture, extent) for picture in pictures], (extent, True)
    bounds = given.bounds(pictures, data_range)
    return [intensity(picture, bounds) for picture in pictures], None
