"""Names of the axes of an array, and coordinates along them, stored as in netCDF and xarray.

A one-dimensional array with the name of an axis holds the coordinates of this axis. The attribute ``coordinates`` of an
array lists its other coordinates, such as latitudes of a curved grid (CF conventions, chapter 5). Values keep their
stored form: times are numbers with the attributes ``units`` and ``calendar``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import prod
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dpca.storage import cf
from dpca.storage.arrays.arrays import create_array, write_shard, write_strings
from dpca.storage.arrays.layout import SAMPLE, Layout, named_axes
from dpca.storage.arrays.reading import array_in
from dpca.storage.errors import DataError

# Names of arrays and groups in dpca stores.
_RESERVED = frozenset(
    ("samples", "name", "label", "rejected", "component", "scores", "reconstructions", "mse", "psnr", "ssim")
) | {"model", "stack", "variable_mse"}
UNITS = "units"
#: Attributes of volumes: 12 numbers that map (x, y, z) in voxels to a space, the name of this space, and the time in
#: seconds between successive samples.
AFFINE, AFFINE_SPACE, TIME_STEP = "nifti_affine", "nifti_space", "time_step"
_OF_VOLUMES = (AFFINE, AFFINE_SPACE, TIME_STEP)
#: Attributes that describe a whole file (CF conventions, section 2.6.2). They are attributes of the samples here.
OF_FILES = ("title", "institution", "source", "references", "history")
_DESCRIBING = ("standard_name", "long_name", UNITS, "calendar", "axis", "positive", "dtype", *_OF_VOLUMES, *OF_FILES)
#: The attribute that lists the coordinates without the name of an axis.
BESIDE = "coordinates"
#: The coordinate with the colors of the channels, texts such as "#00ff00".
CHANNEL_COLOR = "channel_color"
_RGB = re.compile("#[0-9a-f]{6}")
_MOST, _CHUNK = 2**25, 2**16
# Unit and reference date of times (CF conventions, section 4.4). The calendars below agree from 1583 on.
_SINCE = re.compile(r"(day|hour|minute|second)s? since (\d+)-(\d+)-(\d+)(?:[T ](\d+):(\d+)(?::(\d+)(?:\.0*)?)?)?")
#: Units of times without a reference date.
DURATIONS = ("ms", "millisecond", "s", "second", "min", "minute", "h", "hour")
_SECONDS = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
_CALENDARS = ("", "standard", "gregorian", "proleptic_gregorian")


@dataclass(frozen=True, eq=False)
class Coordinate:
    """Numbers or texts along some axes of an array, and attributes such as their units."""

    dims: tuple[str, ...]
    values: NDArray[Any]
    attributes: Mapping[str, str]


_LONGITUDES = ("lon", "longitude", "nav_lon", "xlong")
_LATITUDES = ("lat", "latitude", "nav_lat", "xlat")


def is_latitude(name: str, attributes: Mapping[str, Any]) -> bool:
    """Return whether a coordinate holds latitudes, by its name or its attributes (CF conventions, section 4.1)."""
    units = str(attributes.get("units", "")).lower()
    return name.lower() in _LATITUDES or attributes.get("standard_name") == "latitude" or units == "degrees_north"


def is_longitude(name: str, attributes: Mapping[str, Any]) -> bool:
    """Return whether a coordinate holds longitudes; see `is_latitude`."""
    units = str(attributes.get("units", "")).lower()
    return name.lower() in _LONGITUDES or attributes.get("standard_name") == "longitude" or units == "degrees_east"


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The names of the axes of an array, and the coordinates along them.

    Attributes
    ----------
    dims : tuple of str
        Distinct names of all axes.
    arrays : mapping of str to Coordinate
        Coordinates by name.
    attributes : mapping of str to str
        Attributes of the array itself, such as units and name.
    """

    dims: tuple[str, ...]
    arrays: Mapping[str, Coordinate]
    attributes: Mapping[str, str]

    @property
    def sample_axes(self) -> tuple[str, ...] | None:
        """Names of the axes of a sample, samples being on the first axis; see `dpca.storage.arrays.layout`."""
        return named_axes(self.dims[1:])

    @property
    def northward(self) -> tuple[int, ...]:
        """Axes with ascending latitudes; an image with its first row at the top shows the south there."""
        found = [one for name, one in self.arrays.items() if one.dims[1:] == () and is_latitude(name, one.attributes)]
        return tuple(self.dims.index(one.dims[0]) for one in found if one.dims and one.values[0] < one.values[-1])

    @property
    def channel_colors(self) -> list[str] | None:
        """Colors of the channels, such as ``"#00ff00"``; None if they are not known."""
        found = self.arrays.get(CHANNEL_COLOR)
        texts = [] if found is None or found.values.ndim != 1 else [str(text) for text in found.values.tolist()]
        return texts if texts and all(map(_RGB.fullmatch, texts)) else None

    @property
    def stated(self) -> dict[str, str]:
        """Attributes of the stored array."""
        others = [name for name, found in self.arrays.items() if found.dims != (name,) and not set(name) & set(" \t\n")]
        return {**self.attributes, **({BESIDE: " ".join(others)} if others else {})}

    def arranged(self, order: Sequence[int], axes: Sequence[str]) -> Coordinates:
        """Return the coordinates after the axes are permuted and the axes of a sample are renamed to ``axes``.

        Coordinates with a name that dpca stores reserve are left out.
        """
        called = [self.dims[i] for i in order]
        first = called[0] if called[0] not in (*axes, *_RESERVED) else SAMPLE
        names = dict(zip(called, (first, *axes), strict=True))
        arrays = {
            names.get(name, name): replace(found, dims=tuple(names[dim] for dim in found.dims))
            for name, found in self.arrays.items()
            if (name in names or name not in names.values()) and names.get(name, name) not in _RESERVED
        }
        return Coordinates(tuple(names.values()), arrays, self.attributes)

    def of_one_sample(self) -> Coordinates:
        """Return the coordinates along the axes of a sample, without the first axis."""
        dims = self.dims[1:]
        return replace(self, dims=dims, arrays={k: c for k, c in self.arrays.items() if set(c.dims) <= set(dims)})

    def with_centers(
        self, names: Sequence[str], centers: Callable[[int, NDArray[Any]], NDArray[Any] | None]
    ) -> Coordinates:
        """Return these coordinates with those of a grid of cells added.

        Parameters
        ----------
        names : sequence of str
            Names of the axes of the grid.
        centers : callable
            Returns the centers of the cells from the number of an axis of a sample and the coordinates along it; None
            if the axis is not divided into cells.
        """
        arrays = dict(self.arrays)
        for axis, (name, dim) in enumerate(zip(names, self.dims[1:], strict=False)):
            found = self.arrays.get(dim)
            middle = None if found is None else centers(axis, found.values)
            if found is not None and middle is not None:
                arrays.setdefault(name, Coordinate((name,), middle, found.attributes))
        return replace(self, arrays=arrays)

    def of_samples(self, rows: NDArray[Any]) -> Coordinates:
        """Return the coordinates of some samples, given by their indices along the first axis."""
        first, stated = self.dims[0], dict(self.attributes)
        if (np.diff(rows) != 1).any():
            stated.pop(TIME_STEP, None)
        arrays = {
            name: replace(found, values=found.values.take(rows, found.dims.index(first)))
            if first in found.dims
            else found
            for name, found in self.arrays.items()
        }
        return replace(self, arrays=arrays, attributes=stated)


def collect(
    dims: Sequence[str],
    shape: Sequence[int],
    attributes: Mapping[str, Any],
    find: Callable[[str], tuple[Sequence[str], Any, Mapping[str, Any]] | None],
) -> Coordinates | None:
    """Return the coordinates of an array; None if its axes have no distinct names.

    Parameters
    ----------
    dims, shape, attributes
        Names of the axes, shape and attributes of the array.
    find : callable
        Returns the names of axes, the values (an array-like with shape and dtype) and the attributes of a neighboring
        array by its name; None if there is none.

    Notes
    -----
    Arrays on other axes, arrays with missing values (CF forbids them) and arrays of more than 33 million values are
    left out.
    """
    if len(set(dims)) != len(dims) or len(dims) != len(shape) or not all(dims):
        return None
    lengths, arrays = dict(zip(dims, shape, strict=True)), {}
    for name in dict.fromkeys((*dims, *_text_of(attributes.get(BESIDE)).split())):
        found = None if "/" in name else find(name)
        if found is None:
            continue
        own, stored, described = tuple(found[0]), found[1], found[2]
        if stored.dtype == np.dtype("S1") and len(own) == 2 and prod(stored.shape) <= _MOST:
            # Texts of netCDF, with an axis of characters.
            rows = [row.tobytes().rstrip(b"\0").decode("utf-8", "replace") for row in np.asarray(stored[...])]
            own, stored = own[:1], np.array(rows)
        fits = set(own) <= set(dims) and tuple(stored.shape) == tuple(lengths[dim] for dim in own)
        small = prod(stored.shape) <= _MOST
        if not (fits and small and (name not in dims or own == (name,))):
            continue
        if (values := _values(np.asarray(stored[...]), described, name)) is not None:
            arrays[name] = Coordinate(own, values, describing(described))
    return Coordinates(tuple(dims), arrays, describing(attributes, of_time=False))


def coordinates_in(
    group: zarr.Group, dims: Sequence[str], shape: Sequence[int], attributes: Mapping[str, Any]
) -> Coordinates | None:
    """Return the coordinates of an array with these dims from its group; see `collect`.

    In a group not created by dpca, all coordinates are left out if one cannot be read.
    """

    def find(name: str) -> tuple[Sequence[str], Any, Mapping[str, Any]] | None:
        if name not in group:
            return None
        array = array_in(group, name)
        return dims_of(array) or (), array, array.attrs.asdict()

    try:
        return collect(dims, shape, attributes, find)
    except Exception:  # foreign metadata and codecs raise arbitrary exceptions
        if getattr(group.store, "manifest", None) is not None:  # a dpca store must be readable
            raise
        return collect(dims, shape, attributes, lambda name: None)


def joined(parts: Sequence[Coordinates | None]) -> Coordinates | None:
    """Return the coordinates of arrays concatenated along samples.

    Attributes of the arrays, and coordinates along other axes, are kept only if they are equal.
    Times with different reference dates, such as the first day of each year, are converted to the first reference date.
    """
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or any(part.dims != known[0].dims for part in known):
        return None
    first, arrays = known[0], {}
    for name, found in first.arrays.items():
        same = [_counted_as(found, part.arrays[name]) for part in known if name in part.arrays]
        alike = all(one.dims == found.dims and one.attributes == found.attributes for one in same)
        if len(same) < len(known) or not alike:
            continue
        if first.dims[0] in found.dims:
            if found.attributes.get(UNITS) in DURATIONS and len(same) > 1:
                continue  # each file counts from its own beginning
            values = np.concatenate([one.values for one in same], found.dims.index(first.dims[0]))
            arrays[name] = replace(found, values=values)
        elif all(np.array_equal(one.values, found.values) for one in same):
            arrays[name] = found
    told = [part.attributes for part in known]
    stated = {key: text for key, text in told[0].items() if all(one.get(key) == text for one in told)}
    return replace(first, arrays=arrays, attributes=stated)


def _counted_as(first: Coordinate, other: Coordinate) -> Coordinate:
    """Convert times to the reference date of the first ones; return them unchanged if unit or calendar differ."""
    target, source = (_SINCE.fullmatch(one.attributes.get(UNITS, "").removesuffix(" UTC")) for one in (first, other))
    if target is None or source is None or target[0] == source[0] or target[1] != source[1]:
        return other
    if other.attributes.get("calendar", "") not in _CALENDARS or min(int(target[2]), int(source[2])) < 1583:
        return other
    try:
        target_date, source_date = _moment(target), _moment(source)
    except (ValueError, OverflowError):
        return other
    shift, rest = divmod((source_date - target_date) // timedelta(seconds=1), _SECONDS[target[1]])
    if rest:
        return other
    values = other.values.astype(np.promote_types(other.values.dtype, np.int64)) + shift
    return replace(other, values=values, attributes={**other.attributes, UNITS: first.attributes[UNITS]})


def _moment(since: re.Match[str]) -> datetime:
    year, month, day, hour, minute, second = (int(part or 0) for part in since.groups()[1:])
    return datetime(year, month, day, hour, minute, second)


def dims_of(array: zarr.Array[Any]) -> tuple[str, ...] | None:
    """Return the names of the axes of a Zarr array (in version 2, those that xarray writes); None if there are none."""
    names: Any = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    known = isinstance(names, Sequence) and len(names) == array.ndim and all(isinstance(name, str) for name in names)
    return tuple(names) if known else None


def write_coordinates(group: zarr.Group, coordinates: Coordinates | None) -> None:
    """Write coordinates as arrays of a group; a resumed run writes them again."""
    for name, found in ({} if coordinates is None else coordinates.arrays).items():
        values = found.values
        if values.dtype.kind not in "biuf":
            write_strings(group, name, values.tolist(), found.dims[0], found.attributes)
            continue
        chunks = (min(len(values), _CHUNK),) if values.ndim == 1 else values.shape
        layout = Layout(chunks, chunks)
        array = create_array(
            group, name, values.shape, values.dtype, layout, found.dims, attributes=dict(found.attributes)
        )
        for start in range(0, len(values), chunks[0]) if values.ndim else [()]:
            write_shard(array, start, values[start : start + chunks[0]] if values.ndim else values)


def describing(attributes: Mapping[str, Any], *, of_time: bool = True) -> dict[str, str]:
    """Return the attributes that describe values; without ``of_time``, time units are left out: xarray decodes them."""
    found = {name: _text_of(attributes[name]) for name in _DESCRIBING if name in attributes}
    return {
        name: text
        for name, text in found.items()
        if text and (of_time or not (name in ("calendar", "dtype") or " since " in text))
    }


def fixed_width(values: NDArray[Any]) -> NDArray[Any]:
    """Return numbers unchanged, and texts in the fixed-width type that xarray and Zarr version 2 support."""
    return values if values.dtype.kind in "biuf" else np.array(values.tolist(), str)


def beside(variables: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the names of bounds and coordinates that variables with these attributes refer to."""
    return {name for stated in variables for of in ("bounds", BESIDE) for name in _text_of(stated.get(of)).split()}


def _text_of(value: Any) -> str:
    """Return an attribute if it is a text, else an empty text."""
    value = value.item() if isinstance(value, np.ndarray | np.generic) and value.size == 1 else value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""


def _values(values: NDArray[Any], attributes: Mapping[str, Any], name: str) -> NDArray[Any] | None:
    """Return decoded numbers, or texts; None if values are missing or have another type."""
    if values.dtype.kind not in "biuf":
        texts = values.ndim == 1 and all(isinstance(value, str) for value in values.tolist())
        return values if texts else None
    try:
        coding = cf.coding_of(attributes, values.dtype, f"the coordinate {name!r}")
    except DataError:
        return None
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    values = values if coding is None else coding.decode(values)
    if np.ma.is_masked(values) or not np.isfinite(values).all():
        return None
    return np.asarray(values, order="C")  # unlike ascontiguousarray, this keeps the shape of a scalar
