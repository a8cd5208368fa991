"""One variable of a netCDF-3 file (classic or 64-bit offset), decoded by the conventions of netCDF.

scipy reads the header. The values are then mapped at their place, also those of record variables, which are interleaved
with other variables.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpca.storage import cf
from dpca.storage.arrays.coordinates import OF_FILES, beside, collect
from dpca.storage.disk import begin_of
from dpca.storage.errors import DataError, one_line
from dpca.storage.readers.arrays.raw import Raw, RawReader, choose_key
from dpca.storage.readers.base import Reader
from dpca.storage.readers.format import Format

# Default fill values of the netCDF library, by type. Single bytes have none.
_FILLS = {"i2": -32767, "i4": -2147483647, "f4": 9.969209968386869e36, "f8": 9.969209968386869e36}
_CDF5 = b"CDF\x05"


class _Variable(NamedTuple):
    raw: Raw
    dimensions: tuple[str, ...]
    attributes: dict[str, Any]


def open_netcdf3(path: str, key: str | None = None, axes: Sequence[str] | None = None) -> Reader:
    """Open one variable.

    Parameters
    ----------
    path : str
        The file.
    key : str, optional
        Name of the variable, see `dpca.storage.readers.arrays.raw.choose_key`.
    axes : sequence of str, optional
        See `dpca.storage.readers.arrays.raw.ArrayReader`. The default is the names of the dimensions, with samples
        along the first.

    Raises
    ------
    DataError
        If the file is broken, or it is unclear which variable has the samples.
    """
    name, path = os.path.basename(path), os.path.abspath(path)
    if begin_of(path, 4) == _CDF5:
        raise DataError(
            f"'{name}' is netCDF with 64-bit data (CDF-5), which is not supported: nccopy -k nc4 converts it"
        )
    variables, of_file = _variables(path)
    others = beside(variable.attributes for variable in variables.values()) if key is None else ()
    key = choose_key(name, {k: v.raw.shape for k, v in variables.items() if k not in others}, key)
    raw, dimensions, attributes = variables[key]
    dtype = np.dtype(raw.dtype)
    coding = cf.coding_of(attributes, dtype, f"'{name}/{key}'", fill=_FILLS.get(dtype.str[1:]))
    coordinates = collect(dimensions, raw.shape, of_file | attributes, lambda other: _beside(variables.get(other)))
    return RawReader(raw, f"{name}/{key}", axes, coordinates, coding, kind="netcdf3", key=key, end=raw.end)


def _beside(variable: _Variable | None) -> tuple[tuple[str, ...], NDArray[Any], Mapping[str, Any]] | None:
    if variable is None or variable.raw.end > os.path.getsize(variable.raw.path):
        return None
    return variable.dimensions, variable.raw.values(), variable.attributes


def _variables(path: str) -> tuple[dict[str, _Variable], dict[str, Any]]:
    """Return the places of the numeric variables, and the attributes of the file.

    The mapping of scipy must be unused before it closes the file.
    """
    from scipy.io import netcdf_file  # imported here, since few sources are netCDF files

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns if it cannot close a broken file
        try:
            with netcdf_file(path, mmap=True, maskandscale=False) as file:
                found = {
                    name: _Variable(_place(path, variable.data), tuple(variable.dimensions), dict(variable._attributes))
                    for name, variable in file.variables.items()
                    if variable.data.dtype.kind in "iuf"
                }
                return found, {key: text for key, text in file._attributes.items() if key in OF_FILES}
        except MemoryError:
            raise
        except Exception as error:  # a malicious header can cause any exception in scipy
            why = one_line(error)
    # Raised without its cause, which would keep the mapping of scipy open.
    raise DataError(f"'{os.path.basename(path)}' is truncated, or not a netCDF file ({why}): get it again")


def _place(path: str, values: NDArray[Any]) -> Raw:
    whole = values
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    offset = values.ctypes.data - whole.ctypes.data
    return Raw(path, offset, tuple(map(int, values.shape)), values.dtype.str, strides=values.strides)


FORMATS = (Format("netCDF-3", lambda file: file.first[:4] in (b"CDF\x01", b"CDF\x02", _CDF5), open_netcdf3),)
