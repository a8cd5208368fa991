"""Spectral proper orthogonal decomposition: for each frequency, the modes with the most variance."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.signal

from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.centered import CenteredSource
from dpca.engine.sources.lagged import LaggedSource
from dpca.engine.sources.source import ArraySource, Source, as_source
from dpca.kernels.algebra.types import Array
from dpca.models.base.attribute_blocks import attribute_blocks, joined, last_axes, mean_by_blocks
from dpca.models.base.labelled import samples_to_fit
from dpca.models.base.passes import Passes, run_of_fit
from dpca.models.scores import Scores, read_scores_facts
from dpca.rules.covariance.spectral import (
    BlockModes,
    Fourier,
    SpectralGram,
    SpectralSVD,
    fix_phases,
    spectral_weights,
)
from dpca.storage.errors import DataError, StoreError
from dpca.storage.given_numbers import whole_number
from dpca.storage.run import Run
from dpca.timeseries.results import FieldGrid, Modes
from dpca.timeseries.series import even_step, score_series, times_along, times_of

_CENTERS = ("record", "block", None)


@dataclass(frozen=True, eq=False)
class SpectralModes(Modes):
    """Modes of each frequency; see `spod`.

    Attributes
    ----------
    share : float
        Share of the variance of the field; see `dpca.timeseries.results.Result`.
    coefficients : array (F, n_modes, K), complex
        Orthonormal at each frequency. For a field, K is the number of attributes.
    frequencies : array (F,), float64
        Cycles per unit of time.
    energy : array (F, n_modes), float64
        One-sided power spectral density of the variance along each mode, descending, with the units of `spectrum`.
    total : array (F,), float64
        One-sided power spectral density of the total variance.
    n_blocks : int
        Number of blocks.
    """

    frequencies: Array
    energy: Array
    total: Array
    n_blocks: int

    dims: ClassVar[tuple[str, ...]] = ("frequency", "mode")

    def _coords(self) -> dict[str, Any]:
        return {"frequency": self.frequencies}


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of a record, as in Welch's method.

    Parameters
    ----------
    length : int
        Samples of a block.
    overlap : float
        Overlap of successive blocks relative to their length, from 0 to less than 1, rounded up to whole samples.
    window : str or array (length,)
        Name of a window of `scipy.signal.get_window`, or its values.
    center : {"record", "block", None}
        The mean to subtract: of the record, in another pass over a field; of each block; or None.
    """

    length: int
    overlap: float = 0.5
    window: Any = "hann"
    center: str | None = "record"


def spod(
    x: Any,
    n_modes: int,
    block: int | Blocks,
    *,
    model: Any = None,
    time: Any = None,
    band: tuple[float, float] | None = None,
    oversampling: int = 10,
    run: Run = Run(),
) -> SpectralModes:
    """Return the modes with the most variance at each frequency (Towne, Schmidt & Colonius 2018).

    The input is scores of a model, or a field. One pass over the input computes an incremental singular value
    decomposition for each frequency, on any number of workers.

    Parameters
    ----------
    x : as in `dpca.timeseries`; or array (n, *sample_shape), Dask or Zarr array, Stack or path
        Scores with their ``model``, a store of scores, or a field.
    n_modes : int
        Modes of each frequency, at most the number of blocks.
    block : int or Blocks
        Samples of a block, or also their overlap, window and mean. The frequency resolution is 1 / (block * step). More
        and shorter blocks reduce the variance of the estimate.
    model : fitted estimator, optional
        The model of the scores.
    time : float or array (n,), optional
        See `dpca.timeseries.spectrum`.
    band : (low, high), optional
        Range of frequencies. Memory and time are proportional to their number. Default: all.
    oversampling : int
        Additional directions per frequency. The result is exact if ``n_modes + oversampling`` is at least the number of
        blocks.
    run : Run
        For a field; the default of its client is the current one, if any.

    Returns
    -------
    SpectralModes
        A field with d attributes takes 8 F (n_modes + oversampling) d bytes in float32, and some blocks. If a task
        cannot hold that, the Gram matrices of all blocks give the exact modes, in two passes by blocks of attributes.
        The modes must fit into the memory of this process.

    Raises
    ------
    DataError
        If steps vary, there are fewer than 2 blocks, or the band contains no frequency.
    PlanError
        If the states of all frequencies do not fit into memory.
    """
    if model is not None or isinstance(x, Scores) or _holds_scores(x):
        given = score_series(x, model, time)
        source: Source = ArraySource(given.values, "the scores")
        step, share, grid = given.step, given.share, given.grid
    else:
        found, labels = samples_to_fit(x, None)
        source = as_source(found)
        step = even_step(times_of(time, source.shape[0], times_along(x))) if source.shape[0] > 1 else 1.0
        share, grid = 1.0, FieldGrid(tuple(source.shape[1:]), labels=labels)
    given_blocks = block if isinstance(block, Blocks) else Blocks(block)
    overlap, window, center = given_blocks.overlap, given_blocks.window, given_blocks.center
    block = whole_number(given_blocks.length, "block", 2)
    if not 0 <= overlap < 1:
        raise DataError(f"overlap is {overlap!r}: give a share of the block, from 0 to less than 1")
    # Round before the ceiling, as a product such as .07 * 100 exceeds the whole number by a rounding error.
    n, stride = source.shape[0], max(1, block - math.ceil(round(block * overlap, 6)))
    if n < block + stride:
        raise DataError(
            f"block is {block:,} samples in steps of {stride:,}, but 2 blocks require {block + stride:,} samples and "
            f"there are {n:,}: give shorter blocks"
        )
    if center not in _CENTERS:
        raise DataError(f"center is {center!r}: give 'record', 'block' or None")
    frequencies = np.arange(block // 2 + 1) / (block * step)
    low, high = (0.0, np.inf) if band is None else band
    chosen = np.flatnonzero((low <= frequencies) & (frequencies <= high))
    if not len(chosen):
        raise DataError(
            f"band is ({low:g}, {high:g}) but the frequencies are 0 to {frequencies[-1]:g} in steps of "
            f"{frequencies[1]:g}: give a wider band, or longer blocks"
        )
    blocks = LaggedSource(source, block, stride=stride)
    run = run_of_fit(run, None)
    mean = mean_by_blocks(Passes(source, run)) if center == "record" else None
    rule = SpectralSVD(
        whole_number(n_modes, "n_modes", 1),
        _window(window, block),
        chosen,
        step,
        mean=mean,
        center=center == "block",
        oversampling=whole_number(oversampling, "oversampling", 0),
    )
    try:
        found = Passes(blocks, run)(rule)
    except PlanError:  # it is raised before anything is read
        found = _by_tiles(rule, blocks, run)
    return SpectralModes(
        coefficients=found["modes"],
        frequencies=frequencies[chosen],
        energy=found["energy"],
        total=found["total"],
        n_blocks=blocks.shape[0],
        share=share,
        _grid=grid,
    )


def _by_tiles(rule: SpectralSVD, blocks: LaggedSource, run: Run) -> dict[str, Array]:
    """Return the exact result of `SpectralSVD`, in two passes over all blocks of the record, by blocks of attributes.

    Costs 8 F n_blocks (n_blocks + n_modes) d operations.
    """
    source, n = blocks.source, blocks.shape[0]
    if rule.mean is not None:
        centered = CenteredSource(source, rule.mean.reshape(source.shape[1:]))
        blocks = LaggedSource(centered, blocks.shape[1], blocks.lag, blocks.stride)
    fourier = Fourier(rule.window, rule.frequencies, rule.step, rule.center and rule.mean is None)
    passes, gram_rule = Passes(blocks, run), SpectralGram(fourier, n)
    parts = passes.over(attribute_blocks(gram_rule, passes, uncut=1), gram_rule, stage="pass 1")
    gram = np.sum([part["gram"] for part in parts], axis=0)
    dtype = fourier.dtype(source.dtype)
    k = min(rule.n_modes, n, math.prod(source.shape[1:]))
    weights, energy, total = spectral_weights(gram, k, dtype)
    modes_rule = BlockModes(fourier, weights)
    grid = attribute_blocks(modes_rule, passes, uncut=1)
    parts = passes.over(grid, modes_rule, stage="pass 2")
    modes = joined(last_axes(grid, 1), (part.pop("modes") for part in parts), weights.shape[0] * k, dtype)
    fix_phases(modes)
    return {"modes": modes.reshape(*energy.shape, -1), "energy": energy, "total": total}


def _holds_scores(x: Any) -> bool:
    """Return whether this is the path of a store of scores."""
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
        raise DataError(f"window is {window!r} ({error}): give a window of scipy.signal, or values") from error
    if values.shape != (block,) or not np.isfinite(values).all() or not values.any():
        raise DataError(f"window has shape {values.shape}: give {block} finite values that are not all 0")
    return values
