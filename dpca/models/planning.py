"""Whether a fit, and the scores of the model that will come of it, fit the memory: told before anything is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from dpca.engine.fold import plan_for
from dpca.engine.held_out import hold_out
from dpca.engine.memory import task_budget, thread_count
from dpca.engine.shuffled import shuffle
from dpca.engine.source import Reader, Source
from dpca.kernels.dtypes import working_dtype
from dpca.models.band_pca import BandPCA
from dpca.models.execution import executed
from dpca.models.partition_rule import choose_rule
from dpca.models.partitioned import PartitionedPCA
from dpca.models.pca import PCA
from dpca.models.rank_choice import RankChoice
from dpca.models.streaming_pca import StreamingPCA
from dpca.partition.whole import Whole
from dpca.representation.basis import Basis
from dpca.representation.linear_basis import LinearBasis
from dpca.rules.covariance import CovariancePCA
from dpca.rules.rayleigh_ritz import RayleighRitz

Array = NDArray[Any]


class Outline(Source):
    """What planning needs to know of a stack that is still to be made."""

    def reader(self) -> Reader:
        """There is nothing to read yet."""
        raise TypeError(f"{self.name} is an outline: it holds no samples")


def plan_fit(
    model: PartitionedPCA | PCA | StreamingPCA, source: Source, axes: Sequence[str], client: Any | None
) -> tuple[Basis, bool]:
    """Plan the fit of an estimator to a source, none of which is read.

    Parameters
    ----------
    model : CellPCA, BandPCA, PCA or StreamingPCA
        Not fitted, and left as it is.
    source : Source
        An `Outline` will do.
    axes : sequence of str
        Names of a sample's axes.
    client : distributed.Client or None
        Where it will run.

    Returns
    -------
    basis : Basis
        Of the size of what will be found; its arrays take no memory, and hold zeros.
    known : bool
        Whether that is the size. Where it depends on the data, the least it can be is taken: one component of each
        partition, or their mean where their sum is known; as few bands as there can be.

    Raises
    ------
    PlanError
        If it does not fit the memory.
    DataError
        If the parameters do not fit the source.
    """
    if isinstance(model, StreamingPCA):
        return _plan_stream(model, source, client), True
    if isinstance(model, PCA):
        return _plan_exact(model, source, client), True
    shape, budget = tuple(source.shape[1:]), model.memory_budget
    choice = RankChoice.of(model.get_params())
    planned: Any = model
    if by_moments := isinstance(model, BandPCA) and model.mapping in ("mean-variance", "mean"):
        # These take a pass, and may make more bands, which are smaller.
        planned = clone(model).set_params(mapping="raster")
    fitted = source
    if choice.validation_fraction is not None:
        fitted = hold_out(source, choice.validation_fraction, np.random.default_rng(0))[0]
    partition = planned._partition(fitted, axes)
    k, folded = planned._to_compute(choice, fitted.shape[0], partition), planned._folded(partition)
    rule, _ = choose_rule(k, fitted, folded, f"{model.part_name}s", client=client, budget=budget)
    plan_for(rule, fitted, folded, client=client, budget=budget)
    least = partition.max_features if k is None else k
    if choice.adapts:
        mean = choice.mean_rank(math.prod(shape), partition.n_partitions)
        least = 1 if mean is None else min(least, max(1, math.ceil(mean)))
    dtype = working_dtype(source.dtype)
    basis = planned._basis_of(partition, _nothing(shape, np.dtype(np.float64)), _nothing((least, *shape), dtype))
    return basis, not (choice.adapts or by_moments)


def _plan_exact(model: PCA, source: Source, client: Any | None) -> Basis:
    """Plan the pass that holds the most: of the covariance, or of a basis that is measured."""
    shape, n = tuple(source.shape[1:]), source.shape[0]
    d = math.prod(shape)
    k, n_least = model._wanted(n, d)
    budget = model.memory_budget or task_budget(client, thread_count())
    solver, _ = model._choice(n, d, k, n_least, budget, source.dtype)
    mean, rows = _nothing((d,), np.dtype(np.float64)), _nothing((k, d), working_dtype(source.dtype))
    rule: Any = RayleighRitz(rows, mean, bool(model.center), n_components=k)
    if solver == "covariance":
        rule = CovariancePCA(k, n_least=n_least, center=bool(model.center))
    plan_for(rule, source, Whole(shape), client=client, budget=model.memory_budget)
    return LinearBasis(mean, rows, shape)


def _plan_stream(model: StreamingPCA, source: Source, client: Any | None) -> Basis:
    shape = tuple(source.shape[1:])
    d, k, whole = math.prod(shape), int(model.n_components), Whole(shape)
    rule = model._rule(d, source.shape[0], 0)
    work, scheme = executed(
        rule,
        model.execution,
        n_streams=model.n_streams,
        round_size=model.round_size,
        batch_size=model.batch_size,
        client=client,
    )
    stream = shuffle(source, 0) if model.shuffle else source
    plan_for(work, stream, whole, scheme=scheme, client=client, budget=model.memory_budget)
    dtype = working_dtype(source.dtype)
    return LinearBasis(_nothing((d,), np.dtype(np.float64)), _nothing((k, d), dtype), shape)


def _nothing(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return zeros that take no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)
