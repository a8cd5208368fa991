"""Tiles: equal boxes of large samples. A compressed store encodes them as if they were samples.

::

    a sample, tiles of equal shape       their order, for 18 samples and 4 tiles a, b, c, d

    +------+------+                      a0 ... a15  b0 ... b15  c0 ... c15  d0 ... d15  a16 a17  b16 b17  c16 ...
    |  a   |  b  *|  the last tiles end
    +------+------+  with the sample,    16 successive samples of a tile follow each other, because they may change
    |  c   |  d  *|  and may overlap     slowly, and because few samples of a region are then in few chunks
    +---*--+---*--+  those before (*)

Samples that are appended later begin a new group, so that no entry moves.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dpca.storage.arrays.layout import Region, box_shape, boxes_of

#: Successive samples of a tile that follow each other: as many as a compressed store encodes together.
GROUP = 16


class TileRun(NamedTuple):
    """Consecutive entries of one tile: the number of the first entry, the tile, and its samples (start, stop)."""

    entry: int
    tile: int
    samples: tuple[int, int]


@dataclass(frozen=True)
class Tiles:
    """The division of all samples into tiles. An entry is a tile of a sample.

    Parameters
    ----------
    n_samples : int
    sample_shape, tile_shape : tuple of int
        A tile is at most as long as a sample along each axis.
    breaks : tuple of int
        Samples that begin a new group, ascending.
    """

    n_samples: int
    sample_shape: tuple[int, ...]
    tile_shape: tuple[int, ...]
    breaks: tuple[int, ...] = ()

    @classmethod
    def of_size(cls, shape: Sequence[int], most: int, units: Sequence[int]) -> Tiles:
        """Return tiles of at most ``most`` values; along each axis they are multiples of ``units`` if possible."""
        sample = tuple(map(int, shape[1:]))
        return cls(int(shape[0]), sample, box_shape(sample, most, units))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all entries."""
        return (self.n_samples * self.n_tiles, *self.tile_shape)

    @cached_property
    def cores(self) -> list[Region]:
        """The boxes of a sample that are read from each tile: they do not overlap."""
        return boxes_of(self.sample_shape, self.tile_shape)

    @cached_property
    def regions(self) -> list[Region]:
        """The box of each tile."""
        shapes = self.sample_shape, self.tile_shape
        return [
            tuple((min(a, n - t), min(a, n - t) + t) for (a, _), n, t in zip(core, *shapes, strict=True))
            for core in self.cores
        ]

    @property
    def n_tiles(self) -> int:
        """Number of tiles of a sample."""
        return math.prod(-(-n // t) for n, t in zip(self.sample_shape, self.tile_shape, strict=True))

    def entries(self, tile: int, samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the entries of a tile of samples with ascending numbers."""
        part = np.searchsorted(self.breaks, samples, side="right")
        begin, end = np.array([0, *self.breaks])[part], np.array([*self.breaks, self.n_samples])[part]
        first = begin + (samples - begin) // GROUP * GROUP
        return first * self.n_tiles + tile * np.minimum(GROUP, end - first) + samples - first

    def runs(self, start: int, stop: int) -> Iterator[TileRun]:
        """Yield the runs of entries from ``start`` to ``stop``, each of one tile."""
        while start < stop:
            part = bisect(self.breaks, start // self.n_tiles)
            begin, end = [0, *self.breaks][part], [*self.breaks, self.n_samples][part]
            first = begin + (start - begin * self.n_tiles) // (GROUP * self.n_tiles) * GROUP
            length = min(GROUP, end - first)
            tile, sample = divmod(start - first * self.n_tiles, length)
            count = min(length - sample, stop - start)
            yield TileRun(start, tile, (first + sample, first + sample + count))
            start += count
