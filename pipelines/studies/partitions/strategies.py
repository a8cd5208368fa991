"""The compared ways of splitting attributes, each fitted to the training samples of a stack."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

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
from dpca.pipelines.studies.captured import captured_by
from dpca.pipelines.studies.partitions.block_dct import dct_basis
from dpca.pipelines.studies.partitions.dct_moments import BlockDCTMoments
from dpca.pipelines.studies.partitions.settings import Design, PartitionSettings
from dpca.storage.run import Run
from dpca.storage.stack import Stack

#: Components whose explained variance is reported one by one (Alakkari 2020, figure 4.9).
CURVE = 20
RANDOM, RASTER, HOLISTIC = "bands at random", "bands in raster order", "holistic"


@dataclass(frozen=True)
class Training:
    """Input of a fit.

    Parameters
    ----------
    samples : Stack or RemainingSource
    n, d : int
        Number of samples, and of attributes.
    width : float
        Width of the data range. Reported errors are in units of its square.
    run : Run
        How a fit runs, with its checkpoints.
    """

    samples: Stack | RemainingSource
    n: int
    d: int
    width: float
    run: Run

    def errors(self, total: Any, captured: Any) -> tuple[float, float]:
        """Return variance and squared error, means over training samples and attributes, from total variances."""
        scale = [float(variance) * (self.n - 1) / self.n / self.d for variance in (total, total - captured)]
        whole, left = (value / self.width / self.width for value in scale)
        return whole, max(left, 0.0)


@dataclass(frozen=True)
class Facts:
    """The numbers of a strategy.

    Attributes
    ----------
    n_partitions, n_components : int
        Number of partitions, and of components of one that is not cut off at the edge.
    kept : int
        Scores of a sample.
    model_bytes : int
        Bytes that are stored beside the scores.
    total, left : float
        Variance and squared error of the training samples: means over samples and attributes, for values in 0..1.
    exact : bool
        Whether ``left`` is the MSE of all training samples, or an upper bound.
    name : str
    seconds : float
        Processor time of the fit on all workers: reading, arithmetic and eigenproblems.
    whole : bool
        Whether ``seconds`` is complete: an interrupted run may have done a part of the fit.
    notes : sequence of str
        Warnings of the fit.
    """

    n_partitions: int
    n_components: int
    kept: int
    model_bytes: int
    total: float
    left: float
    exact: bool = True
    name: str = ""
    seconds: float = 0.0
    whole: bool = False
    notes: Sequence[str] = ()


class FittedStrategy(NamedTuple):
    """Result of a fit."""

    basis: Any
    """A `LinearRepresentation`."""
    curve: Array
    """Share of the variance that the first 1, 2, ..., m components of every partition explain, (m,)."""
    facts: Facts


class Strategy(NamedTuple):
    """A way of splitting attributes."""

    name: str
    fit: Callable[[Training], FittedStrategy]
    work: str
    """Name of its fit. Strategies with the same one share its checkpoints."""


def strategies(settings: PartitionSettings, plan: Design) -> list[Strategy]:
    """Return the compared strategies: cells, whole samples, bands, cosine transforms."""
    sizes = list(zip(plan.cells, plan.components, strict=True))
    channels = (False, True) if plan.has_channels else (False,)

    def named(name: str, fit: Callable[[Training], FittedStrategy]) -> Strategy:
        return Strategy(name, fit, name)

    def bands(name: str, mapping: str, count: int | None = None, apart: bool = False) -> Strategy:
        return named(
            name,
            partial(
                _fit_parts,
                BandPCA(
                    plan.band_components,
                    band_size=plan.band_size,
                    mapping=mapping,
                    n_intervals=settings.n_intervals,
                    n_estimating=count,
                    keep_channels=plan.has_channels and not apart,
                    random_state=settings.seed,
                ),
            ),
        )

    found = [named(f"cells {size_of(cell)}", partial(_fit_parts, CellPCA(k, cell_shape=cell))) for cell, k in sizes]
    found += [named(HOLISTIC, partial(_fit_whole, plan.holistic, settings.seed)), bands(RANDOM, "random")]
    if plan.has_channels:
        found.append(bands(f"{RANDOM}, channels apart", "random", apart=True))
    for mapping, words in (("mean", "mean"), ("mean-variance", "mean and variance")):
        for count in (*plan.estimating, None):
            found.append(bands(f"bands by {words}, from {'all' if count is None else f'{count:,}'}", mapping, count))
    found.append(bands(RASTER, "raster"))
    for across in channels:
        for chosen, words in ((False, "low frequencies"), (True, "best set")):
            for cell, k in sizes:
                work = f"DCT {size_of(cell)}{' and channels' if across else ''}"
                found.append(Strategy(f"{work}, {words}", partial(_fit_dct, cell, k, chosen, across), work))
    return found


def _fit_parts(model: CellPCA | BandPCA, training: Training) -> FittedStrategy:
    """Fit components of cells (Alakkari 2020, section 4.3) or bands (section 4.4)."""
    model.fit(training.samples, run=training.run)
    k, held = model.n_components_, model.components_.nbytes + model.mean_.nbytes
    captured = np.cumsum(model.explained_variance_.reshape(-1, k).sum(axis=0))
    total = float(model.total_variance_.sum())
    # Only the note of a fit states whether covariances exceeded the memory.
    exact = "incremental SVD" not in model.fit_report_.note
    errors = training.errors(total, captured[-1])
    facts = Facts(*_sizes(model.basis_.partition, k), held, *errors, exact)
    return FittedStrategy(model.basis_, shares(captured, total), facts)


def _fit_whole(k: int, seed: int, training: Training) -> FittedStrategy:
    """Fit components of whole samples by incremental SVD in one pass."""
    model = StreamingPCA(k, random_state=seed).fit(training.samples, run=training.run)
    held = model.components_.nbytes + model.mean_.nbytes
    errors = training.errors(model.total_variance_, model.explained_variance_.sum())
    facts = Facts(1, k, k, held, *errors, exact=False)
    return FittedStrategy(model.basis_, np.cumsum(model.explained_variance_ratio_), facts)


def _fit_dct(cell: tuple[int, ...], k: int, chosen: bool, across: bool, training: Training) -> FittedStrategy:
    """Measure all coefficients of the block cosine transform, and keep as many per cell as its components would be.

    The mean of the training samples is subtracted, as it is for components. The kept coefficients are the same for all
    samples: those of low frequency, or those with the most variance in the training samples, chosen for every cell.
    Both choices share one pass.
    """
    source = as_source(training.samples)
    shape = tuple(source.shape[1:])
    rule, grid = BlockDCTMoments(shape, cell, across), CellGrid(shape, cell)
    results, _ = fold(rule, source, Whole(shape), stage="fit", run=training.run)
    moments = {name: values.reshape(shape) for name, values in results[0].items()}
    basis, held = dct_basis(grid, moments, k, chosen, across)
    captured, total = np.cumsum(held), float(moments["variance"].sum())
    sizes = _sizes(grid, k)
    # Two bytes identify a chosen coefficient. The cosines are not stored.
    model_bytes = basis.mean.nbytes + (2 * sizes[-1] if chosen else 0)
    facts = Facts(*sizes, model_bytes, *training.errors(total, captured[-1]))
    return FittedStrategy(basis, shares(captured, total), facts)


def _sizes(partition: Any, k: int) -> tuple[int, int, int]:
    """Return the number of parts, of components, and of scores of a sample."""
    n = partition.n_parts
    return n, k, sum(min(k, partition.n_features(i)) for i in range(n))


def fitting(plan: Design, settings: PartitionSettings, training: Training) -> Design:
    """Return the design with as many components of whole samples as fit the memory of a task.

    Raises
    ------
    PlanError
        If the number in the settings does not fit, or one component does not.
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
                    f"(--holistic), or more memory for every worker (--memory)"
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
    bases = [rows[i : i + 1] for i in range(min(CURVE, len(rows)))]
    bases += [rows[CURVE:]] if len(rows) > CURVE else []
    captured, total = captured_by(as_source(training.samples), bases, mean, stage=stage, run=training.run)
    return captured[:CURVE], float(captured.sum()), total


def measured_exactly(fitted: FittedStrategy, training: Training) -> FittedStrategy:
    """Measure the error of components of whole samples in one more pass, instead of an upper bound."""
    basis = fitted.basis
    each, captured, total = captured_by_rows(training, basis.components, basis.mean, "measure")
    whole, left = training.errors(total, captured)
    facts = replace(fitted.facts, total=whole, left=left, exact=True)
    return FittedStrategy(basis, shares(np.cumsum(each), total), facts)


def fit_noting(strategy: Strategy, training: Training) -> tuple[FittedStrategy, list[str]]:
    """Fit a strategy; also return its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        fitted = strategy.fit(training)
    return fitted, list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)))


def size_of(cell: tuple[int, ...]) -> str:
    """Return the shape of a cell as text."""
    return " x ".join(map(str, cell)) if len(cell) > 1 else f"of {cell[0]}"


def shares(captured: Array, total: float) -> Array:
    """Return shares of the variance, or 1 if there is none."""
    return captured / total if total > 0 else np.ones(len(captured))
