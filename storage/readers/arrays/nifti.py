"""Volumes in NIfTI files (versions 1 and 2, ``.nii`` and ``.nii.gz``): a header, then the values.

Axes are in the order of memory, slowest first: (t, z, y, x), the reverse of the order in nibabel and in the header. A
file with one volume is a stack of one sample, so several files, such as one per subject, form one stack. b-values of
diffusion weighting beside a file, as ``dwi.bval`` beside ``dwi.nii.gz`` (FSL, BIDS), are coordinates of its samples.
Distances from the first voxel are coordinates of the other axes. The affine is an attribute of the stack, since it can
rotate them: that of ``sform``, or of ``qform`` if there is none.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dpca.storage import cf
from dpca.storage.arrays.coordinates import AFFINE, AFFINE_SPACE, TIME_STEP, UNITS, Coordinate, Coordinates
from dpca.storage.arrays.ome import spaced
from dpca.storage.errors import DataError
from dpca.storage.readers.arrays.raw import Raw
from dpca.storage.readers.arrays.streamed import open_plain_or_gzip, unzipped
from dpca.storage.readers.base import Reader, source_errors
from dpca.storage.readers.format import Format

_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8", 1280: "u8"}
_AXES = ("sample", "z", "y", "x")
#: The coordinate with the b-values of samples.
B_VALUE = "b_value"
_B_VALUES = ".bval"
# Longer axes do not get coordinates: a header alone could claim their memory.
_MOST_VOXELS = 2**15
#: Spaces of affines, by their code less 1.
SPACES = ("scanner", "aligned", "talairach", "mni", "template")
# Units of length, and seconds in units of time, by their codes.
_LENGTHS = {1: "m", 2: "mm", 3: "um"}
_SECONDS = {0: 1.0, 8: 1.0, 16: 1e-3, 24: 1e-6}


class _Layout(NamedTuple):
    """The fields of the header of a version: formats and offsets."""

    size: int
    magic: tuple[int, bytes]
    shape: tuple[str, int]
    type: int
    offset: tuple[str, int]
    scaling: tuple[str, int]
    steps: tuple[str, int]
    units: tuple[str, int]
    spaces: tuple[str, int]
    turn: tuple[str, int]
    affine: tuple[str, int]


_LAYOUTS = (
    _Layout(
        348,
        (344, b"n+1\0"),
        shape=("8h", 40),
        type=70,
        offset=("f", 108),
        scaling=("2f", 112),
        steps=("8f", 76),
        units=("B", 123),
        spaces=("2h", 252),
        turn=("6f", 256),
        affine=("12f", 280),
    ),
    _Layout(
        540,
        (4, b"n+2\0\r\n\x1a\n"),
        shape=("8q", 16),
        type=12,
        offset=("q", 168),
        scaling=("2d", 176),
        steps=("8d", 104),
        units=("i", 500),
        spaces=("2i", 344),
        turn=("6d", 352),
        affine=("12d", 400),
    ),
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
        header = _Header(file.read(_LAYOUTS[-1].size), name)
        raw, coding = header.values(path)
    # Bytes after the values are allowed in a plain file only.
    reader = open_plain_or_gzip(raw, "nifti", axes or _AXES, coding, end=raw.end)
    along, beside = header.coordinates(raw.shape, placed=reader.in_order), b_values_beside(path)
    if has_b_values := os.path.isfile(beside):
        along = replace(along, arrays={**along.arrays, B_VALUE: _b_values(beside, raw.shape[0])})
    if along.arrays or along.attributes:
        reader.add_coordinates(along, beside if has_b_values else None)
    return reader


def b_values_beside(path: str) -> str:
    """Return the path of the b-values of a NIfTI file."""
    stem = path[: -len(".gz")] if path.lower().endswith(".gz") else path
    return f"{stem[: -len('.nii')] if stem.lower().endswith('.nii') else stem}{_B_VALUES}"


def _b_values(path: str, count: int) -> Coordinate:
    name = os.path.basename(path)
    with source_errors(f"'{name}' is no list of b-values"), open(path, encoding="ascii") as file:
        values = np.array(file.read().split(), np.float64)
    if len(values) != count or not np.isfinite(values).all():
        raise DataError(
            f"'{name}' has {len(values):,} values for {count:,} volumes: give a number for each, or remove the file"
        )
    return Coordinate(_AXES[:1], values, {"long_name": "b-value of the diffusion weighting", UNITS: "s mm-2"})


def _layout_of(head: bytes) -> _Layout | None:
    return next((one for one in _LAYOUTS if head[one.magic[0] :].startswith(one.magic[1])), None)


class _Header:
    """The header of a file."""

    def __init__(self, head: bytes, name: str) -> None:
        layout = _layout_of(head)
        if layout is None or len(head) < layout.size:
            raise DataError(f"'{name}' has no complete NIfTI header: get it again")
        self._head, self._layout, self._name = head, layout, name
        self._order = "<" if int.from_bytes(head[:4], "little") == layout.size else ">"

    def _field(self, form: str, at: int) -> tuple[Any, ...]:
        return struct.unpack_from(self._order + form, self._head, at)

    def _numbers(self, form: str, at: int) -> list[float]:
        """Return floating-point numbers, those of 32 bits as the decimal numbers that they round."""
        found = self._field(form, at)
        return [float(str(np.float32(n))) for n in found] if form.endswith("f") else list(found)

    def values(self, path: str) -> tuple[Raw, cf.Coding | None]:
        """Return the place of the values in the file, and their coding."""
        layout, name = self._layout, self._name
        n_axes, *lengths = self._field(*layout.shape)
        shape = tuple(lengths[: max(n_axes, 0)])
        while len(shape) > len(_AXES) and shape[-1] == 1:
            shape = shape[:-1]
        if not 2 <= len(shape) <= len(_AXES) or n_axes > len(lengths) or min(shape) < 0:
            raise DataError(f"'{name}' has the shape {shape}: give volumes of up to three axes, and time")
        shape += (1,) * (len(_AXES) - len(shape))
        (code,) = self._field("h", layout.type)
        if code not in _TYPES:
            raise DataError(f"'{name}' has values of type {code}, which are not real numbers: save it as real numbers")
        dtype = np.dtype(self._order + _TYPES[code])
        (offset,) = self._field(*layout.offset)
        if not (math.isfinite(offset) and offset >= layout.size):
            raise DataError(f"the values of '{name}' begin at byte {offset}, inside its header: get it again")
        real = np.float32 if layout.scaling[0] == "2f" else np.float64
        slope, inter = (real(n) for n in self._field(*layout.scaling))
        stated = {"scale_factor": slope, "add_offset": inter} if np.isfinite(slope) and slope != 0 else {}
        return Raw(path, int(offset), shape[::-1], dtype.str), cf.coding_of(stated, dtype, f"'{name}'")

    def coordinates(self, shape: tuple[int, ...], *, placed: bool) -> Coordinates:
        """Return distances along the axes, and as attributes the time step, and if ``placed`` the affine."""
        steps = self._numbers(*self._layout.steps)
        (units,) = self._field(*self._layout.units)
        length, second = _LENGTHS.get(units & 0b111, ""), _SECONDS.get(units & 0b111000)
        spacing = {axis: (abs(step), 0.0, length) for axis, step in zip("xyz", steps[1:4], strict=True)}
        known = spaced(_AXES, shape, spacing) if max(shape[1:]) <= _MOST_VOXELS else None
        found = known or Coordinates(_AXES, {}, {})
        stated = self._placement(steps) if placed else {}
        if second is not None and math.isfinite(steps[4]) and steps[4] > 0:
            stated[TIME_STEP] = f"{steps[4] * second:.9g}"
        return replace(found, attributes=stated)

    def _placement(self, steps: Sequence[float]) -> dict[str, str]:
        """Return the affine and its space as attributes; none if the header has no valid one."""
        qform, sform = self._field(*self._layout.spaces)
        if sform > 0:
            code, numbers = sform, self._numbers(*self._layout.affine)
        else:
            code, numbers = qform, _turned(steps, self._numbers(*self._layout.turn))
        if not (1 <= code <= len(SPACES) and np.isfinite(numbers).all()):
            return {}
        return {AFFINE: " ".join(map(str, numbers)), AFFINE_SPACE: SPACES[code - 1]}


def _turned(steps: Sequence[float], turn: Sequence[float]) -> list[float]:
    """Return the affine of a quaternion without its first number, and an offset ("method 2" of nifti1.h)."""
    (b, c, d), offset = turn[:3], turn[3:]
    rest = 1 - (b * b + c * c + d * d)
    a = math.sqrt(rest) if rest > 0 else 0.0
    rotation = np.array(
        [
            [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c],
        ]
    )
    scaled = rotation * [steps[1], steps[2], -steps[3] if steps[0] < 0 else steps[3]]
    return np.column_stack([scaled, offset]).ravel().tolist()


FORMATS = (
    Format("NIfTI", lambda file: _layout_of(file.inner) is not None, lambda path, key, axes: open_nifti(path, axes)),
)
