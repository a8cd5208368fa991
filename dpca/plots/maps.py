"""Maps from plain arrays: modes of fields with their time series, and the noise of a denoised stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from dpca.plots import drawing
from dpca.plots.drawing import ACCENT, FEW_TO_MANY, HAIRLINE, INK, MUTED, WIDTH
from dpca.plots.geography import aspect_of_grid, draw_grid, grid_of
from dpca.plots.given import shares_for
from dpca.plots.overviews import thinned
from dpca.plots.panels import NOTHING, panel, signed
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import require_one_array

_MARGIN, _GAP, _HEADING, _FOOT, _MAP, _TALLEST = 0.1, 0.75, 0.3, 0.32, 4.1, 3.0
# Room for degrees beside and below a map; distance and width of a color bar.
_LABELS, _BELOW, _BAR = 0.55, 0.15, (0.1, 0.12)
_COLORS = LinearSegmentedColormap.from_list("signed", signed(np.array([-1.0, 0.0, 1.0]), 1.0))
_SIGNED = _COLORS.with_extremes(bad=f"{NOTHING}")


def mode_maps(
    maps: Any,
    series: Any = None,
    *,
    latitude: ArrayLike | None = None,
    times: ArrayLike | None = None,
    shares: ArrayLike | None = None,
    units: str = "",
    projection: Any = None,
) -> Figure:
    """Draw modes one below the other, each as a map in signed colors with its time series.

    Parameters
    ----------
    maps : DataArray or array_like of shape (k, ny, nx)
        NaN at grid points without data. Each map has its own scale, with zero in white. A ``DataArray`` with latitudes
        and longitudes is drawn in its place, with degrees, and coastlines if cartopy and its data are installed.
    series : DataArray or array_like of shape (n, k), optional
        Time series of the modes.
    latitude : array_like of shape (ny,), optional
        Used to put the north at the top of maps without coordinates; otherwise the first row is at the top.
    times : array_like of shape (n,), optional
        Numbers or dates along the time series; by default those of a ``DataArray``.
    shares : array_like of shape (k,), optional
        Shares of the variance, shown next to the index of the mode.
    units : str
        Units of the maps, for their scales; by default those of a ``DataArray``.
    projection : cartopy.crs.Projection, optional
        Of maps with latitudes and longitudes. Requires cartopy.

    Raises
    ------
    DataError
        If the shapes do not fit.
    """
    require_one_array(maps, "maps")
    grid = grid_of(maps)
    if grid is None and projection is not None:
        raise DataError("a projection was given, but the maps have no latitudes and longitudes: give a DataArray")
    pictures = np.asarray(maps if grid is None else grid[0], np.float64)
    if pictures.ndim != 3 or not pictures.size:
        raise DataError(f"maps have shape {pictures.shape}: give (k, ny, nx), at least one mode of two axes")
    if is_labelled(series):
        times = series.coords.get(series.dims[0]) if times is None else times
    units = units or str(maps.attrs.get("units", "")) if is_labelled(maps) else units
    curves = None if series is None else np.asarray(series, np.float64)
    if curves is not None and (curves.ndim != 2 or curves.shape[1] != len(pictures)):
        raise DataError(f"time series have shape {curves.shape}: give (n, {len(pictures)})")
    ratios = shares_for(shares, len(pictures))
    along = np.arange(0 if curves is None else len(curves)) if times is None else drawing.along_axis(times)
    if curves is not None and along.shape != curves.shape[:1]:
        raise DataError(f"times have shape {along.shape} for {len(curves):,} samples: give a time for each")
    if grid is None and latitude is not None and np.ravel(latitude)[0] < np.ravel(latitude)[-1]:
        pictures = pictures[:, ::-1]
    aspect = drawing.aspect_of(pictures[0]) if grid is None else aspect_of_grid(*grid[1:])
    margin, foot = (_MARGIN, _FOOT) if grid is None or projection is not None else (_LABELS, _FOOT + _BELOW)
    width = min(_MAP if curves is not None else WIDTH - _MARGIN - margin - _GAP, _TALLEST / aspect)
    height = width * aspect
    line = _HEADING + height + foot
    figure, top = drawing.page(line * len(pictures) + _MARGIN)
    for index, picture in enumerate(pictures):
        bottom = top - _MARGIN - index * line - _HEADING - height
        drawing.write(figure, margin, bottom + height + 0.08, f"{index + 1}", color=INK)
        if ratios is not None:
            text = f"{ratios[index]:.1%}"
            drawing.write(figure, margin + width, bottom + height + 0.08, text, color=MUTED, ha="right")
        place = margin, bottom, width, height
        _draw_map(figure, picture, place, units, None if grid is None else (*grid[1:], projection))
        if curves is not None:
            left = margin + width + _GAP + 0.45
            draw_series(figure, along, curves[:, index], (left, bottom, WIDTH - _MARGIN - left, height))
    return figure


def noise_maps(sigma: Any, rank: Any, removed: Any, *, axes: Sequence[str] | None = None) -> Figure:
    """Draw the maps of a `Denoiser` beside each other; of volumes, their middle slices. Darker is more.

    Parameters
    ----------
    sigma, rank, removed : array_like of the shape of a sample
        The standard deviation of the noise, the number of components, and the share of the variance that is removed.
    axes : sequence of str, optional
        Names of the sample's axes, as in `eigenimages`.
    """
    heads = "standard deviation of the noise", "components", "share of the variance removed"
    pictures = [panel(values, axes) for values in (sigma, rank, removed)]
    pictures = [thinned(one if one.ndim < 3 else one.mean(axis=-1)) for one in pictures]
    aspect, place = drawing.aspect_of(pictures[0]), (WIDTH - 2 * _MARGIN) / len(pictures)
    width = min(place - _GAP, _TALLEST / aspect)
    line = _HEADING + width * aspect + _FOOT
    figure, top = drawing.page(line)
    for number, (picture, head) in enumerate(zip(pictures, heads, strict=True)):
        left = _MARGIN + number * place + (_LABELS if picture.ndim == 1 else 0)
        drawing.write(figure, left, top - 0.2, head, color=INK)
        at = left, _FOOT, width if picture.ndim == 2 else place - _GAP, width * aspect
        if picture.ndim == 1:
            draw_series(figure, np.arange(len(picture)), picture, at)
        else:
            drawing.show_colored(figure, picture, at, FEW_TO_MANY, bar=_BAR, ticks=MaxNLocator(5))
        figure.add_piece(number * place, 0, place, line, head)
    return figure


def _draw_map(figure: Figure, picture: Any, place: tuple[float, float, float, float], units: str, grid: Any) -> None:
    most = float(np.nanmax(np.abs(picture))) if np.isfinite(picture).any() else 0.0
    scale = Normalize(-most or -1.0, most or 1.0)
    left, bottom, width, height = place
    if grid is None:
        drawing.show_colored(figure, np.ma.masked_invalid(picture), place, _SIGNED, bar=_BAR, scale=scale)
    else:
        mesh = draw_grid(figure, picture, grid, place, (_SIGNED, scale))
        drawing.color_bar(figure, mesh, (left + width + _BAR[0], bottom, _BAR[1], height))
    if units:
        drawing.write(figure, left + width + 0.1, bottom + height + 0.08, units, color=MUTED)


def draw_series(figure: Figure, along: Any, values: Any, place: tuple[float, float, float, float]) -> Axes:
    """Draw a curve and the zero line at ``(left, bottom, width, height)`` inches."""
    axes = drawing.axes_at(figure, place)
    axes.axhline(0, color=HAIRLINE, linewidth=0.8)
    axes.plot(along, values, color=ACCENT, linewidth=0.9)
    axes.margins(x=0)
    if np.asarray(along).dtype.kind in "iuf":
        axes.xaxis.set_major_locator(MaxNLocator(5))
    drawing.style_axes(axes)
    return axes
