"""Tiles of large samples as samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from dpca.engine.sources.derived import DerivedSource
from dpca.engine.sources.finite import check_finite, check_no_infinity
from dpca.engine.sources.source import BatchReader, DerivedStack, Source, as_source
from dpca.kernels.algebra.types import Array, Region
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.tiles import Tiles
from dpca.storage.numbered import Numbered
from dpca.storage.stack import Stack
from dpca.storage.transaction.workspace import fingerprint_of


class TiledSource(DerivedSource):
    """The tiles of the samples of another source. Only their boxes are read.

    Parameters
    ----------
    source : Source
        Whole samples.
    tiles : Tiles
    """

    def __init__(self, source: Source, tiles: Tiles) -> None:
        super().__init__(source, window_rows=0)
        self.shape, self.tiles = tiles.shape, tiles

    def reader(self) -> BatchReader:
        """Open the other source in the calling process."""
        read_box, check = self.source.reader(), check_no_infinity if self.with_gaps else check_finite

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            for entry, tile, (first, last) in self.tiles.runs(*samples):
                corner = self.tiles.regions[tile]
                box = tuple((o + a, o + b) for (a, b), (o, _) in zip(region, corner, strict=True))
                part = out[entry - samples[0] : entry - samples[0] + last - first]
                read_box((first, last), box, part)
                check(part, first, self.name)  # an error then has the number of the whole sample

        return read

    def numbers(self, start: int, stop: int) -> None:
        """Return None, because entries are no samples of the stack."""

    def decoded_bytes(self, region: Region) -> int:
        """Return the bytes of one tile in all chunks that a region overlaps, at most."""
        corners, chunks = self.tiles.regions, self.source.chunks[1:]
        lengths = []
        for axis, ((a, b), c) in enumerate(zip(region, chunks, strict=True)):
            starts = {corner[axis][0] for corner in corners}
            lengths.append(max(-(-(o + b) // c) * c - (o + a) // c * c for o in starts))
        return math.prod(lengths) * self.dtype.itemsize

    def extra_bytes(self, region: Region) -> int:
        """Return the bytes of one reader in addition to the requested tiles and their chunks."""
        return self.source.extra_bytes(self.tiles.regions[0])

    def read_rows(self, region: Region) -> int:
        """Return the number of tiles of one read."""
        return self.chunks[0]


@dataclass(frozen=True, eq=False)
class TiledStack(DerivedStack):
    """A stack that is read in tiles: its samples are entries. Names and coordinates are those of the whole samples."""

    tiles: Tiles = field(kw_only=True)

    @classmethod
    def of(cls, stack: Stack, tiles: Tiles) -> TiledStack:
        """Divide the samples of a stack."""
        return cls(**{one.name: getattr(stack, one.name) for one in fields(Stack)}, tiles=tiles)

    @cached_property
    def whole(self) -> Stack:
        """The stack of whole samples."""
        return Stack(**{one.name: getattr(self, one.name) for one in fields(Stack)})

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all entries together."""
        return self.tiles.shape

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of a tile."""
        return self.tiles.tile_shape

    @property
    def n_samples(self) -> int:
        """Number of entries."""
        return self.tiles.shape[0]

    @property
    def nbytes(self) -> int:
        """Decoded size of all whole samples in bytes."""
        return self.whole.nbytes

    @cached_property
    def fingerprint(self) -> str:
        """Hash that changes with the content and with the tiles."""
        return fingerprint_of(self.whole.fingerprint, list(self.tiles.tile_shape))

    @cached_property
    def names(self) -> Numbered | np.ndarray[Any, Any]:
        """Names of all whole samples."""
        return self.whole.names

    @cached_property
    def coordinates(self) -> Coordinates | None:
        """Names of all axes, and coordinates of whole samples."""
        return self.whole.coordinates

    def opened(self) -> Source:
        """Return the source of the tiles."""
        return TiledSource(as_source(self.whole), self.tiles)
