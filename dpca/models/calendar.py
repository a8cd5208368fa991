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


def elapsed(along: Any, n: int, dim: str) -> Array:
    """Return times (n,), float64, dates in days; the numbers of samples where there is no coordinate.

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
    return found
