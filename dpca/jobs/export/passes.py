"""Passes that write exported samples, see `dpca.jobs.base.shards.ShardJob`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpca.jobs.base.stored_samples import StoredSamples
from dpca.jobs.export.sample_files import SampleKind
from dpca.jobs.export.value_files import write_box, write_values
from dpca.kernels.algebra.types import Array, Region
from dpca.storage.arrays.layout import CHANNEL


@dataclass(frozen=True, eq=False)
class ExportPass(ABC):
    """Writes some samples in each task.

    Parameters
    ----------
    given : StoredSamples
    wanted : range
        Indices of the samples.
    kind : SampleKind
    step : int
        Samples of a task.
    """

    given: StoredSamples
    wanted: range
    kind: SampleKind
    step: int

    def span(self, shard: int) -> tuple[int, int]:
        """Return the first sample of a task, and the one behind the last, counted from the first exported one."""
        return shard * self.step, min((shard + 1) * self.step, len(self.wanted))

    def values(self, shard: int, region: Region | None = None) -> Array:
        """Return the samples of a task, or a box of them, with channels on the last axis."""
        given, wanted = self.given, self.wanted[slice(*self.span(shard))]
        box = list(region or ((0, length) for length in self.kind.shape))
        if CHANNEL not in given.axes:
            return given.rows(wanted, tuple(box))
        at = given.axes.index(CHANNEL)
        box.insert(at - 1, box.pop())
        return np.moveaxis(given.rows(wanted, tuple(box)), at, -1)

    @property
    @abstractmethod
    def write(self) -> Callable[..., dict[str, Array]]:
        """Write the samples of a task, see `dpca.jobs.base.shards.ShardJob`."""


@dataclass(frozen=True, eq=False)
class FilesExport(ExportPass):
    """Writes a file for each sample: the result of ``encode`` to the relative path in ``files``, below ``folder``."""

    encode: Callable[[Array, SampleKind], bytes]
    folder: str
    files: Sequence[str]

    def write(self, shard: int) -> dict[str, Array]:
        """Write the files of some samples. They are in a work folder, and complete before their task is marked."""
        for sample, name in zip(self.values(shard), self.files[slice(*self.span(shard))], strict=True):
            path = Path(self.folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.encode(sample, self.kind))
        return {}


@dataclass(frozen=True, eq=False)
class ValuesExport(ExportPass):
    """Writes the values of samples to their places in the file ``path``, where ``first`` is that of the first value."""

    path: str
    first: int

    def write(self, shard: int) -> dict[str, Array]:
        """Write the values of some samples."""
        write_values(Path(self.path), self.first, self.span(shard)[0], self.values(shard), self.kind)
        return {}


@dataclass(frozen=True, eq=False)
class BoxesExport(ExportPass):
    """Writes a box of some samples in each task, to files whose headers are complete.

    Parameters
    ----------
    regions : sequence of Region
        Boxes that cover a sample, channels last.
    places : sequence of (str, int)
        For each sample, its file and the position of its first value.
    """

    regions: Sequence[Region]
    places: Sequence[tuple[str, int]]

    def write(self, shard: int, box: int) -> dict[str, Array]:
        """Write a box of some samples."""
        region = self.regions[box]
        for (path, first), sample in zip(
            self.places[slice(*self.span(shard))], self.values(shard, region), strict=True
        ):
            write_box(Path(path), first, region, sample, self.kind)
        return {}
