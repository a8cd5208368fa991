"""A stack as a stream of blocks of attributes: all samples at one block, then all at the next one."""

from __future__ import annotations

import itertools
import math
from typing import Any

from dask.delayed import delayed

from dpca.engine.sources.derived import DerivedSource
from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.source import BatchReader, Source
from dpca.kernels.algebra.types import Array, Region
from dpca.partition.base import Partition


class BlockwiseSource(DerivedSource):
    """All samples at each block of attributes of another source, one block after the other.

    ::

        block 0, samples 0 to n - 1 | block 1, samples 0 to n - 1 | ...

    A rule that adds sums over blocks of attributes folds this stream like any other: in segments of whole blocks, which
    are merged. Blocks are filled up with zeros to the size of the largest one, and to ``n_rows`` samples, so that each
    begins with a whole chunk.

    Parameters
    ----------
    source : Source
    grid : Partition
        The blocks. Each part is its own region.
    """

    def __init__(self, source: Source, grid: Partition) -> None:
        super().__init__(source, window_rows=0)
        n, step = source.shape[0], min(source.chunks[0], source.shape[0])
        self.n_samples, self.n_rows = n, math.ceil(n / step) * step
        self.grid, self.unit_rows, self.with_gaps = grid, self.n_rows, True  # the reader checks values itself
        width = grid.max_features
        self.shape, self.axes = (grid.n_parts * self.n_rows, width), None
        self.chunks = (step, min(width, math.prod(source.chunks[1:])))
        self._decoded = max(source.decoded_bytes(grid.region(i)) for i in range(grid.n_parts))
        if source.segment_bytes is not None:
            self.segment_bytes = self.n_rows * width * source.dtype.itemsize

    def reader(self) -> BatchReader:
        """Open the other source in the calling process."""
        read_box = self.source.reader()

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            (at, stop), n = samples, self.n_rows
            for a, b in itertools.pairwise([at, *range((at // n + 1) * n, stop, n), stop]):
                part, first = divmod(a, n)
                here, last = out[a - at : b - at], min(first + b - a, self.n_samples)
                d = self.grid.n_features(part)
                here[:, d:] = 0
                if first < last:
                    box = self.grid.region(part)
                    values = here[: last - first, :d].reshape(-1, *(stop - start for start, stop in box))
                    read_box((first, last), box, values)
                    if not self.source.with_gaps:
                        check_finite(values, first, self.name)

        return read

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return this source over a piece of the other one. It is delayed if that piece is."""
        first, last = samples[0] // self.n_rows, math.ceil(samples[1] / self.n_rows)
        whole = tuple((0, length) for length in self.source.shape[1:])
        box = self.grid.region(first) if last == first + 1 else whole
        piece = self.source.piece((0, self.n_samples), box)
        return self if piece is self.source else delayed(self._bare()._over, pure=False)(piece)

    def numbers(self, start: int, stop: int) -> tuple[int, int] | None:
        """Return None: errors of a rule concern all samples."""
        return None

    def decoded_bytes(self, region: Region) -> int:
        """Return the bytes of one sample in all chunks that a block overlaps, of the largest."""
        return self._decoded

    def extra_bytes(self, region: Region) -> int:
        """Return the bytes of one reader in addition to the requested samples and their chunks."""
        return self.source.extra_bytes(self.grid.region(0))

    def read_rows(self, region: Region) -> int:
        """Return the number of samples of one read."""
        return self.source.read_rows(self.grid.region(0))
