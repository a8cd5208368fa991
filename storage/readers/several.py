"""Several sources, one after the other, such as archives and folders of images, or one array file per year."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.coordinates import joined
from dpca.storage.arrays.layout import Region
from dpca.storage.errors import DataError
from dpca.storage.readers.base import Block, Reader, digest


class SeveralReader(Reader):
    """Samples of several readers, in the order given.

    If two samples have the same name, the name of its source precedes each name.

    Parameters
    ----------
    readers : sequence of Reader
        Sources of encoded images, or arrays with samples of one shape, type and names of axes.
    name : str, optional
        The default consists of the names of the first and last reader.

    Raises
    ------
    DataError
        If images and arrays are mixed, or samples of arrays differ in form.
    """

    kind = "several"

    def __init__(self, readers: Sequence[Reader], name: str = "") -> None:
        self._readers = list(readers)
        first, last = readers[0], readers[-1]
        self.name = name or f"{first.name} ... {last.name} ({len(readers)})"
        for reader in readers:
            if _form(reader) != _form(first):
                raise DataError(
                    f"'{reader.name}' contains {_form(reader)}, but '{first.name}' before it contains {_form(first)}: "
                    f"give only images, or arrays with samples of one shape and type"
                )
        self.encoded, self.sample_shape = first.encoded, first.sample_shape
        self.dtype, self.axes, self.may_miss = first.dtype, first.axes, any(reader.may_miss for reader in readers)
        if all(reader.data_range == first.data_range for reader in readers):
            self.data_range = first.data_range
        self.coordinates = joined([reader.coordinates for reader in readers])
        labels = [np.asarray(reader.labels) for reader in readers if reader.labels is not None]
        if len(labels) == len(readers):
            self.labels = np.concatenate(labels)
        self.random_access = all(reader.random_access for reader in readers)
        self.reads_boxes = all(reader.reads_boxes for reader in readers)

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
        """The refused samples of all readers."""
        starts = zip(self._starts, self._readers, strict=False)
        return {start + i: reason for start, reader in starts for i, reason in reader.refused.items()}

    @cached_property
    def others(self) -> Mapping[str, int]:  # type: ignore[override]
        """Suffixes of the files in all sources that are not images."""
        return sum((Counter(reader.others) for reader in self._readers), Counter())

    def __len__(self) -> int:
        return self._starts[-1]

    def fingerprint(self) -> str:
        """Hash of the readers' fingerprints."""
        return digest([self.kind, *(reader.fingerprint() for reader in self._readers)])

    def part(self, indices: Sequence[int]) -> Callable[[], Block]:
        """Return the parts of the readers with these samples, joined."""
        return partial(_fetch, [self._readers[r].part(own) for r, own in self._split(indices)])

    def box(self, indices: Sequence[int], region: Region) -> Callable[[], Any]:
        """Return a box of these samples of the readers, joined."""
        return partial(_fetch, [self._readers[r].box(own, region) for r, own in self._split(indices)])

    def stream(self, requests: Iterable[Sequence[int]]) -> Iterator[Block]:
        """Stream every reader, one request at a time."""
        waiting: list[deque[Sequence[int]]] = [deque() for _ in self._readers]
        streams = [
            reader.stream(iter(queue.popleft, None)) for reader, queue in zip(self._readers, waiting, strict=True)
        ]
        for indices in requests:
            blocks = []
            for r, own in self._split(indices):
                waiting[r].append(own)
                blocks.append(next(streams[r]))
            yield _joined(blocks)

    def _split(self, indices: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield the number of each reader with some of these samples, and their indices in this reader."""
        starts, at = self._starts, 0
        while at < len(indices):
            r = bisect_right(starts, indices[at]) - 1
            stop = bisect_left(indices, starts[r + 1], at)
            yield r, [int(i) - starts[r] for i in indices[at:stop]]
            at = stop


def _form(reader: Reader) -> str:
    if reader.encoded:
        return "images"
    axes = "" if reader.axes is None else f" of axes {', '.join(reader.axes)}"
    return f"an array of {reader.dtype} samples of shape {reader.sample_shape}{axes}"


def _fetch(parts: Sequence[Callable[[], Block]]) -> Block:
    return _joined([part() for part in parts])


def _joined(blocks: Sequence[Block]) -> Block:
    """Join blocks of encoded images, or arrays, masked or not."""
    if len(blocks) == 1:
        return blocks[0]
    arrays = [block for block in blocks if isinstance(block, np.ndarray)]
    if not arrays:
        return [payload for block in blocks for payload in block]
    masked = any(np.ma.is_masked(block) for block in arrays)
    whole: NDArray[Any] = (np.ma.concatenate if masked else np.concatenate)(arrays)
    return whole
