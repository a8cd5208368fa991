"""Two sources that are read in step, as one: the attributes of both side by side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dask.delayed import delayed

from dpca.engine.sources.source import BatchReader, Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.integers import is_exact
from dpca.kernels.algebra.types import Array, Region

# Bytes of the samples of one source that are read at once.
_READ_BYTES = 2**24


class PairedSource(Source):
    """The attributes of the samples of one source in one row, followed by those of another source.

    Integers of 8 and 16 bits keep a dtype of integers, so that their products are exact. Otherwise, samples are in the
    working dtype of both. Each read is of whole samples.

    Parameters
    ----------
    first, second : Source
        Two sources with the same number of samples.
    """

    def __init__(self, first: Source, second: Source) -> None:
        sizes = [math.prod(source.shape[1:]) for source in (first, second)]
        joint = np.result_type(first.dtype, second.dtype)
        integers = is_exact(first.dtype) and is_exact(second.dtype) and is_exact(joint)
        dtype = joint if integers else np.result_type(working_dtype(first.dtype), working_dtype(second.dtype))
        rows = max(first.chunks[0], second.chunks[0])
        super().__init__(f"{first.name} and {second.name}", (first.shape[0], sum(sizes)), dtype, (rows, sum(sizes)))
        self.sources, self.length = (first, second), sizes[0]
        self.in_process = first.in_process or second.in_process
        self.with_gaps = first.with_gaps and second.with_gaps
        self.buffered_rows = max(first.buffered_rows, second.buffered_rows)
        lengths = [source.segment_bytes for source in self.sources if source.segment_bytes is not None]
        self.segment_bytes = min(lengths, default=None)

    def reader(self) -> BatchReader:
        """Open both sources in the calling process."""
        readers = [source.reader() for source in self.sources]

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            start, stop = region[0]
            ways = zip(self._columns(), self._boxes(), self.sources, readers, strict=True)
            for (a, b), box, source, read_box in ways:
                rows = max(1, _READ_BYTES // ((b - a) * source.dtype.itemsize))
                for first in range(*samples, rows):
                    last = min(first + rows, samples[1])
                    values = np.empty((last - first, *source.shape[1:]), source.dtype)
                    read_box((first, last), box, values)
                    low, high = max(a, start), min(b, stop)
                    if low < high:
                        own = values.reshape(len(values), -1)[:, low - a : high - a]
                        out[first - samples[0] : last - samples[0], low - start : high - start] = own

        return read

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return the pair of the pieces of both sources. It is delayed if one of them is."""
        pieces = [source.piece(samples, box) for source, box in zip(self.sources, self._boxes(), strict=True)]
        if all(piece is source for piece, source in zip(pieces, self.sources, strict=True)):
            return self
        return delayed(PairedSource, pure=False)(*pieces)

    def held(self) -> tuple[Array, ...]:
        """Return the arrays of one entry a sample that both sources hold."""
        return tuple(array for source in self.sources for array in source.held())

    def decoded_bytes(self, region: Region) -> int:
        """Return the bytes of one sample in all chunks of both sources."""
        pairs = zip(self.sources, self._boxes(), strict=True)
        return sum(source.decoded_bytes(box) for source, box in pairs)

    def extra_bytes(self, region: Region) -> int:
        """Return the bytes of both readers, and of the samples that are copied side by side."""
        pairs = zip(self.sources, self._boxes(), strict=True)
        return _READ_BYTES + sum(
            source.extra_bytes(box) + 2 * math.prod(source.chunks) * source.dtype.itemsize for source, box in pairs
        )

    def _columns(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (0, self.length), (self.length, self.shape[1])

    def _boxes(self) -> list[Region]:
        return [tuple((0, length) for length in source.shape[1:]) for source in self.sources]
