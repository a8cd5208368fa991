"""Reading a source some whole chunks at a time, and giving of their samples which are wanted, in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpca.engine.source import Reader, Source, check_finite
from dpca.kernels.types import Array, Region
from dpca.storage.windows import chunk_edges, windowed


def windowed_reader(
    source: Source, windows: Sequence[Array], lengths: Sequence[int], order: Callable[[int], Array]
) -> Reader:
    """Open a source in the calling process; one window of it is held from one call to the next.

    ``windows``, ``lengths`` and ``order`` are those of `dpca.storage.windows.windowed`.
    """
    read_box, edges = source.reader(), edges_of(source)
    held: tuple[Region, Callable[[int, int, Array], Array]] | None = None

    def read(samples: tuple[int, int], region: Region, out: Array) -> None:
        nonlocal held
        if held is None or held[0] != region:

            def load(start: int, stop: int, part: Array) -> None:
                read_box((start, stop), region, part)
                if not source.with_gaps:
                    check_finite(part, start, source.name)  # here, where the sample's number is known

            lengths_of_box = tuple(b - a for a, b in region)
            held = None  # its buffer is free before the next one is made
            held = region, windowed(load, edges, windows, lengths, order, lengths_of_box, source.dtype)
        held[1](*samples, out)

    return read


def edges_of(source: Source) -> Array:
    """Return where the chunks of a source along the samples begin, and where the last one ends."""
    return chunk_edges(source.shape[0], source.chunks[0])
