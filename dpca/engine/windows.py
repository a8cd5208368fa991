"""Reading a stack some whole chunks at a time, and giving of their samples which are wanted, in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dpca.engine.source import Reader, Source, check_finite
from dpca.kernels.types import Array, Region

# Decoded bytes of the chunks that are read together.
WINDOW_BYTES = 32 * 2**20


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
    read_box, edges = source.reader(), chunk_edges(source)
    firsts = np.concatenate([[0], np.cumsum(lengths)])
    rows = max(int((edges[chunks + 1] - edges[chunks]).sum()) for chunks in windows)
    held: tuple[int, Region, Array, Array] | None = None  # number of the window, region, values, order

    def load(number: int, region: Region, values: Array) -> None:
        chunks, filled = windows[number], 0
        for run in np.split(chunks, np.flatnonzero(np.diff(chunks) > 1) + 1):
            start, stop = int(edges[run[0]]), int(edges[run[-1] + 1])
            part = values[filled : filled + stop - start]
            read_box((start, stop), region, part)
            if not source.with_gaps:
                check_finite(part, start, source.name)  # here, where the sample's number is known
            filled += stop - start

    def read(samples: tuple[int, int], region: Region, out: Array) -> None:
        nonlocal held
        start, stop = samples
        while start < stop:
            number = int(np.searchsorted(firsts, start, side="right")) - 1
            if held is None or held[:2] != (number, region):
                values = held[2] if held is not None and held[1] == region else None
                held = None  # half a window is none, and one buffer is enough
                if values is None:
                    values = np.empty((rows, *(b - a for a, b in region)), source.dtype)
                load(number, region, values)
                held = number, region, values, order(number)
            _, _, values, places = held
            first = int(firsts[number])
            last = min(stop, first + len(places))
            wanted, into = places[start - first : last - first], out[start - samples[0] : last - samples[0]]
            np.take(values, wanted, axis=0, out=into, mode="clip")  # other modes buffer what they write
            start = last

    return read


def chunk_edges(source: Source) -> Array:
    """Return where the chunks along the samples begin, and where the last one ends."""
    return np.append(np.arange(0, source.shape[0], source.chunks[0]), source.shape[0])
