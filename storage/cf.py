"""The netCDF conventions for stored values: unpack scaled values, and mask or reject missing ones.

The CF conventions (sections 2.5 and 8.1) and the netCDF users' guide define these attributes:

* ``_FillValue``, ``missing_value``, ``valid_min``, ``valid_max``, ``valid_range`` define missing values. A valid range
  refers to the stored values. A range of floats for packed integers refers to the unpacked values.
* ``scale_factor``, ``add_offset``: value = stored value * factor + offset. The result has the type of the attributes,
  float32 or float64, and is float64 if float32 could lose precision.
* ``_Unsigned``: whether integers are unsigned or signed, regardless of their stored type.

The fill value of the file format marks missing values, too: netCDF-4 and xarray store theirs there, and values that
were never written are decoded as it. A fill value of zero is ignored, since formats use it as their default. NaN and
infinities are ignored here, since they are rejected everywhere.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dpca.storage.errors import DataError

ATTRIBUTES = (
    *("_FillValue", "missing_value", "valid_min", "valid_max", "valid_range"),
    *("scale_factor", "add_offset", "_Unsigned"),
)
# Those that state missing values.
_MISSING = ATTRIBUTES[:5]

#: The last part of error messages about values that are missing or not finite.
REMEDY = (
    'every value must be finite, so fit PCA, CellPCA, BandPCA or StreamingPCA with gaps="iterate" (--gaps iterate), '
    'fill missing values (dpca fill, or x.where(x.notnull().all("time"), 0) in xarray), or leave out attributes with '
    'missing values (x.stack(place=("lat", "lon")).dropna("place")); an attribute that is constant, such as land, '
    "changes no component"
)

#: The last part of error messages about infinities in samples with missing values.
INFINITE_REMEDY = 'replace infinities by NaN, or fit with missing_value="infinite" (--missing-value infinite)'

Number = int | float

_SPELLED = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True)
class Coding:
    """The decoding of stored values; small and picklable.

    Attributes
    ----------
    stored : numpy dtype
        Native type of the stored values, with the sign that ``_Unsigned`` states.
    dtype : numpy dtype
        Type of the decoded values.
    missing : tuple of int or float
        Stored values that mean missing.
    low, high : int, float or None
        Valid range, of the decoded values if `decoded_range`, else of the stored values.
    decoded_range : bool
        See `low`.
    scale, offset : float
        Decoded value = stored value * scale + offset.
    may_miss : bool
        Whether attributes state which values mean missing. The fill value of a format alone does not count: libraries
        write it for all variables.
    """

    stored: np.dtype[Any]
    dtype: np.dtype[Any]
    missing: tuple[Number, ...] = ()
    low: Number | None = None
    high: Number | None = None
    decoded_range: bool = False
    scale: float = 1.0
    offset: float = 0.0
    may_miss: bool = False

    @property
    def packed(self) -> bool:
        """Whether decoding scales or shifts the stored values."""
        return (self.scale, self.offset) != (1.0, 0.0)

    def decode(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the decoded values; a masked array if values are missing.

        Parameters
        ----------
        values : ndarray
            Stored values, in native byte order.
        """
        values = values.view(self.stored)
        data = values
        if self.packed:
            data = values.astype(self.dtype)
            with np.errstate(over="ignore", invalid="ignore"):  # the caller rejects values that are not finite
                data *= self.dtype.type(self.scale)
                data += self.dtype.type(self.offset)
        absent = np.zeros(values.shape, bool)
        for value in self.missing:
            absent |= values == value
        ranged = data if self.decoded_range else values
        if self.low is not None:
            absent |= ranged < self.low
        if self.high is not None:
            absent |= ranged > self.high
        return np.ma.MaskedArray(data, absent) if absent.any() else data


def coding_of(attributes: Mapping[str, Any], dtype: np.dtype[Any], what: str, *, fill: Any = None) -> Coding | None:
    """Return the decoding of stored values according to their attributes.

    Parameters
    ----------
    attributes : mapping
        Attributes of the variable. Only `ATTRIBUTES` are used.
    dtype : numpy dtype
        Type of the stored values.
    what : str
        Name of the variable, for error messages.
    fill : number, optional
        Fill value of the file format for this variable, if it was set explicitly.

    Returns
    -------
    Coding or None
        None if the stored values need no decoding.

    Raises
    ------
    DataError
        If an attribute is not a number, or the scale factor is 0.
    """
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        return None
    stored = _meant(dtype.newbyteorder("="), attributes.get("_Unsigned"))
    stated = {name: _numbers(attributes, name, dtype, what) for name in ATTRIBUTES[:-1] if name in attributes}
    scale, scale_type = _factor(stated.get("scale_factor"), 1.0, "scale_factor", what)
    offset, offset_type = _factor(stated.get("add_offset"), 0.0, "add_offset", what)
    if scale == 0:
        raise DataError(f"{what} has scale_factor 0, which makes all values equal: correct the attribute")
    packed = (scale, offset) != (1.0, 0.0)
    of_format = [] if fill is None or not np.any(fill) else [np.asarray(fill).ravel()]
    missing = [*stated.get("_FillValue", ()), *stated.get("missing_value", ()), *(n for a in of_format for n in a)]
    limits = [stated.get(name) for name in ("valid_min", "valid_max", "valid_range")]
    decoded_range = packed and stored.kind in "iu" and any(a is not None and a.dtype.kind == "f" for a in limits)
    low, high = _valid_range(*limits, what=what)
    if not decoded_range:
        low, high = (None if n is None else _as_stored(n, dtype, stored) for n in (low, high))
    coding = Coding(
        stored=stored,
        dtype=_data_type(stored, scale_type, offset_type) if packed else stored,
        missing=tuple(dict.fromkeys(_representable(missing, dtype, stored))),
        low=low,
        high=high,
        decoded_range=decoded_range,
        scale=scale,
        offset=offset,
        may_miss=not {*stated}.isdisjoint(_MISSING),
    )
    plain = not (packed or coding.missing) and low is None and high is None and stored == dtype.newbyteorder("=")
    return None if plain else coding


def coding_of_zarr(array: zarr.Array[Any], what: str) -> Coding | None:
    """Return the decoding of a Zarr array, see `coding_of`.

    Notes
    -----
    In Zarr version 2, xarray stores ``_FillValue`` only as the fill value of the array. Other programs set the fill
    value of single bytes arbitrarily, so it is ignored.
    """
    dtype, attributes = np.dtype(array.dtype), array.attrs.asdict()
    by_xarray = array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in attributes
    fill = array.fill_value if (by_xarray or dtype.itemsize > 1) and dtype.kind in "iuf" else None
    if by_xarray and fill is not None and np.any(fill):
        attributes = {"_FillValue": fill, **attributes}
    return coding_of(attributes, dtype, what, fill=fill)


def require_plain(where: str, array: zarr.Array[Any]) -> None:
    """Reject a Zarr array whose values require decoding.

    Parameters
    ----------
    where : str
        Path of the array, for the error message.
    array : zarr.Array
        Any array.

    Raises
    ------
    DataError
        If attributes of the array state a scale, an offset, missing values or a valid range.
    """
    coding = coding_of_zarr(array, f"'{where}'")
    if coding is None:
        return
    if coding.packed or coding.stored != np.dtype(array.dtype).newbyteorder("="):
        facts = "packed values (scale_factor, add_offset or _Unsigned)"
    elif coding.missing:
        facts = f"a missing value ({coding.missing[0]:g})"
    else:
        facts = "a valid range, outside of which values are missing"
    raise DataError(f"'{where}' has {facts}, which only ingest decodes: convert it with `dpca ingest`")


def _meant(dtype: np.dtype[Any], unsigned: Any) -> np.dtype[Any]:
    """Return the type with the sign that ``_Unsigned`` states."""
    text = unsigned.decode("ascii", "replace") if isinstance(unsigned, bytes) else str(unsigned)
    if text.lower() == "true" and dtype.kind == "i":
        return np.dtype(f"u{dtype.itemsize}")
    if text.lower() == "false" and dtype.kind == "u":
        return np.dtype(f"i{dtype.itemsize}")
    return dtype


def _numbers(attributes: Mapping[str, Any], name: str, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    value = attributes[name]
    if isinstance(value, str) and dtype.kind == "f":
        # JSON has no NaN or infinity, and xarray writes fill values to Zarr version 3 in base64.
        with suppress(ValueError, struct.error):
            value = (
                float(value) if value in _SPELLED else struct.unpack("<d", base64.b64decode(value, validate=True))[0]
            )
    try:
        numbers = np.asarray(value).ravel()
    except (ValueError, OverflowError):
        numbers = np.empty(0, object)
    if numbers.dtype.kind not in "iuf" or not len(numbers):
        raise DataError(
            f"{what} has {name} {str(attributes[name])[:40]!r}, which is not a number: correct the attribute"
        )
    return numbers


def _factor(stated: NDArray[Any] | None, default: float, name: str, what: str) -> tuple[float, np.dtype[Any] | None]:
    if stated is None:
        return default, None
    if len(stated) != 1 or not math.isfinite(float(stated[0])):
        raise DataError(f"{what} has {name} {stated.tolist()}, which must be one finite number: correct the attribute")
    return float(stated[0]), stated.dtype


def _data_type(stored: np.dtype[Any], scale: np.dtype[Any] | None, offset: np.dtype[Any] | None) -> np.dtype[Any]:
    """Return the type of unpacked values: float32 only if the attributes have this type and no precision is lost."""
    single = np.dtype(np.float32)
    narrow = stored.itemsize <= 2 or stored == single
    # An offset of another type than the factor may be a large integer. NumPy treats None as equal to float64.
    agreed = scale is not None and scale == single and (offset is None or offset == single)
    return single if narrow and agreed else np.dtype(np.float64)


def _as_stored(number: Any, dtype: np.dtype[Any], stored: np.dtype[Any]) -> Number:
    """Convert a number of the stored type to the type with the sign that ``_Unsigned`` states."""
    value: Number = number.item() if isinstance(number, np.generic) else number
    if dtype.kind in "iu" and stored.kind != dtype.kind and float(value).is_integer():
        limits, bits = np.iinfo(stored), 8 * stored.itemsize
        if not limits.min <= value <= limits.max and abs(value) < 1 << bits:
            return int(value) + (1 << bits if value < 0 else -(1 << bits))
    return value


def _representable(numbers: list[Any], dtype: np.dtype[Any], stored: np.dtype[Any]) -> Iterator[Number]:
    """Yield the numbers that a stored value can equal, converted to its type."""
    for number in numbers:
        if not np.isfinite(number):
            continue
        value = _as_stored(number, dtype, stored)
        if stored.kind == "f":
            with np.errstate(over="ignore"):
                cast = float(stored.type(value))
            if math.isfinite(cast):
                yield cast
        elif float(value).is_integer() and np.iinfo(stored).min <= int(value) <= np.iinfo(stored).max:
            yield int(value)


def _valid_range(
    least: NDArray[Any] | None, most: NDArray[Any] | None, both: NDArray[Any] | None, *, what: str
) -> tuple[Any, Any]:
    if both is not None and len(both) != 2:
        raise DataError(f"{what} has valid_range {both.tolist()}, which must be two numbers: correct the attribute")
    if both is not None:
        return both[0], both[1]
    return (None if least is None else least[0]), (None if most is None else most[0])
