"""Anomalies of large fields: samples keep their axes, and blocks of grid points are boxes of whole chunks."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, PickledByFields, Region
from dpca.models.base.mapped import release
from dpca.models.eof.anomalies import AnomalyMap, gap_error
from dpca.representation.by_blocks import LARGE_SAMPLE


def is_large(n_places: int) -> bool:
    """Return whether a field of this number of grid points is large, in float64: it keeps its axes.

    Smaller ones have columns for the grid points with data only.
    """
    return 8 * n_places > LARGE_SAMPLE


@dataclass(frozen=True, eq=False)
class GridAnomalies(PickledByFields, AnomalyMap):
    """The map at all grid points of a sample, or of a box of it. Anomalies are 0 at grid points without data.

    Attributes
    ----------
    there : array (*sample_shape), bool
        Whether a grid point has data.
    gain : array (*sample_shape), float64, or None
        See `dpca.models.eof.anomalies.AnomalyMap`. It may be a view that repeats values.
    level : array (n_groups, *sample_shape), float64, or None
    slope : array (*sample_shape), float64, or None
    """

    there: Array
    gain: Array | None = None
    level: Array | None = None
    slope: Array | None = None

    @classmethod
    def of_rows(
        cls, there: Array, shape: tuple[int, ...], gain: Array | None, level: Array | None, slope: Array | None
    ) -> GridAnomalies:
        """Return the map from arrays (d,), and ``level`` (n_groups, d), for all grid points of a sample of a shape."""
        gain, slope = (None if values is None else values.reshape(shape) for values in (gain, slope))
        level = None if level is None else level.reshape(len(level), *shape)
        return cls(there.reshape(shape), gain, level, slope)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return self.there.shape

    @cached_property
    def n_places(self) -> int:
        """Number of grid points with data."""
        return int(np.count_nonzero(self.there))

    @property
    def analyzed(self) -> Array:
        """Whether each grid point of a flattened sample has data."""
        return self.there.ravel()

    def box(self, region: Region) -> GridAnomalies:
        """Return the map of a box."""
        at = tuple(slice(a, b) for a, b in region)
        gain, slope = (None if values is None else values[at] for values in (self.gain, self.slope))
        return replace(
            self, there=self.there[at], gain=gain, level=None if self.level is None else self.level[:, *at], slope=slope
        )

    def release(self) -> None:
        """Release the memory of arrays in files, see `dpca.models.base.mapped.release`."""
        for array in (self.gain, self.level, self.slope):
            release(array)

    def packed(self, rows: Array) -> Array:
        """Return rows (n, d) of a model of these anomalies at the grid points with data."""
        return rows if self.there.all() else rows[:, self.analyzed]

    def placed(self, rows: Array) -> Array:
        """Return rows on the grid (n, *sample_shape), NaN at grid points without data.

        Rows (n, d) are those of all grid points, or of those with data.
        """
        grid = np.empty((len(rows), self.there.size), np.result_type(rows.dtype, np.float32))
        if rows.shape[1] == grid.shape[1]:
            np.copyto(grid, rows)
        else:
            grid[:, self.analyzed] = rows
        grid = grid.reshape(len(rows), *self.sample_shape)
        self.hide(grid)
        return grid

    def hide(self, samples: Array) -> None:
        """Set values (n, *sample_shape) at grid points without data to NaN, in place."""
        np.copyto(samples, np.nan, where=~self.there)


class GridAnomalySource(ComputedSource):
    """The anomalies (n, *sample_shape) of the samples of another source.

    A task reads a box, and holds the map of this box only.

    Parameters
    ----------
    source : Source
    anomalies : GridAnomalies
    groups, trend, certain
        See `dpca.models.eof.anomalies.AnomalySource`.
    """

    per_sample = ("groups", "trend")

    def __init__(
        self, source: Source, anomalies: GridAnomalies, groups: Array, trend: Array | None, certain: bool
    ) -> None:
        super().__init__(source, source.shape, working_dtype(source.dtype))
        self.chunks, self.corner = source.chunks, (0,) * len(anomalies.sample_shape)
        self.anomalies, self.groups, self.trend, self.certain = anomalies, groups, trend, certain

    def needed(self, region: Region) -> Region:
        """Return the same box: grid points do not depend on each other."""
        return region

    def piece(self, samples: tuple[int, int], region: Region) -> Any:
        """Return this source over a piece of the other one, with the map of a box only."""
        cut = copy(self)
        cut.anomalies, cut.corner = self._map_of(region), tuple(a for a, _ in region)
        return super(GridAnomalySource, cut).piece(samples, region)

    def extra_bytes(self, region: Region) -> int:
        """Return the bytes of the map of a region, with its conversions, in addition to those of the other source."""
        maps = 5 if self.anomalies.level is None else 5 + 2 * len(self.anomalies.level)
        return super().extra_bytes(region) + 8 * maps * math.prod(b - a for a, b in region)

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of anomalies."""
        own = self._map_of(region)
        absent = None if own.there.all() else ~own.there
        if not self.certain and values.dtype.kind == "f":
            missing = np.isnan(values)
            if missing.any() if absent is None else (missing != absent).any():
                raise gap_error(self.name, samples)
        np.copyto(out, values)
        own.apply(out, self.entries_of("groups", samples), self.entries_of("trend", samples))
        if absent is not None:
            np.copyto(out, 0, where=absent)
        own.release()

    def _map_of(self, region: Region) -> GridAnomalies:
        return self.anomalies.box(tuple((a - c, b - c) for (a, b), c in zip(region, self.corner, strict=True)))
