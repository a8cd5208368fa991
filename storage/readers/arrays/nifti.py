"""Volumes in NIfTI files (versions 1 and 2, ``.nii`` and ``.nii.gz``): a header, then the values.

Axes are in the order of memory, slowest first: (t, z, y, x), the reverse of the order in nibabel and in the header. A
file with one volume is a stack of one sample, so several files, such as one per subject, form one stack. b-values of
diffusion weighting beside a file, as ``dwi.bval`` beside ``dwi.nii.gz`` (FSL, BIDS), are coordinates of its samples.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpca.storage import cf
from dpca.storage.arrays.coordinates import Coordinate, Coordinates
from dpca.storage.errors import DataError
from dpca.storage.readers.arrays.raw import Raw
from dpca.storage.readers.arrays.streamed import open_plain_or_gzip, unzipped
from dpca.storage.readers.base import Reader, source_errors
from dpca.storage.readers.format import Format

_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8", 1280: "u8"}
_AXES = ("sample", "z", "y", "x")
_B_VALUES = ".bval"


class _Layout(NamedTuple):
    """The fields of the header of a version: formats and offsets."""

    size: int
    magic: tuple[int, bytes]
    shape: tuple[str, int]
    type: int
    offset: tuple[str, int]
    scaling: tuple[str, int]


_LAYOUTS = (
    _Layout(348, (344, b"n+1\0"), ("8h", 40), 70, ("f", 108), ("2f", 112)),
    _Layout(540, (4, b"n+2\0\r\n\x1a\n"), ("8q", 16), 12, ("q", 168), ("2d", 176)),
)


def open_nifti(path: str, axes: Sequence[str] | None = None) -> Reader:
    """Open a NIfTI file: mapped, or streamed if it is compressed. ``scl_slope`` and ``scl_inter`` are applied.

    Parameters
    ----------
    path : str
        The file.
    axes : sequence of str, optional
        See `dpca.storage.readers.arrays.raw.ArrayReader`. By default, samples are along the fourth axis of the header.

    Raises
    ------
    DataError
        If it is broken or truncated, has more than four axes, or its values are not real numbers.
    """
    name, path = os.path.basename(path), os.path.abspath(path)
    with source_errors(f"'{name}' is truncated or broken"), unzipped(path) as file:
        raw, coding = _read_header(file.read(_LAYOUTS[-1].size), path, name)
    # Bytes after the values are allowed in a plain file only.
    reader = open_plain_or_gzip(raw, "nifti", axes or _AXES, coding, end=raw.end)
    beside = f"{path.removesuffix('.gz').removesuffix('.nii')}{_B_VALUES}"
    if os.path.isfile(beside):
        reader.add_coordinates(_b_values(beside, raw.shape[0]), beside)
    return reader


def _b_values(path: str, count: int) -> Coordinates:
    name = os.path.basename(path)
    with source_errors(f"'{name}' is no list of b-values"), open(path, encoding="ascii") as file:
        values = np.array(file.read().split(), np.float64)
    if len(values) != count or not np.isfinite(values).all():
        raise DataError(
            f"'{name}' has {len(values):,} values for {count:,} volumes: give a number for each, or remove the file"
        )
    described = {"long_name": "b-value of the diffusion weighting", "units": "s mm-2"}
    return Coordinates(_AXES, {"b_value": Coordinate(_AXES[:1], values, described)}, {})


def _layout_of(head: bytes) -> _Layout | None:
    return next((one for one in _LAYOUTS if head[one.magic[0] :].startswith(one.magic[1])), None)


def _read_header(head: bytes, path: str, name: str) -> tuple[Raw, cf.Coding | None]:
    layout = _layout_of(head)
    if layout is None or len(head) < layout.size:
        raise DataError(f"'{name}' has no complete NIfTI header: get it again")
    order = "<" if int.from_bytes(head[:4], "little") == layout.size else ">"

    def field(form: str, at: int) -> tuple[Any, ...]:
        return struct.unpack_from(order + form, head, at)

    n_axes, *lengths = field(*layout.shape)
    shape = tuple(lengths[: max(n_axes, 0)])
    while len(shape) > len(_AXES) and shape[-1] == 1:
        shape = shape[:-1]
    if not 2 <= len(shape) <= len(_AXES) or n_axes > len(lengths) or min(shape) < 0:
        raise DataError(f"'{name}' has the shape {shape}: give volumes of up to three axes, and time")
    shape += (1,) * (len(_AXES) - len(shape))
    (code,) = field("h", layout.type)
    if code not in _TYPES:
        raise DataError(f"'{name}' has values of type {code}, which are not real numbers: save it as real numbers")
    dtype = np.dtype(order + _TYPES[code])
    (offset,) = field(*layout.offset)
    if not (math.isfinite(offset) and offset >= layout.size):
        raise DataError(f"the values of '{name}' begin at byte {offset}, inside its header: get it again")
    slope, inter = (np.float32(n) if layout.scaling[0] == "2f" else np.float64(n) for n in field(*layout.scaling))
    stated = {"scale_factor": slope, "add_offset": inter} if np.isfinite(slope) and slope != 0 else {}
    return Raw(path, int(offset), shape[::-1], dtype.str), cf.coding_of(stated, dtype, f"'{name}'")


FORMATS = (
    Format("NIfTI", lambda file: _layout_of(file.inner) is not None, lambda path, key, axes: open_nifti(path, axes)),
)
