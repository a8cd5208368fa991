"""Which still images are read, and how they are known: by their first bytes, whatever their names say.

Formats of Pillow are allowed by name. Left out are those that are programs (EPS, WMF), that hold one picture in several
sizes (icons, DDS), whose values Pillow does not scale as they say (FITS), or that begin with nothing of their own.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import NamedTuple, cast

from PIL.ImageFile import ImageFile

from dpca.storage.errors import DataError

#: As many first bytes as tell every format.
HEAD = 64
_TGA_END = b"TRUEVISION-XFILE.\0"


class Picture(NamedTuple):
    """A format of still images."""

    name: str
    """What messages call it."""
    begins: re.Pattern[bytes]
    """Matches its first bytes."""
    suffixes: tuple[str, ...]
    """Names of files that are taken for such before they are opened."""
    plugin: str
    """What decodes it: the first word of the names of Pillow's module and class, or module and class of another."""


def _picture(name: str, plugin: str, begins: bytes, suffixes: str) -> Picture:
    place = plugin if ":" in plugin else f"PIL.{plugin}ImagePlugin:{plugin}ImageFile"
    return Picture(name, re.compile(begins, re.DOTALL), tuple(suffixes.split()), place)


PICTURES = (
    _picture("JPEG", "Jpeg", rb"\xff\xd8\xff", ".jpg .jpeg .jfif"),
    _picture("PNG", "Png", rb"\x89PNG\r\n\x1a\n", ".png"),
    _picture("WebP", "WebP", rb"RIFF.{4}WEBP", ".webp"),
    _picture("TIFF", "Tiff", rb"II[*+]\0|MM\0[*+]", ".tif .tiff"),
    _picture("GIF", "Gif", rb"GIF8[79]a", ".gif"),
    # a header of one of the lengths that there are
    _picture("BMP", "Bmp", rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0", ".bmp"),
    _picture("PBM, PGM, PPM", "Ppm", rb"P[1-6]\s\s*[#\d]|Pf\s", ".pbm .pgm .ppm .pnm .pfm"),
    _picture("AVIF", "Avif", rb".{4}ftyp(?=.{0,40}avi[fs])", ".avif"),
    _picture("HEIC", "pillow_heif:HeifImageFile", rb".{4}ftyp(?:hei[cmsx]|hev[cx]|mif1|msf1)", ".heic .heif"),
    _picture("JPEG 2000", "Jpeg2K", rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n", ".jp2 .j2k .j2c .jpf .jpx"),
    _picture("QOI", "Qoi", rb"qoif", ".qoi"),
    _picture("PCX", "Pcx", rb"\n[\x00\x02\x03\x05]\x01[\x01\x02\x04\x08]", ".pcx"),
    # of 8 bits a channel: Pillow cuts 16
    _picture("SGI", "Sgi", rb"\x01\xda[\x00\x01]\x01\x00[\x01-\x03]", ".sgi"),
    _picture("Sun raster", "Sun", rb"\x59\xa6\x6a\x95", ".ras"),
    _picture("PSD", "Psd", rb"8BPS\x00\x01", ".psd"),
    # known by its last bytes
    _picture("TGA", "Tga", rb"(?!)", ".tga"),
)
NAMES = ", ".join(picture.name for picture in PICTURES)
SUFFIXES = tuple(suffix for picture in PICTURES for suffix in picture.suffixes)


def picture_of(payload: bytes) -> Picture | None:
    """Return the format of an encoded image.

    Parameters
    ----------
    payload : bytes
        All of it, or its first `HEAD` bytes, by which all but TGA are known.
    """
    head = bytes(payload[:HEAD])
    for picture in PICTURES:
        if picture.begins.match(head):
            return picture
    return PICTURES[-1] if payload[-len(_TGA_END) :] == _TGA_END else None


@cache
def plugin_of(picture: Picture) -> type[ImageFile]:
    """Return the class that decodes a format.

    Raises
    ------
    DataError
        If it needs a library that is not installed.
    """
    module, _, cls = picture.plugin.partition(":")
    try:
        return cast("type[ImageFile]", getattr(import_module(module), cls))
    except ImportError:
        raise DataError(
            f"is a {picture.name} image, which needs the library {module}, which is not installed: "
            f'pip install "dask-dpca[{picture.name.lower()}]"'
        ) from None


def cut_depth(picture: Picture, image: ImageFile, payload: bytes) -> str | None:
    """Return how many bits the values of an image have where its decoder would cut them in silence, else None."""
    if picture.name == "JPEG 2000":
        # the marker of sizes: at 40 the number of components, from 42 on 3 bytes each, the first of them sign and depth
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
        options = image.tile[0][3]  # the mode, and the largest value where it is not 255
        return "16 bits" if isinstance(options, tuple) and options[1] > 255 else None
    return None
