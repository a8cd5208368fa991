"""Stacks in TIFF files: several pages, OME-TIFF, hyperstacks of ImageJ; by tifffile, which scikit-image needs, too.

A file of one page is an image. The axes are those that the file states, in its order: T, Z, C, Y, X of OME and ImageJ.
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

from dpca.storage.arrays.layout import stacked_axes
from dpca.storage.errors import DataError, one_line
from dpca.storage.images import MAX_PIXELS
from dpca.storage.pictures import picture_of
from dpca.storage.readers.arrays.raw import ArrayReader, Raw, RawReader
from dpca.storage.readers.base import Reader, digest_file, within_memory
from dpca.storage.readers.format import FileHead, Format
from dpca.storage.readers.images.folder import FilesReader

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPageSeries

# kinds of series whose meaning is known; tifffile knows more, some of which read other files
_KINDS = {"ome", "imagej", "shaped", "uniform"}
_PALETTE = 3
_NO_COMPRESSION = 1
# most that a compressed page may hold for each of its bytes: LZW and deflate reach a third of that and more is a claim
_RATIO = 4096
# What packed strips and tiles may have beyond the bytes that they stand for, beside an eighth of these.
_MORE_BYTES = 1 << 16


class TiffReader(ArrayReader):
    """Pages of a TIFF that are compressed, in tiles, or not one after the other: decoded page by page.

    Parameters
    ----------
    path : str
        The file.
    shape, dtype, axes :
        Of all pages together, see `ArrayReader`.
    n_pages : int

    Raises
    ------
    DataError
        If the samples are counted by an axis that lies in a page.
    """

    kind = "tiff"

    def __init__(
        self, path: str, shape: tuple[int, ...], dtype: np.dtype[Any], axes: Sequence[str], n_pages: int
    ) -> None:
        super().__init__(os.path.basename(path), shape, dtype, axes)
        self._path = path
        n_axes = next(n for n in range(len(shape) + 1) if prod(shape[:n]) == n_pages)
        if self.order[0] >= n_axes:
            raise DataError(
                f"'{self.name}' is compressed page by page and axis {self.order[0]}, which is to count its samples, "
                f"lies within a page: choose one of the first {n_axes} with --axes (axes=...), or save it uncompressed"
            )
        self._pages = np.moveaxis(np.arange(n_pages).reshape(shape[:n_axes]), self.order[0], 0)
        self._page_shape = shape[n_axes:]
        # where the axes of a sample stand once its pages are joined
        rest = [i for i in range(len(shape)) if i != self.order[0]]
        self._turned = (0, *(1 + rest.index(i) for i in self.order[1:]))

    def fingerprint(self) -> str:
        """Hash of size and ends of the file."""
        return digest_file(self._path)

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Ship the file's path and which pages are wanted."""
        return partial(_read, self._path, self._pages[list(indices)], self._page_shape, self.dtype, self._turned)


def open_tiff(path: str, axes: Sequence[str] | None = None) -> Reader | None:
    """Open a TIFF file as a stack; mapped where its pages lie uncompressed one after the other.

    Returns
    -------
    Reader or None
        None if it holds a single image.

    Raises
    ------
    DataError
        If it is broken, states what other files hold, has pages of several shapes, or lacks some.
    """
    path, name = os.path.abspath(path), os.path.basename(path)
    try:
        with within_memory(f"'{name}'"), _opened(path) as file:
            series = file.series[0]
            named = stacked_axes(series.axes, series.shape)
            if named is None:
                return None
            _check_series(file, series, name)
            shape, dtype, offset = tuple(map(int, series.shape)), np.dtype(series.dtype), series.dataoffset
            n_pages = len(series.pages)
            stored = dtype.newbyteorder(file.byteorder).str
    except (DataError, MemoryError):
        raise
    except Exception as error:
        # A hostile file can end in any exception inside tifffile; all of them mean the same here.
        raise DataError(f"'{name}' is truncated or no whole TIFF ({one_line(error)}): get it again") from error
    if offset is not None:
        raw = Raw(path, int(offset), shape, stored)
        return RawReader(
            raw, kind="tiff", identity=partial(digest_file, path), name=name, axes=axes or named, end=raw.end
        )
    return TiffReader(path, shape, dtype, axes or named, n_pages)


@contextmanager
def _opened(path: str) -> Iterator[TiffFile]:
    # takes a tenth of a second, and few sources are such
    from tifffile import TIFF, TiffFile

    logging.getLogger("tifffile").addHandler(logging.NullHandler())  # it tells of what is wrong, too
    refused: dict[str, Any] = {f"is_{kind}": False for kind in TIFF.FILE_FLAGS - _KINDS}
    with TiffFile(path, _multifile=False, **refused) as file:
        _check_claims(file, os.path.basename(path))
        if not file.is_shaped or len(file.series) == 1:
            yield file
            return
    # pages that tifffile wrote one by one: each states a shape of its own
    with TiffFile(path, _multifile=False, is_shaped=False, **refused) as file:
        yield file


def _check_claims(file: TiffFile, name: str) -> None:
    """Refuse metadata for which tifffile would take memory before it sees the pages."""
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
            raise DataError(f"'{name}' states axes by modulo, which are not read: save it as OME-TIFF without")


def _check_series(file: TiffFile, series: TiffPageSeries, name: str) -> None:
    if file.is_ome and series.kind != "ome":
        raise DataError(f"'{name}' is one of several files of an OME-TIFF: save them as one")
    if any(not other.keyframe.is_reduced for other in file.series[1:]):
        raise DataError(f"'{name}' has pages of several shapes or types: save those of one kind alone")
    page = series.keyframe
    if page.photometric == _PALETTE:
        raise DataError(f"'{name}' has pages with a palette, whose values mean nothing: save it in grey or RGB")
    claimed, there = prod(series.shape) * np.dtype(series.dtype).itemsize, file.filehandle.size
    if page.compression == _NO_COMPRESSION and claimed > there:
        raise DataError(f"'{name}' claims {claimed:,} bytes and has {there:,}: get it again")
    other = series.dataoffset is None and len(series.pages) * prod(page.shape) != prod(series.shape)
    if claimed > there * _RATIO or other:
        raise DataError(f"'{name}' claims {claimed:,} bytes, which its {there:,} cannot hold: get it again")
    if prod(page.shape) > MAX_PIXELS * 4:
        raise DataError(f"'{name}' claims pages of {prod(page.shape):,} values, more than are read: save it in tiles")
    if series.dataoffset is None and any(one is None for one in series.pages):
        raise DataError(f"'{name}' lacks pages that it states: get it again")


def _read(
    path: str, pages: NDArray[np.int64], page_shape: tuple[int, ...], dtype: np.dtype[Any], turned: tuple[int, ...]
) -> NDArray[Any]:
    name, joined = os.path.basename(path), np.empty((*pages.shape, *page_shape), dtype)
    try:
        with _opened(path) as file:
            series = file.series[0]
            for place, number in np.ndenumerate(pages):
                page = series.pages[int(number)]
                if page is None or 0 in page.databytecounts:
                    raise DataError(f"page {number} of '{name}' has parts that were never written: write it whole")
                most = prod(page.chunks) * dtype.itemsize  # decoders take memory for all that a strip or tile holds
                if max(page.databytecounts) > most + most // 8 + _MORE_BYTES:
                    raise DataError(f"page {number} of '{name}' is packed into more bytes than it has: get it again")
                joined[place] = page.asarray(maxworkers=1).reshape(page_shape)
    except (DataError, MemoryError):
        raise
    except Exception as error:
        # A broken page can end in any exception inside a decoder; all of them mean the same here.
        why = one_line(error)
        remedy = 'pip install "dask-dpca[tiff]"' if "imagecodecs" in why else "get it again"
        raise DataError(f"'{name}' cannot be read ({why}): {remedy}") from error
    return joined.transpose(turned)


def is_stack(path: str) -> bool:
    """Whether a file among images is a stack of several pages, as all of them are then taken for."""
    try:
        return path.lower().endswith((".tif", ".tiff")) and open_tiff(path) is not None
    except DataError:
        return False  # refused by name where it is read as an image


def _is_tiff(file: FileHead) -> bool:
    found = picture_of(file.first)
    return found is not None and found.name == "TIFF"


FORMATS = (
    Format("TIFF of several pages", _is_tiff, lambda path, key, axes: open_tiff(path, axes) or FilesReader([path])),
)
