"""Samples, or tiles of large ones, whose missing values are filled without a model of gaps.

For the fit of tiles, gaps are filled from the values around them in the tile. The encoding fills them by the
components of the fit, which takes up to a fifth fewer bytes: cells without values take none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.filled import Filled
from dpca.engine.sources.finite import check_no_infinity
from dpca.engine.sources.source import BatchReader, Source, as_source
from dpca.engine.sources.tiled import TiledSource, TiledStack
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.filling import filled_from_around, filling_bytes
from dpca.representation.compressed.gap_filling import CellFilling, cell_filling_bytes
from dpca.storage.arrays.layout import count_spatial
from dpca.storage.arrays.tiles import GROUP, Tiles
from dpca.storage.errors import StoreError
from dpca.storage.stack import Stack
from dpca.storage.transaction.checkpoints import Checkpoints


@dataclass(frozen=True)
class KeptFilling:
    """A `CellFilling` in a checkpoint, which each process loads once.

    Attributes
    ----------
    kept : Checkpoints
    name : str
        Differs for fillings that differ.
    """

    kept: Checkpoints
    name: str

    def save(self, filling: CellFilling) -> None:
        """Write the filling, unless it is there."""
        if self.kept.load(self.name) is None:
            self.kept.save(self.name, filling.arrays, filling.facts)

    def opened(self) -> CellFilling:
        """Return the filling."""
        return _opened(self.kept, self.name)


@lru_cache(maxsize=1)
def _opened(kept: Checkpoints, name: str) -> CellFilling:
    if (found := kept.load(name)) is None:
        raise StoreError(f"'{name}' in '{kept.folder}' is gone: run the same command again")
    return CellFilling.from_arrays(*found)


@dataclass(frozen=True)
class Filler:
    """How gaps are filled.

    Attributes
    ----------
    n_spatial : int
        Number of spatial axes of a sample.
    data_range : (float, float)
        Values in gaps lie in this range.
    by : KeptFilling, optional
        Fills gaps by components. By default, they are filled from the values around them.
    """

    n_spatial: int
    data_range: tuple[float, float]
    by: KeptFilling | None = None

    def filled(self, samples: Array) -> Array:
        """Return samples without missing values, NaN."""
        missing, (low, high) = np.isnan(samples), self.data_range
        if not missing.any():
            return samples
        if self.by is not None:
            found = self.by.opened().filled(samples)
        else:
            empty = low / 2 + high / 2
            found = np.stack([filled_from_around(one, self.n_spatial, empty) for one in samples])
        found[missing] = np.clip(found[missing], low, high)
        return found

    def work_bytes(self, n: int, sample_shape: Sequence[int], itemsize: int) -> int:
        """Return the bytes of temporary arrays of `filled` for n samples, with the result."""
        return max(cell_filling_bytes(n, sample_shape, max(4, itemsize)), filling_bytes(sample_shape))


class FilledSamples(ComputedSource, Filled):
    """Whole samples of another source, without their missing values: NaN, and infinities with ``infinite``."""

    def __init__(self, source: Source, filler: Filler, *, infinite: bool = False) -> None:
        super().__init__(source, source.shape)
        self.axes, self.filler, self.infinite = source.axes, filler, infinite

    @property
    def gappy(self) -> Source:
        """The other source."""
        return self.source

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of samples."""
        out[...] = self.filled(values, first)[(slice(None), *(slice(*ends) for ends in region))]

    def filled(self, samples: Array, first: int) -> Array:
        """Return samples without missing values; infinities are an error unless they are missing."""
        if self.infinite:
            samples = np.where(np.isinf(samples), np.nan, samples)
        check_no_infinity(samples, first, self.name)
        return self.filler.filled(samples)

    def filling_bytes(self, rows: int) -> int:
        """Return the bytes of temporary arrays of `filled`, with the result."""
        copied = self.infinite * rows * math.prod(self.shape[1:]) * self.dtype.itemsize
        return copied + self.filler.work_bytes(rows, self.shape[1:], self.dtype.itemsize)

    def extra_bytes(self, region: Region) -> int:
        """Return the bytes of one reader in addition to the requested samples, with those to fill its values."""
        return super().extra_bytes(region) + self.filling_bytes(min(self.read_rows(region), self.shape[0]))


class FilledTiles(TiledSource, Filled):
    """The tiles of samples with missing values, NaN. A tile is read whole, because its gaps depend on all of it."""

    def __init__(self, source: Source, tiles: Tiles, filler: Filler) -> None:
        super().__init__(source, tiles)
        self.filler = filler

    @property
    def gappy(self) -> Source:
        """The tiles with their gaps."""
        return TiledSource(self.source, self.tiles)

    @property
    def _whole(self) -> Region:
        return tuple((0, length) for length in self.shape[1:])

    def reader(self) -> BatchReader:
        """Open the other source in the calling process."""
        read_tiles, rows = self.given.reader(), min(GROUP, self.chunks[0])

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            start, stop = samples
            inside, whole = tuple(slice(*ends) for ends in region), region == self._whole
            if whole:
                read_tiles(samples, region, out)
            for first in range(start, stop, rows):
                last = min(first + rows, stop)
                tiles = some = out[first - start : last - start]
                if not whole:
                    tiles = np.empty((last - first, *self.shape[1:]), self.dtype)
                    read_tiles((first, last), self._whole, tiles)
                some[...] = self.filled(tiles, first)[(slice(None), *inside)]

        return read

    def filled(self, samples: Array, first: int) -> Array:
        """Return tiles without missing values; the reader of `given` has rejected infinities."""
        return self.filler.filled(samples)

    def filling_bytes(self, rows: int) -> int:
        """Return the bytes of temporary arrays of `filled`, with the result."""
        return self.filler.work_bytes(rows, self.shape[1:], self.dtype.itemsize)

    def decoded_bytes(self, region: Region) -> int:
        """Return the bytes of one tile in all its chunks, at most."""
        return super().decoded_bytes(self._whole)

    def extra_bytes(self, region: Region) -> int:
        """Return the bytes of one reader in addition to the requested tiles and their chunks."""
        rows = min(GROUP, self.chunks[0])
        whole = 0 if region == self._whole else rows * math.prod(self.shape[1:]) * self.dtype.itemsize
        return super().extra_bytes(region) + whole + self.filling_bytes(rows)


@dataclass(frozen=True, eq=False)
class FilledTiledStack(TiledStack):
    """A stack with missing values, NaN, that is read in filled tiles; ``filling`` is that of a `Filler`."""

    filling: KeptFilling | None = None

    def opened(self) -> Source:
        """Return the source of the filled tiles."""
        filler = Filler(count_spatial(self.axes[1:]), self.data_range or (0.0, 0.0), self.filling)
        return FilledTiles(as_source(self.whole), self.tiles, filler)


def tiled_source(source: Source, tiles: Tiles, axes: Sequence[str], *, gaps: bool) -> TiledSource:
    """Return the tiles of samples with these axes, for plans; with ``gaps``, values may be missing."""
    if gaps and source.dtype.kind == "f":
        return FilledTiles(source, tiles, Filler(count_spatial(axes[1:]), (0.0, 0.0)))
    return TiledSource(source, tiles)


def tiled_stack(stack: Stack, tiles: Tiles, *, gaps: bool) -> TiledStack:
    """Divide the samples of a stack; with ``gaps``, values may be missing."""
    return (FilledTiledStack if gaps and stack.dtype.kind == "f" else TiledStack).of(stack, tiles)
