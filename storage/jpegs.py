"""JPEG files as libjpeg-turbo reads them: the shape that their header states, and their pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

#: The first bytes of a JPEG.
JPEG = b"\xff\xd8\xff"
# Markers of segments: of metadata, and of the first scan, which ends the header.
_APP1, _SCAN = 0xE1, 0xDA
# Most bytes of a header that is remembered. Tables take less than a kilobyte.
_MOST_HEADER = 4096

# The header that was read last, to the end of the segment of its first scan, and the shape that it states.
_latest: tuple[bytes, tuple[int, ...]] | None = None


def upright_shape(payload: bytes) -> tuple[int, ...] | None:
    """Return the shape of the pixels of a gray or RGB JPEG if its header cannot state an orientation; else None.

    Files from one program often have the same header. The one that was read last is remembered, because comparing its
    bytes takes a tenth of a microsecond, and reading a header seven.
    """
    global _latest
    latest = _latest  # another thread may replace it meanwhile
    if latest is not None and payload.startswith(latest[0]):
        return latest[1]
    end = _end_of_header(payload)
    shape = None if end is None else header_of_jpeg(payload)
    if end is not None and shape is not None and end <= min(len(payload), _MOST_HEADER):
        _latest = payload[:end], shape
    return shape


def header_of_jpeg(payload: bytes) -> tuple[int, ...] | None:
    """Return the shape of the pixels of a gray or RGB JPEG as libjpeg-turbo decodes it; None for other colors."""
    try:
        height, width, color, _ = simplejpeg.decode_jpeg_header(payload)
    except Exception:  # an error or a warning of libjpeg
        return None
    if color not in ("Gray", "YCbCr", "RGB"):
        return None
    return (height, width) if color == "Gray" else (height, width, 3)


def _end_of_header(payload: bytes) -> int | None:
    """Return where the first scan of a JPEG begins.

    None if the header has an APP1 segment, with Exif or XMP, or is no sequence of segments.
    """
    at = 2
    while at + 4 <= len(payload) and payload[at] == 0xFF:
        marker = payload[at + 1]
        if marker == _APP1 or not (0xC0 <= marker < 0xD0 or 0xDA <= marker < 0xFF):
            return None
        at += 2 + int.from_bytes(payload[at + 2 : at + 4])
        if marker == _SCAN:
            return at
    return None


def decode_jpeg(payload: bytes, shape: tuple[int, ...], out: NDArray[Any] | None = None) -> NDArray[Any] | None:
    """Decode a JPEG of this size by libjpeg-turbo, identical to Pillow; None if it is not intact.

    A gray JPEG in color is repeated over the channels. The pixels are ``out`` if it is given and has their shape and
    type.
    """
    fits = out is not None and out.shape == shape and out.dtype == np.uint8
    colorspace = "GRAY" if len(shape) == 2 else "RGB"
    try:
        pixels: NDArray[Any] = simplejpeg.decode_jpeg(payload, colorspace, buffer=out if fits else None)
    except Exception:  # an error or a warning of libjpeg
        return None
    return out if fits else pixels.reshape(shape)
