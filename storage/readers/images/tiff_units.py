"""Spacing of pixels, times, names and colors of channels in TIFF files: of OME, of ImageJ, and of dpca."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.ome import spaced

if TYPE_CHECKING:
    from tifffile import TiffFile

_Found = tuple[dict[str, tuple[float, float, str]], list[str], list[int]]
"""Step, first value and unit along axes, and names and colors of channels."""


def along_pages(file: TiffFile, axes: str, shape: Sequence[int]) -> Coordinates | None:
    """Return coordinates along the axes of a series of pages; None if the file does not state any."""
    try:
        if file.is_ome:
            found = _of_ome(file.ome_metadata or "")
        elif file.is_imagej:
            found = _of_imagej(file)
        else:
            found = _of_dpca(file)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, ZeroDivisionError, ElementTree.ParseError):
        return None  # the values are readable without these
    letters = axes.lower()
    dims = letters if "c" in letters else letters.replace("s", "c")
    return spaced(dims, shape, *found)


def _of_ome(text: str) -> _Found:
    elements: Iterable[Any] = ElementTree.fromstring(text).iter()
    pixels = next(one for one in elements if one.tag.rpartition("}")[2] == "Pixels")
    units = {axis: pixels.get(f"PhysicalSize{axis}Unit", "\N{MICRO SIGN}m") for axis in "XYZ"}
    steps = {axis.lower(): (_step(pixels.get(f"PhysicalSize{axis}")), 0.0, unit) for axis, unit in units.items()}
    steps["t"] = _step(pixels.get("TimeIncrement")), 0.0, pixels.get("TimeIncrementUnit", "s")
    channels = [one for one in pixels if one.tag.rpartition("}")[2] == "Channel"]
    colors = [int(one.get("Color", -1)) >> 8 & 0xFFFFFF for one in channels]  # red, green, blue, alpha; white if absent
    return _stated(steps), [one.get("Name", "") for one in channels], colors


def _of_imagej(file: TiffFile) -> _Found:
    known: Mapping[str, Any] = file.imagej_metadata or {}
    tags, unit = file.pages.first.tags, str(known.get("unit", "")).encode("latin-1").decode("unicode_escape")
    steps = {"z": (_step(known.get("spacing")), 0.0, unit), "t": (_step(known.get("finterval")), 0.0, "s")}
    for axis, name in (("x", "XResolution"), ("y", "YResolution")):
        if unit and name in tags:  # without a unit, it is that of a printer
            pixels, length = tags[name].value
            steps[axis] = length / pixels, 0.0, unit
    tables = [[int(value) for value in table[:, -1]] for table in known.get("LUTs", ())]
    return _stated(steps), [], [red << 16 | green << 8 | blue for red, green, blue in tables]


def _of_dpca(file: TiffFile) -> _Found:
    known: Mapping[str, Any] = (file.shaped_metadata or ({},))[0]
    prefix = "spacing_"
    steps = {
        name.removeprefix(prefix): (_step(step), 0.0, str(known.get(name.replace(prefix, "unit_"), "")))
        for name, step in known.items()
        if name.startswith(prefix)
    }
    colors = [int(str(color).removeprefix("#"), 16) for color in known.get("channel_colors", ())]
    return _stated(steps), [str(name) for name in known.get("channels", ())], colors


def _step(value: Any) -> float:
    return math.nan if value is None else float(value)


def _stated(steps: Mapping[str, tuple[float, float, str]]) -> dict[str, tuple[float, float, str]]:
    return {axis: stated for axis, stated in steps.items() if stated[0] > 0}
