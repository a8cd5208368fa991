"""Arrays of xarray, which is imported by those who have them, and never here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from dpca.storage.coordinates import BESIDE, Coordinates, collect, fixed_width
from dpca.storage.errors import DataError


def is_labelled(x: Any) -> bool:
    """Say whether this is an array or a data set of xarray."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(x, (xarray.DataArray, xarray.Dataset))


def labelled_array(x: Any, key: str | None = None) -> Any:
    """Return an ``xarray.DataArray`` as it is, or the variable ``key`` of an ``xarray.Dataset``.

    Raises
    ------
    DataError
        If there is no such variable, or none is named.
    """
    if not hasattr(x, "data_vars"):
        if key is not None:
            raise DataError(f"key={key!r} chooses a variable of a Dataset, and this is one DataArray: leave it out")
        return x
    names = list(x.data_vars)
    if key not in names:
        what = "a Dataset was given" if key is None else f"there is no variable {key!r} in the Dataset"
        example = f", such as dataset[{names[0]!r}]" if names else ""
        raise DataError(f"{what}, which holds {', '.join(map(repr, names)) or 'none'}: give one variable{example}")
    return x[key]


def called(x: Any) -> str:
    """Return what messages call a ``DataArray``."""
    return "the DataArray" if x.name is None else f"the DataArray {x.name!r}"


def leading_dims(x: Any, wanted: str | Sequence[str] | None) -> tuple[Any, ...]:
    """Return the dims of a ``DataArray`` that count samples: the wanted ones, by default the first.

    Raises
    ------
    DataError
        If it does not have such dims.
    """
    if wanted is None:
        return (x.dims[0],) if x.dims else ()
    dims = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    if not dims or len(set(dims)) != len(dims) or not set(dims) <= set(x.dims):
        raise DataError(f"sample_dim is {wanted!r} but {called(x)} has the dims {x.dims}: give one of them, or several")
    return dims


def coordinates_of(x: Any) -> Coordinates | None:
    """Return the coordinates of a ``DataArray``, as netCDF stores them; None where its dims have no names that differ.

    Several along one dim that make an index together, as after ``x.stack``, are kept one by one.
    """
    import xarray  # whoever gave the array has it

    several = [name for name, index in x.coords.xindexes.items() if len(x.coords.xindexes.get_all_coords(name)) > 1]
    plain = x.reset_index(list(dict.fromkeys(x[name].dims[0] for name in several))) if several else x
    beside = {}
    for name, coord in plain.coords.items():
        stored = xarray.conventions.encode_cf_variable(coord.variable.load())
        attributes = {key: value for key, value in stored.attrs.items() if key != "_FillValue"}
        beside[str(name)] = tuple(map(str, stored.dims)), stored.values, attributes
    return collect([str(dim) for dim in x.dims], x.shape, {**x.attrs, BESIDE: " ".join(beside)}, beside.get)


def as_coords(coordinates: Coordinates) -> Any:
    """Return coordinates as ``xarray.Coordinates``, times decoded."""
    import xarray

    arrays = {name: (c.dims, fixed_width(c.values), c.attributes) for name, c in coordinates.arrays.items()}
    return xarray.decode_cf(xarray.Dataset(coords=arrays)).coords
