"""Times of samples: the group of each sample for a climatology, and its time coordinate for a trend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.storage.errors import DataError

# Times that are looked at together, so that temporary arrays stay small however many there are.
_AT_ONCE = 2**18


@dataclass(frozen=True, eq=False)
class Calendar:
    """The conversion of times to groups and to a time coordinate for the trend.

    Attributes
    ----------
    dim : str
    climatology : str or None
        The ``.dt`` attribute of xarray for a part of the year or the day.
    detrend : bool
    parts : array
        The value of each group, such as the number of the month.
    origin, unit : float
        Of the time coordinate. It runs from about -1 to 1 over the times of the fit.
    """

    dim: str
    climatology: str | None
    detrend: bool
    parts: Array
    origin: float
    unit: float

    @classmethod
    def of(cls, along: Any, n: int, dim: str, climatology: str | None, detrend: bool) -> Calendar:
        """Return the calendar of ``n`` times: an xarray coordinate, or None to number the samples.

        Raises
        ------
        DataError
            If the climatology requires dates and there are none.
        """
        parts, origin, unit = np.zeros(1), 0.0, 1.0
        if climatology is not None:
            parts = np.unique(np.concatenate([np.unique(some) for _, some in _parts(along, dim, climatology)]))
        if detrend:
            times = elapsed(along, n, dim)
            origin = float(times.mean())
            unit = max(float(times.max()) - origin, origin - float(times.min())) or 1.0
        return cls(dim, climatology, detrend, parts, origin, unit)

    def groups(self, along: Any, n: int) -> Array:
        """Return the group (n,), uint16, of each time.

        Raises
        ------
        DataError
            If a part of the year did not occur in the fit.
        """
        if self.climatology is None:
            return np.zeros(n, np.uint16)
        groups = np.empty(n if along is None else len(along), np.uint16)
        for start, parts in _parts(along, self.dim, self.climatology):
            found = np.searchsorted(self.parts, parts).clip(max=len(self.parts) - 1)
            if (unknown := parts[self.parts[found] != parts]).size:
                raise DataError(
                    f"a sample has {self.climatology} {unknown[0]}, which did not occur in the fit: remove the sample, "
                    f"or fit to samples of every {self.climatology}"
                )
            groups[start : start + len(parts)] = found
        return groups

    def trend(self, along: Any, n: int) -> Array | None:
        """Return the time coordinate (n,) for the trend; None without a trend."""
        if not self.detrend:
            return None
        placed = elapsed(along, n, self.dim)
        placed -= self.origin
        placed /= self.unit
        return placed

    def given(self, along: Any, rows: Array, fitted: Any) -> tuple[Array, Array | None]:
        """Return the groups and time coordinates of PC time series (m, k) with this coordinate.

        Raises
        ------
        DataError
            If the times are of another kind than the times of the fit, or the time series have no coordinate and
            another length than the fit.
        """
        self.check(along, fitted)
        groups, trend = self.groups(along, len(rows)), self.trend(along, len(rows))
        lengths = {len(groups), len(groups if trend is None else trend)}
        if lengths != {len(rows)}:
            raise DataError(
                f"the PC time series have {len(rows)} samples and no coordinate, but the fit had "
                f"{max(lengths)} samples: give that many, or a DataArray with the coordinate {self.dim!r}"
            )
        return groups, trend

    def check(self, along: Any, fitted: Any, *, always: bool = False) -> None:
        """Check that a coordinate is of the same kind as the coordinate of the fit, if there is a trend.

        Parameters
        ----------
        along, fitted : xarray.DataArray or None
            The coordinates of the samples and of the fit.
        always : bool
            Require a coordinate, too.

        Raises
        ------
        DataError
        """
        here, there = _kind(along), _kind(fitted)
        if self.detrend and (here != there or (always and along is None)):
            wanted = "a coordinate" if fitted is None else there
            raise DataError(
                f"these samples have {here} along {self.dim!r} but the trend was fitted to {there}: fit and project an "
                f"xarray.DataArray with {wanted} along {self.dim!r}"
            )


def elapsed(along: Any, n: int, dim: str) -> Array:
    """Return times (n,), float64; dates and durations in days. Without a coordinate, samples are numbered from 0.

    Raises
    ------
    DataError
        If the values are neither numbers nor dates, or not finite.
    """
    if along is None:
        return np.arange(float(n))
    values = np.asarray(along)
    days = np.empty(len(values))
    for start in range(0, len(values), _AT_ONCE):
        days[start : start + _AT_ONCE] = _elapsed(values[start : start + _AT_ONCE], dim)
    return days


def _elapsed(values: Array, dim: str) -> Array:
    if values.dtype.kind == "M":
        days: Array = (values - np.datetime64(0, "s")) / np.timedelta64(1, "D")
    elif values.dtype.kind == "m":
        days = values / np.timedelta64(1, "D")
    elif values.dtype.kind in "iuf":
        days = values.astype(np.float64)
    elif values.dtype.kind == "O" and hasattr(values[0], "calendar"):
        import cftime  # installed, as the dates are cftime objects

        days = np.asarray(cftime.date2num(values, "days since 1970-01-01", calendar=values[0].calendar), np.float64)
    else:
        raise DataError(f"the coordinate {dim!r} has dtype {values.dtype}: give dates or numbers")
    if not np.isfinite(days).all():
        raise DataError(f"the coordinate {dim!r} contains values that are not finite: remove these samples")
    return days


def _kind(along: Any) -> str:
    if along is None:
        return "no coordinate"
    values = np.asarray(along)
    calendar = getattr(values.flat[0], "calendar", "") if values.dtype.kind == "O" else ""
    if values.dtype.kind == "M" or calendar in ("standard", "gregorian", "proleptic_gregorian"):
        return "dates"
    if calendar:
        return f"dates of the calendar {calendar!r}"
    return "durations" if values.dtype.kind == "m" else "numbers"


def _parts(along: Any, dim: str, climatology: str) -> Iterator[tuple[int, Array]]:
    """Yield the parts of the year of some times after others, with the number of the first."""
    if along is None:
        raise DataError(
            f"climatology={climatology!r} requires dates, and the samples have none: give an xarray.DataArray with "
            f"dates along {dim!r}"
        )
    for start in range(0, len(along), _AT_ONCE):
        some = along[start : start + _AT_ONCE]
        try:
            found: Array = np.asarray(getattr(some.dt, climatology))
        except (AttributeError, TypeError) as error:
            raise DataError(
                f"climatology={climatology!r} requires dates, and the coordinate {dim!r} has dtype {along.dtype}: give "
                f"dates, or set climatology=None"
            ) from error
        if (lacking := np.asarray(some.isnull())).any():
            raise DataError(f"sample {start + int(lacking.argmax())} has no date along {dim!r}: remove it")
        yield start, found
