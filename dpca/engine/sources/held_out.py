"""Validation samples that are held out of a fit, and the stack without them, or with repeated samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpca.engine.sources.derived import DerivedSource
from dpca.engine.sources.finite import checked_lazily
from dpca.engine.sources.sampling import spread_samples
from dpca.engine.sources.source import BatchReader, DaskSource, Source
from dpca.engine.sources.windows import edges_of, windowed_reader
from dpca.kernels.algebra.types import Array
from dpca.storage.arrays.windows import WINDOW_BYTES, windows_in_order
from dpca.storage.errors import DataError

#: About the most samples that are held out. If the errors of single samples vary by half, the error of their mean is
#: half a percent.
MOST_HELD_OUT = 10_000
# Validation decodes the chunks with held-out samples again: at most those of this many samples, or of this share of the
# stack, whichever is more.
_DECODED_ANEW, _SHARE_ANEW = 20_000, 1 / 20


def hold_out(source: Source, fraction: float, rng: np.random.Generator) -> tuple[Source, Array]:
    """Choose samples that are spread over a stack, and return the stack without them.

    Parameters
    ----------
    source : Source
    fraction : float
        Share of the samples to hold out, between 0 and 1. At most about `MOST_HELD_OUT` samples are held out.
    rng : numpy.random.Generator

    Returns
    -------
    remaining : Source
        All other samples, in their order.
    held_out : array (m,), integer
        Indices of the held-out samples, ascending: a random one in each of m equal parts of the stack. From a large
        stack short runs of neighbors are drawn instead, so that fewer chunks are decoded again.

    Raises
    ------
    DataError
        If fewer than 2 samples would be held out.
    """
    n = source.shape[0]
    count = min(round(fraction * n), MOST_HELD_OUT)
    if count < 2:
        raise DataError(f"{fraction:g} of {n} samples is {count}: increase the fraction to hold out at least 2")
    held_out = spread_runs(n, source.chunks[0], count, rng)
    return without(source, held_out), held_out


def spread_runs(n: int, chunk: int, count: int, rng: np.random.Generator) -> Array:
    """Choose about ``count`` of n samples in chunks of ``chunk``, as short runs of neighbors; return their indices.

    The indices ascend. Each of equal parts of the stack has one random run. Runs are single samples where that is
    cheap, see `run_length`.
    """
    length = run_length(n, count, chunk)
    # Each run lies in a single chunk.
    starts = (np.arange(0, n, chunk)[:, None] + np.arange(0, chunk, length)).ravel()
    starts = starts[starts < n]
    ends = np.append(starts[1:], n)
    chosen = spread_samples(len(starts), max(1, count * len(starts) // n), rng)
    lengths = (ends - starts)[chosen]
    return np.repeat(starts[chosen] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())


def run_length(n: int, count: int, chunk: int) -> int:
    """Return the number of neighbors to draw together, so that ``count`` of n samples lie in few enough chunks."""
    anew = max(_DECODED_ANEW, int(_SHARE_ANEW * n))
    if n <= anew:
        return 1
    length = min(chunk, math.ceil(count * chunk / anew), max(1, count // 100))
    return math.ceil(chunk / math.ceil(chunk / length))  # makes the runs of a chunk about equally long


def without(source: Source, left_out: Array) -> Source:
    """Return a source without the samples of these indices, ascending.

    A Dask array stays lazy: its own tasks drop the samples.
    """
    if (x := source.as_dask()) is None:
        return RemainingSource(source, left_out)
    return DaskSource(x[np.delete(np.arange(len(x)), left_out)], source.name)


class RemainingSource(DerivedSource):
    """Another source without some of its samples; the others keep their order.

    Chunks are decoded once. A reader holds a window of whole chunks, at least one and at most about 32 MiB, and returns
    the remaining samples of it.

    Parameters
    ----------
    source : Source
    left_out : array (m,), integer, ascending
    """

    def __init__(self, source: Source, left_out: Array) -> None:
        n, chunk = source.shape[0], source.chunks[0]
        together = max(1, WINDOW_BYTES // (chunk * math.prod(source.shape[1:]) * source.dtype.itemsize))
        super().__init__(source, window_rows=min(together * chunk, n))
        self.left_out, self.shape = left_out, (n - len(left_out), *source.shape[1:])

    def held(self) -> tuple[Array, ...]:
        """Return the arrays that grow with the samples: the numbers of those left out are some, too."""
        return (*super().held(), self.left_out)

    def reader(self) -> BatchReader:
        """Open the source in the calling process."""
        edges = edges_of(self.source)
        size = max(1, self.window_rows // self.chunks[0])
        windows, _ = windows_in_order(edges, size)
        bounds = np.append(edges[:-1:size], edges[-1])
        cuts = np.searchsorted(self.left_out, bounds)
        lengths = np.diff(bounds) - np.diff(cuts)

        def remaining(number: int) -> Array:
            gone = self.left_out[cuts[number] : cuts[number + 1]] - bounds[number]
            return np.delete(np.arange(bounds[number + 1] - bounds[number]), gone)

        return windowed_reader(self.source, windows, lengths.tolist(), remaining)


def repeated(source: Source, counts: Array) -> Source:
    """Return a source with each sample ``counts`` (n_samples,) times in succession; 0 leaves it out.

    A Dask array stays lazy: its own tasks repeat the samples. Samples that are left out may hold any value.
    """
    x: Any = source.as_dask()
    if isinstance(source, DaskSource) and not source.with_gaps:
        x = checked_lazily(source.array, source.name, counts)
    if x is None:
        return RepeatedSource(source, counts)
    return DaskSource(x[np.repeat(np.arange(len(x)), counts)], source.name, source.axes)


class RepeatedSource(DerivedSource):
    """Another source with each sample several times in succession, or not at all; see `repeated`.

    Chunks are decoded once, and chunks without samples are not read. A reader holds a window of whole chunks, at least
    one and at most about 32 MiB, and the number of each sample that it returns from there.

    Parameters
    ----------
    source : Source
    counts : array (n_samples,), int64, with a positive sum
    """

    def __init__(self, source: Source, counts: Array) -> None:
        n, chunk = source.shape[0], source.chunks[0]
        self._together = max(1, WINDOW_BYTES // (chunk * math.prod(source.shape[1:]) * source.dtype.itemsize))
        super().__init__(source, window_rows=min(self._together * chunk, n))
        self.counts, self.shape = counts, (int(counts.sum()), *source.shape[1:])

    def held(self) -> tuple[Array, ...]:
        """Return the arrays that grow with the samples: the counts are one, too."""
        return (*super().held(), self.counts)

    def reader(self) -> BatchReader:
        """Open the source in the calling process."""
        edges = edges_of(self.source)
        of_chunk = np.add.reduceat(self.counts, edges[:-1])
        used = np.flatnonzero(of_chunk)
        windows = [used[i : i + self._together] for i in range(0, len(used), self._together)]

        def order(number: int) -> Array:
            counts = [self.counts[edges[chunk] : edges[chunk + 1]] for chunk in windows[number]]
            return np.repeat(np.arange(sum(map(len, counts))), np.concatenate(counts))

        lengths = [int(of_chunk[window].sum()) for window in windows]
        return windowed_reader(self.source, windows, lengths, order, self.counts)
