"""Sources that fill gaps in fields when they are read: by interpolation in time, or by modes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region
from dpca.models.eof.anomalies import Anomalies


class InterpolatedSource(ComputedSource):
    """The samples of another source, with missing values interpolated linearly in time.

    Before the first and after the last value of a grid point, that value is repeated. Grid points without any value
    remain NaN.

    Parameters
    ----------
    source : Source
    times : array (n,), ascending
    longest : int
        Length of the longest gap, in samples.
    """

    with_gaps = True
    per_sample = ("times",)

    def __init__(self, source: Source, times: Array, longest: int) -> None:
        super().__init__(source, source.shape, working_dtype(source.dtype), before=longest, behind=longest)
        self.times, self.chunks = times, source.chunks

    def needed(self, region: Region) -> Region:
        """Return the same box: grid points do not depend on each other."""
        return region

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of samples."""
        start, stop = samples[0] - first, samples[1] - first
        np.copyto(out, values[start:stop])
        flat, filled = values.reshape(len(values), -1), out.reshape(len(out), -1)
        columns = np.flatnonzero(np.isnan(filled).any(axis=0))
        if not columns.size:
            return
        x = flat[:, columns]
        here, number = ~np.isnan(x), np.arange(len(x))[:, None]
        before = np.maximum.accumulate(np.where(here, number, -1))[start:stop]
        behind = np.minimum.accumulate(np.where(here, number, len(x))[::-1])[::-1][start:stop]
        before, behind = np.where(before < 0, behind, before), np.where(behind == len(x), before, behind)
        # Without a value on either side, the grid point has no value at all, and any index will do.
        before, behind = (np.clip(index, 0, len(x) - 1) for index in (before, behind))
        times = self.entries_of("times", (first, first + len(x)))
        length = times[behind] - times[before]
        share = np.divide(times[start:stop, None] - times[before], length, out=np.zeros(length.shape), where=length > 0)
        low, high = (np.take_along_axis(x, index, axis=0) for index in (before, behind))
        between = (low + (high - low) * share).astype(out.dtype)
        filled[:, columns] = np.where(here[start:stop], x[start:stop], between)


@dataclass(frozen=True, eq=False)
class Expected:
    """The expectation of missing anomalies, given the observed ones (Tipping & Bishop 1999, section 3.3).

    Let V be the components with variances lambda, s the noise variance, and o the observed grid points of the anomalies
    a. The expected scores y solve (V_o V_o^T + s diag(1 / lambda)) y = V_o a_o.

    Attributes
    ----------
    components : array (k, d)
    mean : array (d,)
        Mean of the anomalies.
    ridge : array (k,), float64
        s / lambda.
    """

    components: Array
    mean: Array
    ridge: Array

    def fill(self, row: Array, missing: Array) -> None:
        """Fill a row of anomalies (d,) at the indices ``missing`` (m,), in place. Costs O(k^2 m + k d)."""
        row[missing] = self.mean[missing]
        unseen = self.components[:, missing].astype(np.float64)
        inner = np.eye(len(unseen)) - unseen @ unseen.T
        inner[np.diag_indices(len(inner))] += self.ridge
        y = np.linalg.solve(inner, self.components @ (row - self.mean))
        row[missing] += y @ unseen


class FilledSource(ComputedSource):
    """The samples of another source, with missing values replaced by their expectation under the modes.

    Parameters
    ----------
    source : Source
    anomalies : Anomalies
        For all grid points with data; its ``level`` is not None.
    groups, trend : array (n,)
        See `dpca.models.eof.anomalies.AnomalySource`.
    expected : Expected or None
        None fills with the level.
    """

    with_gaps = True  # grid points without data remain NaN
    per_sample = ("groups", "trend")

    def __init__(
        self, source: Source, anomalies: Anomalies, groups: Array, trend: Array | None, expected: Expected | None
    ) -> None:
        super().__init__(source, source.shape, working_dtype(source.dtype))
        self.anomalies, self.groups, self.trend, self.expected = anomalies, groups, trend, expected

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of samples."""
        places = self.anomalies.places
        flat = values.reshape(len(values), -1).astype(self.dtype, copy=False)
        for i in np.flatnonzero(np.isnan(flat).sum(axis=1) > flat.shape[1] - len(places)).tolist():
            rows, here = flat[i : i + 1, places], (samples[0] + i, samples[0] + i + 1)
            missing = np.flatnonzero(np.isnan(rows[0]))
            if missing.size == len(places):
                continue  # a sample without values remains NaN
            groups, trend = self.entries_of("groups", here), self.entries_of("trend", here)
            self.anomalies.apply(rows, groups, trend)
            if self.expected is None:
                rows[0, missing] = 0
            else:
                self.expected.fill(rows[0], missing)
            back = self.anomalies.back(rows, groups, trend)
            flat[i, places[missing]] = back[0, missing]
        filled = flat.reshape(values.shape)
        np.copyto(out, filled[(slice(None), *(slice(a, b) for a, b in region))])
