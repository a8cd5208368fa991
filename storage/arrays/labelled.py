"""Support for xarray arrays. xarray is optional and is only imported if the caller has imported it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from dpca.storage.arrays.coordinates import BESIDE, Coordinates, collect, fixed_width
from dpca.storage.errors import DataError


def is_labelled(x: Any) -> bool:
    """Return whether ``x`` is an xarray DataArray or Dataset."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(x, (xarray.DataArray, xarray.Dataset))


def labelled_array(x: Any, key: str | None = None) -> Any:
    """Return an ``xarray.DataArray`` unchanged, or the variable ``key`` of an ``xarray.Dataset``.

    Raises
    ------
    DataError
        If a Dataset has no such variable, or ``key`` is not given.
    """
    if not hasattr(x, "data_vars"):
        if key is not None:
            raise DataError(f"key={key!r} selects a variable of a Dataset, but this is a DataArray: leave key out")
        return x
    names = list(x.data_vars)
    if key not in names:
        what = "a Dataset was given" if key is None else f"there is no variable {key!r} in the Dataset"
        example = f", such as dataset[{names[0]!r}]" if names else ""
        raise DataError(f"{what} with the variables {', '.join(map(repr, names)) or 'none'}: give one{example}")
    return x[key]


def called(x: Any) -> str:
    """Return the name of a ``DataArray`` in messages."""
    return "the DataArray" if x.name is None else f"the DataArray {x.name!r}"


def leading_dims(x: Any, wanted: str | Sequence[str] | None) -> tuple[Any, ...]:
    """Return the sample dims of a ``DataArray``: the given ones, by default the first dim.

    Raises
    ------
    DataError
        If it does not have these dims.
    """
    if wanted is None:
        return (x.dims[0],) if x.dims else ()
    dims = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    if not dims or len(set(dims)) != len(dims) or not set(dims) <= set(x.dims):
        raise DataError(f"sample_dim is {wanted!r}, but {called(x)} has the dims {x.dims}: give one or several of them")
    return dims


def coordinates_of(x: Any) -> Coordinates | None:
    """Return the coordinates of a ``DataArray`` in their netCDF form; None if its dims have no distinct names.

    The levels of a MultiIndex, as after ``x.stack``, become separate coordinates.
    """
    import xarray  # installed, since the caller passed an xarray object

    several = [name for name, index in x.coords.xindexes.items() if len(x.coords.xindexes.get_all_coords(name)) > 1]
    plain = x.reset_index(list(dict.fromkeys(x[name].dims[0] for name in several))) if several else x
    beside = {}
    for name, coord in plain.coords.items():
        stored = xarray.conventions.encode_cf_variable(coord.variable.load())
        attributes = {key: value for key, value in stored.attrs.items() if key != "_FillValue"}
        beside[str(name)] = tuple(map(str, stored.dims)), stored.values, attributes
    return collect([str(dim) for dim in x.dims], x.shape, {**x.attrs, BESIDE: " ".join(beside)}, beside.get)


def as_coords(coordinates: Coordinates) -> Any:
    """Return coordinates as ``xarray.Coordinates`` with decoded times."""
    import xarray

    arrays = {name: (c.dims, fixed_width(c.values), c.attributes) for name, c in coordinates.arrays.items()}
    return xarray.decode_cf(xarray.Dataset(coords=arrays)).coords
