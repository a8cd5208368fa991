"""Samples of an ordered store in a random order: whole chunks in a random order, mixed a few chunks at a time."""

from __future__ import annotations

import itertools
import math

import dask.array as da
import numpy as np

from dpca.engine.sources.derived import DerivedSource
from dpca.engine.sources.source import BatchReader, DaskSource, Source
from dpca.engine.sources.windows import edges_of, windowed_reader
from dpca.storage.arrays.windows import WINDOW_BYTES, drawn_windows, sample_order, window_chunks


class ShuffledSource(DerivedSource):
    """Another source with its samples in a random order, which depends on the seed and the chunks only.

    Whole chunks are drawn in a random order. Consecutive drawn chunks, of 32 MiB and at least 4, form a window. A task
    reads a window at once, each chunk once, and returns its samples in a random order. Position i of the shuffled stack
    is always the same sample, for every worker and after an interruption. ::

        chunks      0 1 2 3 4 5 6 7 8
        drawn       7 2 5 | 0 8 3 | 6 1 4        windows of three chunks
        samples     mixed | mixed | mixed        inside each window

    Memory, in addition to that of the source: one window. Samples that are far apart in the store are mixed well if
    chunks are small: with a stack sorted by class, each window has as many classes as chunks, if there are as many.
    """

    def __init__(self, source: Source, seed: int, window_bytes: int = WINDOW_BYTES) -> None:
        n, chunk = source.shape[0], source.chunks[0]
        n_chunks = window_chunks(chunk * math.prod(source.shape[1:]) * source.dtype.itemsize, window_bytes)
        super().__init__(source, window_rows=min(n_chunks * chunk, n))
        self.seed, self.with_gaps = seed, source.with_gaps

    def reader(self) -> BatchReader:
        """Open the source in the calling process. The reader keeps one window between calls."""
        size = max(1, self.window_rows // self.chunks[0])
        windows, lengths = drawn_windows(edges_of(self.source), size, (self.seed,))
        return windowed_reader(
            self.source, windows, lengths, lambda number: sample_order(lengths[number], (self.seed,), number)
        )


def shuffle(source: Source, seed: int, window_bytes: int = WINDOW_BYTES) -> Source:
    """Return a source of the same samples in a random order; see `ShuffledSource`.

    A Dask array stays lazy: its own tasks draw and mix the chunks.
    """
    if (x := source.as_dask()) is None:
        return ShuffledSource(source, seed, window_bytes)
    shuffled = DaskSource(_shuffled_dask(x, seed, window_bytes), source.name)
    shuffled.with_gaps = source.with_gaps
    return shuffled


def _shuffled_dask(x: da.Array, seed: int, window_bytes: int) -> da.Array:
    edges = np.append(0, np.cumsum(x.chunks[0]))
    size = window_chunks(max(x.chunks[0]) * math.prod(x.shape[1:]) * x.dtype.itemsize, window_bytes)
    windows, lengths = drawn_windows(edges, size, (seed,))
    drawn_chunks = da.concatenate([x[edges[c] : edges[c + 1]] for c in itertools.chain.from_iterable(windows)])
    joined = drawn_chunks.rechunk({0: tuple(lengths)})
    mixed = []
    for i, length in enumerate(lengths):
        order = sample_order(length, (seed,), i)
        mixed.append(joined.blocks[i].map_blocks(np.take, order, axis=0, meta=np.empty((0,) * x.ndim, x.dtype)))
    return da.concatenate(mixed)
