"""Samples of another source in a region, with a constant outside: arrays, and images when they are decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.layout import Region
from dpca.storage.errors import DataError
from dpca.storage.readers.base import Block, Reader, digest
from dpca.storage.readers.maps import read_map
from dpca.storage.region import FilledRegion
from dpca.storage.remote.objects import absolute


class MaskedReader(Reader):
    """All samples of a reader, with a constant outside of a region.

    A constant has no variance, so components and scores are those of the region. It is the first finite value of
    the region in the first sample, because that lies in the data range; 0 if it has none. Values outside may be missing
    or not finite.

    Parameters
    ----------
    reader : Reader
    path : str
        Path of a map of 0 and 1 in any format of arrays, or of an image, with the shape of a sample or of its first
        axes. 1 is inside, or white: 255, or the largest value of an integer type. Transparent pixels of a map
        are outside. Images are cropped and scaled before.

    Raises
    ------
    DataError
        If the map has another shape, another value, or no 1. The shape of images is checked by `region_of`.
    """

    def __init__(self, reader: Reader, path: str) -> None:
        self._reader, self._path, self.inside = reader, path, _region(path)
        if not reader.encoded:
            self.inside = self._fitting(reader.sample_shape)
        self.kind, self.name, self.encoded = reader.kind, reader.name, reader.encoded
        self.random_access, self.reads_boxes = reader.random_access, reader.reads_boxes
        self.others, self.refused, self.labels = reader.others, reader.refused, reader.labels
        self.sample_shape, self.dtype, self.axes = reader.sample_shape, reader.dtype, reader.axes
        self.data_range, self.coordinates, self.may_miss = reader.data_range, reader.coordinates, reader.may_miss
        self.paths, self.patterns = (*reader.paths, absolute(path)), reader.patterns
        self.fill_value = None if reader.encoded else self._first_value()

    @property
    def names(self) -> Sequence[str]:
        """Names of the samples."""
        return self._reader.names

    def __len__(self) -> int:
        return len(self._reader)

    def fingerprint(self) -> str:
        """Hash of the reader's fingerprint and the region."""
        return digest(["masked", self._reader.fingerprint(), *self.inside.shape, np.packbits(self.inside).tobytes()])

    def part(self, indices: Sequence[int]) -> Callable[[], Block]:
        """Return the part of the wrapped reader for these samples, and a function that fills it outside."""
        part = self._reader.part(indices)
        return part if self.encoded else partial(_filled, part, self._region(()))

    def box(self, indices: Sequence[int], region: Region) -> Callable[[], NDArray[Any]]:
        """Return the box of the wrapped reader for these samples, and a function that fills it outside."""
        return partial(_filled, self._reader.box(indices, region), self._region(region))

    def stream(self, requests: Iterable[Sequence[int]]) -> Iterator[Block]:
        """Yield the blocks of the wrapped reader, filled outside."""
        region = self._region(())
        for block in self._reader.stream(requests):
            yield block if self.encoded else region.filled(np.asanyarray(block), n_before=1)

    def region_of(self, first: NDArray[Any]) -> FilledRegion | None:
        """For images: return the region, and as the constant the first value in it of the first sample."""
        inside = self._fitting(first.shape)
        return FilledRegion.of(inside, first.dtype.type(first[inside].flat[0]))

    def _region(self, region: Region) -> FilledRegion:
        """Return the region in a box."""
        inside = self.inside[tuple(slice(start, stop) for start, stop in region[: self.inside.ndim])]
        return FilledRegion.of(inside, self.fill_value)

    def _fitting(self, sample_shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Return the map for samples of a shape."""
        inside = self.inside
        if len(inside) == 1 and inside.shape[1:] == sample_shape[: inside.ndim - 1] and inside.ndim > 1:
            inside = inside[0]  # a file with one sample
        if inside.shape != sample_shape[: inside.ndim]:
            raise DataError(
                f"the mask '{self._path}' has the shape {inside.shape}, but samples have {sample_shape}: give a mask "
                f"of their shape, or of their first axes"
            )
        return inside

    def _first_value(self) -> Any:
        """Return the constant. Boxes of one row or plane at a time are read until one has a value."""
        others, rows = tuple((0, length) for length in self.sample_shape[1:]), self.inside
        for row in np.flatnonzero(rows.reshape(len(rows), -1).any(axis=1)).tolist() if self.reads_boxes else [None]:
            if row is None:
                values, inside = cast("NDArray[Any]", self._reader.fetch([0]))[0], rows
            else:
                values, inside = self._reader.box([0], ((row, row + 1), *others))()[0], rows[row : row + 1]
            found = np.ma.compressed(values[inside])
            if (found := found[np.isfinite(found)]).size:
                return self.dtype.type(found[0])
        return self.dtype.type(0)


def _region(path: str) -> NDArray[np.bool_]:
    values = read_map(path)
    white = {255, np.iinfo(values.dtype).max} if values.dtype.kind in "iu" else set()
    wrong = (values != 0) & (values != (largest if (largest := values.max()) in white else 1))
    if wrong.any():
        raise DataError(
            f"the mask '{path}' contains {values[wrong][0]:g}: give 1 (or white) inside of the region and 0 outside"
        )
    if not values.any():
        raise DataError(f"the mask '{path}' is 0 everywhere: give 1 inside of the region")
    return values.astype(bool)


def _filled(read: Callable[[], Block], region: FilledRegion) -> NDArray[Any]:
    return region.filled(cast("NDArray[Any]", read()), n_before=1)
