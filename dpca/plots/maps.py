"""Modes of fields as maps with their time series, from plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from dpca.plots import drawing
from dpca.plots.drawing import ACCENT, HAIRLINE, INK, MUTED, WIDTH
from dpca.plots.given import shares_for
from dpca.plots.panels import NOTHING, signed
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import require_one_array

_MARGIN, _GAP, _HEADING, _FOOT, _MAP, _TALLEST = 0.1, 0.75, 0.3, 0.32, 4.1, 3.0
_COLORS = LinearSegmentedColormap.from_list("signed", signed(np.array([-1.0, 0.0, 1.0]), 1.0))
_SIGNED = _COLORS.with_extremes(bad=f"{NOTHING}")


def mode_maps(
    maps: ArrayLike,
    series: ArrayLike | None = None,
    *,
    latitude: ArrayLike | None = None,
    times: ArrayLike | None = None,
    shares: ArrayLike | None = None,
    units: str = "",
) -> Figure:
    """Draw modes one below the other, each as a map in signed colors with its time series.

    Parameters
    ----------
    maps : array_like of shape (k, ny, nx)
        NaN at grid points without data. Each map has its own scale, with zero in white.
    series : array_like of shape (n, k), optional
        Time series of the modes.
    latitude : array_like of shape (ny,), optional
        Used to put the north at the top; without it the first row is at the top.
    times : array_like of shape (n,), optional
        Numbers or dates along the time series.
    shares : array_like of shape (k,), optional
        Shares of the variance, shown next to the index of the mode.
    units : str
        Units of the maps, for their scales.

    Raises
    ------
    DataError
        If the shapes do not fit.
    """
    require_one_array(maps, "maps")
    pictures = np.asarray(maps, np.float64)
    if pictures.ndim != 3 or not pictures.size:
        raise DataError(f"maps have shape {pictures.shape}: give (k, ny, nx), at least one mode of two axes")
    curves = None if series is None else np.asarray(series, np.float64)
    if curves is not None and (curves.ndim != 2 or curves.shape[1] != len(pictures)):
        raise DataError(f"time series have shape {curves.shape}: give (n, {len(pictures)})")
    ratios = shares_for(shares, len(pictures))
    along = np.arange(0 if curves is None else len(curves)) if times is None else drawing.along_axis(times)
    if curves is not None and along.shape != curves.shape[:1]:
        raise DataError(f"times have shape {along.shape} for {len(curves):,} samples: give a time for each")
    if latitude is not None and np.ravel(latitude)[0] < np.ravel(latitude)[-1]:
        pictures = pictures[:, ::-1]
    aspect = drawing.aspect_of(pictures[0])
    width = min(_MAP if curves is not None else WIDTH - 2 * _MARGIN - _GAP, _TALLEST / aspect)
    height = width * aspect
    line = _HEADING + height + _FOOT
    figure, top = drawing.page(line * len(pictures) + _MARGIN)
    for index, picture in enumerate(pictures):
        bottom = top - _MARGIN - index * line - _HEADING - height
        drawing.write(figure, _MARGIN, bottom + height + 0.08, f"{index + 1}", color=INK)
        if ratios is not None:
            text = f"{ratios[index]:.1%}"
            drawing.write(figure, _MARGIN + width, bottom + height + 0.08, text, color=MUTED, ha="right")
        _draw_map(figure, picture, (_MARGIN, bottom, width, height), units)
        if curves is not None:
            left = _MARGIN + width + _GAP + 0.45
            draw_series(figure, along, curves[:, index], (left, bottom, WIDTH - _MARGIN - left, height))
    return figure


def _draw_map(figure: Figure, picture: Any, place: tuple[float, float, float, float], units: str) -> None:
    most = float(np.nanmax(np.abs(picture))) if np.isfinite(picture).any() else 0.0
    scale = Normalize(-most or -1.0, most or 1.0)
    drawing.show_colored(figure, np.ma.masked_invalid(picture), place, _SIGNED, bar=(0.1, 0.12), scale=scale)
    if units:
        left, bottom, width, height = place
        drawing.write(figure, left + width + 0.1, bottom + height + 0.08, units, color=MUTED)


def draw_series(figure: Figure, along: Any, values: Any, place: tuple[float, float, float, float]) -> Axes:
    """Draw a curve and the zero line at ``(left, bottom, width, height)`` inches."""
    axes = drawing.axes_at(figure, place)
    axes.axhline(0, color=HAIRLINE, linewidth=0.8)
    axes.plot(along, values, color=ACCENT, linewidth=0.9)
    axes.margins(x=0)
    drawing.style_axes(axes)
    return axes
