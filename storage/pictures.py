"""The supported image formats. They are recognized by their first bytes, not by the file name.

Formats of Pillow are allowed one by one. These are not supported: formats that are programs (EPS, WMF), formats with
one picture in several sizes (icons, DDS), FITS (Pillow does not scale its values), and formats without a signature.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import NamedTuple, cast

from PIL.ImageFile import ImageFile

from dpca.storage.errors import DataError

#: Number of first bytes that identify every format.
HEAD = 64
_TGA_END = b"TRUEVISION-XFILE.\0"


class PictureFormat(NamedTuple):
    """A format of still images."""

    name: str
    """Name in messages."""
    begins: re.Pattern[bytes]
    """Matches the first bytes."""
    suffixes: tuple[str, ...]
    """Suffixes of file names that identify the format before a file is opened."""
    plugin: str
    """Module and class of the decoder, separated by a colon."""


def _picture(name: str, plugin: str, begins: bytes, suffixes: str) -> PictureFormat:
    place = plugin if ":" in plugin else f"PIL.{plugin}ImagePlugin:{plugin}ImageFile"
    return PictureFormat(name, re.compile(begins, re.DOTALL), tuple(suffixes.split()), place)


PICTURES = (
    _picture("JPEG", "Jpeg", rb"\xff\xd8\xff", ".jpg .jpeg .jfif"),
    _picture("PNG", "Png", rb"\x89PNG\r\n\x1a\n", ".png"),
    _picture("WebP", "WebP", rb"RIFF.{4}WEBP", ".webp"),
    _picture("TIFF", "Tiff", rb"II[*+]\0|MM\0[*+]", ".tif .tiff"),
    _picture("GIF", "Gif", rb"GIF8[79]a", ".gif"),
    # The signature includes the length of the header.
    _picture("BMP", "Bmp", rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0", ".bmp"),
    _picture("PBM, PGM, PPM", "Ppm", rb"P[1-6]\s\s*[#\d]|Pf\s", ".pbm .pgm .ppm .pnm .pfm"),
    _picture("AVIF", "Avif", rb".{4}ftyp(?=.{0,40}avi[fs])", ".avif"),
    _picture("HEIC", "pillow_heif:HeifImageFile", rb".{4}ftyp(?:hei[cmsx]|hev[cx]|mif1|msf1)", ".heic .heif"),
    _picture("JPEG 2000", "Jpeg2K", rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n", ".jp2 .j2k .j2c .jpf .jpx"),
    _picture("QOI", "Qoi", rb"qoif", ".qoi"),
    _picture("PCX", "Pcx", rb"\n[\x00\x02\x03\x05]\x01[\x01\x02\x04\x08]", ".pcx"),
    # Only 8 bits per channel, since Pillow truncates 16 bits.
    _picture("SGI", "Sgi", rb"\x01\xda[\x00\x01]\x01\x00[\x01-\x03]", ".sgi"),
    _picture("Sun raster", "Sun", rb"\x59\xa6\x6a\x95", ".ras"),
    _picture("PSD", "Psd", rb"8BPS\x00\x01", ".psd"),
    # Recognized by its last bytes.
    _picture("TGA", "Tga", rb"(?!)", ".tga"),
)
NAMES = ", ".join(picture.name for picture in PICTURES)
SUFFIXES = tuple(suffix for picture in PICTURES for suffix in picture.suffixes)


def picture_of(payload: bytes) -> PictureFormat | None:
    """Return the format of an encoded image.

    Parameters
    ----------
    payload : bytes
        The complete content, or the first `HEAD` bytes, which are sufficient for all formats except TGA.
    """
    head = bytes(payload[:HEAD])
    for picture in PICTURES:
        if picture.begins.match(head):
            return picture
    return PICTURES[-1] if payload[-len(_TGA_END) :] == _TGA_END else None


@cache
def plugin_of(picture: PictureFormat) -> type[ImageFile]:
    """Return the class that decodes a format.

    Raises
    ------
    DataError
        If it requires a library that is not installed.
    """
    module, _, cls = picture.plugin.partition(":")
    try:
        return cast("type[ImageFile]", getattr(import_module(module), cls))
    except ImportError:
        raise DataError(
            f"is a {picture.name} image, which requires the library {module}: "
            f'pip install "dask-dpca[{picture.name.lower()}]"'
        ) from None


def cut_depth(picture: PictureFormat, image: ImageFile, payload: bytes) -> str | None:
    """Return the depth of an image whose values its decoder would silently truncate; else None."""
    if picture.name == "JPEG 2000":
        # The SIZ marker has the number of components at offset 40, and from 42 on 3 bytes for each component. The first
        # of them is the sign and the depth.
        at = max(payload.find(b"\xff\x4f\xff\x51"), 0)
        depths = payload[at + 42 : at + 42 + 3 * int.from_bytes(payload[at + 40 : at + 42]) : 3]
        if any(depth & 0x80 for depth in depths):
            return "signed values"
        return f"{max(depths) + 1} bits" if len(depths) > 1 and max(depths) >= 8 else None
    if picture.name == "AVIF":
        at = payload.find(b"av1C")
        return "more than 8 bits" if payload[at + 6 : at + 7] and payload[at + 6] & 0x40 else None
    if picture.name == "HEIC":
        depth = int(image.info.get("bit_depth", 8))
        return f"{depth} bits" if depth > 8 else None
    if picture.name == "PBM, PGM, PPM" and image.mode == "RGB":
        options = image.tile[0][3]  # the mode, and the largest value if it is not 255
        return "16 bits" if isinstance(options, tuple) and options[1] > 255 else None
    return None
