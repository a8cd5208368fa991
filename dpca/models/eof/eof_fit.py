"""The fit of `EOF`: the survey of grid points with data and their statistics, the filling of gaps, and the passes."""

from __future__ import annotations

import math
import warnings
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np

from dpca.engine.sources.held_out import repeated, without
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.base.callbacks import Enough, FitCallbacks, Progress
from dpca.models.base.convergence import ConvergenceWarning, check_deviation_scale
from dpca.models.base.linear_model import LinearModel
from dpca.models.base.mapped import release
from dpca.models.base.samples import counts_and_fractions
from dpca.models.eof.anomalies import Anomalies, AnomalySource, GapError
from dpca.models.eof.calendar import Calendar, elapsed
from dpca.models.eof.field_survey import survey
from dpca.models.eof.fields import Field
from dpca.models.eof.gaps import Expected, FilledSource, InterpolatedSource
from dpca.models.eof.on_grid import GridAnomalies, GridAnomalySource, is_large
from dpca.models.weights.attribute_weights import standardized
from dpca.parameters.common import VARIABLE
from dpca.rules.base.watched import moved
from dpca.rules.covariance.survey import Survey
from dpca.storage.errors import DataError, PlanError
from dpca.storage.run import Run

# Most bytes of the halo: the samples that interpolation reads before and after its own.
_MOST_HALO = 2**28
# Filling by modes ends when the modes and their variances change by at most these shares, or after this many fits.
_MOVED, _CHANGED, _MOST_FITS = 1e-7, 1e-5, 100

# Size of a batch of anomalies in bytes and in samples: fewer are inefficient, more only take memory.
_BATCH_BYTES, _FEWEST_ROWS, _BATCH_ROWS = 2**25, 100, 1024


class GapWarning(UserWarning):
    """Some grid points of a field miss some values and are excluded."""


@dataclass
class FittedAnomalies:
    """The result of a fit.

    Attributes
    ----------
    model : LinearModel
        The model of the anomalies at grid points with data.
    anomalies : Anomalies or GridAnomalies
    n_used : int
        Number of samples with data.
    expected : Expected or None
        The expectation that fills gaps with ``gaps="iterate"``.
    n_fits : int
    weighted : bool
        Whether samples have weights.
    """

    model: LinearModel
    anomalies: Anomalies | GridAnomalies
    n_used: int
    expected: Expected | None = None
    n_fits: int = 1
    weighted: bool = False


@dataclass
class Fitting:
    """One fit to a field.

    Attributes
    ----------
    eof : EOF
        The parameters.
    given : Field
    calendar : Calendar
    weights : array (*sample_shape) or None
    run : Run
        How all passes run, with the memory budget of the estimator.
    callbacks : FitCallbacks, optional
        The callback and the budgets.
    unweighted : Field, optional
        If samples have weights: the field as it was given. Then ``given`` has each sample as often as it is read.
    fractions : array (n,), optional
        Weights of the samples of ``given`` that are not whole numbers.
    """

    #: The values of ``gaps`` that fill missing values, for errors.
    fillings: ClassVar[str] = "gaps='interpolate' or gaps='iterate'"
    #: Whether large fields may keep the axes of samples.
    keeps_axes: ClassVar[bool] = True

    eof: Any
    given: Field
    calendar: Calendar
    weights: Array | None
    run: Run
    callbacks: FitCallbacks | None = None
    unweighted: Field | None = None
    fractions: Array | None = None
    is_over: bool = field(default=False, init=False)
    first: Array = field(init=False)

    def __post_init__(self) -> None:
        source, n = self.given.source, self.given.source.shape[0]
        self.shape = tuple(source.shape[1:])
        self.groups, self.trend = self.calendar.groups(self.given.along, n), self.calendar.trend(self.given.along, n)
        first = np.empty((1, *self.shape), source.dtype)
        source.reader()((0, 1), tuple((0, length) for length in self.shape), first)
        self.first = first[0]

    @property
    def _wants_moments(self) -> bool:
        return bool(self.eof.standardize or self.eof.detrend or self.eof.climatology is not None)

    def fitted(self) -> FittedAnomalies:
        """Fit. Try the grid points with data of the first sample; the pass raises `GapError` if others differ."""
        there = ~np.isnan(self.first).ravel()
        if not self._wants_moments and there.any():
            certain = self.given.source.dtype.kind != "f"
            try:
                return self._fitted(self._over(self.given.source, self._anomalies({}, there), certain=certain))
            except GapError:
                pass
        return self._surveyed()

    def _surveyed(self) -> FittedAnomalies:
        source, eof = self.given.source, self.eof
        found = self._survey(source, "survey")
        there, count = found["there"], found.pop("count")
        n, some = int(there.sum()), count > 0
        gappy = some & (count < (n if eof.gaps != "interpolate" else len(there)))
        longest = int(found.pop("run").max(where=some, initial=0))
        del count
        if not some.any():
            raise DataError(f"all values of {source.name} are NaN: give a field with values")
        if n < 2:
            raise DataError(f"only {n} of {len(there)} samples has values: a fit requires at least 2")
        if gappy.any() and eof.gaps == "interpolate":
            source = interpolated(source, self.given, longest)
            found = self._survey(source, "survey of what is filled") if self._wants_moments else found
            return self._fitted(self._over(source, self._anomalies(found, some)))
        if not there.all():
            source = without(source, np.flatnonzero(~there))
            source.with_gaps = True
            self.groups = self.groups[there]
            self.trend = None if self.trend is None else self.trend[there]
            self.fractions = None if self.fractions is None else self.fractions[there]
        if gappy.any() and eof.gaps == "iterate":
            return self._iterated(source, found, some)
        if gappy.any():
            warnings.warn(
                f"{int(gappy.sum()):,} of {int(some.sum()):,} grid points with data miss some of {n:,} values and are "
                f"excluded: fill them with {self.fillings}, or select times and grid points",
                GapWarning,
                stacklevel=5,
            )
        if not (kept := some & ~gappy).any():
            raise DataError(
                f"no grid point of {source.name} has all {n:,} values: fill them with {self.fillings}, or select times "
                "and grid points"
            )
        return self._fitted(self._over(source, self._anomalies(found, kept)))

    def _survey(self, source: Source, stage: str) -> dict[str, Array]:
        rule = Survey(self.groups, self.trend, self.fractions)
        found = survey(source, rule, np.nan_to_num(self.first, copy=False), self.run, stage)
        deviation, level = float(np.sqrt(found["variance"].mean())), found["level"]
        deviation = deviation or np.abs(level).max(where=np.isfinite(level), initial=0)
        check_deviation_scale(deviation, f"the {stage}")
        release(found["variance"])
        return found

    def _anomalies(self, found: dict[str, Array], there: Array) -> Anomalies | GridAnomalies:
        """Return the anomalies at grid points with data (d,) according to the survey of a source without gaps."""
        gain, level, slope = self.weights, None, None
        if self._wants_moments:
            level, slope, variance = found["level"], found.get("slope"), found.pop("variance")
            gain = self._standardized(variance, there) if self.eof.standardize else gain
        if self._on_grid(there):
            return GridAnomalies.of_rows(there, self.shape, gain, level, slope)
        places = np.flatnonzero(there)
        gain, slope = (None if values is None else values.ravel()[places] for values in (gain, slope))
        return Anomalies(places, self.shape, gain, None if level is None else level[:, places], slope)

    def _standardized(self, variance: Array, there: Array) -> Array:
        """Return the gain (d,) that divides anomalies by their deviation, in place; 0 at grid points without data."""
        variance[~there] = 0
        weights = None if self.weights is None else self.weights.ravel()
        variables = self.given.variable_of(np.arange(len(variance))) if self.eof.standardize == VARIABLE else None
        gain = standardized(weights, variance, variables, out=variance)
        gain[~there] = 0
        release(gain)
        return gain

    def _on_grid(self, there: Array) -> bool:
        """Return whether anomalies keep the axes of samples: those of large fields with data at most grid points."""
        large = self.keeps_axes and is_large(there.size) and self.eof.gaps != "iterate"
        return large and 2 * int(np.count_nonzero(there)) >= there.size

    def _over(
        self, source: Source, anomalies: Anomalies | GridAnomalies, *, certain: bool = True
    ) -> AnomalySource | GridAnomalySource:
        if isinstance(anomalies, GridAnomalies):
            return GridAnomalySource(source, anomalies, self.groups, self.trend, certain)
        return AnomalySource(source, anomalies, self.groups, self.trend, certain)

    def _fitted(self, source: AnomalySource | GridAnomalySource, n_passes: int | None = None) -> FittedAnomalies:
        size = source.shape[0], source.anomalies.n_places
        model: LinearModel = self.eof._model(*size, n_passes, any_weights=self.fractions is not None)
        how: dict[str, Any] = {"run": self.run, "sample_weight": self.fractions}
        if (callbacks := self.callbacks) is not None:
            left = max(callbacks.max_seconds - callbacks.pace.seconds, 1e-3)
            how |= {"callback": partial(self._show, source), "max_samples": callbacks.max_samples}
            how["max_seconds"] = None if math.isinf(left) else left
        try:
            model.fit(source, **how)
        except PlanError:
            if (exact := self.eof._model_of_few(*size)) is None:
                raise
            model = exact.fit(source, **how)
        if self.is_over:
            raise Enough
        return FittedAnomalies(model, source.anomalies, source.shape[0], weighted=self.unweighted is not None)

    def _show(self, source: AnomalySource | GridAnomalySource, progress: Progress) -> bool:
        """Pass the modes so far to the callback; return whether the fit ends here."""
        self.is_over = progress.finished and progress.n_samples_seen < progress.n_samples
        if self.callbacks is not None and (self.is_over or not progress.finished):
            expected = gap_expectation(progress.model) if self.eof.gaps == "iterate" else None
            given = self.given if self.unweighted is None else self.unweighted
            found = FittedAnomalies(
                progress.model, source.anomalies, progress.n_samples_seen, expected, weighted=given is not self.given
            )
            n = given.source.shape[0]
            try:
                self.callbacks.show(lambda eof: eof._set_fitted(found, given, self.calendar, n), source.shape[0])
            except Enough:
                self.is_over = True
        return self.is_over

    def _iterated(self, source: Source, found: dict[str, Array], there: Array) -> FittedAnomalies:
        """Alternate fits and filling until convergence (Beckers & Rixen 2003; noise as in Tipping & Bishop 1999)."""
        places = np.flatnonzero(there)
        slope = found["slope"][places] if "slope" in found else None
        known = Anomalies(places, self.shape, None, found["level"][:, places], slope)
        fills = FilledSource(source, known, self.groups, self.trend, None)
        before: LinearModel | None = None
        for turn in range(1, _MOST_FITS + 1):
            found = self._survey(fills, f"survey {turn}") if self._wants_moments else found
            anomalies = self._anomalies(found, there)
            found_now = self._fitted(self._over(fills, anomalies), 1)
            model = found_now.model
            done = before is not None and _converged(before, model)
            if done:
                break
            before, fills = model, self._filled(source, found_now)
        else:
            warnings.warn(
                f"gaps='iterate' has not converged after {_MOST_FITS} fits: use fewer modes, or remove grid points and "
                f"samples with few values",
                ConvergenceWarning,
                stacklevel=6,
            )
        last = self._fitted(self._over(fills, anomalies))
        return replace(last, expected=gap_expectation(last.model), n_fits=turn + 1)

    def _filled(self, source: Source, found: FittedAnomalies) -> FilledSource:
        known = cast(Anomalies, found.anomalies)  # fields that are filled do not keep their axes
        return FilledSource(source, known, self.groups, self.trend, gap_expectation(found.model))


def interpolated(source: Source, given: Field, longest: int) -> Source:
    """Return a source with gaps filled by interpolation in time; ``longest`` is the longest gap in samples.

    Raises
    ------
    DataError
        If the halo of the longest gap takes too much memory, or the times do not ascend.
    """
    halo = 2 * longest * (size := math.prod(source.shape[1:])) * source.dtype.itemsize
    if halo > _MOST_HALO and not is_large(size):  # large fields are read by blocks that fit into memory
        raise DataError(
            f"the longest gap of {source.name} lasts {longest:,} samples, and interpolating it takes "
            f"{halo / 1e6:,.0f} MB, more than {_MOST_HALO / 1e6:,.0f} MB: use gaps='iterate', or remove the grid "
            f"points or samples with long gaps"
        )
    times = elapsed(given.along, source.shape[0], given.dim)
    if not (np.diff(times) > 0).all():
        raise DataError(f"the coordinate {given.dim!r} does not ascend: sort the samples with x.sortby({given.dim!r})")
    return InterpolatedSource(source, times, longest)


def longest_gap(source: Source, n: int) -> int:
    """Return the length of the longest gap at any grid point with data, from a pass over the source."""
    rule = Survey(np.zeros(n, np.uint16), None)
    found = survey(source, rule, np.zeros(source.shape[1:], source.dtype), Run(), "survey")
    return int(found["run"][found["count"] > 0].max(initial=0))


def counted(given: Field, sample_weight: Any, *, fill: bool) -> tuple[Field, Array | None]:
    """Return a field with each sample as often as it is read, and their weights; see `counts_and_fractions`.

    With ``fill``, gaps are interpolated in time first. Without weights, the field is returned as it is.
    """
    if sample_weight is None:
        return given, None
    source, n = given.source, given.source.shape[0]
    counts, fractions = counts_and_fractions(sample_weight, n, any_weights=True)
    if fill and (longest := longest_gap(source, n)):
        source = interpolated(source, given, longest)
    source = copy(source if (counts == 1).all() else repeated(source, counts))
    source.with_gaps = True
    numbers = np.repeat(np.arange(n), counts)
    along = numbers if given.along is None else given.along[numbers]
    return replace(given, source=source, along=along), fractions


def batch_rows(n_places: int) -> int:
    """Return the default number of samples in a batch of the solver "streaming", given the number of grid points."""
    return min(_BATCH_ROWS, max(_FEWEST_ROWS, _BATCH_BYTES // (4 * n_places)))


def gap_expectation(model: LinearModel) -> Expected:
    """Return the expectation of missing values under the modes of a model."""
    captured, d = float(model.explained_variance_.sum()), model.n_features_in_
    noise = max(float(model.total_variance_) - captured, 0.0) / max(d - len(model.components_), 1)
    floor = max(float(model.explained_variance_[0]), 1e-300) * 1e-12
    components, mean = np.asarray(model.components_), np.asarray(model.mean_)
    return Expected(components, mean, noise / np.maximum(model.explained_variance_, floor))


def _converged(before: LinearModel, after: LinearModel) -> bool:
    _, share = moved(before.components_, after.components_, after.explained_variance_)
    old, new = (float(model.explained_variance_.sum()) for model in (before, after))
    return share <= _MOVED and abs(new - old) <= _CHANGED * max(new, 1e-300)
