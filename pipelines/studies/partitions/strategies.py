"""The ways of splitting attributes that are compared, each fitted to the training samples of a stack."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dpca.engine.folds.fold import fold, plan_for
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.held_out import RemainingSource
from dpca.engine.sources.source import as_source
from dpca.kernels.algebra.types import Array
from dpca.models.cells.band_pca import BandPCA
from dpca.models.cells.cell_pca import CellPCA
from dpca.models.streaming.streaming_methods import RuleStream, make_rule
from dpca.models.streaming.streaming_pca import StreamingPCA
from dpca.partition.cells import CellGrid
from dpca.partition.whole import Whole
from dpca.pipelines.studies.captured import Captured
from dpca.pipelines.studies.partitions.block_dct import dct_basis
from dpca.pipelines.studies.partitions.dct_moments import BlockDCTMoments
from dpca.pipelines.studies.partitions.settings import Design, PartitionSettings
from dpca.storage.run import Run
from dpca.storage.stack import Stack

#: Components whose explained variance is looked at one by one (Alakkari 2020, figure 4.9).
CURVE = 20
RANDOM, HOLISTIC = "bands at random", "holistic"


@dataclass(frozen=True)
class Training:
    """What a fit is given.

    Parameters
    ----------
    samples : Stack or RemainingSource
    n, d : int
        Samples, and attributes of each.
    run : Run
        How a fit runs. Its checkpoints hold what an interrupted fit has finished.
    """

    samples: Stack | RemainingSource
    n: int
    d: int
    run: Run

    def per_attribute(self, variance: float) -> float:
        """Return the mean squared value, over training samples and attributes, of what has this variance in all."""
        return float(variance) * (self.n - 1) / self.n / self.d


@dataclass(frozen=True, eq=False)
class FittedStrategy:
    """What a fit found.

    Attributes
    ----------
    basis : LinearRepresentation
        It projects and reconstructs.
    n_partitions, n_components : int
        Partitions, and components of a whole one.
    kept : int
        Scores of a sample.
    model_bytes : int
        What has to be kept beside the scores.
    total, left : float
        Variance of the training samples, and their squared error, both a mean over samples and attributes, in squared
        units of the input.
    exact : bool
        Whether ``left`` is the error itself, or at most that.
    curve : array (m,)
        Share of the variance that the first 1, 2, ..., m components of every partition hold.
    """

    basis: Any
    n_partitions: int
    n_components: int
    kept: int
    model_bytes: int
    total: float
    left: float
    exact: bool
    curve: Array


class Strategy(Protocol):
    """A way of splitting attributes."""

    @property
    def name(self) -> str:
        """What tables call it."""

    @property
    def work(self) -> str:
        """What its fit is called; strategies that share one take its results from where the first left them."""

    def fit(self, training: Training) -> FittedStrategy:
        """Find its components."""


@dataclass(frozen=True)
class Cells:
    """Cells with as many components each (Alakkari 2020, section 4.3)."""

    cell: tuple[int, ...]
    components: int

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"cells {size_of(self.cell)}"

    @property
    def work(self) -> str:
        """What its fit is called."""
        return self.name

    def fit(self, training: Training) -> FittedStrategy:
        """Accumulate the covariance of every cell and solve it."""
        model = CellPCA(self.components, cell_shape=self.cell).fit(training.samples, run=training.run)
        return _partitioned(model, model.basis_, model.grid_, training)


@dataclass(frozen=True)
class BandStrategy:
    """Bands with as many components each (Alakkari 2020, section 4.4)."""

    mapping: str
    size: int
    components: int
    n_intervals: int
    seed: int
    n_estimating: int | None = None
    keep_channels: bool = True
    named_apart: bool = False

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.mapping == "raster":
            return "bands in raster order"
        if self.mapping == "random":
            return f"{RANDOM}, channels apart" if self.named_apart else RANDOM
        what = "mean and variance" if self.mapping == "mean-variance" else "mean"
        return f"bands by {what}, from {'all' if self.n_estimating is None else f'{self.n_estimating:,}'}"

    @property
    def work(self) -> str:
        """What its fit is called."""
        return self.name

    def fit(self, training: Training) -> FittedStrategy:
        """Map attributes to bands and solve every band."""
        model = BandPCA(
            self.components,
            band_size=self.size,
            mapping=self.mapping,
            n_intervals=self.n_intervals,
            n_estimating=self.n_estimating,
            keep_channels=self.keep_channels,
            random_state=self.seed,
        ).fit(training.samples, run=training.run)
        return _partitioned(model, model.basis_, model.bands_, training)


@dataclass(frozen=True)
class Holistic:
    """Components of whole samples, by incremental SVD in one pass."""

    components: int
    seed: int

    @property
    def name(self) -> str:
        """What tables call it."""
        return HOLISTIC

    @property
    def work(self) -> str:
        """What its fit is called."""
        return self.name

    def fit(self, training: Training) -> FittedStrategy:
        """Find the components in one pass; what they leave is known as a bound."""
        model = StreamingPCA(self.components, random_state=self.seed).fit(training.samples, run=training.run)
        total = training.per_attribute(model.total_variance_)
        bound = training.per_attribute(model.total_variance_ - model.explained_variance_.sum())
        held = model.components_.nbytes + model.mean_.nbytes
        curve = np.cumsum(model.explained_variance_ratio_)
        return FittedStrategy(
            model.basis_, 1, self.components, self.components, held, total, max(bound, 0.0), False, curve
        )


@dataclass(frozen=True)
class BlockDCT:
    """The block cosine transform, of which every cell keeps as many coefficients as its components would be.

    The mean of the training samples is taken off, as it is for components. The coefficients kept are the same for all
    samples: those of low frequency, or those of most variance in the training samples, chosen for every cell.
    """

    cell: tuple[int, ...]
    components: int
    chosen: bool
    across_channels: bool

    @property
    def name(self) -> str:
        """What tables call it."""
        channels = " and channels" if self.across_channels else ""
        return f"DCT {size_of(self.cell)}{channels}, {'best set' if self.chosen else 'low frequencies'}"

    @property
    def work(self) -> str:
        """What its fit is called: both choices come from one pass."""
        return f"DCT {size_of(self.cell)}{' and channels' if self.across_channels else ''}"

    def fit(self, training: Training) -> FittedStrategy:
        """Measure all coefficients of the training samples, in one pass that both choices share."""
        source = as_source(training.samples)
        shape = tuple(source.shape[1:])
        rule = BlockDCTMoments(shape, self.cell, self.across_channels)
        results, _ = fold(rule, source, Whole(shape), stage="fit", run=training.run)
        grid = CellGrid(shape, self.cell)
        moments = {name: values.reshape(shape) for name, values in results[0].items()}
        basis, held = dct_basis(grid, moments, self.components, self.chosen, self.across_channels)
        captured, total = np.cumsum(held), float(moments["variance"].sum())
        kept = sum(min(self.components, grid.n_features(i)) for i in range(grid.n_partitions))
        # Two bytes name a coefficient; the cosines need not be kept.
        model_bytes = basis.mean.nbytes + (2 * kept if self.chosen else 0)
        left = training.per_attribute(max(total - captured[-1], 0.0))
        curve = shares(captured, total)
        attributes = training.per_attribute(total)
        return FittedStrategy(
            basis, grid.n_partitions, self.components, kept, model_bytes, attributes, left, True, curve
        )


def strategies(settings: PartitionSettings, plan: Design) -> list[Strategy]:
    """List what is compared: cells, whole samples, bands, cosine transforms."""
    sizes = list(zip(plan.cells, plan.components, strict=True))
    size, k, s, seed = plan.band_size, plan.band_components, settings.n_intervals, settings.seed
    together = plan.has_channels
    found: list[Strategy] = [Cells(cell, components) for cell, components in sizes]
    found.append(Holistic(plan.holistic, seed))
    found.append(BandStrategy("random", size, k, s, seed, keep_channels=together))
    if together:
        found.append(BandStrategy("random", size, k, s, seed, keep_channels=False, named_apart=True))
    found += [
        BandStrategy(mapping, size, k, s, seed, count, keep_channels=together)
        for mapping in ("mean", "mean-variance")
        for count in (*plan.estimating, None)
    ]
    found.append(BandStrategy("raster", size, k, s, seed, keep_channels=together))
    found += [
        BlockDCT(cell, components, chosen, across)
        for across in ((False, True) if together else (False,))
        for chosen in (False, True)
        for cell, components in sizes
    ]
    return found


def fitting(plan: Design, settings: PartitionSettings, training: Training) -> Design:
    """Return the design with as many components of whole samples as a task has memory for, if nobody said how many.

    Raises
    ------
    PlanError
        If the requested number does not fit, or not even one component does.
    """
    source, k = as_source(training.samples), plan.holistic
    partition = Whole(tuple(source.shape[1:]))
    while True:
        rule = make_rule("incremental-svd", k, center=True, batch_size=None, seed=0, stream=RuleStream(source.shape[0]))
        try:
            plan_for(rule, source, partition, run=training.run)
            return replace(plan, holistic=k)
        except PlanError as error:
            if settings.holistic is not None or k == 1:
                raise PlanError(
                    f"{k:,} components of whole samples are too many: {str(error).partition(':')[0]}; use fewer "
                    f"(--holistic), or allow every worker more memory (--memory)"
                ) from error
            k //= 2


def captured_by_rows(training: Training, rows: Array, mean: Array, stage: str) -> tuple[Array, float, float]:
    """Measure what orthonormal rows (k, d) capture of the training samples, in float64, in one pass.

    Returns
    -------
    each : array (min(k, CURVE),)
        Variance along each of the first rows.
    captured, total : float
        Variance along all rows, and of the samples.
    """
    source = as_source(training.samples)
    bases = [rows[i : i + 1] for i in range(min(CURVE, len(rows)))]
    bases += [rows[CURVE:]] if len(rows) > CURVE else []
    partition = Whole(tuple(source.shape[1:]))
    with warnings.catch_warnings():
        # A task that reads gigabytes receives a few hundred megabytes of rows.
        warnings.filterwarnings("ignore", message="Sending large graph")
        (found,), _ = fold(Captured(bases, mean), source, partition, stage=stage, run=training.run)
    captured = found["captured"]
    return captured[:CURVE], float(captured.sum()), float(found["total_variance"])


def exactly(fitted: FittedStrategy, training: Training) -> FittedStrategy:
    """Return what components of whole samples leave, measured in one more pass instead of bounded."""
    each, captured, total = captured_by_rows(training, fitted.basis.components, fitted.basis.mean, "measure")
    left = training.per_attribute(max(total - captured, 0.0))
    curve = shares(np.cumsum(each), total)
    return replace(fitted, left=left, total=training.per_attribute(total), exact=True, curve=curve)


def fit_noting(strategy: Strategy, training: Training) -> tuple[FittedStrategy, list[str]]:
    """Fit a strategy; return what it warned of, too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        fitted = strategy.fit(training)
    return fitted, list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)))


def size_of(cell: tuple[int, ...]) -> str:
    """Write the shape of a cell as people do."""
    return " x ".join(map(str, cell)) if len(cell) > 1 else f"of {cell[0]}"


def _partitioned(model: Any, basis: Any, partition: Any, training: Training) -> FittedStrategy:
    """Gather what a fitted model with partitions says of itself."""
    n_partitions, k = partition.n_partitions, model.n_components_
    captured = np.cumsum(model.explained_variance_.reshape(-1, k).sum(axis=0))
    total = float(model.total_variance_.sum())
    return FittedStrategy(
        basis,
        n_partitions,
        k,
        sum(min(k, partition.n_features(i)) for i in range(n_partitions)),
        model.components_.nbytes + model.mean_.nbytes,
        training.per_attribute(total),
        training.per_attribute(max(total - captured[-1], 0.0)),
        # Only the note of a fit tells whether covariances were too much for memory.
        "incremental SVD" not in model.fit_report_.note,
        shares(captured, total),
    )


def shares(captured: Array, total: float) -> Array:
    """Shares of the variance; 1 where there is none, since nothing is left to explain."""
    return captured / total if total > 0 else np.ones(len(captured))
