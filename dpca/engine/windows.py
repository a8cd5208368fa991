"""Reading a stack some whole chunks at a time, and giving of their samples which are wanted, in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dpca.engine.source import Reader, Source, check_finite
from dpca.kernels.types import Array, Region


def windowed_reader(
    source: Source, windows: Sequence[Array], lengths: Sequence[int], order: Callable[[int], Array]
) -> Reader:
    """Open a source in the calling process; one window of it is held from one call to the next.

    Parameters
    ----------
    source : Source
    windows : sequence of array
        Chunks along the samples that are read together, ascending.
    lengths : sequence of int
        How many samples each window gives.
    order : callable
        Which ones: for the number of a window, their places among all samples of its chunks.
    """
    window = _Window(source, windows, lengths, order)

    def read(samples: tuple[int, int], region: Region, out: Array) -> None:
        start, stop = samples
        while start < stop:
            values, places, first = window.at(start, region)
            last = min(stop, first + len(places))
            wanted, into = places[start - first : last - first], out[start - samples[0] : last - samples[0]]
            np.take(values, wanted, axis=0, out=into, mode="clip")  # other modes buffer what they write
            start = last

    return read


class _Window:
    """The window that was read last."""

    def __init__(
        self, source: Source, windows: Sequence[Array], lengths: Sequence[int], order: Callable[[int], Array]
    ) -> None:
        self._source, self._read = source, source.reader()
        self._windows, self._order_of = windows, order
        self._edges = chunk_edges(source)
        self._firsts = np.concatenate([[0], np.cumsum(lengths)])
        self._rows = max(int((self._edges[w + 1] - self._edges[w]).sum()) for w in windows)
        self._held: tuple[int, Region] | None = None
        self._values: Array = np.empty(0, source.dtype)
        self._order: Array = np.empty(0, np.int64)

    def at(self, position: int, region: Region) -> tuple[Array, Array, int]:
        """Return the samples of the window that gives a position, their order, and the window's first position."""
        number = int(np.searchsorted(self._firsts, position, side="right")) - 1
        if self._held != (number, region):
            self._held = None
            shape = (self._rows, *(b - a for a, b in region))
            if self._values.shape != shape:
                self._values = np.empty(shape, self._source.dtype)
            self._fill(number, region)
            self._order = self._order_of(number)
            self._held = (number, region)
        return self._values, self._order, int(self._firsts[number])

    def _fill(self, number: int, region: Region) -> None:
        chunks, filled = self._windows[number], 0
        for run in np.split(chunks, np.flatnonzero(np.diff(chunks) > 1) + 1):
            start, stop = int(self._edges[run[0]]), int(self._edges[run[-1] + 1])
            part = self._values[filled : filled + stop - start]
            self._read((start, stop), region, part)
            if part.dtype.kind == "f":
                check_finite(part, start, self._source.name)  # here, where the sample's number is known
            filled += stop - start


def chunk_edges(source: Source) -> Array:
    """Return where the chunks along the samples begin, and where the last one ends."""
    return np.append(np.arange(0, source.shape[0], source.chunks[0]), source.shape[0])
