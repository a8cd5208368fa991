"""Determines the shape and type of all samples of a source from a few of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.arrays import Codec, choose_codec
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.layout import CHANNEL, SAMPLE, axes_for, box_shape
from dpca.storage.errors import DataError
from dpca.storage.images import Color, DecodeOptions, decode
from dpca.storage.pictures import NAMES
from dpca.storage.ranges import checked_range, type_range
from dpca.storage.readers import Payload, Reader, Refused
from dpca.storage.readers.base import seen, within_memory

# The codec is tested on at most this number of samples and of bytes.
_TRIED, _TRIED_BYTES = 8, 4 << 20
# A sample of more bytes is not read for this, only the center of the first one.
_LARGE_BYTES = 64 << 20
_KEEPS = "but --keep-jpegs (keep_jpegs=True) stores images of 8 bits as they are: leave it out"


@dataclass(frozen=True)
class SampleForm:
    """The common properties of all samples of a stack.

    Parameters
    ----------
    sample_shape : tuple of int
        Shape of one sample.
    dtype : numpy dtype
        Type of its values.
    axes : tuple of str
        Names of the axes of the stack, beginning with ``"sample"``.
    codec : {"raw", "blosc", "jpeg"}
        Of kept files "jpeg", else see `dpca.storage.arrays.arrays.choose_codec`.
    data_range : tuple of float or None
        Lowest and highest possible value of a sample; None if the range is computed from the samples.
    rules : DecodeOptions or None
        Settled rules for encoded images.
    coordinates : Coordinates or None
        Names of all axes of the source, and coordinates along them.
    gaps : bool
        Whether missing values are kept, as NaN. Then values are floating-point numbers.
    infinite : bool
        Whether infinities are kept, too.
    """

    sample_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[str, ...]
    codec: Codec
    data_range: tuple[float, float] | None
    rules: DecodeOptions | None = None
    coordinates: Coordinates | None = None
    gaps: bool = False
    infinite: bool = False

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes in the store: those of the source, or else those in ``axes``."""
        return self.axes if self.coordinates is None else self.coordinates.dims

    @property
    def color(self) -> str | None:
        """Whether images are ``"rgb"`` or ``"gray"``; None for arrays."""
        if self.rules is None:
            return None
        return "rgb" if len(self.sample_shape) == 3 else "gray"


@dataclass(frozen=True)
class ReadOptions:
    """How the samples of a source are read.

    Parameters
    ----------
    color : {"auto", "rgb", "gray"}
        See `dpca.storage.images.DecodeOptions`.
    resize, crop : tuple of int, optional
        (height, width) in pixels to which every image is first cropped and then scaled; see
        `dpca.storage.images.DecodeOptions`.
    on_error : {"stop", "skip"}
        Whether an invalid sample (unreadable, of another shape or not finite) is an error, or is left out and recorded
        with its reason in ``rejected``.
    data_range : tuple of float, optional
        Lowest and highest possible value of a sample. The default is the range that the source states, or else the
        range of the type for ``bool`` and ``uint8``, or else the lowest and highest value found.
    gaps : bool
        Whether missing values are kept, as NaN. Otherwise they are invalid. Integers of a source that states which
        values mean missing become floating-point numbers.
    infinite : bool
        Whether infinities are kept as missing values, too. Requires ``gaps``.
    keep_jpegs : bool
        Whether JPEG files are stored as they came, and decoded at each read. The stack has the size of its files, and
        the same values. Their headers are checked, but a file with damaged pixels is found only when it is read. Other
        images, and JPEGs that require more than decoding (EXIF orientation, CMYK), are stored as pixels. Requires
        images of 8 bits, and excludes ``crop``, ``resize`` and ``color="gray"``.

    Raises
    ------
    DataError
        If an option is invalid.
    """

    color: Color = "auto"
    resize: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    on_error: Literal["stop", "skip"] = "stop"
    data_range: tuple[float, float] | None = None
    gaps: bool = False
    infinite: bool = False
    keep_jpegs: bool = False

    def __post_init__(self) -> None:
        if self.on_error not in ("stop", "skip"):
            raise DataError(f"on_error {self.on_error!r} is unknown: choose 'stop' or 'skip'")
        self.rules()
        self.limits()
        if self.keep_jpegs and (self.crop is not None or self.resize is not None or self.color == "gray"):
            raise DataError(f"crop, resize and color 'gray' change pixels, {_KEEPS}")

    def as_dict(self) -> dict[str, Any]:
        """Return the options that identify a job. New ones at their default are left out, as in earlier versions."""
        return {name: value for name, value in vars(self).items() if name not in ("infinite", "keep_jpegs") or value}

    @property
    def stop(self) -> bool:
        """Whether an invalid sample is an error."""
        return self.on_error == "stop"

    def rules(self) -> DecodeOptions:
        """Return the conversion of images."""
        return DecodeOptions(color=self.color, crop=_size("crop", self.crop), resize=_size("resize", self.resize))

    def limits(self) -> tuple[float, float] | None:
        """Return the data range, None if it is not given."""
        return None if self.data_range is None else checked_range(self.data_range)


def _size(option: str, size: Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    if len(size) != 2 or any(int(length) != length for length in size):
        raise DataError(f"{option} {size!r} is not an image size: give (height, width) in whole pixels")
    return int(size[0]), int(size[1])


def survey(reader: Reader, options: ReadOptions) -> SampleForm:
    """Determine shape, dtype, axes and codec of the samples of a source.

    Parameters
    ----------
    reader : Reader
        A source with at least one sample.
    options : ReadOptions

    Returns
    -------
    Form
        For images, the first accepted image determines the form. All images before it and at most the 7 images after it
        are decoded.

    Raises
    ------
    DataError
        If all images are rejected, or if rejected samples are errors and one of the decoded images is rejected or any
        sample is known to be invalid.
    """
    with within_memory(f"'{reader.name}'"):
        return _form(reader, options)


def _form(reader: Reader, options: ReadOptions) -> SampleForm:
    rules = None
    if options.stop and reader.refused:
        first = min(reader.refused)
        raise refusal(reader, first, reader.refused[first])
    if reader.encoded:
        rules, tried = _first_images(reader, options.rules(), options.stop)
        if options.keep_jpegs and (tried.dtype != np.uint8 or rules.region is not None):
            why = f"has images of {tried.dtype}" if rules.region is None else "is read in a region"
            raise DataError(f"'{reader.name}' {why}, {_KEEPS}")
        axes: tuple[str, ...] = ("y", "x", CHANNEL)[: tried.ndim - 1]
    else:
        tried = _some_rows(reader)
        tried = tried.astype(reader.dtype_with_gaps(), copy=False) if options.gaps else tried
        axes = reader.axes or axes_for(reader.sample_shape)
    return SampleForm(
        sample_shape=tried.shape[1:] if reader.encoded else reader.sample_shape,
        dtype=tried.dtype,
        axes=(SAMPLE, *axes),
        codec="jpeg" if options.keep_jpegs and reader.encoded else choose_codec(tried),
        data_range=options.limits() or reader.data_range or type_range(tried.dtype),
        rules=rules,
        coordinates=reader.coordinates,
        gaps=options.gaps and tried.dtype.kind == "f",
        infinite=options.infinite and tried.dtype.kind == "f",
    )


def require_samples(reader: Reader) -> None:
    """Check that a source has samples.

    Raises
    ------
    DataError
        If it has none. The message lists the supported formats, and the suffixes of the other files.
    """
    if len(reader):
        return
    if not reader.encoded:
        raise DataError(f"'{reader.name}' has no samples (its sample axis has length 0): give another array")
    raise DataError(
        f"no images were found in '{reader.name}', where {seen(reader.others)}: check the path; supported are {NAMES}, "
        f"and archives must be given by their own path"
    )


def refusal(reader: Reader, item: int, reason: str) -> DataError:
    """Return the error for a rejected sample."""
    return DataError(
        f'{reader.called(item)} {reason}; with --on-error skip (on_error="skip"), it is left out and recorded'
    )


def nothing_left(reader: Reader, item: int, reason: str) -> DataError:
    """Return the error for a source without valid samples. ``reason`` belongs to the first sample."""
    return DataError(
        f"all {len(reader):,} samples of '{reader.name}' are invalid: the first, {reader.called(item)}, {reason}"
    )


def payload_or_refusal(payload: Payload) -> bytes:
    """Return the payload, or raise `DataError` if the reader rejected it."""
    if isinstance(payload, Refused):
        raise DataError(payload.reason)
    return payload


def _first_images(reader: Reader, rules: DecodeOptions, stop: bool) -> tuple[DecodeOptions, NDArray[Any]]:
    tried: list[NDArray[Any]] = []
    first_refusal = ""
    last = len(reader) - 1
    for i, block in enumerate(reader.stream([i] for i in range(len(reader)))):
        try:
            pixels = decode(payload_or_refusal(block[0]), rules)
        except DataError as error:
            if stop:
                raise refusal(reader, i, str(error)) from None
            first_refusal = first_refusal or str(error)
        else:
            if not tried:
                rules = rules.with_first_image(pixels, reader.names[i])
                if (region := reader.region_of(pixels)) is not None:
                    rules, pixels = replace(rules, region=region), region.filled(pixels)
                last = min(last, i + min(_TRIED, max(1, _TRIED_BYTES // pixels.nbytes)) - 1)
            tried.append(pixels)
        if i >= last:
            break
    if not tried:
        raise nothing_left(reader, 0, first_refusal)
    return rules, np.stack(tried)


def _some_rows(reader: Reader) -> NDArray[Any]:
    row_bytes = prod(reader.sample_shape) * reader.dtype.itemsize
    n = min(_TRIED, max(1, _TRIED_BYTES // row_bytes), len(reader))
    if row_bytes > _LARGE_BYTES and reader.reads_boxes:
        shape = reader.sample_shape
        box = box_shape(shape, _TRIED_BYTES // reader.dtype.itemsize, (1,) * len(shape))
        starts = [(length - b) // 2 for length, b in zip(shape, box, strict=True)]
        return np.asarray(reader.box([0], tuple((a, a + b) for a, b in zip(starts, box, strict=True)))())
    # Rows are spread over the stack if random access is free, since data often begin with a constant.
    rows = np.linspace(0, len(reader) - 1, n).astype(int) if reader.random_access else np.arange(n)
    return np.asarray(reader.fetch(sorted(set(rows.tolist()))))
