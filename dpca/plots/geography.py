"""Maps on a grid of latitudes and longitudes: labels of the grid, coastlines and projections of cartopy."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from dpca.kernels.algebra.types import Array
from dpca.plots import drawing
from dpca.plots.drawing import HAIRLINE, MUTED
from dpca.storage.arrays.coordinates import is_latitude, is_longitude
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.errors import DataError

_TURN = 360.0
_RESOLUTION = "110m"


def grid_of(maps: Any) -> tuple[Any, Array, Array] | None:
    """Return maps (mode, latitude, longitude) and their coordinates; None for arrays without such dims."""
    if not is_labelled(maps) or maps.ndim != 3:
        return None
    found = {}
    for kind, test in (("latitude", is_latitude), ("longitude", is_longitude)):
        dims = [dim for dim in maps.dims if dim in maps.indexes and test(str(dim), maps[dim].attrs)]
        if len(dims) != 1 or maps[dims[0]].dtype.kind not in "iuf" or maps.sizes[dims[0]] < 2:
            return None
        found[kind] = dims[0]
    latitude, longitude = found.values()
    first = next(dim for dim in maps.dims if dim not in (latitude, longitude))
    turned = maps.transpose(first, latitude, longitude).sortby([latitude, longitude])
    return turned, *(np.asarray(turned[dim], np.float64) for dim in (latitude, longitude))


def aspect_of_grid(latitude: Array, longitude: Array) -> float:
    """Return height by width of a map with equal degrees."""
    spans = (np.ptp(values) * len(values) / (len(values) - 1) for values in (latitude, longitude))
    height, width = spans
    return float(np.clip(height / width, 0.1, 6.0))


def draw_grid(
    figure: Figure,
    picture: NDArray[np.float64],
    grid: tuple[Array, Array, Any],
    place: tuple[float, float, float, float],
    look: tuple[Colormap, Normalize],
) -> Any:
    """Draw a map at ``(left, bottom, width, height)`` inches and return the colored mesh.

    ``grid`` has latitudes, longitudes and a projection or None.
    """
    latitude, longitude, projection = grid
    # What is missing shows the background: cartopy requires that it is transparent.
    colors, behind = look[0].with_extremes(bad=(0, 0, 0, 0)), look[0].get_bad()
    options: dict[str, Any] = {"cmap": colors, "norm": look[1], "shading": "nearest", "rasterized": True}
    values = np.ma.masked_invalid(picture)
    if projection is not None:
        crs = cartopy_crs()
        axes: Any = drawing.axes_at(figure, place, projection=projection)
        mesh = axes.pcolormesh(longitude, latitude, values, transform=crs.PlateCarree(), **options)
        axes.set_facecolor(behind)
        for line in coastlines():
            axes.plot(*line.T, color=MUTED, linewidth=0.5, transform=crs.PlateCarree())
        axes.gridlines(color=HAIRLINE, linewidth=0.4)
        return mesh
    axes = drawing.axes_at(figure, place)
    mesh = axes.pcolormesh(longitude, latitude, values, **options)
    axes.set_facecolor(behind)
    limits = axes.get_xlim(), axes.get_ylim()
    lines = [line + np.array([turn, 0]) for line in coastlines() for turn in (-_TURN, 0, _TURN)]
    axes.add_collection(LineCollection(lines, colors=MUTED, linewidths=0.5), autolim=False)
    axes.set(xlim=limits[0], ylim=limits[1])
    drawing.style_ticks(axes)
    for spine in axes.spines.values():
        spine.set(color=HAIRLINE, linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 1.5, 3, 4.5, 6, 9, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 1.5, 3, 4.5, 6, 9, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: degrees((value + 180) % _TURN - 180, "EW")))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: degrees(value, "NS")))
    return mesh


def degrees(value: float, directions: str) -> str:
    """Return an angle with its direction, such as 30°N."""
    side = "" if value == 0 or abs(value) == _TURN / 2 else directions[int(value < 0)]
    return f"{abs(value):g}°{side}"


def cartopy_crs() -> Any:
    """Return the module of projections of cartopy.

    Raises
    ------
    DataError
        If cartopy is not installed.
    """
    try:
        import cartopy.crs
    except ImportError as error:
        raise DataError("a projection requires cartopy: pip install cartopy, or omit it") from error
    return cartopy.crs


def coastlines() -> list[Array]:
    """Return coastlines, points of (longitude, latitude), if cartopy has them already. Nothing is downloaded."""
    try:
        from cartopy import config
        from cartopy.io import Downloader, shapereader
    except ImportError:
        return []
    kind = {"category": "physical", "name": "coastline", "resolution": _RESOLUTION}
    file = Downloader.from_config(("shapefiles", "natural_earth", *kind.values()))
    paths = [find({"config": config, **kind}) for find in (file.pre_downloaded_path, file.target_path)]
    path = next((path for path in paths if path is not None and path.exists()), None)
    if path is None:
        return []
    lines = []
    for geometry in shapereader.Reader(path).geometries():
        lines += [np.asarray(part.coords)[:, :2] for part in getattr(geometry, "geoms", [geometry])]
    return lines
