"""Samples of another source in a random order, which many streaming rules require."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from dpca.storage.arrays.layout import Region
from dpca.storage.errors import DataError
from dpca.storage.readers.base import Block, Reader, digest
from dpca.storage.region import FilledRegion


class Permuted(Reader):
    """All samples of a reader, each once, in a random order.

    Parameters
    ----------
    reader : Reader
        Requires random access. Samples are read one by one, which is fast for separate images. For each sample of a
        chunked array, a whole chunk is decoded.
    seed : int
        Seed of the order.

    Raises
    ------
    DataError
        If the source can only be read from its beginning, or the seed is negative.
    """

    def __init__(self, reader: Reader, seed: int) -> None:
        if not reader.random_access:
            raise DataError(
                f"'{reader.name}' is compressed as a whole and can only be read from its beginning, so its samples "
                f"cannot be permuted: unpack it first"
            )
        if seed < 0:
            raise DataError(f"the seed of the order is {seed}: give an integer of at least 0")
        self._reader, self._seed = reader, seed
        self.kind, self.name = f"permuted {reader.kind}", reader.name
        self.encoded, self.others = reader.encoded, reader.others
        self.sample_shape, self.dtype, self.may_miss = reader.sample_shape, reader.dtype, reader.may_miss
        self.axes, self.data_range, self.paths = reader.axes, reader.data_range, reader.paths
        self.order = np.random.default_rng(seed).permutation(len(reader))
        self.coordinates = reader.coordinates and reader.coordinates.of_samples(self.order)
        self.labels = None if reader.labels is None else np.asarray(reader.labels)[self.order]

    @cached_property
    def names(self) -> Sequence[str]:
        """Names of the samples, in their new order."""
        return [self._reader.names[i] for i in self.order.tolist()]

    @cached_property
    def refused(self) -> Mapping[int, str]:  # type: ignore[override]
        """The refused samples of the wrapped reader, in the new order."""
        place = {old: new for new, old in enumerate(self.order.tolist())}
        return {place[old]: reason for old, reason in self._reader.refused.items()}

    def __len__(self) -> int:
        return len(self.order)

    def fingerprint(self) -> str:
        """Hash of the reader's fingerprint and the seed."""
        return digest(["permuted", self._seed, self._reader.fingerprint()])

    def part(self, indices: Sequence[int]) -> Callable[[], Block]:
        """Return the part of the wrapped reader for these samples, and a function that permutes it."""
        wanted, places = self._sorted(indices)
        return partial(_fetch, self._reader.part(wanted), places)

    @property
    def reads_boxes(self) -> bool:  # type: ignore[override]
        """Whether the wrapped reader reads boxes."""
        return self._reader.reads_boxes

    def box(self, indices: Sequence[int], region: Region) -> Callable[[], Any]:
        """Return the box of the wrapped reader for these samples, and a function that permutes it."""
        wanted, places = self._sorted(indices)
        return partial(_fetch, self._reader.box(wanted, region), places)

    def region_of(self, first: np.ndarray[Any, Any]) -> FilledRegion | None:
        """Return the region of the wrapped reader."""
        return self._reader.region_of(first)

    def _sorted(self, indices: Sequence[int]) -> tuple[list[int], np.ndarray[Any, Any]]:
        """Return the samples of the wrapped reader in its order, and the place of each wanted one among them."""
        wanted = self.order[np.asarray(indices, np.int64)]
        back = np.argsort(wanted)
        return wanted[back].tolist(), np.argsort(back)


def _fetch(part: Callable[[], Block], places: np.ndarray[Any, Any]) -> Block:
    block = part()
    return block[places] if isinstance(block, np.ndarray) else [block[i] for i in places.tolist()]
