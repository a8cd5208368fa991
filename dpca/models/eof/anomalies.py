"""Anomalies of fields at grid points with data: without mean, season and trend, and weighted."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.source import Source, batches
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region, box_of_run
from dpca.representation.linear import LinearRepresentation
from dpca.rules.covariance.survey import NUMBERS, numbered
from dpca.storage.errors import DataError

# Size of the blocks of anomalies that are projected at once.
_BLOCK_BYTES = 2**25


class GapError(DataError):
    """A sample misses values at other grid points than the first sample."""


@dataclass(frozen=True, eq=False)
class Anomalies:
    """A linear map of the values x at each grid point with data, and its inverse: a = gain (x - level_g - slope t).

    Attributes
    ----------
    places : array (d,), integer, ascending
        Indices into a flattened sample: the grid points with data.
    sample_shape : tuple of int
    gain : array (d,), float64, or None
        Weight, divided by the standard deviation if anomalies are standardized.
    level : array (n_groups, d), float64, or None
        Mean of each group of samples. If None, the fitted model subtracts the mean.
    slope : array (d,), float64, or None
    """

    places: Array
    sample_shape: tuple[int, ...]
    gain: Array | None = None
    level: Array | None = None
    slope: Array | None = None

    def part(self, columns: slice) -> Anomalies:
        """Return the map of some grid points, and the place of the next one, for a task that reads these only."""
        gain, slope = (None if values is None else values[columns] for values in (self.gain, self.slope))
        level = None if self.level is None else self.level[:, columns]
        places = self.places[columns.start : columns.stop + 1]
        return replace(self, places=places, gain=gain, level=level, slope=slope)

    def of(self, rows: Array, groups: Array, trend: Array | None, columns: slice) -> None:
        """Convert values (n, m) of some grid points to anomalies, in place."""
        gain, slope = (_part(values, columns, rows.dtype) for values in (self.gain, self.slope))
        level = None if self.level is None else self.level[:, columns].astype(rows.dtype)
        if gain is None and level is None:
            return
        for i, row in enumerate(rows):  # one row stays in the cache
            if level is not None:
                row -= level[groups[i]]
            if slope is not None and trend is not None:
                row -= slope * rows.dtype.type(trend[i])
            if gain is not None:
                row *= gain

    def back(self, rows: Array, groups: Array, trend: Array | None) -> Array:
        """Return the values (n, d) of anomalies; NaN where the gain is 0 and there is no level."""
        values = rows.copy()
        if self.gain is not None:
            lost = np.nan if self.level is None else 0.0
            np.divide(rows, self.gain, out=values, where=self.gain > 0)
            values[:, self.gain == 0] = lost
        if self.level is not None:
            values += self.level[groups].astype(values.dtype)
        if self.slope is not None and trend is not None:
            values += np.outer(trend, self.slope).astype(values.dtype)
        return values

    def placed(self, rows: Array) -> Array:
        """Return rows (n, d) on the grid (n, *sample_shape), NaN at grid points without data."""
        grid = np.full((len(rows), math.prod(self.sample_shape)), np.nan, np.result_type(rows.dtype, np.float32))
        grid[:, self.places] = rows
        return grid.reshape(len(rows), *self.sample_shape)


class AnomalySource(ComputedSource):
    """The anomalies (n, d) of the samples of another source.

    A task reads the smallest box of whole rows, planes and so on that contains its grid points, and holds the map of
    these only.

    Parameters
    ----------
    source : Source
    anomalies : Anomalies
    groups : array (n,), integer
        Group of each sample.
    trend : array (n,), float64, or None
        Time coordinate of each sample, if there is a slope.
    certain : bool
        Whether the grid points with data are known. If not, the missing values of each batch are counted.
    """

    per_sample = ("groups", "trend")
    first_column: int = 0
    """Number of the grid point that the first entry of the map belongs to."""

    def __init__(self, source: Source, anomalies: Anomalies, groups: Array, trend: Array | None, certain: bool) -> None:
        d = len(anomalies.places)
        super().__init__(source, (source.shape[0], d), working_dtype(source.dtype))
        self.anomalies, self.groups, self.trend, self.certain = anomalies, groups, trend, certain
        # About the grid points of a run of chunks.
        run, size = chunk_run(source), math.prod(source.shape[1:])
        self.chunks = (self.chunks[0], min(d, max(1, math.ceil(run * d / size))))

    def needed(self, region: Region) -> Region:
        """Return the box of the run of the flattened sample that contains the grid points of a region."""
        return box_of_run(self.source_shape[1:], *self._run(region))

    def _run(self, region: Region) -> tuple[int, int]:
        """Return the run of the flattened sample for a region: the first index, and the one behind the last."""
        ((a, b),), places, size = region, self.anomalies.places, math.prod(self.source_shape[1:])
        first = self.first_column
        if b <= a:
            return 0, size
        if self.certain:
            return int(places[a - first]), int(places[b - 1 - first]) + 1
        # The runs of all blocks cover the sample, so that every missing value is counted once.
        return int(places[a - first]) if a else 0, int(places[b - first]) if b < self.shape[1] else size

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return this source over a piece of the other one, with the map of its grid points only."""
        cut, (a, b) = copy(self), region[0]
        cut.anomalies, cut.first_column = self.anomalies.part(slice(a, b)), a
        return super(AnomalySource, cut).piece(samples, region)

    def extra_bytes(self, region: Region) -> int:
        """Return the bytes of the map of a region, with its conversions, in addition to those of the other source."""
        maps = 5 if self.anomalies.level is None else 5 + 2 * len(self.anomalies.level)
        return super().extra_bytes(region) + 8 * maps * (region[0][1] - region[0][0])

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of anomalies."""
        (a, b), flat, own = region[0], values.reshape(len(values), -1), self.first_column
        begin, (start, stop) = _first_of(self.needed(region), self.source_shape[1:]), self._run(region)
        if not self.certain and values.dtype.kind == "f":
            run = flat[:, start - begin : stop - begin]
            if np.count_nonzero(np.isnan(run)) != len(run) * (stop - start - (b - a)):
                raise self._gap(samples)
        places = self.anomalies.places[a - own : b - own]
        if b - a == flat.shape[1]:
            np.copyto(out, flat)
        elif flat.dtype == out.dtype:
            np.take(flat, places - begin, axis=1, out=out, mode="clip")  # other modes buffer the output
        else:
            np.copyto(out, flat[:, places - begin])
        if not self.certain and np.isnan(out.max()):  # the count agrees, but the grid points differ
            raise self._gap(samples)
        groups, trend = self.entries_of("groups", samples), self.entries_of("trend", samples)
        self.anomalies.of(out, groups, trend, slice(a - own, b - own))

    def _gap(self, samples: tuple[int, int]) -> GapError:
        return GapError(f"{self.name} misses values at other grid points in samples {samples[0]} to {samples[1] - 1}")


def _first_of(box: Region, shape: tuple[int, ...]) -> int:
    """Return the index of the first value of a box in a flattened sample."""
    return int(np.ravel_multi_index(tuple(start for start, _ in box), shape))


class SurveySource(ComputedSource):
    """Input of `dpca.rules.covariance.survey.Survey`: flattened samples with their numbers, NaN if missing.

    ::

        one block        x0 x1 x2 x3 x4 x5  n n
        blocks of 4      x0 x1 x2 x3  n n  x4 x5  n n

    The numbers follow each block of grid points, so that a block does without the others.

    Parameters
    ----------
    source : Source
    shift : array (d,), float64
        Is subtracted from every sample.
    block : int, optional
        Grid points of a block; the default is all.
    """

    with_gaps = True
    first_place: int = 0
    """Number of the grid point that the first entry of the shift belongs to."""

    def __init__(self, source: Source, shift: Array, block: int | None = None) -> None:
        d = math.prod(source.shape[1:])
        self.block = d if block is None else block
        shape = (source.shape[0], d + NUMBERS * math.ceil(d / self.block))
        super().__init__(source, shape, working_dtype(source.dtype))
        self.shift, self.size = shift, d
        self.chunks = (self.chunks[0], self.part_length)

    @property
    def part_length(self) -> int:
        """Number of columns of a whole block: its grid points, and the number of the sample."""
        return min(self.block + NUMBERS, self.shape[1])

    def needed(self, region: Region) -> Region:
        """Return the box of the grid points of some blocks."""
        return box_of_run(self.source_shape[1:], *self._run(region))

    def _run(self, region: Region) -> tuple[int, int]:
        first, last = region[0][0] // self.part_length, math.ceil(region[0][1] / self.part_length)
        return first * self.block, min(last * self.block, self.size)

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return this source over a piece of the other one, with the shift of its grid points only."""
        cut, (start, stop) = copy(self), self._run(region)
        cut.shift, cut.first_place = self.shift[start:stop], start
        return super(SurveySource, cut).piece(samples, region)

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box. It always contains whole blocks."""
        if values.dtype.kind == "f" and np.isinf(values).any():
            number = samples[0] + int(np.isinf(values).reshape(len(values), -1).any(axis=1).argmax())
            raise DataError(
                f"sample {number} of {self.name} contains an infinite value: mask the value or remove the sample"
            )
        flat, begin = values.reshape(len(values), -1), _first_of(self.needed(region), self.source_shape[1:])
        (start, stop), own = self._run(region), self.first_place
        for turn, at in enumerate(range(start, stop, self.block)):
            length = min(self.block, stop - at)
            part = out[:, turn * self.part_length : turn * self.part_length + length + NUMBERS]
            numbered(flat[:, at - begin : at - begin + length], first, part)
            part[:, :length] -= self.shift[at - own : at - own + length].astype(out.dtype)


def projected(anomalies: AnomalySource, basis: LinearRepresentation, *, skip_gaps: bool = False) -> Any:
    """Return the scores (n, k) of anomalies; NaN for samples without values. A Dask array yields a Dask array.

    With ``skip_gaps``, samples that miss some values have NaN, too; otherwise they raise `DataError`.
    """
    project, (n, d), k = _Projection(basis, anomalies.name, skip_gaps), anomalies.shape, len(basis.components)
    dtype = basis.score_dtype(anomalies.dtype)
    if (lazy := anomalies.as_dask()) is not None:
        return da.map_blocks(project, lazy, chunks=(lazy.chunks[0], k), dtype=dtype, meta=np.empty((0, 0), dtype))
    scores = np.empty((n, k), dtype)
    rows = max(1, _BLOCK_BYTES // (d * anomalies.dtype.itemsize))
    for first, block in batches(anomalies, (0, n), ((0, d),), rows):
        scores[first : first + len(block)] = project(block, first)
    return scores


@dataclass(frozen=True, eq=False)
class _Projection:
    basis: LinearRepresentation
    name: str
    skip_gaps: bool

    def __call__(self, rows: Array, first: int = 0, block_info: Any = None) -> Array:
        if block_info:
            first = block_info[0]["array-location"][0][0]
        reduced = np.logical_or if self.skip_gaps else np.logical_and
        empty: Array = reduced.reduce(np.isnan(rows), axis=1)
        if empty.any():
            rows = np.where(empty[:, None], 0, rows)
        scores = self.basis.encode(rows, self.name, first)
        scores[empty] = np.nan
        return scores


def _part(values: Array | None, columns: slice, dtype: DTypeLike) -> Array | None:
    return None if values is None else values[columns].astype(dtype)


def chunk_run(source: Source) -> int:
    """Return the length of the shortest run of a flattened sample whose box overlaps only whole chunks.

    Runs of a multiple of this length, from 0 on, read no chunk twice.
    """
    shape, chunks = source.shape[1:], source.chunks[1:]
    axis = next((i for i, length in enumerate(shape) if length > 1), 0)
    return min(chunks[axis], shape[axis]) * math.prod(shape[axis + 1 :])
