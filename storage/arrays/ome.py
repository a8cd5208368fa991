"""Metadata of OME-Zarr images, versions 0.1 to 0.5: axes, spacing with units, names and colors of channels."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import zarr

from dpca.storage.arrays.coordinates import CHANNEL_COLOR, UNITS, Coordinate, Coordinates
from dpca.storage.arrays.layout import SAMPLE, is_channel, stacked_axes
from dpca.storage.arrays.reading import array_in, open_node
from dpca.storage.errors import DataError, StoreError, one_line

_COLOR = re.compile("[0-9a-fA-F]{6}")


@dataclass(frozen=True, eq=False)
class OMEAxes:
    """The axes of a resolution of an image.

    Attributes
    ----------
    axes : tuple of str
        Names of all axes, including ``"sample"``.
    along : Coordinates or None
        Their names in the image, and coordinates along them; None if the image states neither units nor a spacing.
    """

    axes: tuple[str, ...]
    along: Coordinates | None

    def kept(self, axes: Sequence[bool]) -> Coordinates | None:
        """Return the coordinates along some of the axes."""
        if self.along is None:
            return None
        dims = tuple(compress(self.along.dims, axes))
        return Coordinates(dims, {name: c for name, c in self.along.arrays.items() if set(c.dims) <= set(dims)}, {})


def spaced(
    dims: Sequence[str],
    shape: Sequence[int],
    spacing: Mapping[str, tuple[float, float, str]],
    channels: Sequence[str] = (),
    colors: Sequence[int] = (),
) -> Coordinates | None:
    """Return coordinates along axes from their step, first value and unit; None if nothing is known but the numbers.

    ``channels`` and ``colors`` are the names of the channels and their colors, as numbers of 24 bits.
    """
    arrays = {}
    for dim, n in zip(dims, shape, strict=True):
        step, start, unit = spacing.get(dim, (1.0, 0.0, ""))
        if is_channel(dim):
            if len(set(channels)) == n:
                arrays[dim] = Coordinate((dim,), np.array([str(name) for name in channels]), {})
            if len(colors) == n and len({*colors}) > 1:  # one color does not tell channels apart
                arrays[CHANNEL_COLOR] = Coordinate((dim,), np.array([f"#{color:06x}" for color in colors]), {})
        elif math.isfinite(step) and math.isfinite(start) and step > 0 and ((step, start) != (1, 0) or unit):
            arrays[dim] = Coordinate((dim,), start + step * np.arange(n), {UNITS: unit} if unit else {})
    return Coordinates(tuple(dims), arrays, {}) if arrays and len(set(dims)) == len(dims) else None


def highest_resolution(where: str, group: zarr.Group) -> tuple[zarr.Array[Any], str, OMEAxes] | None:
    """Return the array of the highest resolution of an image, its path and its axes; None for other groups.

    Raises
    ------
    DataError
        If the metadata are incomplete.
    """
    if not (stated := _stated(group)):
        return None
    try:
        path = str(stated["multiscales"][0]["datasets"][0]["path"])
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"its first dataset is {path[:40]!r}")
        array = array_in(group, path)
        return array, f"{where.rstrip('/')}/{path}", _axes_of(stated, array, 0)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise DataError(
            f"'{where}' is not a complete OME-Zarr image ({one_line(error)}): give '{where}/<array>'"
        ) from error


def axes_of_level(where: str, array: zarr.Array[Any]) -> OMEAxes | None:
    """Return the axes of an array that is a resolution of an image in the folder above; None for other arrays."""
    folder, between, name = where.rstrip("/").rpartition("/")
    if not between or not folder:
        return None
    try:
        group = open_node(folder)
        stated = _stated(group) if isinstance(group, zarr.Group) else {}
        paths = [one["path"] for one in stated["multiscales"][0]["datasets"]] if stated else []
        return _axes_of(stated, array, paths.index(name)) if name in paths else None
    except (DataError, StoreError, KeyError, IndexError, TypeError, AttributeError, ValueError, OSError):
        return None  # the array is read by itself


def _stated(group: zarr.Group) -> Any:
    """Return the metadata of an image, empty for other groups."""
    stated: Any = group.attrs.asdict()
    stated = stated.get("ome", stated)
    return stated if isinstance(stated, dict) and stated.get("multiscales") else {}


def _axes_of(stated: Any, array: zarr.Array[Any], level: int) -> OMEAxes:
    image = stated["multiscales"][0]
    # Axes are dicts since version 0.4, letters in version 0.3, and these five letters before.
    listed = image.get("axes", "tczyx")
    names = [one["name"] if isinstance(one, dict) else one for one in listed]
    if not all(isinstance(name, str) for name in names) or len(names) != array.ndim or len(set(names)) != array.ndim:
        raise ValueError(f"its axes are {str(names)[:40]} and its array has the shape {array.shape}")
    axes = stacked_axes(names, array.shape) or (SAMPLE, *names[1:])
    try:
        along = spaced(names, array.shape, _spacing(image, listed, level), *_channels(stated))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        along = None  # the values are readable without these
    return OMEAxes(axes, along)


def _spacing(image: Any, listed: Any, level: int) -> dict[str, tuple[float, float, str]]:
    """Return step, first value and unit along each axis with a name. Scales are multiplied, the image's last."""
    step, start = np.ones(len(listed)), np.zeros(len(listed))
    for stated in (image["datasets"][level], image):
        for one in stated.get("coordinateTransformations", ()):
            if one["type"] == "scale":
                step, start = step * one["scale"], start * one["scale"]
            elif one["type"] == "translation":
                start = start + one["translation"]
    units = [str(one.get("unit", "")) if isinstance(one, dict) else "" for one in listed]
    names = [one["name"] if isinstance(one, dict) else one for one in listed]
    return {name: (float(a), float(b), u) for name, a, b, u in zip(names, step, start, units, strict=True)}


def _channels(stated: Any) -> tuple[list[str], list[int]]:
    """Return the names and the colors of the channels; no colors if not all channels have one."""
    channels = stated.get("omero", {}).get("channels", ())
    colors = [str(one.get("color", "")).removeprefix("#") for one in channels]
    known = all(map(_COLOR.fullmatch, colors))
    return [str(one.get("label", "")) for one in channels], [int(color, 16) for color in colors] if known else []
