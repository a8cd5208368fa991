"""The formats of exported files, and the choice of one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpca.choices import EXPORT_FORMATS
from dpca.jobs.export import sample_files as one
from dpca.jobs.export import value_files as every
from dpca.jobs.export.sample_files import SampleKind
from dpca.kernels.algebra.types import Array
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.errors import DataError

# A suffix of a file, such as ".nii" or ".mp4", but no version or number such as ".5".
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,4}$")


@dataclass(frozen=True)
class ExportFormat:
    """A format of exported files.

    Parameters
    ----------
    name : str
        One of `dpca.choices.EXPORT_FORMATS`.
    suffixes : tuple of str
        Suffixes of its files, the usual one first.
    cannot_hold : callable
        Returns what the format holds if it cannot hold a sample, else None.
    encode : callable or None
        Returns the content of a file with one sample; None if a file has all samples.
    begin : callable or None
        Begins a file with all samples, see `dpca.jobs.export.value_files`; None if a file has one sample.
    """

    name: str
    suffixes: tuple[str, ...]
    cannot_hold: Callable[[SampleKind], str | None]
    encode: Callable[[Array, SampleKind], bytes] | None = None
    begin: Callable[[Path, tuple[int, ...], SampleKind, Sequence[str], Coordinates | None], int] | None = None

    def check(self, kind: SampleKind, path: str, others: Sequence[ExportFormat]) -> None:
        """Raise DataError if the format cannot hold a sample; name the formats that can."""
        if (holds := self.cannot_hold(kind)) is not None:
            names = ", ".join(other.name for other in others if other.cannot_hold(kind) is None)
            raise DataError(f"the samples of '{path}' are {kind.words()}, but {holds}: give --format {names}")


FORMATS = {
    name: ExportFormat(name, *rest)
    for name, rest in (
        ("jpeg", ((".jpg", ".jpeg"), one.not_jpeg, one.jpeg, None)),
        ("png", ((".png",), one.not_png, one.png, None)),
        ("tiff", ((".tif", ".tiff"), one.not_tiff, one.tiff, every.begin_tiff)),
        ("npy", ((".npy",), one.never, one.npy, every.begin_npy)),
        ("nifti", ((".nii", ".nii.gz"), one.not_nifti, one.nifti, every.begin_nifti)),
        ("netcdf", ((".nc",), one.not_netcdf, None, every.begin_netcdf)),
        ("ome-zarr", ((".zarr",), one.not_ome, None, None)),
    )
}
assert tuple(FORMATS) == EXPORT_FORMATS


def format_of(path: Any) -> ExportFormat | None:
    """Return the format of the suffix of a path; None for a folder."""
    lower = os.fspath(path).lower()
    return next((found for found in FORMATS.values() if lower.endswith(found.suffixes)), None)


def is_unknown(path: Any) -> bool:
    """Return whether a path looks like that of a file, but has the suffix of no format."""
    text = os.fspath(path)
    looks = _SUFFIX.search(text) is not None and not os.path.isdir(text)
    return looks and format_of(text) is None


def usual_format(kind: SampleKind, names: Sequence[str]) -> ExportFormat:
    """Return the format of files of single samples if none is given: that of the names, or a lossless one."""
    named = format_of(names[0]) if len(names) else None
    several = (named, *(FORMATS[name] for name in ("png", "tiff", "npy")))
    return next(each for each in several if each is not None and each.encode and each.cannot_hold(kind) is None)
