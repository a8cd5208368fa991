"""Input of time series analyses: scores of a model in the order of time, and their times."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.source import as_samples
from dpca.kernels.algebra.types import Array
from dpca.models.base.component_model import ComponentModel
from dpca.models.eof.eof import EOF
from dpca.models.scores import Scores, open_scores
from dpca.representation.linear import LinearRepresentation
from dpca.representation.whitened import Whitened
from dpca.storage.arrays.labelled import is_labelled, labelled_array
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_whole
from dpca.timeseries.results import FieldGrid

# Steps that differ by less than this share of their mean count as equal.
_UNEVEN = 1e-3
_DAY = timedelta(days=1)


@dataclass(frozen=True, eq=False)
class ScoreSeries:
    """K principal component time series: the coordinates of a field in an orthonormal basis.

    Attributes
    ----------
    values : array (n, K), float64
    times : array (n,), float64
        Ascending.
    share : float
        Share of the variance of the field that the basis retains, from the eigenvalues of the model. 1 without a model,
        as the time series are then the field.
    grid : FieldGrid
        The grid of the field, and the basis.
    """

    values: Array
    times: Array
    share: float
    grid: FieldGrid

    @property
    def centered(self) -> Array:
        """The values minus their means (n, K)."""
        centered: Array = self.values - self.values.mean(axis=0)
        return centered

    @property
    def step(self) -> float:
        """Time between two samples; see `even_step`."""
        return even_step(self.times)


def even_step(times: Array) -> float:
    """Return the time between two samples.

    Raises
    ------
    DataError
        If the step varies.
    """
    steps = np.diff(times)
    if np.ptp(steps) > _UNEVEN * steps.mean():
        raise DataError(
            f"the time steps of {len(times):,} samples vary from {steps.min():g} to {steps.max():g}: interpolate the "
            f"field to even steps, or give time=STEP to ignore the difference"
        )
    return float(steps.mean())


def score_series(scores: Any, model: Any, time: Any, *, least: int = 2) -> ScoreSeries:
    """Return the time series of an analysis that requires at least ``least`` samples; see `dpca.timeseries`.

    Raises
    ------
    DataError
        If values are not finite, there are too few samples, the scores do not match the model, the model has no
        components in the space of samples, or times do not ascend.
    """
    if isinstance(scores, str | os.PathLike):
        scores = open_scores(scores, model=model)
    if isinstance(scores, Scores):
        model, scores = model or scores.model, scores.scores
    along = times_along(scores)
    scores = labelled_array(scores).data if is_labelled(scores) else scores
    values = as_samples(scores, "the scores")
    check_finite(values, 0, "the scores")
    if len(values) < least:
        raise DataError(f"the scores have {len(values)} samples: give at least {least}, in the order of time")
    times = times_of(time, len(values), along)
    values = values.astype(np.float64)
    if model is None:
        return ScoreSeries(values.reshape(len(values), -1), times, 1.0, FieldGrid(values.shape[1:]))
    placed, labels, shape = None, None, None
    if isinstance(model, EOF):
        check_is_fitted(model, "model_")
        placed, labels, shape = model._anomalies.placed, model._given.labels, model.sample_shape_
        model = model.model_
    values, basis = _in_basis(values, model)
    k = basis.score_shape[-1]
    share = float(model.explained_variance_[..., :k].sum() / max(np.sum(model.total_variance_), 1e-300))
    grid = FieldGrid(shape or basis.sample_shape, basis, placed, labels or model._labels)
    return ScoreSeries(values, times, min(share, 1.0), grid)


def checked_modes(n_modes: Any, most: int, of: str) -> int:
    """Return the number of modes as an int, after a check that it is from 1 to ``most``.

    Raises
    ------
    DataError
    """
    if not is_whole(n_modes) or not 1 <= n_modes <= most:
        raise DataError(f"n_modes is {n_modes!r} but {of} have at most {most} modes: give an integer from 1 to {most}")
    return int(n_modes)


def _in_basis(values: Array, model: Any) -> tuple[Array, LinearRepresentation]:
    """Return scores (n, K) in the orthonormal basis of a model, and that basis without a mean."""
    if not isinstance(model, ComponentModel):
        raise DataError(
            f"{type(model).__name__} has no components in the space of samples: give scores of EOF, PCA, StreamingPCA, "
            f"CellPCA or BandPCA"
        )
    basis = model.basis_
    grid, size = basis.score_shape[:-1], math.prod(values.shape[1:])
    k = size // math.prod(grid)
    if size % math.prod(grid) or not 1 <= k <= basis.score_shape[-1] or values.shape[1:] not in ((*grid, k), (size,)):
        raise DataError(
            f"the scores have shape {values.shape}: this model requires shape (n_samples, *{basis.score_shape})"
        )
    used = basis.leading(k)
    values = values.reshape(len(values), *grid, k)
    if isinstance(used, Whitened):
        values, used = values * used.scales, LinearRepresentation(used.partition, used.mean, used.components)
    return values.reshape(len(values), size), replace(used, mean=np.zeros_like(used.mean))


def times_along(x: Any) -> Array | None:
    """Return the coordinate of the samples of a ``DataArray``, None if there is none."""
    found = labelled_array(x).coords.get(x.dims[0]) if is_labelled(x) else None
    return None if found is None else np.asarray(found.values)


def times_of(given: Any, n: int, along: Array | None) -> Array:
    """Return the times of n samples (n,), float64: the given ones, else their coordinate, else their numbers.

    Raises
    ------
    DataError
        If the given time is neither a positive step nor ascending times.
    """
    found = None if along is None else _numbers(along)
    if given is None:
        return np.arange(n, dtype=np.float64) if found is None or not _ascending(found) else found
    times = _numbers(np.asarray(given))
    if times is None:
        raise DataError(
            f"time has dtype {np.asarray(given).dtype}: give the step between two samples, or their times or dates"
        )
    if times.ndim == 0:
        if not 0 < times < math.inf:
            raise DataError(f"time is {given!r}: give the step between two samples, a positive number")
        return np.arange(n) * float(times)
    if times.shape != (n,) or not _ascending(times):
        raise DataError(f"time has shape {times.shape} for {n:,} samples: give the step, or {n:,} ascending times")
    return times


def _numbers(times: Array) -> Array | None:
    """Return times as float64, dates in days since the first one; None if they are neither numbers nor times."""
    if times.dtype.kind == "M" and times.ndim:
        return np.asarray((times - times[:1]) / np.timedelta64(1, "D"))
    if times.dtype.kind == "m":
        since = times - times[:1] if times.ndim else times
        return np.asarray(since / np.timedelta64(1, "D"))
    if times.dtype.kind == "O":  # a timedelta, or dates of cftime
        try:
            apart = [time - times[0] for time in times] if times.ndim else [times.item()]
            return np.array([length / _DAY for length in apart], np.float64).reshape(times.shape)
        except TypeError:
            return None
    return times.astype(np.float64) if times.dtype.kind in "biuf" else None


def _ascending(times: Array) -> bool:
    return bool(np.isfinite(times).all() and (np.diff(times) > 0).all())
