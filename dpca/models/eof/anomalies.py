"""Anomalies of fields at grid points with data: without mean, season and trend, and weighted."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region, box_of_run
from dpca.storage.errors import DataError


class GapError(DataError):
    """A sample misses values at other grid points than the first sample."""


class AnomalyMap:
    """A linear map of the values x at each grid point, and its inverse: a = gain (x - level_g - slope t).

    A subclass has its three arrays, for grid points in any shape.
    """

    gain: Array | None
    level: Array | None
    slope: Array | None

    def apply(self, rows: Array, groups: Array, trend: Array | None) -> None:
        """Convert values (n, ...) to anomalies, in place."""
        gain, level, slope = (None if x is None else x.astype(rows.dtype) for x in (self.gain, self.level, self.slope))
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
        """Return the values (n, ...) of anomalies; NaN where the gain is 0 and there is no level."""
        values = rows.copy()
        if self.gain is not None:
            lost = np.nan if self.level is None else 0.0
            np.divide(rows, self.gain, out=values, where=self.gain > 0)
            values[:, self.gain == 0] = lost
        if self.level is not None:
            values += self.level[groups].astype(values.dtype)
        if self.slope is not None and trend is not None:
            values += np.multiply.outer(trend, self.slope).astype(values.dtype)
        return values


@dataclass(frozen=True, eq=False)
class Anomalies(AnomalyMap):
    """The map at the grid points with data, side by side.

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

    @property
    def n_places(self) -> int:
        """Number of grid points with data."""
        return len(self.places)

    @property
    def analyzed(self) -> Array:
        """Whether each grid point of a flattened sample has data."""
        found = np.zeros(math.prod(self.sample_shape), bool)
        found[self.places] = True
        return found

    def part(self, columns: slice, behind: int = 0) -> Anomalies:
        """Return the map of some grid points, with the places of some behind them."""
        gain, slope = (None if values is None else values[columns] for values in (self.gain, self.slope))
        level = None if self.level is None else self.level[:, columns]
        places = self.places[columns.start : columns.stop + behind]
        return replace(self, places=places, gain=gain, level=level, slope=slope)

    def packed(self, rows: Array) -> Array:
        """Return rows (n, d) of a model of these anomalies at the grid points with data."""
        return rows

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
        cut.anomalies, cut.first_column = self.anomalies.part(slice(a, b), behind=1), a
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
                raise gap_error(self.name, samples)
        places = self.anomalies.places[a - own : b - own]
        if b - a == flat.shape[1]:
            np.copyto(out, flat)
        elif flat.dtype == out.dtype:
            np.take(flat, places - begin, axis=1, out=out, mode="clip")  # other modes buffer the output
        else:
            np.copyto(out, flat[:, places - begin])
        if not self.certain and np.isnan(out.max()):  # the count agrees, but the grid points differ
            raise gap_error(self.name, samples)
        groups, trend = self.entries_of("groups", samples), self.entries_of("trend", samples)
        self.anomalies.part(slice(a - own, b - own)).apply(out, groups, trend)


def gap_error(name: str, samples: tuple[int, int]) -> GapError:
    """Return the error for samples of a source that miss other values than the first sample."""
    return GapError(f"{name} misses values at other grid points in samples {samples[0]} to {samples[1] - 1}")


def _first_of(box: Region, shape: tuple[int, ...]) -> int:
    """Return the index of the first value of a box in a flattened sample."""
    return int(np.ravel_multi_index(tuple(start for start, _ in box), shape))


def chunk_run(source: Source) -> int:
    """Return the length of the shortest run of a flattened sample whose box overlaps only whole chunks.

    Runs of a multiple of this length, from 0 on, read no chunk twice.
    """
    shape, chunks = source.shape[1:], source.chunks[1:]
    axis = next((i for i, length in enumerate(shape) if length > 1), 0)
    return min(chunks[axis], shape[axis]) * math.prod(shape[axis + 1 :])
