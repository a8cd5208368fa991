"""Gaps in fields, filled where they are read: along time, or by the modes of all other values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpca.engine.derived import ComputedSource
from dpca.engine.source import Source
from dpca.kernels.dtypes import working_dtype
from dpca.kernels.types import Array, Region
from dpca.models.anomalies import Anomalies


class InterpolatedSource(ComputedSource):
    """Another source's samples, each missing value between the last one before it and the first one behind, by time.

    Before the first and behind the last value of a place, this one stands. Places without any value stay as they are.

    Parameters
    ----------
    source : Source
    times : array (n,), ascending
    longest : int
        Most missing values in a row at any place that has one.
    """

    with_gaps = True
    per_sample = ("times",)

    def __init__(self, source: Source, times: Array, longest: int) -> None:
        super().__init__(source, source.shape, working_dtype(source.dtype), before=longest, behind=longest)
        self.times = times

    def needed(self, region: Region) -> Region:
        """Return the same box: places do not depend on each other."""
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
        # Where there is neither, the place has no value at all.
        before, behind = (np.clip(index, 0, len(x) - 1) for index in (before, behind))
        times = self.entries_of("times", (first, first + len(x)))
        length = times[behind] - times[before]
        share = np.divide(times[start:stop, None] - times[before], length, out=np.zeros(length.shape), where=length > 0)
        low, high = (np.take_along_axis(x, index, axis=0) for index in (before, behind))
        between = (low + (high - low) * share).astype(out.dtype)
        filled[:, columns] = np.where(here[start:stop], x[start:stop], between)


@dataclass(frozen=True, eq=False)
class Expected:
    """What modes expect of missing anomalies, given those that are there (Tipping & Bishop 1999, section 3.3).

    With loadings V of variances lambda and noise of variance s everywhere, the scores of anomalies a of which those in
    o are there have the mean y that solves (V_o V_o^T + s diag(1 / lambda)) y = V_o a_o.

    Attributes
    ----------
    components : array (k, d)
    mean : array (d,)
        Of the anomalies.
    ridge : array (k,), float64
        s / lambda.
    """

    components: Array
    mean: Array
    ridge: Array

    def fill(self, row: Array, missing: Array) -> None:
        """Write what is expected where a row of anomalies (d,) is missing (m,), indices. Costs O(k^2 m + k d)."""
        row[missing] = self.mean[missing]
        unseen = self.components[:, missing].astype(np.float64)
        inner = np.eye(len(unseen)) - unseen @ unseen.T
        inner[np.diag_indices(len(inner))] += self.ridge
        y = np.linalg.solve(inner, self.components @ (row - self.mean))
        row[missing] += y @ unseen


class FilledSource(ComputedSource):
    """Another source's samples, their missing values replaced by those that modes expect.

    Parameters
    ----------
    source : Source
    anomalies : Anomalies
        Of all places with data; its ``level`` is known.
    groups, trend : array (n,)
        See `dpca.models.anomalies.AnomalySource`.
    expected : Expected or None
        None expects the level.
    """

    with_gaps = True  # places without data stay without
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
                continue  # nothing is known of this sample
            groups, trend = self.entries_of("groups", here), self.entries_of("trend", here)
            self.anomalies.of(rows, groups, trend, slice(None))
            if self.expected is None:
                rows[0, missing] = 0
            else:
                self.expected.fill(rows[0], missing)
            back = self.anomalies.back(rows, groups, trend)
            flat[i, places[missing]] = back[0, missing]
        filled = flat.reshape(values.shape)
        np.copyto(out, filled[(slice(None), *(slice(a, b) for a, b in region))])
