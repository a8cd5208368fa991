"""Decodes images to pixels by documented rules; headers are not trusted.

Each image is decoded as follows:

* All formats of `dpca.storage.pictures` are supported. They are recognized by their first bytes, not by the file name.
* The size is read from the header before decoding. An image with more than `MAX_PIXELS` pixels, or with another size
  than the stack, is rejected at this point, so a decompression bomb costs nothing.
* EXIF orientation is applied, so pixels are upright.
* Gray of 8 bits stays ``uint8``, 1 bit becomes 0 or 255, and gray of 9 to 16 bits stays ``uint16``. 32-bit float TIFF
  and PFM stay ``float32`` and must be finite. PGM and JPEG 2000 of any other depth are scaled to 8 or 16 bits.
* Palette, CMYK and YCbCr images are converted to RGB by Pillow, without their embedded color profiles.
* Transparency is composited over white. Opaque pixels keep their exact values.
* Color with more than 8 bits per channel, 32-bit or signed integers and 64-bit floats are rejected, since Pillow
  silently truncates them.
* Images with more than one frame (animations, TIFF pages, layers) are rejected. If a JPEG has appended pictures
  (previews, gain maps), only the main picture is read.
* A truncated file, or one that cannot be decoded for any other reason, is rejected.

Within a stack (`DecodeOptions`), the first accepted image determines the color, size and type, unless they are given.
In a color stack, gray images are repeated over the three channels. A color image in a gray stack is an error. ``crop``
cuts out the center, then ``resize`` (Lanczos) scales to exactly the given size.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

from dpca.storage.errors import DataError
from dpca.storage.jpegs import JPEG, decode_jpeg, upright_shape
from dpca.storage.pictures import cut_depth, picture_of, plugin_of
from dpca.storage.region import FilledRegion

Color = Literal["auto", "rgb", "gray"]

# The limit at which Pillow warns of a decompression bomb, about 256 MiB of RGB pixels.
MAX_PIXELS = 2**28 // 3

_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True)
class DecodeOptions:
    """The conversion of the images of one stack to samples of one shape and type.

    Parameters
    ----------
    color : {"auto", "rgb", "gray"}
        ``"auto"`` uses the color of the first accepted image, ``"gray"`` converts color with the luma of Pillow
        (ITU-R 601), and ``"rgb"`` repeats gray over three channels.
    crop : tuple of int, optional
        (height, width) in pixels of the center that is cut out. A smaller image is rejected.
    resize : tuple of int, optional
        (height, width) in pixels to which every image is scaled, after `crop`.
    max_pixels : int
        Largest height x width of an encoded image.
    sample_shape, dtype, first :
        Shape and type of the stack, and the name of the image that determined them; set by `with_first_image`.
    region : FilledRegion, optional
        Region of the samples that is kept.
    background : int
        Gray level, 0 to 255, under transparent pixels.
    """

    color: Color = "auto"
    crop: tuple[int, int] | None = None
    resize: tuple[int, int] | None = None
    max_pixels: int = MAX_PIXELS
    sample_shape: tuple[int, ...] | None = None
    dtype: str | None = None
    first: str = ""
    region: FilledRegion | None = None
    background: int = 255

    def __post_init__(self) -> None:
        if self.color not in ("auto", "rgb", "gray"):
            raise DataError(f"color {self.color!r} is unknown: choose 'auto', 'rgb' or 'gray'")
        for option, size in (("crop", self.crop), ("resize", self.resize)):
            if size is not None and (len(size) != 2 or min(size) < 1 or size[0] * size[1] > self.max_pixels):
                raise DataError(
                    f"{option} {size!r} is not an image size: give (height, width) in pixels, both at least 1, with at "
                    f"most {self.max_pixels:,} pixels in total"
                )

    def with_first_image(self, pixels: NDArray[Any], name: str) -> DecodeOptions:
        """Return these rules with the shape and type of ``pixels``, the first image of the stack, named ``name``."""
        return replace(self, sample_shape=pixels.shape, dtype=pixels.dtype.name, first=name)


def decode(payload: bytes, rules: DecodeOptions | None = None, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Decode one encoded image.

    Parameters
    ----------
    payload : bytes
        The complete content of a file in a format of `dpca.storage.pictures`.
    rules : DecodeOptions, optional
        The default accepts any size and color without conversion.
    out : ndarray, optional
        Where the pixels are written: a sample of the stack of `rules`, in C order. After an error its values are
        undefined.

    Returns
    -------
    ndarray of uint8, uint16 or float32, shape (height, width) or (height, width, 3)
        ``out`` if it is given, else an array that may be read-only. Most JPEGs are decoded into ``out`` without a copy.

    Raises
    ------
    DataError
        The message is a phrase that follows the name of the image ("is ...", "has ...").
    """
    rules = rules or DecodeOptions()
    shape = shape_of_jpeg(payload, rules)
    pixels = None if shape is None else decode_jpeg(payload, shape, out)
    if pixels is None:
        image = _opened(payload)
        _check_header(image, rules)
        pixels = _pixels(image, rules.background)
    pixels = _colored(pixels, rules)
    if rules.crop is not None:
        pixels = _cropped(pixels, rules.crop)
    if rules.resize is not None and pixels.shape[:2] != rules.resize:
        pixels = _resized(pixels, rules.resize)
    _check_fits(pixels, rules)
    if rules.region is not None:
        pixels = rules.region.filled(pixels)
    if out is None:
        return pixels
    if pixels is not out:
        out[...] = pixels
    return out


def shape_of_jpeg(payload: bytes, rules: DecodeOptions) -> tuple[int, ...] | None:
    """Return the shape of an upright gray or RGB JPEG from its header; None for another image, which Pillow decodes.

    Pillow takes 20 microseconds to read a header, a sixth of the time to decode a small image. It only reads those of
    files that state an orientation, or may.

    Raises
    ------
    DataError
        As `decode`, if the header is broken, or the size is not that of the stack of ``rules``.
    """
    if not payload.startswith(JPEG):
        return None
    shape = upright_shape(payload)
    if shape is not None:
        _check_size(shape[0], shape[1], rules)
        return shape
    image = _opened(payload)
    _check_header(image, rules)
    if not isinstance(image, JpegImageFile) or image.mode not in ("L", "RGB") or _orientation(image) in _UPRIGHT:
        return None
    return (*image.size[::-1], 3)[: 2 if image.mode == "L" else 3]


def _opened(payload: bytes) -> ImageFile:
    # Image.open is not used, since it warns of large images by a global setting, decodes a JPEG with appended previews
    # as several frames, and tries any installed plugin.
    picture = picture_of(payload)
    if picture is None:
        begin = f"has no supported image format (its first bytes are {bytes(payload[:12])!r})"
        raise DataError(begin if payload else "is empty (0 bytes)")
    plugin = plugin_of(picture)
    try:
        image = plugin(io.BytesIO(payload))
        depth = cut_depth(picture, image, payload)
    except MemoryError:
        raise
    except Image.DecompressionBombError:
        # Raised by plugins that check the limit of Pillow when they open a file.
        raise DataError(_bomb("more")) from None
    except Exception as error:
        # A malicious header can cause any exception in a decoder. All of them mean a broken image.
        raise DataError(_broken(picture.name, error)) from None
    if depth is not None:
        raise DataError(f"has {depth} in each channel: save it with 8 bits per channel or as 16-bit gray")
    return image


def _check_header(image: ImageFile, rules: DecodeOptions) -> None:
    _check_size(image.height, image.width, rules)
    try:
        several = getattr(image, "is_animated", False)  # some decoders search for a second frame here
    except Exception as error:
        raise DataError(_broken(image.format, error)) from None
    if several:
        stack = ", or give the files themselves (a glob) as a stack" if isinstance(image, TiffImageFile) else ""
        raise DataError(f"has more than one frame: save one frame as a separate image{stack}")


def _check_size(height: int, width: int, rules: DecodeOptions) -> None:
    if width * height > rules.max_pixels:
        raise DataError(_bomb(f"{height} x {width} pixels, more", rules.max_pixels))
    if rules.sample_shape is not None and rules.crop is None and rules.resize is None:
        wanted = rules.sample_shape[:2]
        # The orientation is applied later, so height and width may still be swapped.
        if wanted not in ((height, width), (width, height)):
            raise DataError(_other_size((height, width), rules))


def _pixels(image: ImageFile, background: int) -> NDArray[Any]:
    """Return the upright pixels, (height, width) or (height, width, 3), without transparency."""
    layout = " ".join(str(tile[3]) for tile in image.tile)
    if (image.mode == "I" and image.format != "PPM") or (image.mode == "F" and ";64" in layout):
        raise DataError(
            "has 32-bit or signed integers or 64-bit floats: save it with unsigned integers of 8 or 16 bits, or float32"
        )
    if not image.mode.startswith("I") and ";16" in layout and image.mode != "F":
        raise DataError("has 16 bits in each of several channels: save it with 8 bits per channel or as 16-bit gray")
    try:
        image.load()
        upright: Image.Image = image
        if not isinstance(image, TiffImageFile):  # the TIFF plugin applies the orientation in load()
            turn = _UPRIGHT.get(_orientation(image))
            upright = image if turn is None else image.transpose(turn)
        return _plain(upright, background)
    except (DataError, MemoryError):
        raise
    except Exception as error:
        raise DataError(_broken(image.format, error)) from None


def _orientation(image: ImageFile) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        # Broken EXIF data is common in images with intact pixels.
        return 1


def _plain(image: Image.Image, background: int) -> NDArray[Any]:
    mode = image.mode
    see_through = image.info.get("transparency")
    if mode.startswith("I"):
        pixels = np.asarray(image)
        pixels = pixels.astype(np.uint16, copy=False)
        return pixels if see_through is None else np.where(pixels == see_through, np.uint16(257 * background), pixels)
    if mode == "F":
        pixels = np.asarray(image)
        if not np.isfinite(pixels).all():
            y, x = (int(i) for i in np.argwhere(~np.isfinite(pixels))[0])
            raise DataError(f"has the value {pixels[y, x]} at row {y}, column {x}: every pixel must be finite")
        return pixels
    if image.has_transparency_data:
        gray = mode in ("1", "L", "LA", "La")
        return _over(background, np.asarray(image.convert("LA" if gray else "RGBA")))
    if mode == "1":
        return np.asarray(image.convert("L"))
    if mode in ("P", "CMYK", "YCbCr", "RGBX"):
        return np.asarray(image.convert("RGB"))
    if mode not in ("L", "RGB"):
        raise DataError(f"has the color mode {mode}, which is not supported: save it as RGB or gray")
    return np.asarray(image)


def _over(background: int, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Composite (..., gray or RGB, alpha) over a gray level. Pixels with an alpha of 255 are exact."""
    color, alpha = pixels[..., :-1], pixels[..., -1:]
    if alpha.min() < 255:
        wide = alpha.astype(np.uint16)
        # At most 255 * 255 + 127, which does not overflow 16 bits.
        color = ((color * wide + background * (255 - wide) + 127) // 255).astype(np.uint8)
    return color[..., 0] if color.shape[-1] == 1 else color


def _colored(pixels: NDArray[Any], rules: DecodeOptions) -> NDArray[Any]:
    settled = rules.sample_shape
    if pixels.ndim == 2:
        if rules.color == "rgb" or (rules.color == "auto" and settled is not None and len(settled) == 3):
            return np.broadcast_to(pixels[..., None], (*pixels.shape, 3))
    elif rules.color == "gray":
        return np.asarray(Image.fromarray(pixels).convert("L"))
    elif rules.color == "auto" and settled is not None and len(settled) == 2:
        raise DataError(
            f"is in color, but the stack is gray like its first image {rules.first!r}: give --color rgb "
            f'(color="rgb") to convert all images to color, or --color gray (color="gray") to convert all to gray'
        )
    return pixels


def _cropped(pixels: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    (height, width), (h, w) = pixels.shape[:2], size
    if h > height or w > width:
        raise DataError(
            f"has {height} x {width} pixels, fewer than the crop of {h} x {w}: give a smaller crop, or "
            f"--resize {h}x{w} (resize=({h}, {w}))"
        )
    top, left = (height - h) // 2, (width - w) // 2
    return pixels[top : top + h, left : left + w]


def _resized(pixels: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    height, width = size
    # Pillow filters only 8-bit integers and floats. 16-bit gray is converted to float32 without loss.
    image = Image.fromarray(np.ascontiguousarray(pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32)))
    resized: NDArray[Any] = np.asarray(image.resize((width, height), Image.Resampling.LANCZOS))
    if pixels.dtype == np.uint16:
        resized = np.rint(resized).clip(0, 65535).astype(np.uint16)
    return resized


def _check_fits(pixels: NDArray[Any], rules: DecodeOptions) -> None:
    if rules.sample_shape is None:
        return
    if pixels.shape[:2] != rules.sample_shape[:2]:
        raise DataError(_other_size(pixels.shape[:2], rules))
    if pixels.dtype.name != rules.dtype:
        raise DataError(
            f"has the type {pixels.dtype.name}, but the stack has {rules.dtype} like its first image {rules.first!r}: "
            f"convert all images to one type"
        )


def _other_size(size: tuple[int, ...], rules: DecodeOptions) -> str:
    assert rules.sample_shape is not None
    h, w = rules.sample_shape[:2]
    return (
        f"has {size[0]} x {size[1]} pixels (height x width), but the stack has {h} x {w} like its first image "
        f"{rules.first!r}: give --resize {h}x{w} (resize=({h}, {w})) or --crop {h}x{w} (crop=({h}, {w}))"
    )


def _bomb(claim: str, limit: int = MAX_PIXELS) -> str:
    return f"has a header with {claim} than the limit of {limit:,} pixels, which may be a decompression bomb"


def _broken(kind: str | None, error: Exception) -> str:
    # Without memory addresses, two runs record the same reason.
    message = re.sub(r" at 0x[0-9a-f]+", "", str(error)) or type(error).__name__
    return f"is broken, truncated or of an unsupported kind ({kind} decoder: {message})"
