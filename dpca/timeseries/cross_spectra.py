"""Spectral proper orthogonal decomposition: for each frequency, the patterns that hold most of its variance."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.signal

from dpca.engine.lagged import LaggedSource
from dpca.engine.source import ArraySource, Source, as_source
from dpca.kernels.types import Array
from dpca.models.labelled import given_to_fit
from dpca.models.passes import Passes
from dpca.models.scores import Scores, read_scores_facts
from dpca.representation.lazy import default_client
from dpca.rules.moments import Moments
from dpca.rules.spectral import SpectralSVD
from dpca.storage.errors import DataError, StoreError
from dpca.storage.given_numbers import whole_number
from dpca.timeseries.functions import even_step, time_functions, times_along, times_of
from dpca.timeseries.results import Modes, with_share

_CENTERS = ("record", "block", None)


@dataclass(frozen=True, eq=False)
class SpectralModes(Modes):
    """Modes of every frequency; see `spod`.

    Attributes
    ----------
    share : float
        Of the field's variance, see `dpca.timeseries.results.Result`.
    coefficients : array (F, n_modes, K), complex
        Orthonormal at each frequency; K attributes where the field itself was given.
    frequencies : array (F,), float64
        Cycles per unit of time.
    energy : array (F, n_modes), float64
        Density of the variance along each mode, one-sided, descending: as `spectrum` has it of all together.
    total : array (F,), float64
        Density of all variance.
    n_blocks : int
    """

    frequencies: Array
    energy: Array
    total: Array
    n_blocks: int

    dims: ClassVar[tuple[str, ...]] = ("frequency", "mode")

    def _coords(self) -> dict[str, Any]:
        return {"frequency": self.frequencies}


def spod(
    x: Any,
    n_modes: int,
    block: int,
    *,
    model: Any = None,
    time: Any = None,
    overlap: float = 0.5,
    window: Any = "hann",
    band: tuple[float, float] | None = None,
    center: str | None = "record",
    oversampling: int = 10,
    client: Any | None = None,
) -> SpectralModes:
    """Return the modes that hold most of the variance at each frequency (Towne, Schmidt & Colonius 2018).

    Of the time functions of a model, or, without one, of the field itself, in one pass over its store: one incremental
    singular value decomposition for each frequency, on any number of workers.

    Parameters
    ----------
    x : as in `dpca.timeseries`; or array (n, *sample_shape), Dask or Zarr array, Stack or path
        Scores with their ``model``, or a store of scores; or a field.
    n_modes : int
        Of each frequency; there are no more than blocks.
    block : int
        Samples of a block: frequencies lie 1 / (block * step) apart. More and shorter blocks settle better.
    model : fitted estimator, optional
        Of the scores.
    time : float or array (n,), optional
        See `dpca.timeseries.spectrum`.
    overlap : float
        Share of a block that is in the next one as well, from 0 to less than 1, rounded up to whole samples.
    window : str or array (block,)
        Name of a window of `scipy.signal.get_window`, or its values.
    band : (low, high), optional
        Frequencies to look at: memory and time are proportional to their number.
    center : {"record", "block", None}
        What is subtracted: the mean of the record, which takes another pass over a field; of each block; or nothing.
    oversampling : int
        Directions that are kept of each frequency beyond ``n_modes``: exact where all of these are as many as blocks.
    client : distributed.Client, optional
        For a field; default the current one, if any.

    Returns
    -------
    SpectralModes
        The field itself takes 8 F (n_modes + oversampling) d bytes in float32, beside some blocks.

    Raises
    ------
    DataError
        For steps that vary, fewer than 2 blocks, or a band without frequencies.
    PlanError
        If what is kept of all frequencies does not fit the memory.
    """
    known: dict[str, Any]
    if model is not None or isinstance(x, Scores) or _holds_scores(x):
        given = time_functions(x, model, time)
        source: Source = ArraySource(given.values, "the scores")
        step, known = given.step, with_share(given)
    else:
        found, labels = given_to_fit(x, None)
        source = as_source(found)
        step = even_step(times_of(time, source.shape[0], times_along(x))) if source.shape[0] > 1 else 1.0
        known = {"share": 1.0, "_shape": tuple(source.shape[1:]), "_basis": None, "_placed": None, "_labels": labels}
    block = whole_number(block, "block", 2)
    if not 0 <= overlap < 1:
        raise DataError(f"overlap is {overlap!r}: give a share of the block, from 0 to less than 1")
    # What is a whole number but for the rounding of a share is one.
    n, stride = source.shape[0], max(1, block - math.ceil(round(block * overlap, 6)))
    if n < block + stride:
        raise DataError(
            f"blocks of {block:,} samples, each {stride:,} after the last, are less than 2 of the {n:,}: give shorter "
            f"blocks"
        )
    if center not in _CENTERS:
        raise DataError(f"center is {center!r}: give 'record', 'block' or None")
    frequencies = np.arange(block // 2 + 1) / (block * step)
    low, high = (0.0, np.inf) if band is None else band
    chosen = np.flatnonzero((low <= frequencies) & (frequencies <= high))
    if not len(chosen):
        raise DataError(
            f"no frequency of 0 to {frequencies[-1]:g} in steps of {frequencies[1]:g} lies in the band from {low:g} to "
            f"{high:g}: give a wider one, or longer blocks"
        )
    blocks = LaggedSource(source, block, stride=stride)
    how: dict[str, Any] = {"client": client or default_client(), "memory_budget": None}
    mean = Passes(source, **how)(Moments())["mean"].ravel() if center == "record" else None
    rule = SpectralSVD(
        whole_number(n_modes, "n_modes", 1),
        _window(window, block),
        chosen,
        step,
        mean=mean,
        center=center == "block",
        oversampling=whole_number(oversampling, "oversampling", 0),
    )
    found = Passes(blocks, **how)(rule)
    return SpectralModes(
        coefficients=found["modes"],
        frequencies=frequencies[chosen],
        energy=found["energy"],
        total=found["total"],
        n_blocks=blocks.shape[0],
        **known,
    )


def _holds_scores(x: Any) -> bool:
    """Say whether this is the path of a store of scores."""
    if not isinstance(x, str | os.PathLike):
        return False
    try:
        read_scores_facts(x)
    except StoreError:
        return False
    return True


def _window(window: Any, block: int) -> Array:
    try:
        values = (
            scipy.signal.get_window(window, block) if isinstance(window, str | tuple) else np.asarray(window, float)
        )
    except ValueError as error:
        raise DataError(f"window is {window!r} ({error}): give a window of scipy.signal, or its values") from error
    if values.shape != (block,) or not np.isfinite(values).all() or not values.any():
        raise DataError(f"window has shape {values.shape} for blocks of {block}: give a number for each sample")
    return values
