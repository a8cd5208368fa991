"""Sources that wrap other sources: samples in another order, a selection, or samples computed from others."""

from __future__ import annotations

import copy
import itertools
import math
from abc import abstractmethod
from typing import Any, ClassVar, Self

import dask.array as da
import numpy as np
from dask.delayed import delayed
from numpy.typing import DTypeLike

from dpca.engine.sources.finite import checked_lazily
from dpca.engine.sources.source import BatchReader, Source
from dpca.kernels.algebra.types import Array, Region


class DerivedSource(Source):
    """Wraps another source and delegates its metadata to it.

    Parameters
    ----------
    source : Source
    window_rows : int
        Samples of the other source in memory of a reader that reorders them; 0 for a reader that keeps their order.
    n_readers : int
        Number of boxes of the other source that are read at once.
    """

    def __init__(self, source: Source, window_rows: int, n_readers: int = 1) -> None:
        super().__init__(source.name, source.shape, source.dtype, source.chunks)
        self.source, self.window_rows = source, window_rows
        self.in_process, self.segment_bytes, self.axes = source.in_process, source.segment_bytes, source.axes
        self.buffered_rows, self.n_readers = source.buffered_rows + window_rows, source.n_readers * n_readers

    def decoded_bytes(self, region: Region) -> int:
        """Return the bytes of one sample in all chunks that a region overlaps."""
        return self.source.decoded_bytes(region)

    def extra_bytes(self, region: Region) -> int:
        """Return the bytes of one reader in addition to the requested samples and their chunks."""
        return self.source.extra_bytes(region)

    def held(self) -> tuple[Array, ...]:
        """Return the arrays of one entry a sample that this source, or the other one, holds."""
        return self.source.held()

    def read_rows(self, region: Region) -> int:
        """Return the number of samples of one read."""
        return self.source.read_rows(region)

    def _bare(self) -> Self:
        """Return a copy without the other source, because that may contain a graph."""
        bare = copy.copy(self)
        del bare.source
        return bare

    def _over(self, source: Source) -> Self:
        """Return a copy over a piece of the other source."""
        new = copy.copy(self)
        new.source, new.in_process = source, source.in_process
        return new


class OpenedSource(DerivedSource):
    """A source that is opened once in this process, for many short runs."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, window_rows=0)
        self.with_gaps, self._reader = source.with_gaps, source.reader()

    def reader(self) -> BatchReader:
        """Return the open reader."""
        return self._reader


class ComputedSource(DerivedSource):
    """Samples that are computed from those of another source when they are read. Nothing is copied to disk.

    Sample i depends on the samples i * ``stride`` - ``before`` to i * ``stride`` + ``behind`` of the other source, as
    far as they exist, whole or in the box that `needed` returns. Some whole chunks are read at a time, and ``before`` +
    ``behind`` samples are read again at their borders.
    A subclass implements `compute`. The parameters of `compute` are attributes of the subclass. They must be small and
    plain, because they are sent to tasks and identify the source in checkpoints. Arrays of one entry a sample are named
    in `per_sample` and read by `entries_of`: a task is sent the entries of its own samples.

    Memory of a reader, in addition to that of the other source: the values that `compute` receives at once, about
    16 MiB and ``before`` + ``behind`` samples.

    Parameters
    ----------
    source : Source
    shape : tuple of int
        Shape of the computed samples, samples first; at most as many samples as the other source has.
    dtype : dtype, optional
        Dtype of the computed samples; the default is that of the other source.
    before, behind : int
        Further samples of the other source that `compute` needs.
    stride : int
        Samples of the other source from one sample to the next.
    """

    per_sample: ClassVar[tuple[str, ...]] = ()
    """Attributes that hold an array (n,) of one entry a sample of the other source, or None."""
    first_held: int = 0
    """Number of the sample that their first entries belong to."""

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
            # A segment spans as many samples of the other source as a segment of that source.
            self.segment_bytes = max(1, source.segment_bytes * _row_bytes(self) // (_row_bytes(source) * stride))

    @abstractmethod
    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of samples.

        Parameters
        ----------
        values : array (m, *lengths of the box that `needed` returns)
            Samples of the other source, from index ``first`` on; they may be overwritten.
        first : int
        samples : tuple of int
            Index range of the samples to compute (start, stop).
        region : Region
            The box to compute.
        out : array (stop - start, *lengths of the box)
        """

    def entries_of(self, name: str, samples: tuple[int, int]) -> Any:
        """Return the entries (m,) of these samples of an attribute in `per_sample`; None where it is None."""
        values: Array | None = getattr(self, name)
        return None if values is None else values[samples[0] - self.first_held : samples[1] - self.first_held]

    def held(self) -> tuple[Array, ...]:
        """Return the arrays of one entry a sample that this source, or the other one, holds."""
        own = (getattr(self, name) for name in self.per_sample)
        return (*self.source.held(), *(values for values in own if values is not None))

    def needed(self, region: Region) -> Region:
        """Return the box of the other source's samples that a box depends on; the default is the whole sample."""
        return tuple((0, length) for length in self.source_shape[1:])

    def reader(self) -> BatchReader:
        """Open the other source in the calling process."""
        read_box, held = self.source.reader(), np.empty((0,), self.source.dtype)

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            nonlocal held
            (start, stop), box = samples, self.needed(region)
            lengths = tuple(b - a for a, b in box)
            rows = (min(self.read_rows(region), stop - start) - 1) * self.stride + 1 + self.before + self.behind
            if held.shape[1:] != lengths or len(held) < rows:
                # The buffer is reused, because new pages cost a third of the time of reading.
                held = np.empty((rows, *lengths), self.source.dtype)
            for a, b in self.reads(samples, region):
                first, last = self._span((a, b))
                read_box((first, last), box, values := held[: last - first])
                self.compute(values, first, (a, b), region, out[a - start : b - start])

        return read

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return this source over a piece of the other one. It is delayed if that piece is."""
        span, cut = self._span(samples), self
        piece = self.source.piece(span, self.needed(region))
        if self.per_sample:
            cut = copy.copy(self)
            vars(cut).update({name: self.entries_of(name, span) for name in self.per_sample}, first_held=span[0])
        return cut if piece is self.source else delayed(cut._bare()._over, pure=False)(piece)

    def as_dask(self) -> da.Array | None:
        """Return the samples as a Dask array, if the other source is one. They are computed next to its chunks."""
        x = self.source.as_dask()
        if x is None:
            return None
        ends = (-(-edge // self.stride) for edge in itertools.accumulate(x.chunks[0], initial=0))
        edges = sorted({min(edge, self.shape[0]) for edge in ends})
        compute, meta, blocks = (
            delayed(self._bare()._computed, pure=False),
            np.empty((0,) * len(self.shape), self.dtype),
            [],
        )
        box = tuple(slice(a, b) for a, b in self.needed(tuple((0, length) for length in self.shape[1:])))
        for samples in itertools.pairwise(edges):
            first, last = self._span(samples)
            block = compute(x[(slice(first, last), *box)], first, samples)
            blocks.append(da.from_delayed(block, (samples[1] - samples[0], *self.shape[1:]), meta=meta))
        whole: da.Array = da.concatenate(blocks)
        return whole if self.with_gaps else checked_lazily(whole, self.name)

    def decoded_bytes(self, region: Region) -> int:
        """Return the bytes that are read per sample: the decoded chunks and the values cut from them."""
        return self.stride * self._read_bytes(region)

    def extra_bytes(self, region: Region) -> int:
        """Return the bytes of the samples before and behind the requested ones, and of chunks that Zarr joins."""
        own, box = self.source, self.needed(region)
        beside = (self.before + self.behind) * self._read_bytes(region)
        return own.extra_bytes(box) + beside + 2 * math.prod(own.chunks) * own.dtype.itemsize

    def read_rows(self, region: Region) -> int:
        """Return the number of samples of one read."""
        return max(1, self.source.read_rows(self.needed(region)) // self.stride)

    def _read_bytes(self, region: Region) -> int:
        """Return the bytes of one sample of the other source: its decoded chunks and the values cut from them."""
        box = self.needed(region)
        return self.source.decoded_bytes(box) + math.prod(b - a for a, b in box) * self.source.dtype.itemsize

    def _span(self, samples: tuple[int, int]) -> tuple[int, int]:
        start, stop = samples[0] * self.stride, (samples[1] - 1) * self.stride + 1
        return max(0, start - self.before), min(stop + self.behind, self.source_shape[0])

    def _computed(self, values: Array, first: int, samples: tuple[int, int]) -> Array:
        out = np.empty((samples[1] - samples[0], *self.shape[1:]), self.dtype)
        self.compute(np.array(values), first, samples, tuple((0, length) for length in self.shape[1:]), out)
        return out


def _row_bytes(source: Source) -> int:
    return math.prod(source.shape[1:]) * source.dtype.itemsize
