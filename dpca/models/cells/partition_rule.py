"""The rule for each partition: its exact covariance if that is affordable, otherwise incremental SVD."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dpca.engine.folds.fold import plan_for
from dpca.engine.folds.fold_tasks import Results
from dpca.engine.folds.plan import FoldPlan, PlanError
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.partition.base import Partition
from dpca.partition.shared import SharedGrid
from dpca.rules.base.keeping import Keeping
from dpca.rules.base.rule import Rule
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.rules.covariance.pooled_covariance import PooledCovariancePCA
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.storage.disk import readable_size
from dpca.storage.run import Run

# Covariances with this multiple of the reads of incremental SVD cost more than incremental SVD.
_MOST_READS = 8


def exact_rule(k: int | None, partition: Partition) -> Rule:
    """Return the rule that accumulates covariances, of each partition or shared by all cells of a shape."""
    return PooledCovariancePCA(k, partition.groups) if isinstance(partition, SharedGrid) else CovariancePCA(k)


def by_partition(rule: Rule, folded: Partition, results: Results, dtype: np.dtype[Any]) -> tuple[Results, Array | None]:
    """Return the results of each partition, and the number of partitions that share its components, None if not shared.

    Shared components are one array, of the working dtype, in the results of all their cells.
    """
    if not (isinstance(folded, SharedGrid) and isinstance(rule, PooledCovariancePCA)):
        return results, None
    n = sum(map(len, folded.cells))
    cells: Results = [{} for _ in range(n)]
    places = np.zeros(n, np.int64)
    for group, found in zip(folded.cells, rule.unpack(results[0]), strict=True):
        found["components"] = found["components"].astype(working_dtype(dtype), copy=False)
        for i, mean in zip(group, found["mean"], strict=True):
            cells[i] = {**found, "mean": mean}
        places[group] = len(group)
    return cells, places


def in_place(k: int, partition: Partition, results: Results, dtype: np.dtype[Any]) -> dict[str, Array]:
    """Return arrays of all partitions from the results of each, with ``k`` rows of components at their attributes.

    The results are emptied to free their memory.

    Parameters
    ----------
    dtype : dtype
        Type of the samples.
    """
    variance = np.zeros((partition.n_partitions, k))
    total = np.array([result["total_variance"] for result in results])
    means = ((i, result["mean"][None, None]) for i, result in enumerate(results))
    mean = partition.join(means, np.empty((1, *partition.sample_shape)))

    def found() -> Iterator[tuple[int, Array]]:
        for i in range(len(results)):
            # Results are freed one by one, so that all components are in memory once, not twice.
            result, results[i] = results[i], {}
            variance[i, : len(result["components"])] = result["explained_variance"]
            yield i, result["components"][None]

    return {
        "components": partition.join(found(), np.zeros((k, *partition.sample_shape), working_dtype(dtype))),
        "mean": mean[0],
        "explained_variance": variance.reshape(*partition.grid_shape, k),
        "total_variance": total.reshape(partition.grid_shape),
    }


def choose_rule(
    k: int | None,
    source: Source,
    partition: Partition,
    what: str,
    *,
    run: Run,
    keep: bool = False,
) -> tuple[Any, FoldPlan, str]:
    """Return the rule that finds ``k`` components of each partition, its plan, and a note on it for the report.

    The note is empty if covariances are computed in one read of the stack.

    If the covariances exceed the memory of a task, they are computed group by group, and each group reads the stack
    again. Incremental SVD is selected if a single covariance is too large, or if the covariances require more than 8
    times its reads. All components (None) require covariances. So do shared components, because there are few of them.

    Parameters
    ----------
    what : str
        Name of the partitions in the plural.
    run : Run
    keep : bool
        Whether the results include the states of the covariances, by a `Keeping`.

    Raises
    ------
    PlanError
        If neither fits into the memory of a task; it states the smaller requirement.
    """

    def planned(rule: Any) -> FoldPlan | PlanError:
        try:
            return plan_for(rule, source, partition, run=run)
        except PlanError as error:
            return error

    exact: Any = Keeping(exact_rule(k, partition)) if keep else exact_rule(k, partition)
    names = f"the covariances of {partition.n_partitions:,} {what}"
    if isinstance(partition, SharedGrid):
        return exact, plan_for(exact, source, partition, run=run), ""
    plan = planned(exact)
    reads = _reads(plan, source)
    size = sum(exact.state_bytes(partition.n_features(i), source.dtype) for i in range(partition.n_partitions))
    if k is not None and not keep and reads > _MOST_READS:
        rule = IncrementalSVD(k)
        streaming = planned(rule)
        if isinstance(streaming, FoldPlan) and reads > _MOST_READS * (own := _reads(streaming, source)):
            why = f"{names} take {readable_size(size)} and require {reads:.3g} reads of the stack"
            if isinstance(plan, PlanError):
                why = f"a single one of {names} does not fit into the memory of a task"
            return rule, streaming, f"{why}: incremental SVD was used instead and read the stack {_times(own)}"
        if isinstance(plan, PlanError):
            plan = streaming
    if isinstance(plan, PlanError):
        raise plan
    if reads <= 1:
        return exact, plan, ""
    groups = f"{len(plan.groups)} groups of {what} in turn"
    return exact, plan, f"{names} take {readable_size(size)}: {groups} read the stack {_times(reads)}"


def _reads(plan: FoldPlan | PlanError, source: Source) -> float:
    """Return the mean number of times that a plan decodes each chunk of the stack; infinity without a plan."""
    if isinstance(plan, PlanError):
        return math.inf
    stack = source.decoded_bytes(tuple((0, length) for length in source.shape[1:]))
    return sum(source.decoded_bytes(group.region) for group in plan.groups) / stack


def _times(reads: float) -> str:
    return "once" if reads <= 1 else f"{reads:.3g} times"
