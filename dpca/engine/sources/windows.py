"""Reads a source in windows of whole chunks, and returns chosen samples of them in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.source import BatchReader, Source
from dpca.kernels.algebra.types import Array, Region
from dpca.storage.arrays.windows import chunk_edges, windowed


def windowed_reader(
    source: Source,
    windows: Sequence[Array],
    lengths: Sequence[int],
    order: Callable[[int], Array],
    counts: Array | None = None,
) -> BatchReader:
    """Open a source in the calling process. The reader keeps one window between calls.

    ``windows``, ``lengths`` and ``order`` are those of `dpca.storage.arrays.windows.windowed`, and ``counts`` those of
    `check_finite` for all samples.
    """
    read_box, edges = source.reader(), edges_of(source)
    held: tuple[Region, Callable[[int, int, Array], Array]] | None = None

    def read(samples: tuple[int, int], region: Region, out: Array) -> None:
        nonlocal held
        if held is None or held[0] != region:

            def load(start: int, stop: int, part: Array) -> None:
                read_box((start, stop), region, part)
                if not source.with_gaps:
                    # Checked here, because the sample's index is known.
                    check_finite(part, start, source.name, counts=None if counts is None else counts[start:stop])

            lengths_of_box = tuple(b - a for a, b in region)
            held = None  # frees its buffer before the next one is allocated
            held = region, windowed(load, edges, windows, lengths, order, lengths_of_box, source.dtype)
        held[1](*samples, out)

    return read


def edges_of(source: Source) -> Array:
    """Return the beginnings of a source's chunks along the samples, and the end of the last one."""
    return chunk_edges(source.shape[0], source.chunks[0])
