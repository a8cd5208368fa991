"""Files with the values of all samples in one piece, which tasks fill in any order.

Each function writes the header of a file and returns the position of the first value. The values follow in C order, in
little-endian bytes, samples first. ``lead`` is (n_samples,), or empty for a file with one sample and no such axis.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpca.jobs.export.sample_files import SampleKind, nifti_header, tiff_options
from dpca.kernels.algebra.types import Region
from dpca.storage.arrays.coordinates import BESIDE, OF_FILES, Coordinate, Coordinates, fixed_width
from dpca.storage.arrays.layout import SAMPLE
from dpca.storage.readers.base import require

Lead = tuple[int, ...]
# Names of a first axis that counts times.
_STEPS = ("t", "time", "step")
# The name that netCDF gives a dimension without coordinates (netCDF-4 format specification, "Dimensions").
_NO_COORDINATE = "This is a netCDF dimension but not a netCDF variable.{:10d}"


def begin_npy(path: Path, lead: Lead, kind: SampleKind, names: Sequence[str], along: Coordinates | None) -> int:
    """Write the header of a NumPy file."""
    described = {"descr": _stored(kind).str, "fortran_order": False, "shape": (*lead, *kind.shape)}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, described)
        return file.tell()


def begin_tiff(path: Path, lead: Lead, kind: SampleKind, names: Sequence[str], along: Coordinates | None) -> int:
    """Write the headers of the pages of a TIFF file; of a BigTIFF if it has more than 4 GB."""
    from tifffile import imwrite

    options = tiff_options(kind, ("T" if "T" not in kind.letters else "I") if lead else "")
    found = imwrite(path, shape=(*lead, *kind.shape), dtype=_stored(kind), returnoffset=True, byteorder="<", **options)
    assert found is not None  # values in one piece have an offset
    return int(found[0])


def begin_nifti(path: Path, lead: Lead, kind: SampleKind, names: Sequence[str], along: Coordinates | None) -> int:
    """Write the header of a NIfTI file with samples along its fourth axis."""
    return path.write_bytes(nifti_header(replace(kind, along=along), lead))


def begin_netcdf(path: Path, lead: Lead, kind: SampleKind, names: Sequence[str], along: Coordinates | None) -> int:
    """Write a netCDF-4 file with the coordinates and the names of samples, and an empty variable.

    Raises
    ------
    DataError
        If h5py is not installed.
    """
    h5py: Any = require("h5py", "hdf5", "a netCDF file")
    known = along or Coordinates((SAMPLE, *kind.axes), {}, {})
    first, numbered = known.dims[0], all(text.isdecimal() for text in names)
    if numbered and lead and first not in known.arrays:
        numbers = Coordinate((first,), np.array([int(text) for text in names]), {})
        known = replace(known, arrays={**known.arrays, first: numbers})
    name = "name" if "name" not in (*known.arrays, *known.dims) else "sample_name"
    with h5py.File(path, "w", track_order=True) as file:
        scales = []
        for number, (dim, length) in enumerate(zip(known.dims, (*lead, *kind.shape), strict=True)):
            own = known.arrays.get(dim)
            if own is None:
                scale = file.create_dataset(dim, (length,), ">f4")
                scale.make_scale(_NO_COORDINATE.format(length))
            else:
                # Readers of VTK find the times by this attribute.
                told = {"axis": "T"} if number == 0 and dim.lower() in _STEPS else {}
                scale = _with_values(h5py, file, dim, own.values, {**told, **own.attributes})
                scale.make_scale(dim)
            scale.attrs["_Netcdf4Dimid"] = np.int32(number)
            scales.append(scale)
        beside: dict[str, Any] = {key: one for key, one in known.arrays.items() if key not in known.dims}
        if not numbered:
            beside[name] = Coordinate((first,), np.array(list(names)), {})
        for key, one in beside.items():
            texts = one.values.dtype.kind not in "biuf"
            made = (_with_texts if texts else _with_values)(h5py, file, key, one.values, one.attributes)
            for axis, dim in enumerate(one.dims):
                made.dims[axis].attach_scale(scales[known.dims.index(dim)])
        # HDF5 assigns a place to the values of a contiguous variable when the first one is written.
        variable = next(name for name in (kind.variable, "samples", "values") if name not in file)
        values = file.create_dataset(variable, (*lead, *kind.shape), _stored(kind), track_order=True)
        of_file = {key: text for key, text in known.attributes.items() if key in OF_FILES}
        of_values = {key: text for key, text in known.attributes.items() if key not in OF_FILES}
        described = {**of_values, **({BESIDE: " ".join(beside)} if beside else {})}
        _describe(h5py, values, described)
        for axis, scale in enumerate(scales):
            values.dims[axis].attach_scale(scale)
        _describe(h5py, file, {"Conventions": "CF-1.8", **of_file})
        values[(0,) * values.ndim] = 0
        return int(values.id.get_offset())


def _with_values(h5py: Any, file: Any, name: str, values: Any, attributes: Mapping[str, str]) -> Any:
    # netCDF has no booleans, and no floating-point numbers of 16 bits.
    stored = np.dtype({"?": "i1", "e": "f4"}.get(values.dtype.char, values.dtype))
    numbers = stored.kind in "iuf"
    made = file.create_dataset(name, values.shape, stored if numbers else h5py.string_dtype(), track_order=True)
    made[...] = values if numbers else np.array(fixed_width(values).tolist(), object)
    _describe(h5py, made, attributes)
    return made


def _with_texts(h5py: Any, file: Any, name: str, values: Any, attributes: Mapping[str, str]) -> Any:
    """Write texts as characters along a dimension of their own: readers of VTK crash at texts of variable length."""
    encoded = np.array([text.encode() for text in fixed_width(values).tolist()])
    characters = encoded.view("S1").reshape(len(encoded), -1)
    made = file.create_dataset(name, data=characters, track_order=True)
    scale = file.create_dataset(f"{name}_length", characters.shape[1:], ">f4")
    scale.make_scale(_NO_COORDINATE.format(characters.shape[1]))
    made.dims[1].attach_scale(scale)
    _describe(h5py, made, {**attributes, "_Encoding": "utf-8"})
    return made


def _describe(h5py: Any, made: Any, attributes: Mapping[str, str]) -> None:
    """Write attributes as characters, because readers of VTK find no texts of variable length."""
    for key, text in attributes.items():
        encoded = text.encode()
        made.attrs.create(key, encoded, dtype=h5py.string_dtype("utf-8", max(1, len(encoded))))


def create_file(
    begin: Callable[[Path, Lead, SampleKind, Sequence[str], Coordinates | None], int],
    lead: Lead,
    path: Path,
    kind: SampleKind,
    names: Sequence[str],
    along: Coordinates | None,
) -> int:
    """Write the header of a file and give it its final size; return the position of the first value.

    A file system does not store what is not written yet.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    first = begin(path, lead, kind, names, along)
    os.truncate(path, max(os.path.getsize(path), first + math.prod(lead) * _row_bytes(kind)))
    return first


def write_values(path: Path, first: int, row: int, values: np.ndarray[Any, Any], kind: SampleKind) -> None:
    """Write the values of samples from the index ``row`` on."""
    with open(path, "r+b") as file:
        file.seek(first + row * _row_bytes(kind))
        file.write(np.ascontiguousarray(values, _stored(kind)).data)


def write_box(path: Path, first: int, region: Region, values: np.ndarray[Any, Any], kind: SampleKind) -> None:
    """Write a box of one sample whose first value is at ``first``, in runs along the last axis that the box divides."""
    lengths, size = kind.shape, kind.dtype.itemsize
    cut = max((axis for axis, (n, (a, b)) in enumerate(zip(lengths, region, strict=True)) if b - a < n), default=0)
    steps = [math.prod(lengths[axis + 1 :]) * size for axis in range(len(lengths))]
    runs = np.ascontiguousarray(values, _stored(kind)).reshape(*values.shape[:cut], -1)
    with open(path, "r+b") as file:
        for index in np.ndindex(runs.shape[:-1]):
            at = (a + i for (a, _), i in zip(region, (*index, 0), strict=False))
            file.seek(first + sum(place * step for place, step in zip(at, steps, strict=False)))
            file.write(runs[index].data)


def _row_bytes(kind: SampleKind) -> int:
    return math.prod(kind.shape) * kind.dtype.itemsize


def _stored(kind: SampleKind) -> np.dtype[Any]:
    return kind.dtype.newbyteorder("<")
