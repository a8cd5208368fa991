"""A few samples instead of all, of a source that is large or not ingested yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from dpca.engine.sources.derived import DerivedSource
from dpca.engine.sources.source import BatchReader as ReadBox
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array, Region
from dpca.storage.readers import Reader
from dpca.storage.readers.base import Block
from dpca.storage.region import FilledRegion

# Number of consecutive samples that are read at one position of the source.
RUN = 16


class FewSamples(Reader):
    """Some samples of a reader: spread over it, or the first ones if it supports no random access."""

    def __init__(self, reader: Reader, count: int) -> None:
        self._reader, n = reader, len(reader)
        run = min(RUN, count)
        firsts = np.linspace(0, n // run - 1, math.ceil(count / run)).astype(int) * run if reader.random_access else [0]
        spread = (np.asarray(firsts)[:, None] + np.arange(run)).ravel() if reader.random_access else np.arange(count)
        self._chosen = np.unique(spread)[:count].tolist()
        names = (
            "kind",
            "name",
            "encoded",
            "random_access",
            "reads_boxes",
            "sample_shape",
            "dtype",
            "axes",
            "data_range",
        )
        for name in names:
            setattr(self, name, getattr(reader, name))
        self.refused = {i: reader.refused[at] for i, at in enumerate(self._chosen) if at in reader.refused}

    @property
    def names(self) -> Sequence[str]:
        """Names of the chosen samples."""
        names = self._reader.names
        return [names[at] for at in self._chosen]

    def fingerprint(self) -> str:
        """Return the fingerprint of the whole reader, since nothing made from a few samples is kept."""
        return self._reader.fingerprint()

    def part(self, indices: Sequence[int]) -> Callable[[], Block]:
        """Return a function that reads some of the chosen samples."""
        return self._reader.part([self._chosen[i] for i in indices])

    def box(self, indices: Sequence[int], region: Region) -> Callable[[], Array]:
        """Return a function that reads a box of some of the chosen samples."""
        return self._reader.box([self._chosen[i] for i in indices], region)

    def region_of(self, first: Array) -> FilledRegion | None:
        """Return the region of the whole reader."""
        return self._reader.region_of(first)

    def stream(self, requests: Iterable[Sequence[int]]) -> Iterator[Block]:
        """Yield runs of the chosen samples."""
        return self._reader.stream([self._chosen[i] for i in indices] for indices in requests)


class Repeated(DerivedSource):
    """A few samples, repeated to the length of a stack that does not exist yet."""

    def __init__(self, source: Source, name: str, shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
        super().__init__(source, window_rows=0)
        self.name, self.shape, self.chunks = name, tuple(shape), tuple(chunks)

    def reader(self) -> ReadBox:
        """Open the few samples."""
        read_box, few = self.source.reader(), self.source.shape[0]

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            at, stop = samples
            while at < stop:
                begin = at % few
                end = min(few, begin + stop - at)
                here = at - samples[0]
                read_box((begin, end), region, out[here : here + end - begin])
                at += end - begin

        return read
