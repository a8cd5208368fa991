"""Windows: chunks of samples that are read together, and return their samples, or some of them, in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: Decoded size of a window in bytes.
WINDOW_BYTES = 32 * 2**20

# Fewest chunks of a window, so that samples of several chunks are shuffled.
_LEAST_CHUNKS = 4


def chunk_edges(n_samples: int, chunk: int) -> Array:
    """Return the first sample of each chunk, and the number of samples."""
    return np.append(np.arange(0, n_samples, chunk), n_samples)


def window_chunks(chunk_bytes: int, window_bytes: int = WINDOW_BYTES) -> int:
    """Return the number of chunks of a window."""
    return max(_LEAST_CHUNKS, window_bytes // max(1, chunk_bytes))


def windows_in_order(edges: Array, size: int) -> tuple[list[Array], list[int]]:
    """Return the chunks of each window of ``size`` neighboring chunks, and its number of samples."""
    return _cut(np.arange(len(edges) - 1), edges, size)


def drawn_windows(edges: Array, size: int, seed: Sequence[int]) -> tuple[list[Array], list[int]]:
    """Return the chunks of each window, drawn at random, and its number of samples."""
    return _cut(np.random.default_rng((*seed, 0)).permutation(len(edges) - 1), edges, size)


def _cut(chunks: Array, edges: Array, size: int) -> tuple[list[Array], list[int]]:
    # The chunks of a window are sorted, so that neighboring chunks are read at once.
    windows = [np.sort(chunks[i : i + size]) for i in range(0, len(chunks), size)]
    return windows, [int((edges[w + 1] - edges[w]).sum()) for w in windows]


def sample_order(n_samples: int, seed: Sequence[int], window: int) -> Array:
    """Return the order of the samples inside a window."""
    order: Array = np.random.default_rng((*seed, 1, window)).permutation(n_samples)
    return order


def windowed(
    read: Callable[[int, int, Array], None],
    edges: Array,
    windows: Sequence[Array],
    lengths: Sequence[int],
    order: Callable[[int], Array],
    sample_shape: Sequence[int],
    dtype: np.dtype[Any],
) -> Callable[[int, int, Array], Array]:
    """Return a function that reads samples through windows, and keeps one window in memory.

    Parameters
    ----------
    read : callable (start, stop, out)
        Reads consecutive samples of the store.
    edges : array
        Return value of `chunk_edges`.
    windows : sequence of array
        Ascending numbers of the chunks of each window.
    lengths : sequence of int
        Number of samples that each window returns.
    order : callable
        Returns the indices of these samples among all samples of a window, from the number of the window.
    sample_shape, dtype
        Shape and type of one sample.

    Returns
    -------
    callable (start, stop, out)
        Fills ``out`` with the samples from ``start`` to ``stop`` in the order of the windows, and returns their numbers
        in the store.
    """
    firsts = np.concatenate([[0], np.cumsum(lengths)])
    rows = max(int((edges[chunks + 1] - edges[chunks]).sum()) for chunks in windows)
    values: Array | None = None  # one buffer for all windows
    held: tuple[int, Array, Array] | None = None  # number of the window, order of its samples, numbers of its samples

    def load(number: int, into: Array) -> Array:
        chunks, filled, numbers = windows[number], 0, []
        for run in np.split(chunks, np.flatnonzero(np.diff(chunks) > 1) + 1):
            start, stop = int(edges[run[0]]), int(edges[run[-1] + 1])
            read(start, stop, into[filled : filled + stop - start])
            filled += stop - start
            numbers.append(np.arange(start, stop))
        return np.concatenate(numbers)

    def take(start: int, stop: int, out: Array) -> Array:
        nonlocal held, values
        given, begin = [], start
        while start < stop:
            number = int(np.searchsorted(firsts, start, side="right")) - 1
            if values is None:
                values = np.empty((rows, *sample_shape), dtype)
            if held is None or held[0] != number:
                held = None  # an error during load() leaves an incomplete window
                numbers = load(number, values)
                held = number, order(number), numbers
            _, places, numbers = held
            first = int(firsts[number])
            last = min(stop, first + len(places))
            wanted, into = places[start - first : last - first], out[start - begin : last - begin]
            np.take(values, wanted, axis=0, out=into, mode="clip")  # other modes buffer the output
            given.append(numbers[wanted])
            start = last
        return np.concatenate(given)

    return take
