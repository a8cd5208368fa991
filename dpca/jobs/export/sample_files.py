"""Encodes one sample as the content of a file, and states which samples a format can hold."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from dpca.kernels.algebra.types import Array
from dpca.storage.arrays.coordinates import AFFINE, AFFINE_SPACE, TIME_STEP, UNITS, Coordinates
from dpca.storage.arrays.layout import CHANNEL
from dpca.storage.readers.base import require, source_errors

# Longest side of a JPEG file.
_JPEG_SIDE = 65500
_RGB, _RGBA = 3, 4
# Units of length in OME-Zarr 0.5, by their usual abbreviations.
_LENGTHS = {
    "m": "meter",
    "mm": "millimeter",
    "um": "micrometer",
    "\N{MICRO SIGN}m": "micrometer",
    "\N{GREEK SMALL LETTER MU}m": "micrometer",
    "micron": "micrometer",
    "nm": "nanometer",
    "km": "kilometer",
}
# Units of length in NIfTI, by those of OME-Zarr.
_NIFTI_LENGTHS = {"meter": "meter", "millimeter": "mm", "micrometer": "micron"}
# Units of time in OME-Zarr 0.5, by the abbreviations of CF.
_TIMES = {
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "min": "minute",
    "h": "hour",
    "d": "day",
    "days": "day",
    "hours": "hour",
    "minutes": "minute",
    "seconds": "second",
}


@dataclass(frozen=True)
class SampleKind:
    """What formats need to know about a sample.

    Parameters
    ----------
    shape : tuple of int
        Shape of a sample, channels last.
    dtype : numpy dtype
    axes : tuple of str
        Names of its axes, channels last.
    along : Coordinates or None
        Coordinates of all samples, with a first axis.
    quality : int
        Quality of JPEG files, 1 to 100.
    variable : str
        Name of the variable in files that name it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[str, ...]
    along: Coordinates | None = None
    quality: int = 95
    variable: str = "samples"

    @property
    def channels(self) -> int | None:
        """Number of channels; None without an axis of channels."""
        return self.shape[-1] if CHANNEL in self.axes else None

    @property
    def spatial(self) -> tuple[int, ...]:
        """Lengths of the axes other than channels."""
        return self.shape if self.channels is None else self.shape[:-1]

    @property
    def letters(self) -> str:
        """Names of the axes in TIFF files."""
        known = "TZYX"[-len(self.spatial) :].rjust(len(self.spatial), "Q")
        return known + ("" if self.channels is None else "S")

    def words(self) -> str:
        """Return shape and type for messages."""
        channels = "" if self.channels is None else f" with {self.channels} channels"
        return f"{' x '.join(map(str, self.spatial))} {self.dtype}{channels}"

    @property
    def channel_names(self) -> list[str] | None:
        """Names of the channels; None if not known."""
        found = None if self.along is None or self.channels is None else self.along.arrays.get(self.along.dims[-1])
        return None if found is None or found.values.ndim != 1 else [str(name) for name in found.values.tolist()]

    @property
    def channel_colors(self) -> list[str] | None:
        """Colors of the channels, such as ``"#00ff00"``; None if not known."""
        return None if self.along is None or self.channels is None else self.along.channel_colors

    def spacing(self, axis: int) -> tuple[float, float, str | None]:
        """Return step, first coordinate and unit of OME-Zarr along an axis of a sample: 1, 0, None if not known.

        Axis -1 counts the samples.
        """
        found = None if self.along is None else self.along.arrays.get(self.along.dims[axis + 1])
        if found is None or found.values.ndim != 1 or found.values.dtype.kind not in "iuf":
            return 1.0, 0.0, None
        values, known = found.values.astype(np.float64), _TIMES if axis < 0 else _LENGTHS
        steps, unit = np.diff(values), found.attributes.get(UNITS, "")
        unit_name = known.get(unit, unit if unit in known.values() else None)
        if axis < 0 and unit_name is None:  # dates, or anything else that is not a duration
            return 1.0, 0.0, None
        if not len(steps) or steps[0] <= 0 or not np.allclose(steps, steps[0], rtol=1e-4):
            return 1.0, 0.0, unit_name
        return float(np.mean(steps)), float(values[0]), unit_name


def jpeg(values: Array, kind: SampleKind) -> bytes:
    """Encode pixels as JPEG, colors in full resolution."""
    pixels = np.ascontiguousarray(values if kind.channels == _RGB else values.reshape(*values.shape[:2], 1))
    colors = "RGB" if kind.channels == _RGB else "GRAY"
    return bytes(simplejpeg.encode_jpeg(pixels, kind.quality, colors, "444" if colors == "RGB" else "Gray"))


def png(values: Array, kind: SampleKind) -> bytes:
    """Encode pixels as PNG, without loss."""
    pixels = values[..., 0] if kind.channels == 1 else values
    Image.fromarray(np.ascontiguousarray(pixels)).save(content := io.BytesIO(), "PNG")
    return content.getvalue()


def tiff(values: Array, kind: SampleKind) -> bytes:
    """Encode values as TIFF, without loss: an image, or the pages of a volume."""
    from tifffile import imwrite  # takes a tenth of a second

    imwrite(content := io.BytesIO(), values, **tiff_options(kind, ""))
    return content.getvalue()


def npy(values: Array, kind: SampleKind) -> bytes:
    """Encode values as a NumPy file."""
    np.lib.format.write_array(content := io.BytesIO(), values, allow_pickle=False)
    return content.getvalue()


def nifti(values: Array, kind: SampleKind) -> bytes:
    """Encode values as NIfTI."""
    return nifti_header(kind, ()) + values.astype(values.dtype.newbyteorder("<")).tobytes()


def tiff_options(kind: SampleKind, first: str) -> dict[str, Any]:
    """Return the arguments of ``tifffile.imwrite``; ``first`` is the letter of an axis of samples, if there is one."""
    rgb = kind.channels in (_RGB, _RGBA) and kind.dtype.kind == "u" and kind.dtype.itemsize <= 2
    planes = {"planarconfig": "contig"} if (kind.channels or 1) > 1 else {}
    stated = {"axes": first + kind.letters, **_described(kind)}
    return {"photometric": "rgb" if rgb else "minisblack", "metadata": stated, "software": "dpca", **planes}


def _described(kind: SampleKind) -> dict[str, Any]:
    """Return spacing and units of pixels, names and colors of channels for the description of a TIFF file."""
    found = {f"spacing_{axis}": kind.spacing(i) for i, axis in enumerate(kind.axes) if axis != CHANNEL}
    steps = {name: step for name, (step, _, unit) in found.items() if step != 1 or unit}
    units = {name.replace("spacing", "unit"): unit for name, (_, _, unit) in found.items() if unit}
    channels = {"channels": kind.channel_names, "channel_colors": kind.channel_colors}
    return {**steps, **units, **{key: found for key, found in channels.items() if found}}


def nifti_header(kind: SampleKind, n_samples: tuple[int, ...]) -> bytes:
    """Return the header of a NIfTI file, of one sample, or of ``n_samples`` along the fourth axis.

    Raises
    ------
    DataError
        If nibabel is not installed.
    """
    nibabel = require("nibabel", "nifti", "a NIfTI file")
    # The first axis of the header is the last one in memory.
    lengths = kind.shape[::-1]
    shape = (*lengths, *(1,) * (3 - len(lengths)), *n_samples) if n_samples else lengths
    long = max(shape) > np.iinfo(np.int16).max
    header = (nibabel.Nifti2Header if long else nibabel.Nifti1Header)()
    header.set_data_dtype(kind.dtype.newbyteorder("<"))
    header.set_data_shape(shape)
    along = [kind.spacing(axis) for axis in reversed(range(len(kind.shape)))]
    affine, space = np.eye(4), "scanner"
    for axis, (step, start, _) in enumerate(along):
        affine[axis, axis], affine[axis, 3] = step, start
    zooms = [step for step, _, _ in along] + [1.0] * (len(shape) - len(along))
    stated = {} if kind.along is None else kind.along.attributes
    if AFFINE in stated:
        affine[:3], space = _stated_affine(stated[AFFINE]), stated.get(AFFINE_SPACE, space)
        # The spacing along an axis of one voxel.
        norms = np.linalg.norm(affine[:3, :3], axis=0)
        zooms[:3] = [float(norm if n == 1 else step) for n, step, norm in zip(lengths, zooms, norms, strict=False)]
    if n_samples and TIME_STEP in stated:
        zooms[3] = float(stated[TIME_STEP])
        header.set_xyzt_units(t="sec")
    units = {unit for _, _, unit in along}
    if len(units) == 1 and (unit := _NIFTI_LENGTHS.get(units.pop() or "")) is not None:
        header.set_xyzt_units(unit, header.get_xyzt_units()[1])
    header.set_zooms(zooms)
    header.set_sform(affine, code=space)
    header["magic"], header["vox_offset"] = header.single_magic, header.single_vox_offset
    header.write_to(content := io.BytesIO())
    return content.getvalue().ljust(header.single_vox_offset, b"\0")


def _stated_affine(text: str) -> Array:
    """Return the affine that samples state, (3, 4)."""
    with source_errors(f"the attribute {AFFINE} of the samples is not 12 numbers", "correct or remove it"):
        return np.array(text.split(), np.float64).reshape(3, 4)


# -- what each format cannot hold


def not_jpeg(kind: SampleKind) -> str | None:
    """Return what JPEG holds if it cannot hold such a sample, else None."""
    fits = len(kind.spatial) == 2 and kind.dtype == np.uint8 and kind.channels in (None, 1, _RGB)
    fits = fits and max(kind.spatial) <= _JPEG_SIDE
    return None if fits else f"JPEG holds images of uint8 with 1 or 3 channels, up to {_JPEG_SIDE:,} pixels a side"


def not_png(kind: SampleKind) -> str | None:
    """Return what PNG holds if it cannot hold such a sample, else None."""
    channels = (None, 1, 2, _RGB, _RGBA) if kind.dtype == np.uint8 else (None, 1) if kind.dtype == np.uint16 else ()
    fits = len(kind.spatial) == 2 and kind.channels in channels
    return None if fits else "PNG holds images of uint8 with 1 to 4 channels, or of uint16 with 1"


def not_tiff(kind: SampleKind) -> str | None:
    """Return what TIFF holds if it cannot hold such a sample, else None."""
    fits = len(kind.spatial) >= 2 and kind.dtype.kind in "iuf"
    return None if fits else "TIFF holds images and volumes of integers or floating-point numbers"


def not_nifti(kind: SampleKind) -> str | None:
    """Return what NIfTI holds if it cannot hold such a sample, else None."""
    fits = len(kind.spatial) <= 3 and kind.channels is None
    fits = fits and (kind.dtype.kind in "iu" or kind.dtype in (np.float32, np.float64))
    return None if fits else "NIfTI holds up to 3 axes without channels, of integers, float32 or float64"


def not_netcdf(kind: SampleKind) -> str | None:
    """Return what netCDF holds if it cannot hold such a sample, else None."""
    fits = kind.dtype.kind in "iu" or kind.dtype in (np.float32, np.float64)
    return None if fits else "netCDF holds integers, float32 and float64"


def not_ome(kind: SampleKind) -> str | None:
    """Return what OME-Zarr holds if it cannot hold such a sample, else None."""
    fits = len(kind.spatial) in (2, 3) and kind.dtype.kind in "iuf"
    return None if fits else "OME-Zarr holds images and volumes of integers or floating-point numbers"


def never(kind: SampleKind) -> str | None:
    """Return None: the format holds any sample."""
    return None
