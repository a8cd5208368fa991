"""Samples of another source in a region, with a constant outside."""

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
from dpca.storage.remote.objects import absolute


class MaskedReader(Reader):
    """All samples of a reader of arrays, with a constant outside of a region.

    A constant has no variance, so components and scores are those of the region. It is the first finite value of
    the region in the first sample, because that lies in the data range; 0 if it has none. Values outside may be missing
    or not finite.

    Parameters
    ----------
    reader : Reader
    path : str
        Path of a map of 0 and 1 in any format of arrays, with the shape of a sample or of its first axes. 1 is inside.

    Raises
    ------
    DataError
        If the source contains encoded images, or the map has another shape, another value, or no 1.
    """

    def __init__(self, reader: Reader, path: str) -> None:
        if reader.encoded:
            raise DataError(
                f"'{reader.name}' contains images, and masks are for arrays: make a stack with dpca ingest, and give "
                f"it with the mask"
            )
        self._reader, self.inside = reader, _region(path, reader.sample_shape)
        self.kind, self.name, self.encoded = reader.kind, reader.name, False
        self.random_access, self.reads_boxes = reader.random_access, reader.reads_boxes
        self.others, self.refused, self.labels = reader.others, reader.refused, reader.labels
        self.sample_shape, self.dtype, self.axes = reader.sample_shape, reader.dtype, reader.axes
        self.data_range, self.coordinates, self.may_miss = reader.data_range, reader.coordinates, reader.may_miss
        self.paths, self.patterns = (*reader.paths, absolute(path)), reader.patterns
        self.fill_value = self._first_value()

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
        return partial(_filled, self._reader.part(indices), *self._packed(()))

    def box(self, indices: Sequence[int], region: Region) -> Callable[[], NDArray[Any]]:
        """Return the box of the wrapped reader for these samples, and a function that fills it outside."""
        return partial(_filled, self._reader.box(indices, region), *self._packed(region))

    def stream(self, requests: Iterable[Sequence[int]]) -> Iterator[Block]:
        """Yield the blocks of the wrapped reader, filled outside."""
        packed = self._packed(())
        for block in self._reader.stream(requests):
            yield _filled(partial(np.asanyarray, block), *packed)

    def _packed(self, region: Region) -> tuple[NDArray[np.uint8], tuple[int, ...], Any]:
        """Return the map in a box, as bits, its shape, and the constant."""
        inside = self.inside[tuple(slice(start, stop) for start, stop in region[: self.inside.ndim])]
        return np.packbits(inside), inside.shape, self.fill_value

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


def _region(path: str, sample_shape: tuple[int, ...]) -> NDArray[np.bool_]:
    values = read_map(path)
    if len(values) == 1 and values.shape[1:] == sample_shape[: values.ndim - 1] and values.ndim > 1:
        values = values[0]  # a file with one sample
    if values.shape != sample_shape[: values.ndim]:
        raise DataError(
            f"the mask '{path}' has the shape {values.shape}, but samples have {sample_shape}: give a mask of their "
            f"shape, or of their first axes"
        )
    wrong = (values != 0) & (values != 1)
    if wrong.any():
        raise DataError(f"the mask '{path}' contains {values[wrong][0]:g}: give 1 inside of the region and 0 outside")
    if not values.any():
        raise DataError(f"the mask '{path}' is 0 everywhere: give 1 inside of the region")
    return values.astype(bool)


def _filled(
    read: Callable[[], Block], packed: NDArray[np.uint8], shape: tuple[int, ...], fill_value: Any
) -> NDArray[Any]:
    block: Any = read()
    inside = np.unpackbits(packed, count=int(np.prod(shape))).astype(bool).reshape(shape)
    inside = inside.reshape(*shape, *(1,) * (block.ndim - 1 - len(shape)))
    where: Any = np.ma.where if np.ma.isMaskedArray(block) else np.where
    filled: NDArray[Any] = where(inside, block, fill_value)
    return filled
