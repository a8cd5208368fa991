"""Anomalies of fields at grid points with data: without mean, season and trend, and weighted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.source import Source, batches
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region
from dpca.representation.linear import LinearRepresentation
from dpca.rules.covariance.survey import numbered
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

    def __init__(self, source: Source, anomalies: Anomalies, groups: Array, trend: Array | None, certain: bool) -> None:
        shape = (source.shape[0], len(anomalies.places))
        super().__init__(source, shape, working_dtype(source.dtype))
        self.anomalies, self.groups, self.trend, self.certain = anomalies, groups, trend, certain

    def needed(self, region: Region) -> Region:
        """Return the box of whole grid rows that contains the grid points of a region."""
        ((a, b),), (_, length, *rest) = region, self.source_shape
        step, places = math.prod(rest), self.anomalies.places
        rows = (int(places[a]) // step, int(places[b - 1]) // step + 1) if b > a else (0, length)
        return (rows, *((0, n) for n in rest))

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of anomalies."""
        (a, b), flat, places = region[0], values.reshape(len(values), -1), self.anomalies.places
        begin = self.needed(region)[0][0] * math.prod(self.source_shape[2:])
        if not self.certain and values.dtype.kind == "f":
            with_data = int(np.diff(np.searchsorted(places, [begin, begin + flat.shape[1]]))[0])
            if np.count_nonzero(np.isnan(flat)) != len(flat) * (flat.shape[1] - with_data):
                raise self._gap(samples)
        if b - a == flat.shape[1]:
            np.copyto(out, flat)
        elif flat.dtype == out.dtype:
            np.take(flat, places[a:b] - begin, axis=1, out=out, mode="clip")  # other modes buffer the output
        else:
            np.copyto(out, flat[:, places[a:b] - begin])
        if not self.certain and np.isnan(out.max()):  # the count agrees, but the grid points differ
            raise self._gap(samples)
        self.anomalies.of(out, self.entries_of("groups", samples), self.entries_of("trend", samples), slice(a, b))

    def _gap(self, samples: tuple[int, int]) -> GapError:
        return GapError(f"{self.name} misses values at other grid points in samples {samples[0]} to {samples[1] - 1}")


class SurveySource(ComputedSource):
    """Input of `dpca.rules.covariance.survey.Survey`: flattened samples with their numbers, NaN if missing."""

    with_gaps = True

    def __init__(self, source: Source) -> None:
        d = math.prod(source.shape[1:])
        super().__init__(source, (source.shape[0], d + 2), working_dtype(source.dtype))

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box. It always contains whole samples."""
        if values.dtype.kind == "f" and np.isinf(values).any():
            number = samples[0] + int(np.isinf(values).reshape(len(values), -1).any(axis=1).argmax())
            raise DataError(
                f"sample {number} of {self.name} contains an infinite value: mask the value or remove the sample"
            )
        numbered(values.reshape(len(values), -1), first, out)


def projected(anomalies: AnomalySource, basis: LinearRepresentation) -> Any:
    """Return the scores (n, k) of anomalies; NaN for samples without values. A Dask array yields a Dask array."""
    project, (n, d), k = _Projection(basis, anomalies.name), anomalies.shape, len(basis.components)
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

    def __call__(self, rows: Array, first: int = 0, block_info: Any = None) -> Array:
        if block_info:
            first = block_info[0]["array-location"][0][0]
        empty: Array = np.logical_and.reduce(np.isnan(rows), axis=1)
        if empty.any():
            rows = np.where(empty[:, None], 0, rows)
        scores = self.basis.encode(rows, self.name, first)
        scores[empty] = np.nan
        return scores


def _part(values: Array | None, columns: slice, dtype: DTypeLike) -> Array | None:
    return None if values is None else values[columns].astype(dtype)
