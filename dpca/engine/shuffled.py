"""Samples of an ordered store in a random order: whole chunks in a random order, mixed a few chunks at a time."""

from __future__ import annotations

import itertools
import math

import dask.array as da
import numpy as np

from dpca.engine.derived import DerivedSource
from dpca.engine.source import DaskSource, Reader, Source
from dpca.engine.windows import edges_of, windowed_reader
from dpca.storage.windows import WINDOW_BYTES, drawn_windows, sample_order, window_chunks


class ShuffledSource(DerivedSource):
    """Another source, its samples in a random order that depends on the seed and the chunks only.

    Whole chunks are drawn in a random order. So many of them in a row as take 32 MiB, and at least 4, make a window; a
    task reads a window at once, each chunk one time, and gives its samples in a random order. Position i of the
    shuffled stack always stands for the same sample, whoever reads it and wherever a run was interrupted. ::

        chunks      0 1 2 3 4 5 6 7 8
        drawn       7 2 5 | 0 8 3 | 6 1 4        windows of three chunks
        samples     mixed | mixed | mixed        inside each window

    Memory, beside what the source itself takes: one window. What lies far apart in the store is mixed as well as the
    chunks are small beside it: of a stack sorted by class, each window holds as many classes as it can.
    """

    def __init__(self, source: Source, seed: int, window_bytes: int = WINDOW_BYTES) -> None:
        n, chunk = source.shape[0], source.chunks[0]
        n_chunks = window_chunks(chunk * math.prod(source.shape[1:]) * source.dtype.itemsize, window_bytes)
        super().__init__(source, window_rows=min(n_chunks * chunk, n))
        self.seed = seed

    def reader(self) -> Reader:
        """Open the source in the calling process; one window of it is held from one call to the next."""
        size = max(1, self.window_rows // self.chunks[0])
        windows, lengths = drawn_windows(edges_of(self.source), size, (self.seed,))
        return windowed_reader(
            self.source, windows, lengths, lambda number: sample_order(lengths[number], (self.seed,), number)
        )


def shuffle(source: Source, seed: int, window_bytes: int = WINDOW_BYTES) -> Source:
    """Return a source of the same samples in a random order; see `ShuffledSource`.

    The chunks of a Dask array are drawn and mixed by its own tasks.
    """
    if (x := source.as_dask()) is None:
        return ShuffledSource(source, seed, window_bytes)
    return DaskSource(_shuffled_dask(x, seed, window_bytes), source.name)


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
    whole: da.Array = da.concatenate(mixed)
    return whole
