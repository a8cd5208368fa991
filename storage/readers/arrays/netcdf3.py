"""One variable of a netCDF-3 file (classic or 64-bit offset), decoded by the conventions of netCDF.

scipy reads the header; the values are then mapped from where they lie, those of records among other variables', too.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpca.storage import cf
from dpca.storage.arrays.coordinates import beside, collect
from dpca.storage.errors import DataError, one_line
from dpca.storage.readers.arrays.raw import Raw, RawReader, choose_key
from dpca.storage.readers.base import Reader, digest, digest_file
from dpca.storage.readers.format import Format

# what the library writes before the first value is written, by type; of single bytes nothing is one
_FILLS = {"i2": -32767, "i4": -2147483647, "f4": 9.969209968386869e36, "f8": 9.969209968386869e36}
_CDF5 = b"CDF\x05"


class _Variable(NamedTuple):
    raw: Raw
    dimensions: tuple[str, ...]
    attributes: Mapping[str, Any]


def open_netcdf3(path: str, key: str | None = None, axes: Sequence[str] | None = None) -> Reader:
    """Open one variable.

    Parameters
    ----------
    path : str
        The file.
    key : str, optional
        Name of the variable, see `dpca.storage.readers.arrays.raw.choose_key`.
    axes : sequence of str, optional
        See `dpca.storage.readers.arrays.raw.ArrayReader`; by default the names of the dimensions, the first of which
        counts
        the samples.

    Raises
    ------
    DataError
        If the file is broken, or the variable is not determined.
    """
    name, path = os.path.basename(path), os.path.abspath(path)
    with open(path, "rb") as file:
        if file.read(4) == _CDF5:
            raise DataError(
                f"'{name}' is netCDF with 64-bit data (CDF-5), which is not read: nccopy -k nc4 converts it"
            )
    variables = _variables(path)
    others = beside(variable.attributes for variable in variables.values()) if key is None else ()
    key = choose_key(name, {k: v.raw.shape for k, v in variables.items() if k not in others}, key)
    raw, dimensions, attributes = variables[key]
    dtype = np.dtype(raw.dtype)
    return RawReader(
        raw,
        kind="netcdf3",
        identity=partial(digest, [digest_file(path), key]),
        name=f"{name}/{key}",
        axes=axes,
        end=raw.end,
        coding=cf.coding_of(attributes, dtype, f"'{name}/{key}'", fill=_FILLS.get(dtype.str[1:])),
        coordinates=collect(dimensions, raw.shape, attributes, lambda other: _beside(variables.get(other))),
    )


def _beside(variable: _Variable | None) -> tuple[tuple[str, ...], NDArray[Any], Mapping[str, Any]] | None:
    if variable is None or variable.raw.end > os.path.getsize(variable.raw.path):
        return None
    return variable.dimensions, variable.raw.mapped(), variable.attributes


def _variables(path: str) -> dict[str, _Variable]:
    """Return where the variables of numbers lie: what scipy maps must be gone before it closes the file."""
    from scipy.io import netcdf_file  # few sources are such

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what scipy cannot close once it has failed
        try:
            with netcdf_file(path, mmap=True, maskandscale=False) as file:
                return {
                    name: _Variable(
                        _place(path, variable.data),
                        tuple(variable.dimensions),
                        dict(variable._attributes),
                    )
                    for name, variable in file.variables.items()
                    if variable.data.dtype.kind in "iuf"
                }
        except MemoryError:
            raise
        except Exception as error:
            # A hostile header can end in any exception inside scipy; all of them mean the same here.
            why = one_line(error)
    raise DataError(f"'{os.path.basename(path)}' is truncated or no netCDF file ({why}): get it again")


def _place(path: str, values: NDArray[Any]) -> Raw:
    whole = values
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    offset = values.ctypes.data - whole.ctypes.data
    return Raw(path, offset, tuple(map(int, values.shape)), values.dtype.str, strides=values.strides)


FORMATS = (Format("netCDF-3", lambda file: file.first[:4] in (b"CDF\x01", b"CDF\x02", _CDF5), open_netcdf3),)
