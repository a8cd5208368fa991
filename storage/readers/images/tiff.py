"""Stacks in TIFF files with several pages, such as OME-TIFF and hyperstacks of ImageJ, read with tifffile.

A file with one page is an image. The axes are those in the file, in its order: T, Z, C, Y, X in OME and ImageJ.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.layout import stacked_axes
from dpca.storage.errors import DataError, one_line
from dpca.storage.images import MAX_PIXELS
from dpca.storage.pictures import picture_of
from dpca.storage.readers.arrays.raw import ArrayReader, Raw, RawReader
from dpca.storage.readers.base import Reader, source_errors, within_memory
from dpca.storage.readers.format import FileHead, Format
from dpca.storage.readers.images.folder import FilesReader
from dpca.storage.readers.images.tiff_units import along_pages

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPageSeries

# Supported kinds of series. tifffile supports more, and some of these read other files.
_KINDS = {"ome", "imagej", "shaped", "uniform"}
_PALETTE = 3
_NO_COMPRESSION = 1
# Highest compression ratio that is believed. LZW and deflate reach a third of it.
_RATIO = 4096
# A compressed strip or tile may be larger than the decoded one by an eighth, plus this number of bytes.
_MORE_BYTES = 1 << 16


class TiffReader(ArrayReader):
    """Pages of a TIFF that are compressed, divided into tiles, or not consecutive. They are decoded page by page.

    Parameters
    ----------
    path : str
        The file.
    shape, dtype, axes, coordinates :
        Of all pages together, see `ArrayReader`.
    n_pages : int
        Number of pages.

    Raises
    ------
    DataError
        If the sample axis is an axis of a page.
    """

    kind = "tiff"

    def __init__(
        self,
        path: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        axes: Sequence[str],
        coordinates: Coordinates | None,
        n_pages: int,
    ) -> None:
        super().__init__(os.path.basename(path), shape, dtype, axes, coordinates)
        self._path = path
        n_axes = next(n for n in range(len(shape) + 1) if prod(shape[:n]) == n_pages)
        if self.order[0] >= n_axes:
            raise DataError(
                f"'{self.name}' is compressed page by page, but its sample axis {self.order[0]} is an axis of a page: "
                f"choose one of the first {n_axes} with --axes (axes=...), or save it uncompressed"
            )
        self._pages = np.moveaxis(np.arange(n_pages).reshape(shape[:n_axes]), self.order[0], 0)
        self._page_shape = shape[n_axes:]
        # The order of the axes of a sample after its pages are joined.
        rest = [i for i in range(len(shape)) if i != self.order[0]]
        self._turned = (0, *(1 + rest.index(i) for i in self.order[1:]))

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Return a function that opens the file and reads the pages of these samples."""
        return partial(_read, self._path, self._pages[list(indices)], self._page_shape, self.dtype, self._turned)


def open_tiff(path: str, axes: Sequence[str] | None = None) -> Reader | None:
    """Open a TIFF file as a stack. It is mapped if its pages are uncompressed and consecutive.

    Returns
    -------
    Reader or None
        None if it has a single image.

    Raises
    ------
    DataError
        If it is broken, refers to other files, has pages of several shapes, or lacks pages.
    """
    path, name = os.path.abspath(path), os.path.basename(path)
    broken = source_errors(f"'{name}' is truncated or no complete TIFF")
    with within_memory(f"'{name}'"), broken, _opened(path) as file:
        series = file.series[0]
        named = stacked_axes(series.axes, series.shape)
        if named is None:
            return None
        _check_series(file, series, name)
        shape, dtype, offset = tuple(map(int, series.shape)), np.dtype(series.dtype), series.dataoffset
        n_pages = len(series.pages)
        stored, along = dtype.newbyteorder(file.byteorder).str, along_pages(file, series.axes, shape)
    if offset is not None:
        raw = Raw(path, int(offset), shape, stored)
        return RawReader(raw, name, axes or named, along, kind="tiff", end=raw.end)
    return TiffReader(path, shape, dtype, axes or named, along, n_pages)


@contextmanager
def _opened(path: str) -> Iterator[TiffFile]:
    from tifffile import TIFF, TiffFile  # takes a tenth of a second, and few sources are TIFF stacks

    logging.getLogger("tifffile").addHandler(logging.NullHandler())  # it logs errors, too
    refused: dict[str, Any] = {f"is_{kind}": False for kind in TIFF.FILE_FLAGS - _KINDS}
    with TiffFile(path, _multifile=False, **refused) as file:
        _check_claims(file, os.path.basename(path))
        if not file.is_shaped or len(file.series) == 1:
            yield file
            return
    # Pages that tifffile wrote one by one: each states its own shape.
    with TiffFile(path, _multifile=False, is_shaped=False, **refused) as file:
        yield file


def _check_claims(file: TiffFile, name: str) -> None:
    """Reject metadata that makes tifffile allocate memory before it reads the pages."""
    size = file.filehandle.size
    if file.ome_metadata is None:
        return
    for element in ElementTree.fromstring(file.ome_metadata).iter():
        tag = element.tag.rpartition("}")[2]
        numbers = {key: int(n) for key, n in element.attrib.items() if n.isdecimal()}
        planes = prod(numbers.get(f"Size{axis}", 1) for axis in "TZC") if tag == "Pixels" else 0
        if tag == "TiffData":
            planes = max(numbers.values(), default=0)
        if planes > size:
            raise DataError(f"'{name}' claims {planes:,} planes in {size:,} bytes: get it again")
        if tag.startswith("Along") and "Start" in element.attrib:
            raise DataError(f"'{name}' has modulo axes, which are not supported: save it as OME-TIFF without them")


def _check_series(file: TiffFile, series: TiffPageSeries, name: str) -> None:
    if file.is_ome and series.kind != "ome":
        raise DataError(f"'{name}' is one of several files of an OME-TIFF: save them as one file")
    if any(not other.keyframe.is_reduced for other in file.series[1:]):
        raise DataError(f"'{name}' has pages of several shapes or types: save pages of one kind")
    page = series.keyframe
    if page.photometric == _PALETTE:
        raise DataError(f"'{name}' has pages with a palette, so values are not brightness: save it in gray or RGB")
    claimed, there = prod(series.shape) * np.dtype(series.dtype).itemsize, file.filehandle.size
    if page.compression == _NO_COMPRESSION and claimed > there:
        raise DataError(f"'{name}' claims {claimed:,} bytes and has {there:,}: get it again")
    other = series.dataoffset is None and len(series.pages) * prod(page.shape) != prod(series.shape)
    if claimed > there * _RATIO or other:
        raise DataError(f"'{name}' claims {claimed:,} bytes, which its {there:,} bytes cannot contain: get it again")
    if prod(page.shape) > MAX_PIXELS * 4:
        raise DataError(
            f"'{name}' claims pages of {prod(page.shape):,} values, too many for an image: save it in tiles"
        )
    if series.dataoffset is None and any(one is None for one in series.pages):
        raise DataError(f"'{name}' lacks pages that its header lists: get it again")


def _read(
    path: str, pages: NDArray[np.int64], page_shape: tuple[int, ...], dtype: np.dtype[Any], turned: tuple[int, ...]
) -> NDArray[Any]:
    name, joined = os.path.basename(path), np.empty((*pages.shape, *page_shape), dtype)
    with source_errors(f"'{name}' cannot be read"), _opened(path) as file:
        series = file.series[0]
        for place, number in np.ndenumerate(pages):
            page = series.pages[int(number)]
            if page is None or 0 in page.databytecounts:
                raise DataError(f"page {number} of '{name}' has parts that were never written: write it completely")
            most = prod(page.chunks) * dtype.itemsize  # decoders allocate memory for a whole strip or tile
            if max(page.databytecounts) > most + most // 8 + _MORE_BYTES:
                raise DataError(f"page {number} of '{name}' is compressed to more bytes than it has: get it again")
            try:
                joined[place] = page.asarray(maxworkers=1).reshape(page_shape)
            except ValueError as error:
                if "imagecodecs" not in str(error):
                    raise
                remedy = 'pip install "dask-dpca[tiff]"'
                raise DataError(f"'{name}' cannot be read ({one_line(error)}): {remedy}") from error
    return joined.transpose(turned)


def is_stack(path: str) -> bool:
    """Return whether the first of several images is a TIFF of several pages, so that all files are read as stacks."""
    try:
        return path.lower().endswith((".tif", ".tiff")) and open_tiff(path) is not None
    except DataError:
        return False  # refused by name when it is read as an image


def _is_tiff(file: FileHead) -> bool:
    found = picture_of(file.first)
    return found is not None and found.name == "TIFF"


FORMATS = (
    Format("TIFF of several pages", _is_tiff, lambda path, key, axes: open_tiff(path, axes) or FilesReader([path])),
)
