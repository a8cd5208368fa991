"""The quality of large samples that a target is met on, box by box: no process holds a whole sample.

::

    energies    a box of whole cells, with its neighbors if cells are lapped -> squares of its scores, of all samples
    SSIM        the same -> scores, in a file that is mapped to memory
                for each number of components: scores of a box with a halo -> similarities of the windows that begin
                in the box
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpca.engine.folds.fold_tasks import Results
from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.kernels.box_quality import BoxQuality, inside, windows_in
from dpca.kernels.pixels import Pixels
from dpca.models.base.mapped import mapped_array, release
from dpca.models.cells.partition_rule import neighbors
from dpca.partition.base import Partition
from dpca.partition.cells import CellGrid
from dpca.representation.by_blocks import LARGE_SAMPLE
from dpca.representation.cell_boxes import part_of, places_of_cells, whole_cells, with_neighbors
from dpca.representation.linear import LinearRepresentation
from dpca.storage.arrays.layout import box_shape, boxes_of
from dpca.storage.remote.memory import thread_count
from dpca.storage.remote.tasks import run_in_order

# Bytes of the components and the temporary arrays of a box, and of its samples in floating point.
_BOX_BYTES = 2**25
# Arrays of the size of a sample in the work on one, besides components.
_OTHERS = 12


@dataclass(frozen=True, eq=False)
class CellBoxes:
    """Some samples, and all computed components of cells, box by box.

    Parameters
    ----------
    partition : CellGrid
    results : list of dict
        Mean and components of each cell.
    source : Source
    chosen : array of integers
        Numbers of the samples, ascending.
    """

    partition: CellGrid
    results: Results
    source: Source
    chosen: Array

    @staticmethod
    def suit(partition: Partition) -> bool:
        """Return whether samples are measured box by box: if they are large, in float64, and divided into cells."""
        return isinstance(partition, CellGrid) and 8 * math.prod(partition.sample_shape) > LARGE_SAMPLE

    @cached_property
    def n_components(self) -> int:
        """Most components of a cell."""
        return max(len(result["components"]) for result in self.results)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of components and scores."""
        return working_dtype(self.source.dtype)

    @property
    def score_shape(self) -> tuple[int, ...]:
        """Shape of the scores of one sample."""
        return (*self.partition.grid_shape, self.n_components)

    @cached_property
    def boxes(self) -> list[Region]:
        """Boxes of whole cells."""
        shape = self.partition.sample_shape
        unit = [b for _, b in whole_cells(self.partition, tuple((0, 1) for _ in shape))]
        most = _BOX_BYTES // (self.dtype.itemsize * (2 * self.n_components + _OTHERS))
        return boxes_of(shape, box_shape(shape, most, unit))

    def basis(self, region: Region) -> LinearRepresentation:
        """Return the components of a box of whole cells."""
        part = part_of(self.partition, region)
        numbers = np.arange(self.partition.n_parts).reshape(self.partition.grid_shape)
        cells = [self.results[i] for i in numbers[places_of_cells(self.partition, region)].ravel().tolist()]
        means = neighbors((i, cell["mean"][None]) for i, cell in enumerate(cells))
        rows = neighbors((i, cell["components"]) for i, cell in enumerate(cells))
        components = part.join(rows, np.zeros((self.n_components, *part.sample_shape), self.dtype))
        return LinearRepresentation(part, part.join(means, np.empty((1, *part.sample_shape)))[0], components)

    def read(self, some: slice, region: Region) -> Array:
        """Return a box of some of the samples."""
        numbers, read = self.chosen[some], self.source.reader()
        out = np.empty((len(numbers), *(b - a for a, b in region)), self.source.dtype)
        for run in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(numbers) != 1) + 1):
            a, b = int(run[0]), int(run[-1]) + 1
            read((int(numbers[a]), int(numbers[a]) + b - a), region, out[a:b])
            check_finite(out[a:b], int(numbers[a]), self.source.name)
        return out

    def rows(self, region: Region, start: int, stop: int) -> Iterator[slice]:
        """Yield a few of the samples at a time."""
        step = max(1, _BOX_BYTES // (self.dtype.itemsize * math.prod(b - a for a, b in region)))
        for some in blocks(stop - start, step):
            yield slice(start + some.start, start + some.stop)

    def encoded(self, region: Region, groups: Sequence[tuple[int, int]]) -> Iterator[tuple[int, slice, Array, Array]]:
        """Yield for each group some samples, their scores of a box of cells, and their centered values in it."""
        around = with_neighbors(self.partition, region)
        basis, own = self.basis(around), inside(region, around)
        places = zip(places_of_cells(self.partition, region), places_of_cells(self.partition, around), strict=True)
        cells = (slice(None), *(slice(p.start - q.start, p.stop - q.start) for p, q in places))
        for g, (start, stop) in enumerate(groups):
            for some in self.rows(around, start, stop):
                samples = self.read(some, around)
                yield g, some, basis.encode(samples)[cells], samples[own] - basis.mean[own[1:]]

    def place(self, region: Region) -> tuple[slice, ...]:
        """Return the place of the cells of a box in the scores of samples."""
        return (slice(None), *places_of_cells(self.partition, region))

    def energies(self, sizes: Sequence[int]) -> tuple[Array, Array]:
        """Return the squares of the scores (n_groups, *score_shape), and of centered samples (n_groups,), summed.

        ``sizes`` are the numbers of samples of successive groups.
        """
        groups = list(itertools.pairwise(np.cumsum([0, *sizes]).tolist()))
        energies = np.zeros((len(sizes), *self.score_shape))

        def of_box(region: Region) -> Array:
            totals = np.zeros(len(sizes))
            for g, _, scores, centered in self.encoded(region, groups):
                energies[g][self.place(region)[1:]] += np.square(scores, dtype=np.float64).sum(axis=0)
                # The filters of lapped cells are orthogonal, so they do not change the sum of squares.
                totals[g] += np.square(centered).sum()
            return totals

        found = run_in_order(of_box, [(region,) for region in self.boxes], threads=thread_count())
        return energies, np.sum(list(found), axis=0)


class HeldInBoxes:
    """The SSIM of large samples for any ranks. Their scores are in a file, and boxes of them are read for each ranks.

    Parameters
    ----------
    cells : CellBoxes
    value_range : (float, float)
    n_spatial : int
    """

    def __init__(self, cells: CellBoxes, value_range: tuple[float, float], n_spatial: int) -> None:
        self._cells, self._value_range, self._n_spatial = cells, value_range, n_spatial
        self.n_samples = n = len(cells.chosen)
        self._scores = mapped_array((n, *cells.score_shape), cells.dtype, "the scores of samples")
        list(run_in_order(self._encode, [(region,) for region in cells.boxes], threads=thread_count()))

    def _encode(self, region: Region) -> None:
        for _, some, scores, _ in self._cells.encoded(region, [(0, self.n_samples)]):
            self._scores[some][self._cells.place(region)] = scores
        release(self._scores)

    def ssim(self, ranks: Array) -> Array:
        """Return the SSIM of each sample for these ranks, with values rounded to pixels as in stores."""
        shape = self._cells.partition.sample_shape
        kept = (np.arange(self._cells.n_components) < ranks[:, None]).reshape(self._cells.score_shape)
        calls = [(region, kept) for region in self._cells.boxes]
        total = np.sum(list(run_in_order(self._similarities, calls, threads=thread_count())), axis=0)
        return np.asarray(total / windows_in(tuple((0, n) for n in shape), shape, self._n_spatial)[1])

    def _similarities(self, region: Region, kept: Array) -> Array:
        """Return the sums (n,) of the similarities of the windows that begin in a box."""
        cells, (low, high) = self._cells, self._value_range
        quality = BoxQuality(cells.partition.sample_shape, region, self._n_spatial, high - low, True)
        around = with_neighbors(cells.partition, whole_cells(cells.partition, quality.needed))
        basis, sums, place = cells.basis(around), np.zeros(self.n_samples), cells.place(around)
        needed, pixels = inside(quality.needed, around), Pixels(cells.source.dtype, self._value_range)
        for some in cells.rows(around, 0, self.n_samples):
            decoded = basis.decode(self._scores[some][place] * kept[place[1:]], pixels=pixels)[needed]
            samples = cells.read(some, quality.needed)
            sums[some] = quality.sums(samples, np.ascontiguousarray(decoded), quality.needed)["ssim"]
        return sums
