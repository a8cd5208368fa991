"""Several sources that are read in step, as one: their attributes side by side."""

from __future__ import annotations

import itertools
import math
from copy import copy
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed

from dpca.engine.sources.source import BatchReader, Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.integers import is_exact
from dpca.kernels.algebra.types import Array, Region, box_of_run

# Bytes of the samples of one source that are read at once.
_READ_BYTES = 2**24


class JoinedSource(Source):
    """The attributes of the samples of several sources in one row, one source after the other.

    Integers of 8 and 16 bits keep a dtype of integers, so that their products are exact. Otherwise, samples are in the
    working dtype of all. Of each source, a read takes the smallest box of whole rows, planes and so on.

    Parameters
    ----------
    *sources : Source
        Two or more sources with the same number of samples.
    """

    def __init__(self, *sources: Source) -> None:
        ends = [*itertools.accumulate(math.prod(source.shape[1:]) for source in sources)]
        joint = np.result_type(*(source.dtype for source in sources))
        integers = all(is_exact(dtype) for dtype in (joint, *(source.dtype for source in sources)))
        dtype = joint if integers else np.result_type(*(working_dtype(source.dtype) for source in sources))
        rows, name = max(source.chunks[0] for source in sources), " and ".join(source.name for source in sources)
        super().__init__(name, (sources[0].shape[0], ends[-1]), dtype, (rows, ends[-1]))
        self.sources, self.ends, self.shapes = sources, ends, [source.shape[1:] for source in sources]
        self.in_process = any(source.in_process for source in sources)
        self.with_gaps = all(source.with_gaps for source in sources)
        self.buffered_rows = max(source.buffered_rows for source in sources)
        lengths = [source.segment_bytes for source in sources if source.segment_bytes is not None]
        self.segment_bytes = min(lengths, default=None)

    def reader(self) -> BatchReader:
        """Open all sources in the calling process."""
        readers = [source.reader() for source in self.sources]

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            for i, columns, box in self._parts(region):
                dtype, shape = self.sources[i].dtype, [b - a for a, b in box]
                rows = max(1, _READ_BYTES // (math.prod(shape) * dtype.itemsize))
                # A box may begin before the columns, and end after them.
                first = self._first_of(i, box)
                for start in range(*samples, rows):
                    stop = min(start + rows, samples[1])
                    values = np.empty((stop - start, *shape), dtype)
                    readers[i]((start, stop), box, values)
                    own = values.reshape(len(values), -1)[:, columns[0] - first : columns[1] - first]
                    at = slice(start - samples[0], stop - samples[0])
                    out[at, columns[0] - region[0][0] : columns[1] - region[0][0]] = own

        return read

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return the pieces of all sources, joined. They are delayed if one of them is."""
        pieces = list(self.sources)
        for i, _, box in self._parts(region):
            pieces[i] = self.sources[i].piece(samples, box)
        if all(piece is source for piece, source in zip(pieces, self.sources, strict=True)):
            return self
        bare = copy(self)
        bare.sources = ()
        return delayed(bare._over, pure=False)(*pieces)

    def _over(self, *pieces: Source) -> JoinedSource:
        found = copy(self)
        found.sources = pieces
        return found

    def as_dask(self) -> da.Array | None:
        """Return the rows as a Dask array, if all sources are Dask arrays."""
        found = [source.as_dask() for source in self.sources]
        lazy = [x for x in found if x is not None]
        if len(lazy) < len(found):
            return None
        rows: da.Array = da.concatenate([x.reshape(len(x), -1).astype(self.dtype) for x in lazy], axis=1)
        return rows.rechunk({1: -1})

    def held(self) -> tuple[Array, ...]:
        """Return the arrays of one entry a sample that the sources hold."""
        return tuple(array for source in self.sources for array in source.held())

    def decoded_bytes(self, region: Region) -> int:
        """Return the bytes of one sample in all chunks that a region overlaps."""
        return sum(self.sources[i].decoded_bytes(box) for i, _, box in self._parts(region))

    def extra_bytes(self, region: Region) -> int:
        """Return the bytes of the readers, and of the samples that are copied side by side."""
        parts = [(self.sources[i], box) for i, _, box in self._parts(region)]
        copied = [self.shape[0] * math.prod(b - a for a, b in box) * source.dtype.itemsize for source, box in parts]
        return min(_READ_BYTES, max(copied, default=0)) + sum(
            source.extra_bytes(box) + 2 * math.prod(source.chunks) * source.dtype.itemsize for source, box in parts
        )

    def _parts(self, region: Region) -> list[tuple[int, tuple[int, int], Region]]:
        """Return number, columns and box of each source that has some of the columns of a region."""
        (start, stop), found = region[0], []
        for i, (first, last) in enumerate(itertools.pairwise([0, *self.ends])):
            low, high = max(first, start), min(last, stop)
            if low < high:
                found.append((i, (low, high), box_of_run(self.shapes[i], low - first, high - first)))
        return found

    def _first_of(self, i: int, box: Region) -> int:
        """Return the column of the first value of a box of a source."""
        first = np.ravel_multi_index([start for start, _ in box], self.shapes[i])
        return int(first) + (self.ends[i - 1] if i else 0)
