"""Several sources of images, one after the other: four tars, a glob of archives, folders and files mixed."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate

from dpca.storage.readers.base import Block, Payload, Reader, digest


class SeveralReader(Reader):
    """Images of several readers, in the order given.

    Names stand alone where they are different across all sources, else the source's name comes before each.

    Parameters
    ----------
    readers : sequence of Reader
        Sources of encoded images.
    """

    kind = "several"

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = list(readers)
        first, last = readers[0].name, readers[-1].name
        self.name = f"{first} ... {last} ({len(readers)})"
        self.random_access = all(reader.random_access for reader in readers)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(reader) for reader in self._readers)]

    @cached_property
    def names(self) -> Sequence[str]:
        """Names of all samples."""
        alone = [name for reader in self._readers for name in reader.names]
        if len(set(alone)) == len(alone):
            return alone
        return [f"{reader.name}/{name}" for reader in self._readers for name in reader.names]

    @cached_property
    def refused(self) -> Mapping[int, str]:  # type: ignore[override]
        """What the readers refuse."""
        starts = zip(self._starts, self._readers, strict=False)
        return {start + i: reason for start, reader in starts for i, reason in reader.refused.items()}

    @cached_property
    def ignored(self) -> int:  # type: ignore[override]
        """Files in all sources that are no images."""
        return sum(reader.ignored for reader in self._readers)

    def __len__(self) -> int:
        return self._starts[-1]

    def fingerprint(self) -> str:
        """Hash of the readers' fingerprints."""
        return digest([self.kind, *(reader.fingerprint() for reader in self._readers)])

    def part(self, indices: Sequence[int]) -> Callable[[], list[Payload]]:
        """Ship the parts of the readers concerned."""
        return partial(_fetch, [self._readers[r].part(own) for r, own in self._split(indices)])

    def stream(self, requests: Iterable[Sequence[int]]) -> Iterator[list[Payload]]:
        """Stream every reader, in lock-step with the requests."""
        waiting: list[deque[Sequence[int]]] = [deque() for _ in self._readers]
        streams = [
            reader.stream(iter(queue.popleft, None)) for reader, queue in zip(self._readers, waiting, strict=True)
        ]
        for indices in requests:
            block: list[Payload] = []
            for r, own in self._split(indices):
                waiting[r].append(own)
                block += next(streams[r])
            yield block

    def _split(self, indices: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield the number of each reader concerned and its own indices."""
        starts, pending = self._starts, deque(indices)
        while pending:
            r = bisect_right(starts, pending[0]) - 1
            own = []
            while pending and pending[0] < starts[r + 1]:
                own.append(int(pending.popleft()) - starts[r])
            yield r, own


def _fetch(parts: Sequence[Callable[[], Block]]) -> list[Payload]:
    return [payload for part in parts for payload in part()]
