"""Sources that read through another one: its samples in another order, some of them, or others computed from them."""

from __future__ import annotations

import copy
import itertools
import math
from abc import abstractmethod
from typing import Any, Self

import dask.array as da
import numpy as np
from dask.delayed import delayed
from numpy.typing import DTypeLike

from dpca.engine.source import Reader, Source, checked_lazily
from dpca.kernels.types import Array, Region


class DerivedSource(Source):
    """Reads samples through another source, to which it delegates its metadata.

    Parameters
    ----------
    source : Source
    window_rows : int
        Samples of the other source that a reader holds, in an order of its own; 0 for those asked for, in place.
    n_readers : int
        How many boxes of the other source are read at once.
    """

    def __init__(self, source: Source, window_rows: int, n_readers: int = 1) -> None:
        super().__init__(source.name, source.shape, source.dtype, source.chunks)
        self.source, self.window_rows = source, window_rows
        self.in_process, self.segment_bytes, self.axes = source.in_process, source.segment_bytes, source.axes
        self.held_rows, self.n_readers = source.held_rows + window_rows, source.n_readers * n_readers

    def decoded_bytes(self, region: Region) -> int:
        """Return the bytes of one sample in all the chunks that a region touches."""
        return self.source.decoded_bytes(region)

    def further_bytes(self, region: Region) -> int:
        """Return the bytes that one reader takes beside the samples that it is asked for, and their chunks."""
        return self.source.further_bytes(region)

    def read_rows(self, region: Region) -> int:
        """Return how many samples are read at a time."""
        return self.source.read_rows(region)


class OpenedSource(DerivedSource):
    """A source that is opened once, in this process, for many short runs."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, window_rows=0)
        self.with_gaps, self._reader = source.with_gaps, source.reader()

    def reader(self) -> Reader:
        """Return the reader that was opened."""
        return self._reader


class ComputedSource(DerivedSource):
    """Samples that are computed from those of another source where they are read; nothing is copied.

    Sample i comes from the samples i * ``stride`` - ``before`` to i * ``stride`` + ``behind`` of the other source, as
    far as it has them, whole or in the box that `needed` returns. It reads some whole chunks at a time, and those
    samples again at their borders.
    A subclass implements `compute`; what it needs for that are attributes of its own, small and plain: they travel to
    tasks, and tell one source from another in checkpoints.

    Memory of a reader, beside what the other source takes: what `compute` is given at once, about 16 MiB and
    ``before`` + ``behind`` samples.

    Parameters
    ----------
    source : Source
    shape : tuple of int
        Of what is computed, samples first; not more of these than the other source has.
    dtype : dtype, optional
        Of what is computed; default that of the other source.
    before, behind : int
        Further samples of the other source that `compute` needs.
    stride : int
        Samples of the other source from one sample to the next.
    """

    def __init__(
        self,
        source: Source,
        shape: tuple[int, ...],
        dtype: DTypeLike | None = None,
        *,
        before: int = 0,
        behind: int = 0,
        stride: int = 1,
    ) -> None:
        super().__init__(source, window_rows=0)
        self.shape, self.dtype = tuple(shape), np.dtype(source.dtype if dtype is None else dtype)
        self.chunks, self.axes = (max(1, source.chunks[0] // stride), *self.shape[1:]), None
        self.before, self.behind, self.stride, self.source_shape = before, behind, stride, source.shape
        if source.segment_bytes is not None:
            # As many samples of the other source as a segment of its own has.
            self.segment_bytes = max(1, source.segment_bytes * _row_bytes(self) // (_row_bytes(source) * stride))

    @abstractmethod
    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of samples.

        Parameters
        ----------
        values : array (m, *lengths of the box that `needed` returns)
            Samples of the other source, from number ``first`` on; they may be overwritten.
        first : int
        samples : tuple of int
            Numbers of the samples to compute: the first one, and that behind the last.
        region : Region
            The box of them.
        out : array (stop - start, *lengths of the box)
        """

    def needed(self, region: Region) -> Region:
        """Return the box of the other source's samples from which a box is computed: by default all of them."""
        return tuple((0, length) for length in self.source_shape[1:])

    def reader(self) -> Reader:
        """Open the other source in the calling process."""
        read_box, held = self.source.reader(), np.empty((0,), self.source.dtype)

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            nonlocal held
            (start, stop), box, step = samples, self.needed(region), self.read_rows(region)
            lengths = tuple(b - a for a, b in box)
            rows = (min(step, stop - start) - 1) * self.stride + 1 + self.before + self.behind
            if held.shape[1:] != lengths or len(held) < rows:
                # New pages cost a third of what reading does.
                held = np.empty((rows, *lengths), self.source.dtype)
            buffer = held
            # From one whole chunk to the next, so that none is decoded twice but for what lies before and behind.
            edges = [start, *range((start // step + 1) * step, stop, step), stop]
            for a, b in itertools.pairwise(edges):
                first, last = self._span((a, b))
                read_box((first, last), box, values := buffer[: last - first])
                self.compute(values, first, (a, b), region, out[a - start : b - start])

        return read

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return this source over a piece of the other one, delayed where that is."""
        piece = self.source.piece(self._span(samples), self.needed(region))
        return self if piece is self.source else delayed(self._bare()._over, pure=False)(piece)

    def as_dask(self) -> da.Array | None:
        """Return the samples as a Dask array, where the other source is one: computed where its chunks are."""
        x = self.source.as_dask()
        if x is None:
            return None
        ends = (-(-edge // self.stride) for edge in itertools.accumulate(x.chunks[0], initial=0))
        edges = sorted({min(edge, self.shape[0]) for edge in ends})
        compute, meta, blocks = delayed(self._bare()._computed, pure=False), np.empty((0,) * self.ndim, self.dtype), []
        for samples in itertools.pairwise(edges):
            first, last = self._span(samples)
            block = compute(x[first:last], first, samples)
            blocks.append(da.from_delayed(block, (samples[1] - samples[0], *self.shape[1:]), meta=meta))
        whole: da.Array = da.concatenate(blocks)
        return whole if self.with_gaps else checked_lazily(whole, self.name)

    @property
    def ndim(self) -> int:
        """Number of axes, that of samples included."""
        return len(self.shape)

    def decoded_bytes(self, region: Region) -> int:
        """Return the bytes of what is read from one sample to the next: in the chunks it comes from, and by itself."""
        return self.stride * self._read_bytes(region)

    def further_bytes(self, region: Region) -> int:
        """Return the bytes of samples before and behind those that are asked for, and of chunks that Zarr joins."""
        own, box = self.source, self.needed(region)
        beside = (self.before + self.behind) * self._read_bytes(region)
        return own.further_bytes(box) + beside + 2 * math.prod(own.chunks) * own.dtype.itemsize

    def read_rows(self, region: Region) -> int:
        """Return how many samples are read at a time."""
        return max(1, self.source.read_rows(self.needed(region)) // self.stride)

    def _read_bytes(self, region: Region) -> int:
        """Return the bytes of a sample of the other source: in the chunks that it is read from, and by itself."""
        box = self.needed(region)
        return self.source.decoded_bytes(box) + math.prod(b - a for a, b in box) * self.source.dtype.itemsize

    def _span(self, samples: tuple[int, int]) -> tuple[int, int]:
        start, stop = samples[0] * self.stride, (samples[1] - 1) * self.stride + 1
        return max(0, start - self.before), min(stop + self.behind, self.source_shape[0])

    def _computed(self, values: Array, first: int, samples: tuple[int, int]) -> Array:
        out = np.empty((samples[1] - samples[0], *self.shape[1:]), self.dtype)
        self.compute(np.array(values), first, samples, tuple((0, length) for length in self.shape[1:]), out)
        return out

    def _bare(self) -> Self:
        """Return a copy without the other source, which may hold a graph."""
        bare = copy.copy(self)
        del bare.source
        return bare

    def _over(self, source: Source) -> Self:
        """Return a copy over a piece of the other source."""
        new = copy.copy(self)
        new.source, new.in_process = source, source.in_process
        return new


def _row_bytes(source: Source) -> int:
    return math.prod(source.shape[1:]) * source.dtype.itemsize
