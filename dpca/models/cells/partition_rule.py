"""The rule for each part: few samples themselves, its covariance if that is affordable, else incremental SVD."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dpca.engine.folds.fold import plan_for
from dpca.engine.folds.fold_tasks import Results, ResultWriter
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
from dpca.rules.covariance.snapshots import SnapshotPCA
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.storage.disk import readable_size
from dpca.storage.run import Run

# Covariances with this multiple of the reads of incremental SVD cost more than incremental SVD.
_MOST_READS = 8
# Up to this number of samples for each attribute of a part, Gram matrices of samples take less memory and time
# than covariances.
_FEW_SAMPLES = 0.5
# Bytes of neighboring parts that are joined in one call.
_JOINED_BYTES = 2**22


def exact_rule(k: int | None, partition: Partition) -> Rule:
    """Return the rule that accumulates covariances, of each part or shared by all cells of a shape."""
    return PooledCovariancePCA(k, partition.groups) if isinstance(partition, SharedGrid) else CovariancePCA(k)


def results_by_part(
    rule: Rule, folded: Partition, results: Results, dtype: np.dtype[Any]
) -> tuple[Results, Array | None]:
    """Return the results of each part, and the number of parts that share its components.

    Shared components are one array, of the working dtype, in the results of all their cells. The second value is an
    array (n_parts,), or None if no components are shared.
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


def joined_results(partition: Partition, dtype: np.dtype[Any], k: int, results: Results) -> dict[str, Array]:
    """Return the joined results of all parts: ``k`` rows of components of whole samples, means and variances.

    The results are emptied to free their memory.

    Parameters
    ----------
    dtype : dtype
        Type of the samples.
    """
    variances = joined_variances(k, partition, results)
    means = neighbors((i, result["mean"][None]) for i, result in enumerate(results))
    mean = partition.join(means, np.empty((1, *partition.sample_shape)))

    def found() -> Iterator[tuple[int, Array]]:
        for i in range(len(results)):
            # Results are freed one by one, so that all components are in memory once, not twice.
            result, results[i] = results[i], {}
            yield i, result["components"]

    whole = np.zeros((k, *partition.sample_shape), working_dtype(dtype))
    return {"components": partition.join(neighbors(found()), whole), "mean": mean[0], **variances}


def joined_variances(k: int, partition: Partition, results: Results) -> dict[str, Array]:
    """Return the variances along ``k`` components and the total variances of all parts, in the shape of the grid."""
    variance = np.zeros((partition.n_parts, k))
    for row, result in zip(variance, results, strict=True):
        row[: len(result["components"])] = result["explained_variance"]
    return {
        "explained_variance": variance.reshape(*partition.grid_shape, k),
        "total_variance": np.array([result["total_variance"] for result in results]).reshape(partition.grid_shape),
    }


def neighbors(parts: Iterable[tuple[int, Array]]) -> Iterator[tuple[int, Array]]:
    """Stack arrays of one shape and of consecutive parts, up to some bytes, for `Partition.join`."""
    first, held = 0, list[Array]()
    for number, part in parts:
        follows = held and number == first + len(held) and part.shape == held[0].shape
        if held and not (follows and len(held) * part.nbytes <= _JOINED_BYTES):
            yield first, np.stack(held)
            held = []
        first = number - len(held)
        held.append(part)
    yield first, np.stack(held)


def choose_rule_and_plan(
    k: int | None,
    source: Source,
    partition: Partition,
    what: str,
    *,
    run: Run,
    keep: bool = False,
    writer: ResultWriter | None = None,
) -> tuple[Any, FoldPlan, str]:
    """Return the rule that finds ``k`` components of each part, its plan, and a note on it for the report.

    The note is empty if covariances are computed in one read of the stack.

    If samples are fewer than half of the attributes of a part, their Gram matrix is used. If the covariances of
    more samples exceed the memory of a task, they are computed group by group, and each group reads the stack again.
    Incremental SVD is selected if a single covariance is too large, or if the covariances require more than 8 times its
    reads. All components (None) require covariances, as do states to keep, shared components, which are few, and rows
    that represent samples with weights.

    Parameters
    ----------
    what : str
        Name of the parts in the plural.
    run : Run
    keep : bool
        Whether the results include the states of the covariances, by a `Keeping`.
    writer : ResultWriter, optional
        As in `fold`.

    Raises
    ------
    PlanError
        If neither fits into the memory of a task; it states the smaller requirement.
    """

    def planned(rule: Any) -> FoldPlan | PlanError:
        try:
            return plan_for(rule, source, partition, run=run, writer=writer)
        except PlanError as error:
            return error

    if source.weights is not None:
        uncentered = CovariancePCA(k, center=False)
        return uncentered, plan_for(uncentered, source, partition, run=run), ""
    exact: Any = Keeping(exact_rule(k, partition)) if keep else exact_rule(k, partition)
    names = f"the covariances of {partition.n_parts:,} {what}"
    if isinstance(partition, SharedGrid):
        return exact, plan_for(exact, source, partition, run=run), ""
    n = source.shape[0]
    if k is not None and not keep and n <= _FEW_SAMPLES * partition.max_features:
        snapshots = SnapshotPCA(n, k)
        if isinstance(plan := planned(snapshots), FoldPlan):
            note = f"Gram matrices of {n:,} samples were used instead of {names}"
            if (reads := _reads(plan, source)) > 1:
                note += f", and {len(plan.groups)} groups of {what} in turn read the stack {_times(reads)}"
            return snapshots, plan, note
    plan = planned(exact)
    reads = _reads(plan, source)
    size = sum(exact.state_bytes(partition.n_features(i), source.dtype) for i in range(partition.n_parts))
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
