"""Choose the step and the components of a compressed store: trials on some samples, until the goal is reached."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from dpca.codec.cells import CellCodec, Components
from dpca.codec.dead_zone import NEAREST, DeadZone
from dpca.codec.expected import Expectation
from dpca.codec.goal import NEAR, Goal, UnreachedError, search_step
from dpca.codec.interpolation import FINER, Interpolation, folded
from dpca.codec.noise import NoiseSteps
from dpca.codec.quantize import integer_dtype, to_integers
from dpca.codec.quantized import Quantized, quantized
from dpca.codec.residual import best_axes, differences
from dpca.codec.waves import RUN, stored, to_waves, waves_pay
from dpca.engine.sources.sampling import spread_runs
from dpca.engine.sources.source import Source
from dpca.jobs.scores.score_write import joined_quality
from dpca.kernels.algebra.types import Array
from dpca.kernels.quality import quality_of
from dpca.models.cells.cell_pca import CellPCA
from dpca.models.cells.rank import UnmetError
from dpca.partition.lapped import LappedGrid
from dpca.partition.shared import groups_of
from dpca.representation.compressed.compressed_form import (
    StoreForm,
    decoding_dtype,
    longest_score,
    mean_chunks,
    pixels_of,
    residual_dtype,
)
from dpca.storage.arrays.arrays import packed_bytes
from dpca.storage.errors import DataError
from dpca.storage.remote.tasks import run_in_blocks

# Samples for choosing components: as many as have this many bytes of scores, within these limits. Goals are measured on
# as many other samples, if there are any.
_TRIED_BYTES, _TRIED_LEAST, _TRIED_MOST = 2**26, 16, 256
# Samples that a thread encodes at once: whole runs. Few samples are divided between two threads.
_AT_ONCE = 2 * RUN
# Values of the tiles of large samples that are tried, at most, but at least 16 tiles: memory is short.
_TRIED_TILED = 2**22
# The least error.
_TINY = float(np.finfo(float).tiny)
# Runs of consecutive samples that show whether waves save bytes.
_RUNS = 4
# Number of samples at the start of a search, and its precision with them, in doublings of the step.
_FEW, _ROUGH = 32, 1 / 16
# Steps to try for an error bound, in units of the bound. Finer steps make scores larger, coarser ones residuals.
_BOUND_STEPS = (1.0, 2.0, 2.8, 4.0, 8.0, 16.0)
# The data range must be at least this many times the smallest normal number, so that it can be divided into steps.
_ORDINARY = 2**10
# Number of values that predictions are tried on.
_TRIED_VALUES = 2**24
# Bytes of the metadata of a store and of each array, checksums included; the number of arrays of a store with and
# without components; and bytes of the quality and name of a sample, and of its largest error if there is a bound.
_OF_A_STORE, _OF_AN_ARRAY, _ARRAYS, _OF_A_SAMPLE = 2_400, 800, (12, 8), (13, 8)


def cell_components(model: CellPCA) -> Components:
    """Return the components of a fitted model's cells. Shared components occur once."""
    grid, mean = model.grid_, np.array(model.mean_, np.float64)[None]
    cells, group = groups_of(grid, shared=model.shared)
    if model.shared:
        rows = [grid.part_of(model.components_, members[0]) for members in cells]
    else:
        rows = [part.copy() for part in grid.all_parts(np.array(model.components_))]
    if isinstance(grid, LappedGrid):
        grid.prefilter.apply(mean, (0,) * (mean.ndim - 1))
    return Components(grid, mean[0], group, rows)


class Trials:
    """Encodes some samples of a stack with different steps, and measures errors and bytes.

    Parameters
    ----------
    source : Source
    components : Components
        Components that do not save bytes are dropped.
    facts : dict
        Facts that the store will state.
    n_samples : int, optional
        Number of samples in the store, if the source has only some of them.
    """

    def __init__(
        self, source: Source, components: Components, facts: dict[str, Any], n_samples: int | None = None
    ) -> None:
        self.facts, self.source, self.n_samples = facts, source, n_samples or source.shape[0]
        tiled = "tile_shape" in facts
        self.form = StoreForm((self.n_samples, *source.shape[1:]), source.dtype.itemsize, tiled=tiled)
        self.components = components
        self.noise: NoiseSteps | None = None
        one = len(components.group) * max(map(len, components.rows)) * components.rows[0].itemsize
        there = source.shape[0]
        if tiled:
            one = max(one, _TRIED_BYTES * math.prod(source.shape[1:]) // _TRIED_TILED)
        count = min(there, max(_TRIED_LEAST, min(_TRIED_MOST, _TRIED_BYTES // one)))
        runs = spread_runs(source, _RUNS * RUN, RUN) if there >= 2 * RUN else None
        of_runs = None if runs is None else self._scores(runs)
        self.waves = of_runs is not None and waves_pay(of_runs)
        run_rows = RUN if self.waves else 1
        samples = spread_runs(source, 2 * count, run_rows)
        first = np.arange(len(samples)) // run_rows % 2 == 0 if len(samples) > max(count, run_rows) else slice(None)
        if of_runs is None or of_runs.shape[2] < there or not isinstance(first, slice):
            of_runs = self._scores(samples[first])
        self.scores = of_runs
        # Sums of squares of each cell, in units of the squared width of the data range.
        squares = np.zeros(len(components.group))
        for _, part, values in components.split(samples[first]):
            squares[part.cell] += np.square(values / self._width).sum(dtype=np.float64)
        if self.waves:
            self.scores = to_waves(self.scores)
        self.expectation = Expectation(components, self.scores, squares, self._width, self.n_samples)
        self.samples = samples if isinstance(first, slice) else samples[~first]

    def _scores(self, samples: Array) -> Array:
        parts = _in_threads(lambda few: self.components.scores(samples[few]), len(samples))
        return np.concatenate(parts, axis=2) if len(parts) > 1 else parts[0]

    @property
    def _width(self) -> float:
        low, high = self.facts["data_range"]
        return float(high - low)

    def reach(self, goal: Goal, *, rough: bool = False, guess: float | None = None) -> Quantized:
        """Return the arrays and settings with the fewest bytes that meet a goal.

        Parameters
        ----------
        goal : Goal
        rough : bool
            Whether a step within 4 % of the best one suffices.
        guess : float, optional
            A step that nearly meets the goal.

        Raises
        ------
        UnmetError
            If no step meets the goal. If more components can help, it states how many there are.
        """
        if goal.has_residual:
            sized = list(self._bounded_encodings(goal))
            if not sized:
                raise DataError(
                    f"{goal.name} {goal.value:g} takes integers of more than 32 bits for values of {self.source.name}: "
                    f"set a goal with a larger error"
                )
            return min(sized, key=lambda one: one[0])[1]
        kind, coarse = np.finfo(self.scores.dtype), goal.name != "ratio"
        if self._width < _ORDINARY * float(kind.tiny):
            raise DataError(
                f"values of {self.source.name} span {self._width:g}, too little for arithmetic in {kind.dtype}: "
                f"multiply all values by a constant"
            )
        try:
            start = 4 * _ROUGH
            if goal.measure == "mse" and goal.is_of_samples:
                with suppress(UnreachedError):  # rounded and clipped values may still have so small an error
                    guess, start = self.step_for(goal.allowed, guess), _ROUGH
                    if rough and not goal.every_sample:
                        return self.at(guess)
            elif not rough:
                guess, start = self._few().reach(goal, rough=True).step, _ROUGH
            if guess is None:
                guess, start = self._width / 32, 1.0
            longest = longest_score(self.facts, self.waves)
            step = search_step(
                self.margin_of(goal),
                guess,
                coarse=coarse,
                first=start,
                near=_ROUGH if rough else NEAR,
                end=4 * longest if coarse else longest / np.iinfo(np.int32).max,
            )
        except (UnreachedError, OverflowError) as error:
            more = "fit the model with more components (--components all computes all), or set a weaker goal"
            most = max(map(len, self.components.rows))
            short = goal.name != "ratio" and most < self.components.grid.max_features
            raise UnmetError(
                f"{goal.name} {goal.value:g} cannot be reached with the components of the model: "
                f"{more if short else 'set a weaker goal'}",
                most if short else None,
            ) from error
        return self.at(step)

    def step_for(self, mse: float, guess: float | None = None) -> float:
        """Return a step with nearly this mean squared error, in units of the squared width of the data range.

        Raises
        ------
        UnreachedError
            If no step has so small an error.
        """
        step = self.expected_step(mse, guess or 8 * self._width * math.sqrt(mse))
        # The expected error lacks that of rounded values, which depends little on the step.
        lacking = max(self.mse(self.at(step)), _TINY) * self._size / self.expectation.at(step).error
        return self.expected_step(mse / lacking, step)

    def expected_step(self, mse: float, guess: float) -> float:
        """Return a step with this expected error; see `step_for`."""
        return self.expectation.step_for(mse * self._size, guess, 4 * longest_score(self.facts, self.waves))

    @property
    def _size(self) -> int:
        return math.prod(self.source.shape[1:])

    def margin_of(self, goal: Goal) -> Callable[[float], float]:
        """Return a function from steps to the margin by which they meet a goal; negative if they miss it."""
        if goal.name == "ratio":
            return lambda step: self._ratio(step) / goal.value - 1
        return lambda step: goal.margin(goal.errors(self._quality(self.at(step), goal)))

    def _bounded_encodings(self, goal: Goal) -> Iterator[tuple[float, Quantized]]:
        """Yield the bytes and the arrays of encodings that meet an error bound with integers of at most 32 bits."""
        yield from self.residual_encodings(goal)
        yield from self._plain_encodings()

    def residual_encodings(self, goal: Goal) -> Iterator[tuple[float, Quantized]]:
        """Yield those of them that have components."""
        self.noise = goal.noise_steps(self.source.dtype)
        for times in _BOUND_STEPS:
            with suppress(OverflowError):
                found = self.with_residual(self.at(self._bound * times))
                yield self.stored_bytes(found), found

    def _plain_encodings(self) -> Iterator[tuple[float, Quantized]]:
        plain = self.at(self._bound).without_components()
        tried: list[tuple[Callable[[Quantized], Quantized], str]] = [
            (self.with_residual, "packed"),
            (_without_differences, "shuffled"),
        ]
        finer = [partial(self._interpolated, finer=finer) for finer in FINER]
        tried += [(predicted, codec) for predicted in finer for codec in ("packed", "bzip2")]
        for residual, codec in tried:
            with suppress(OverflowError):
                found = replace(residual(plain), residual_codec=codec)
                yield self.stored_bytes(found), found

    @property
    def _bound(self) -> float:
        """The error bound of values; with steps of noise, that of half of them."""
        return float(self.facts["residual_step"] / 2 * (1 if self.noise is None else np.median(self.noise.steps)))

    def _ratio(self, step: float) -> float:
        try:
            return self._raw_bytes / self.stored_bytes(self.at(step))
        except OverflowError:  # too fine a step
            return 0.0

    def _few(self) -> Trials:
        """Return trials of a subset of the samples; for waves, of whole runs."""
        few, run_rows = copy(self), RUN if self.waves else 1
        every = max(1, len(self.samples) // _FEW)

        def some(n: int, step: int) -> Array:
            return np.arange(n).reshape(-1, run_rows)[::step].ravel()

        few.samples = self.samples[some(len(self.samples), every)]
        few.scores = self.scores.take(some(self.scores.shape[2], max(1, every // 2)), axis=2)
        return few

    def at(self, step: float) -> Quantized:
        """Return the encoding with a step, or with the nearest step that is a normal number of the type of scores."""
        kind = np.finfo(self.scores.dtype)
        step = min(max(step, float(kind.tiny)), float(kind.max) / 16)
        found = quantized(self.components, self.scores, step, self.n_samples, self.waves)
        if self.noise is None:
            return found
        return replace(found, noise_steps=self.noise.steps, noise_share=self.noise.share)

    def codec(self, tried: Quantized) -> CellCodec:
        """Return the codec of an encoding."""
        components = tried.components(self.components.grid, decoding_dtype(self.facts))
        return CellCodec(components, tried.step, tried.cell, tried.component, tried.waves, noise=self.noise)

    def with_residual(self, tried: Quantized) -> Quantized:
        """Return the encoding with residuals, and the axes along which differences make them smallest."""
        codec = self.codec(tried)
        left = self._residual(codec, codec.encode(self.samples[:RUN], np.int32, DeadZone(tried.least)), RUN)
        return replace(tried, differences=best_axes(left, self.components.grid.n_spatial))

    def _interpolated(self, plain: Quantized, finer: float) -> Quantized:
        """Return the encoding with interpolated residuals: along space, and along samples if that saves bytes."""
        axes = range(0 if self.waves else 1, 1 + self.components.grid.n_spatial)
        step = self.facts["residual_step"]
        found = Interpolation.fitted(self._scaled(self.blocks[len(self.blocks) // 2]), axes, step, finer)
        return replace(plain, differences=(), interpolated=found.axes, level_steps=found.steps, weights=found.weights)

    def _plain(self, tried: Quantized, block: Array) -> Array:
        """Return the stored residuals of samples that are encoded without components."""
        left = self._scaled(block - tried.components(self.components.grid, np.float64).offset)
        if tried.interpolation is not None:
            return folded(tried.interpolation.encode(left)[0])
        return differences(to_integers(np.rint(left / self.facts["residual_step"]), np.int32), tried.differences)

    @cached_property
    def blocks(self) -> list[Array]:
        """Runs of consecutive float64 samples, each as long as a chunk of a store without components."""
        rows = min(self.source.shape[0], replace(self.form, plain=True).rows)
        most = (_TRIED_TILED if self.form.tiled else _TRIED_VALUES) // math.prod(self.source.shape[1:])
        runs = spread_runs(self.source, max(rows, most), rows)
        return np.split(runs.astype(np.float64), len(runs) // rows)

    def stored_bytes(self, tried: Quantized) -> float:
        """Estimate the bytes of the store."""
        codec, zone, n = self.codec(tried), DeadZone(tried.least), len(self.samples)
        _require_32_bits(self.facts, tried)
        parts = _in_threads(lambda few: codec.encode(self.samples[few], np.int32, zone), n)
        codes, times = np.concatenate(parts, axis=1), self.n_samples / n
        once = sum(packed_bytes(np.asarray(getattr(tried, name)), (2**14,)) for name in ("cell", "component", "basis"))
        shown, chunks = stored(codes) if tried.waves else codes, self.form.codes(len(codes), tried.waves).chunks
        size = once + times * packed_bytes(shown, chunks)
        if self.facts["residual_step"] is None:
            pass
        elif not len(tried.cell):
            times = self.n_samples / sum(map(len, self.blocks))
            for block in self.blocks:
                left = self._plain(tried, block)
                size += times * packed_bytes(left, left.shape, tried.residual_codec)
        else:
            left = differences(self._residual(codec, codes), tried.differences)
            size += times * packed_bytes(left, self.form.residual.chunks, tried.residual_codec)
        return size + self.fixed_bytes(tried)

    def fixed_bytes(self, tried: Quantized) -> float:
        """Return the bytes of the mean, the metadata and the quality, which hardly depend on the components."""
        grid, promise = self.components.grid, self.facts["residual_step"] is not None
        filters = grid.n_spatial if isinstance(grid, LappedGrid) else 0
        n_arrays = (_ARRAYS[0] if len(tried.cell) else _ARRAYS[1]) + 2 * promise + bool(tried.interpolated) + filters
        of_samples = self.n_samples * (_OF_A_SAMPLE[0] + promise * _OF_A_SAMPLE[1])
        weights = 2 * tried.weights.size  # hardly compressible
        return (
            packed_bytes(tried.mean, mean_chunks(grid)) + weights + _OF_A_STORE + _OF_AN_ARRAY * n_arrays + of_samples
        )

    def _residual(self, codec: CellCodec, codes: Array, most: int | None = None) -> Array:
        samples = self.samples[:most]
        decoded = codec.decode(codec.of_samples(codes)[:, : len(samples)])
        return to_integers(np.rint(self._scaled(samples - decoded) / self.facts["residual_step"]), np.int32)

    def _scaled(self, residual: Array) -> Array:
        """Return residuals in the unit of their step."""
        return residual if self.noise is None else residual / self.noise.steps

    @property
    def _raw_bytes(self) -> int:
        return self.n_samples * int(self.samples[0].nbytes)

    def _quality(self, tried: Quantized, goal: Goal) -> dict[str, Array]:
        # With a goal of every sample, samples that miss it are encoded without a dead zone.
        codec, zone = self.codec(tried), NEAREST if goal.every_sample else DeadZone(tried.least)
        n_spatial = self.components.grid.n_spatial

        def measured(few: slice) -> dict[str, Array]:
            x = self.samples[few]
            codes = codec.of_samples(codec.encode(x, np.int32, zone))
            y = codec.decode(codes, pixels=pixels_of(self.facts))
            return quality_of(x, y, data_range=self._width, n_spatial=n_spatial, measures=(goal.measure,))

        return joined_quality(_in_threads(measured, len(self.samples)))

    def mse(self, tried: Quantized) -> float:
        """Return the mean squared error, in units of the squared width of the data range."""
        return float(self._quality(tried, Goal("mse", 1.0))["mse"].mean())


def _in_threads(function: Callable[[slice], Any], n: int) -> list[Any]:
    """Return the results of a function for a few of n samples at a time."""
    return run_in_blocks(function, n, RUN if n <= _AT_ONCE else _AT_ONCE)


def _require_32_bits(facts: dict[str, Any], tried: Quantized) -> None:
    """Reject an encoding with integers of more than 32 bits.

    Raises
    ------
    OverflowError
    """
    longest, plain = longest_score(facts, tried.waves) / tried.step, not len(tried.cell)
    integer_dtype(0.0 if plain else longest)
    if facts["residual_step"] is not None:
        residual_dtype(facts, facts["residual_step"] * tried.least_noise_step, plain=plain)


def _without_differences(plain: Quantized) -> Quantized:
    return replace(plain, differences=())
