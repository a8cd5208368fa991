"""Volumes in NIfTI files (versions 1 and 2, ``.nii`` and ``.nii.gz``): a header, then the values.

Axes are those of memory, slowest first: (t, z, y, x), the reverse of what nibabel and the header count. A file of one
volume is a stack of one sample, so that several files, one a subject, are one stack.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, NamedTuple

import numpy as np

from dpca.storage import cf
from dpca.storage.errors import DataError
from dpca.storage.readers.arrays.raw import PackedFile, Raw, RawReader, StreamReader
from dpca.storage.readers.base import Reader, digest_file
from dpca.storage.readers.format import Format

_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8", 1280: "u8"}
_GZIP = b"\x1f\x8b"
_AXES = ("sample", "z", "y", "x")


class _Layout(NamedTuple):
    """Where the header of a version says what: formats and offsets."""

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


class _NiftiHeader(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    coding: cf.Coding | None


def open_nifti(path: str, axes: Sequence[str] | None = None) -> Reader:
    """Open a NIfTI file: mapped, or streamed where it is compressed; ``scl_slope`` and ``scl_inter`` are applied.

    Parameters
    ----------
    path : str
        The file.
    axes : sequence of str, optional
        See `dpca.storage.readers.arrays.raw.ArrayReader`; by default samples are counted by the fourth axis of the
        header.

    Raises
    ------
    DataError
        If it is broken or truncated, has more than four axes, or values that are no real numbers.
    """
    name, path = os.path.basename(path), os.path.abspath(path)
    with open(path, "rb") as file:
        packed = file.read(2) == _GZIP
    try:
        with _opened(path, 0) as file:
            header = _read_header(file.read(_LAYOUTS[-1].size), name)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"'{name}' is truncated or broken ({error}): get it again") from error
    facts: dict[str, Any] = {"kind": "nifti", "identity": partial(digest_file, path), "name": name}
    facts |= {"axes": axes or _AXES, "coding": header.coding}
    if not packed:
        raw = Raw(path, header.offset, header.shape, header.dtype.str)
        return RawReader(raw, end=raw.end, **facts)
    return StreamReader(
        PackedFile(partial(_opened, path, header.offset), (EOFError, OSError, zlib.error), os.path.getsize(path)),
        header.shape,
        header.dtype,
        **facts,
    )


@contextmanager
def _opened(path: str, offset: int) -> Iterator[IO[bytes]]:
    with open(path, "rb") as plain:
        packed = plain.read(2) == _GZIP
        plain.seek(0)
        file: Any = gzip.GzipFile(fileobj=plain) if packed else plain
        file.seek(offset)
        yield file


def _layout_of(head: bytes) -> _Layout | None:
    return next((one for one in _LAYOUTS if head[one.magic[0] :].startswith(one.magic[1])), None)


def _read_header(head: bytes, name: str) -> _NiftiHeader:
    layout = _layout_of(head)
    if layout is None or len(head) < layout.size:
        raise DataError(f"'{name}' has no whole NIfTI header: get it again")
    order = "<" if int.from_bytes(head[:4], "little") == layout.size else ">"

    def field(form: str, at: int) -> tuple[Any, ...]:
        return struct.unpack_from(order + form, head, at)

    n_axes, *lengths = field(*layout.shape)
    shape = tuple(lengths[: max(n_axes, 0)])
    while len(shape) > len(_AXES) and shape[-1] == 1:
        shape = shape[:-1]
    if not 2 <= len(shape) <= len(_AXES) or n_axes > len(lengths) or min(shape) < 0:
        raise DataError(f"'{name}' has the shape {shape}: volumes of up to three axes, and time, are read")
    shape += (1,) * (len(_AXES) - len(shape))
    (code,) = field("h", layout.type)
    if code not in _TYPES:
        raise DataError(f"'{name}' holds values of type {code}, which are no real numbers: save it as such")
    dtype = np.dtype(order + _TYPES[code])
    (offset,) = field(*layout.offset)
    if not (math.isfinite(offset) and offset >= layout.size):
        raise DataError(f"'{name}' says that its values begin at byte {offset}, within its header: get it again")
    slope, inter = (np.float32(n) if layout.scaling[0] == "2f" else np.float64(n) for n in field(*layout.scaling))
    stated = {"scale_factor": slope, "add_offset": inter} if np.isfinite(slope) and slope != 0 else {}
    return _NiftiHeader(shape[::-1], dtype, int(offset), cf.coding_of(stated, dtype, f"'{name}'"))


FORMATS = (
    Format("NIfTI", lambda file: _layout_of(file.inner) is not None, lambda path, key, axes: open_nifti(path, axes)),
)
