"""What a compressed store keeps: tried on some samples until it reaches its goal."""

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
from dpca.codec.goal import Goal, UnreachedError, search_step
from dpca.codec.interpolation import FINER, Interpolation, folded
from dpca.codec.quantize import integer_dtype, to_integers
from dpca.codec.quantized import Quantized, quantized
from dpca.codec.residual import best_axes, differences
from dpca.codec.waves import RUN, stored, to_waves, waves_pay
from dpca.engine.sampling import read_samples, spread_samples
from dpca.engine.source import Source
from dpca.kernels.quality import quality_of
from dpca.kernels.types import Array
from dpca.models.cell_pca import CellPCA
from dpca.models.rank import UnmetError
from dpca.partition.cells import CellGrid
from dpca.partition.lapped import LappedGrid
from dpca.partition.shared import SharedGrid
from dpca.representation.compressed_form import (
    Form,
    decoding_dtype,
    largest_residual,
    longest_score,
    mean_chunks,
    pixels_of,
)
from dpca.storage.arrays import packed_bytes
from dpca.storage.errors import DataError

# Samples that scores are chosen on, as many as have this many bytes of scores but not fewer or more than these. Goals
# are measured on as many others, if there are others.
_TRIED_BYTES, _TRIED_LEAST, _TRIED_MOST = 2**26, 16, 256
# Runs of consecutive samples that tell whether waves are worth their trouble.
_RUNS = 4
# Samples that a search begins with, and how near it comes with them, in doublings of the step.
_FEW, _ROUGH = 32, 1 / 16
# Steps that are tried for a promise, in units of the promised error: finer ones cost scores, coarser ones residuals.
_FOR_A_PROMISE = (1.0, 2.0, 2.8, 4.0, 8.0, 16.0)
# So many times the smallest ordinary number is a range that steps may divide.
_ORDINARY = 2**10
# Values that predictions are tried on.
_TRIED_VALUES = 2**24
# Bytes that a store and each of its arrays state about themselves, checksums included. Arrays of a store with
# components, and of one without. And bytes of quality and name of a sample, and more for a promise.
_OF_A_STORE, _OF_AN_ARRAY, _ARRAYS, _OF_A_SAMPLE = 2_400, 800, (12, 8), (13, 8)


def cell_components(model: CellPCA) -> Components:
    """Return the components of a fitted model's cells, those that cells share once."""
    grid, rows, mean = model.grid_, model.components_, model.mean_[None].astype(np.float64)
    if isinstance(grid, LappedGrid):
        rows = grid.prefilter.apply(rows.copy(), (0,) * (rows.ndim - 1))
        mean = grid.prefilter.apply(mean.copy(), (0,) * (rows.ndim - 1))
    cells, group = groups_of(grid, shared=model.shared)
    parts = CellGrid(grid.sample_shape, grid.cell_shape).all_parts(rows)
    return Components(grid, mean[0], group, [parts[members[0]].copy() for members in cells])


def groups_of(grid: CellGrid, *, shared: bool) -> tuple[list[list[int]], Array]:
    """Return the cells of each group that has the same components, and the group (n_cells,) of each cell."""
    plain = CellGrid(grid.sample_shape, grid.cell_shape)
    cells = SharedGrid(plain).cells if shared else [[i] for i in range(plain.n_partitions)]
    group = np.empty(plain.n_partitions, np.int64)
    for g, members in enumerate(cells):
        group[members] = g
    return cells, group


class Trials:
    """Encodes some samples of a stack with any step, and measures what it comes to.

    Parameters
    ----------
    source : Source
    components : Components
        Of which those that pay for their bits are kept.
    facts : dict
        What the store will state.
    n_samples : int, optional
        Samples that the store will have, where the source has but some of them.
    """

    def __init__(
        self, source: Source, components: Components, facts: dict[str, Any], n_samples: int | None = None
    ) -> None:
        self.facts, self.source, self.n_samples = facts, source, n_samples or source.shape[0]
        self.form = Form((self.n_samples, *source.shape[1:]), source.dtype.itemsize)
        self.components = components
        one = len(components.group) * max(map(len, components.rows)) * components.rows[0].itemsize
        there = source.shape[0]
        count = min(there, max(_TRIED_LEAST, min(_TRIED_MOST, _TRIED_BYTES // one)))
        runs = spread_runs(source, _RUNS * RUN, RUN) if there >= 2 * RUN else None
        self.waves = runs is not None and waves_pay(components.scores(runs))
        unit = RUN if self.waves else 1
        samples = spread_runs(source, 2 * count, unit)
        first = np.arange(len(samples)) // unit % 2 == 0 if len(samples) > max(count, unit) else slice(None)
        self.scores = components.scores(samples[first])
        if self.waves:
            self.scores = to_waves(self.scores)
        self.samples = samples if isinstance(first, slice) else samples[~first]

    @property
    def _width(self) -> float:
        low, high = self.facts["data_range"]
        return float(high - low)

    def reach(self, goal: Goal, *, rough: bool = False, guess: float | None = None) -> Quantized:
        """Return what the goal takes.

        Parameters
        ----------
        goal : Goal
        rough : bool
            Whether a step within 4 % of the best one is good enough.
        guess : float, optional
            A step that nearly meets the goal.

        Raises
        ------
        UnmetError
            If no step meets it; with how many components there are, where more of them may help.
        """
        if goal.is_promise:
            sized = list(self._kept_promises())
            if not sized:
                raise DataError(
                    f"{goal.name} {goal.value:g} takes integers of more than 32 bits for values of {self.source.name}: "
                    f"ask for a larger error"
                )
            return min(sized, key=lambda one: one[0])[1]
        kind, coarse = np.finfo(self.scores.dtype), goal.name != "ratio"
        if self._width < _ORDINARY * float(kind.tiny):
            raise DataError(
                f"values of {self.source.name} span {self._width:g}, too little for arithmetic in {kind.dtype}: "
                f"multiply all of them by a constant"
            )
        try:
            first = self if rough else self._few()
            start = 1.0 if guess is None else 4 * _ROUGH
            # With a step as long as a score nothing is kept; finer ones than the other make codes of more than 32 bits.
            longest = longest_score(self.facts, self.waves)
            search = partial(
                search_step, coarse=coarse, end=4 * longest if coarse else longest / np.iinfo(np.int32).max
            )
            step = search(first.margin_of(goal), guess or self._width / 32, first=start, near=_ROUGH)
            if not rough:
                step = search(self.margin_of(goal), step, first=_ROUGH)
        except (UnreachedError, OverflowError) as error:
            more = "fit the model with more components (--components all has every one), or ask for less"
            most = max(map(len, self.components.rows))
            short = goal.name != "ratio" and most < self.components.grid.max_features
            raise UnmetError(
                f"{goal.name} {goal.value:g} cannot be reached with the components of the model: "
                f"{more if short else 'ask for less'}",
                most if short else None,
            ) from error
        return self.at(step)

    def margin_of(self, goal: Goal) -> Callable[[float], float]:
        """Return by how much steps meet a goal, negative where they do not."""
        if goal.name == "ratio":
            return lambda step: self._ratio(step) / goal.value - 1
        return lambda step: goal.margin(goal.errors(self._quality(self.at(step), goal)))

    def _kept_promises(self) -> Iterator[tuple[float, Quantized]]:
        """Yield what keeps a promise and how many bytes it takes; nothing that takes integers of more than 32 bits."""
        unit = self.facts["residual_step"] / 2
        plain = self.at(unit).without_components()
        tried: list[tuple[Callable[[Quantized], Quantized], Quantized, str]] = [
            (self.with_residual, self.at(unit * times), "packed") for times in _FOR_A_PROMISE
        ]
        tried += [(self.with_residual, plain, "packed"), (_as_it_is, plain, "shuffled")]
        finer = [partial(self._interpolated, finer=finer) for finer in FINER]
        tried += [(predicted, plain, codec) for predicted in finer for codec in ("packed", "bzip2")]
        for residual, kept, codec in tried:
            with suppress(OverflowError):
                found = replace(residual(kept), residual_codec=codec)
                yield self.stored_bytes(found), found

    def _ratio(self, step: float) -> float:
        try:
            return self._raw_bytes / self.stored_bytes(self.at(step))
        except OverflowError:  # too fine a step
            return 0.0

    def _few(self) -> Trials:
        """Return trials of a part of the samples, of waves whole runs of them."""
        few, unit = copy(self), RUN if self.waves else 1
        every = max(1, len(self.samples) // _FEW)

        def some(n: int, step: int) -> Array:
            return np.arange(n).reshape(-1, unit)[::step].ravel()

        few.samples = self.samples[some(len(self.samples), every)]
        few.scores = self.scores.take(some(self.scores.shape[2], max(1, every // 2)), axis=2)
        return few

    def at(self, step: float) -> Quantized:
        """Return what is kept with a step, or with the nearest one that is an ordinary number of the type of scores."""
        kind = np.finfo(self.scores.dtype)
        step = min(max(step, float(kind.tiny)), float(kind.max) / 16)
        return quantized(self.components, self.scores, step, self.n_samples, self.waves)

    def codec(self, tried: Quantized) -> CellCodec:
        """Return the codec of what is kept."""
        components = tried.components(self.components.grid, decoding_dtype(self.facts))
        return CellCodec(components, tried.step, tried.cell, tried.component, tried.waves)

    def with_residual(self, tried: Quantized) -> Quantized:
        """Return the same with the axes along which differences of its residual are smallest."""
        codec = self.codec(tried)
        left = self._residual(codec, codec.encode(self.samples[:RUN], np.int32, DeadZone(tried.least)), RUN)
        return replace(tried, differences=best_axes(left, self.components.grid.n_spatial))

    def _interpolated(self, plain: Quantized, finer: float) -> Quantized:
        """Return the same with predicted residuals: along the axes of space, and from sample to sample if that pays."""
        axes = range(0 if self.waves else 1, 1 + self.components.grid.n_spatial)
        step = self.facts["residual_step"]
        found = Interpolation.fitted(self.blocks[len(self.blocks) // 2], axes, step, finer)
        return replace(plain, differences=(), interpolated=found.axes, level_steps=found.steps, weights=found.weights)

    def _plain(self, tried: Quantized, block: Array) -> Array:
        """Return the residuals of samples without components, as they are stored."""
        left = block - tried.components(self.components.grid, np.float64).offset
        if tried.interpolation is not None:
            return folded(tried.interpolation.encode(left)[0])
        return differences(to_integers(np.rint(left / self.facts["residual_step"]), np.int32), tried.differences)

    @cached_property
    def blocks(self) -> list[Array]:
        """Runs of consecutive samples, as many as a chunk of a plain store has, float64."""
        rows = min(self.source.shape[0], replace(self.form, plain=True).rows)
        runs = spread_runs(self.source, max(rows, _TRIED_VALUES // math.prod(self.source.shape[1:])), rows)
        return np.split(runs.astype(np.float64), len(runs) // rows)

    def stored_bytes(self, tried: Quantized) -> float:
        """Estimate the bytes of the whole store."""
        codec, times = self.codec(tried), self.n_samples / len(self.samples)
        _refuse_long(self.facts, tried)
        codes = codec.encode(self.samples, np.int32, DeadZone(tried.least))
        once = sum(packed_bytes(np.asarray(getattr(tried, name)), (2**14,)) for name in ("cell", "component", "basis"))
        once += packed_bytes(tried.mean, mean_chunks(self.components.grid))
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
        grid, promise = self.components.grid, self.facts["residual_step"] is not None
        filters = grid.n_spatial if isinstance(grid, LappedGrid) else 0
        n_arrays = (_ARRAYS[0] if len(tried.cell) else _ARRAYS[1]) + 2 * promise + bool(tried.interpolated) + filters
        size += 2 * tried.weights.size  # hardly compressible
        return (
            size
            + _OF_A_STORE
            + _OF_AN_ARRAY * n_arrays
            + self.n_samples * (_OF_A_SAMPLE[0] + promise * _OF_A_SAMPLE[1])
        )

    def _residual(self, codec: CellCodec, codes: Array, most: int | None = None) -> Array:
        samples = self.samples[:most]
        decoded = codec.decode(codec.of_samples(codes)[:, : len(samples)])
        return to_integers(np.rint((samples - decoded) / self.facts["residual_step"]), np.int32)

    @property
    def _raw_bytes(self) -> int:
        return self.n_samples * int(self.samples[0].nbytes)

    def _quality(self, tried: Quantized, goal: Goal) -> dict[str, Array]:
        # Those that miss a goal of every sample are encoded without a dead zone.
        codec, zone = self.codec(tried), NEAREST if goal.every_sample else DeadZone(tried.least)
        codes = codec.of_samples(codec.encode(self.samples, np.int32, zone))
        decoded = codec.decode(codes, pixels=pixels_of(self.facts))
        n_spatial = self.components.grid.n_spatial
        return quality_of(self.samples, decoded, data_range=self._width, n_spatial=n_spatial, measures=(goal.measure,))

    def mse(self, tried: Quantized) -> float:
        """Return the mean squared error, in units of the data range squared."""
        return float(self._quality(tried, Goal("mse", 1.0))["mse"].mean())


def _refuse_long(facts: dict[str, Any], tried: Quantized) -> None:
    """Refuse what would be written as integers of more than 32 bits.

    Raises
    ------
    OverflowError
    """
    longest, plain = longest_score(facts, tried.waves) / tried.step, not len(tried.cell)
    integer_dtype(0.0 if plain else longest)
    if facts["residual_step"] is not None:
        integer_dtype(largest_residual(facts, plain=plain) / facts["residual_step"])


def _as_it_is(plain: Quantized) -> Quantized:
    return replace(plain, differences=())


def spread_runs(source: Source, most: int, run: int) -> Array:
    """Read runs of so many consecutive samples, spread over all, at most so many samples but at least one run."""
    n_runs = source.shape[0] // run
    firsts = run * spread_samples(n_runs, min(max(1, most // run), n_runs), np.random.default_rng(0))
    return np.concatenate(list(read_samples(source, (firsts[:, None] + np.arange(run)).ravel())))
