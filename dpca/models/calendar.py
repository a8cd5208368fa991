"""Samples in time: the season that each belongs to, and its place on a line, for climatologies and trends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.kernels.types import Array
from dpca.storage.errors import DataError

#: Parts of the year or the day whose means may be subtracted, as xarray's ``.dt`` calls them.
CLIMATOLOGIES = ("month", "season", "dayofyear", "hour")
# Times that are looked at together, so that temporary arrays stay small however many there are.
_AT_ONCE = 2**18


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
            For a part of the year that the fit has not seen.
        """
        if self.climatology is None:
            return np.zeros(n, np.uint16)
        groups = np.empty(n if along is None else len(along), np.uint16)
        for start, parts in _parts(along, self.dim, self.climatology):
            found = np.searchsorted(self.parts, parts).clip(max=len(self.parts) - 1)
            if (unknown := parts[self.parts[found] != parts]).size:
                raise DataError(
                    f"a sample belongs to {self.climatology} {unknown[0]} but the model was fitted to none of that: "
                    f"leave it out, or fit the model to all parts of the year"
                )
            groups[start : start + len(parts)] = found
        return groups

    def trend(self, along: Any, n: int) -> Array | None:
        """Return the place (n,) of each time on the line; None where no trend is subtracted."""
        if not self.detrend:
            return None
        placed = elapsed(along, n, self.dim)
        placed -= self.origin
        placed /= self.unit
        return placed

    def given(self, along: Any, rows: Array, fitted: Any) -> tuple[Array, Array | None]:
        """Return the groups and places of time functions (m, k) that were given, and stand along this.

        Raises
        ------
        DataError
            If they are on another line than those of the fit, or fewer or more where they have its times.
        """
        self.check(along, fitted)
        groups, trend = self.groups(along, len(rows)), self.trend(along, len(rows))
        lengths = {len(groups), len(groups if trend is None else trend)}
        if lengths != {len(rows)}:
            raise DataError(
                f"{len(rows)} time functions without names stand at the times of the fit, which had "
                f"{max(lengths)}: give all of them, or a DataArray with the coordinate {self.dim!r}"
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


def _parts(along: Any, dim: str, climatology: str) -> Iterator[tuple[int, Array]]:
    """Yield the parts of the year of some times after others, with the number of the first."""
    if along is None:
        raise DataError(
            f"climatology is {climatology!r} but the samples have no dates: give an xarray.DataArray with dates along "
            f"{dim!r}"
        )
    for start in range(0, len(along), _AT_ONCE):
        some = along[start : start + _AT_ONCE]
        try:
            found: Array = np.asarray(getattr(some.dt, climatology))
        except (AttributeError, TypeError) as error:
            raise DataError(
                f"climatology is {climatology!r} but the coordinate {dim!r} holds {along.dtype} values: give it dates, "
                f"or climatology=None"
            ) from error
        if (lacking := np.asarray(some.isnull())).any():
            raise DataError(f"sample {start + int(lacking.argmax())} has no date along {dim!r}: leave it out")
        yield start, found
