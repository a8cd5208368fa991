"""Samples in time: the season that each belongs to, and its place on a line, for climatologies and trends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.kernels.types import Array
from dpca.storage.errors import DataError

#: Parts of the year or the day whose means may be subtracted, as xarray's ``.dt`` calls them.
CLIMATOLOGIES = ("month", "season", "dayofyear", "hour")


@dataclass(frozen=True, eq=False)
class Calendar:
    """How times become groups and places on a line.

    Attributes
    ----------
    dim : str
    climatology : str or None
        One of `CLIMATOLOGIES`.
    detrend : bool
    parts : array
        What the groups stand for, such as the numbers of months.
    origin, unit : float
        Of the places on the line, which go from about -1 to 1 over the times of the fit.
    """

    dim: str
    climatology: str | None
    detrend: bool
    parts: Array
    origin: float
    unit: float

    @classmethod
    def of(cls, along: Any, n: int, dim: str, climatology: str | None, detrend: bool) -> Calendar:
        """Learn the groups and the line of ``n`` times, a coordinate of xarray, or None to count samples.

        Raises
        ------
        DataError
            For a climatology that is none, or one of times that are no dates.
        """
        if climatology is not None and climatology not in CLIMATOLOGIES:
            raise DataError(f"climatology is {climatology!r}: choose one of {', '.join(CLIMATOLOGIES)}, or None")
        parts = np.unique(_parts(along, dim, climatology)) if climatology is not None else np.zeros(1)
        times = elapsed(along, n, dim) if detrend else np.zeros(n)
        origin = float(times.mean())
        return cls(dim, climatology, detrend, parts, origin, float(np.abs(times - origin).max()) or 1.0)

    def groups(self, along: Any, n: int) -> Array:
        """Return the group (n,) of each time.

        Raises
        ------
        DataError
            For a part of the year that the fit has not seen.
        """
        if self.climatology is None:
            return np.zeros(n, np.int64)
        parts = _parts(along, self.dim, self.climatology)
        groups = np.searchsorted(self.parts, parts).clip(max=len(self.parts) - 1)
        if (unknown := parts[self.parts[groups] != parts]).size:
            raise DataError(
                f"a sample belongs to {self.climatology} {unknown[0]} but the model was fitted to none of that: leave "
                f"it out, or fit the model to all parts of the year"
            )
        return groups

    def trend(self, along: Any, n: int) -> Array:
        """Return the place (n,) of each time on the line."""
        if not self.detrend:
            return np.zeros(n)
        placed: Array = (elapsed(along, n, self.dim) - self.origin) / self.unit
        return placed

    def given(self, along: Any, rows: Array, fitted: Any) -> tuple[Array, Array]:
        """Return the groups and places of time functions (m, k) that were given, and stand along this.

        Raises
        ------
        DataError
            If they are on another line than those of the fit, or fewer or more where they have its times.
        """
        self.check(along, fitted)
        groups, trend = self.groups(along, len(rows)), self.trend(along, len(rows))
        if {len(groups), len(trend)} != {len(rows)}:
            raise DataError(
                f"{len(rows)} time functions without names stand at the times of the fit, which had "
                f"{max(len(groups), len(trend))}: give all of them, or a DataArray with the coordinate {self.dim!r}"
            )
        return groups, trend

    def check(self, along: Any, fitted: Any, *, always: bool = False) -> None:
        """Refuse what is not on the line of the trend as ``fitted`` is; with ``always``, also numbers of samples.

        Raises
        ------
        DataError
        """
        here, there = _kind(along), _kind(fitted)
        if self.detrend and (here != there or (always and along is None)):
            wanted = "a coordinate" if fitted is None else there
            raise DataError(
                f"the fit subtracted a trend and these samples have {here} along {self.dim!r}, the fit {there}: fit "
                f"and project an xarray.DataArray with {wanted} there"
            )


def elapsed(along: Any, n: int, dim: str) -> Array:
    """Return times (n,), float64, dates and lengths of time in days; numbers of samples where there is no coordinate.

    Raises
    ------
    DataError
        For what is neither number nor date, or not finite.
    """
    if along is None:
        return np.arange(float(n))
    values = np.asarray(along)
    if values.dtype.kind == "M":
        days: Array = (values - np.datetime64(0, "s")) / np.timedelta64(1, "D")
    elif values.dtype.kind == "m":
        days = values / np.timedelta64(1, "D")
    elif values.dtype.kind in "iuf":
        days = values.astype(np.float64)
    elif values.dtype.kind == "O" and hasattr(values[0], "calendar"):
        import cftime  # whose dates these are

        days = np.asarray(cftime.date2num(values, "days since 1970-01-01", calendar=values[0].calendar), np.float64)
    else:
        raise DataError(f"the coordinate {dim!r} holds {values.dtype} values: give dates or numbers, to see a trend")
    if not np.isfinite(days).all():
        raise DataError(f"the coordinate {dim!r} holds values that are not finite: leave these samples out")
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
    return "lengths of time" if values.dtype.kind == "m" else "numbers"


def _parts(along: Any, dim: str, climatology: str) -> Array:
    if along is None:
        raise DataError(
            f"climatology is {climatology!r} but the samples have no dates: give an xarray.DataArray with dates along "
            f"{dim!r}"
        )
    try:
        found: Array = np.asarray(getattr(along.dt, climatology))
    except (AttributeError, TypeError) as error:
        raise DataError(
            f"climatology is {climatology!r} but the coordinate {dim!r} holds {along.dtype} values: give it dates, "
            f"or climatology=None"
        ) from error
    if (lacking := np.asarray(along.isnull())).any():
        raise DataError(f"sample {int(lacking.argmax())} has no date along {dim!r}: leave it out")
    return found
