"""The rule for each part: few samples themselves, its covariance if that is affordable, else incremental SVD."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpca.engine.folds.callbacks import FoldCallback
from dpca.engine.folds.fold import plan_for
from dpca.engine.folds.fold_tasks import Results, ResultWriter
from dpca.engine.folds.plan import FoldPlan, Outline, PlanError
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.models.base.attribute_blocks import cuts
from dpca.models.base.callbacks import FitCallbacks, finish_all
from dpca.models.base.parameters import no_values
from dpca.models.base.passes import SetFitted
from dpca.models.linear.weighted import weighted_rows
from dpca.partition.base import Partition
from dpca.partition.shared import SharedGrid
from dpca.rules.base.keeping import Keeping
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.rules.covariance.pooled_covariance import PooledBlocks, PooledCovariancePCA
from dpca.rules.covariance.snapshots import SnapshotPCA
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.storage.disk import readable_size
from dpca.storage.remote.memory import usable_bytes
from dpca.storage.remote.tasks import one_blas_thread
from dpca.storage.run import Run

# Covariances with this multiple of the reads of incremental SVD cost more than incremental SVD.
_MOST_READS = 8
#: Up to this number of samples for each attribute of a part, Gram matrices of samples take less memory and time than
#: covariances.
FEW_SAMPLES = 0.5
# Attributes of the smallest blocks of shared cells: they take less memory than a task needs in any case.
_SMALLEST_BLOCK = 2**13
# Bytes of neighboring parts that are joined in one call.
_JOINED_BYTES = 2**22


@dataclass(frozen=True)
class PartFold:
    """A fold of parts: its rule, partition and plan, and a note on them for the report.

    ``finishing`` is the rule that gives the results of a part. With `PooledBlocks`, it gives that of all blocks.
    ``of_rows`` is whether the fold reads rows instead of samples with weights, see `WeightedParts`.
    """

    finishing: Any
    rule: Any
    partition: Partition
    plan: FoldPlan
    note: str = ""
    of_rows: bool = False

    @property
    def exact(self) -> Any:
        """The rule that gives the results, without the state that is kept."""
        return self.finishing.rule if isinstance(self.finishing, Keeping) else self.finishing

    def finished(self, states: list[State]) -> Results:
        """Return the results from the states of all parts, and overwrite the states."""
        return self.joined(finish_all(self.rule, states))

    def callback(self, callbacks: FitCallbacks | None, set_fitted: SetFitted, n_samples: int) -> FoldCallback | None:
        """Return the callback of the fold, which shows models of the samples so far; None without callbacks."""
        return None if callbacks is None else callbacks.of_fold(self.finished, set_fitted, n_samples)

    def joined(self, results: Results) -> Results:
        """Return the results of a fold, of all blocks together if cells were folded in blocks."""
        if not (isinstance(self.rule, PooledBlocks) and isinstance(self.partition, SharedGrid)):
            return results
        pooled, cells = self.exact, self.partition.cells
        state = pooled.init(math.prod(self.partition.sample_shape), np.float64)
        at = np.empty(sum(map(len, cells)), np.int64)
        for group in cells:
            at[group] = np.arange(len(group))
        for part, result in enumerate(results):
            pooled.add_block(state, result, [(g, at[members]) for g, members in self.partition.members(part)])
        with one_blas_thread():  # the number of BLAS threads would change rounding
            return [self.finishing.finish(state)]


def exact_rule(k: int | None, partition: Partition, *, center: bool = True) -> Rule:
    """Return the rule that accumulates covariances, of each part or shared by all cells of a shape."""
    if isinstance(partition, SharedGrid):
        return PooledCovariancePCA(k, partition.groups, center=center)
    return CovariancePCA(k, center=center)


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

    def found() -> Iterator[tuple[int, Array]]:
        for i in range(len(results)):
            # Results are freed one by one, so that all components are in memory once, not twice.
            result, results[i] = results[i], {}
            yield i, result["components"]

    whole = np.zeros((k, *partition.sample_shape), working_dtype(dtype))
    with one_blas_thread():  # the products of an overlap are too small for several threads
        mean = partition.join(means, np.empty((1, *partition.sample_shape)))
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


def choose_fold(
    k: int | None,
    source: Source,
    partition: Partition,
    what: str,
    *,
    run: Run,
    keep: bool = False,
    writer: ResultWriter | None = None,
    least_kept: int = 1,
) -> PartFold:
    """Return the fold that finds ``k`` components of each part.

    The note is empty if covariances are computed in one read of the stack.

    If samples are fewer than half of the attributes of a part, their Gram matrix is used. If the covariances of
    more samples exceed the memory of a task, they are computed group by group, and each group reads the stack again.
    Incremental SVD is selected if a single covariance is too large, or if the covariances require more than 8 times its
    reads. All components (None) require covariances, as do states to keep, and shared components, which are few.

    Gram matrices support samples with weights. Covariances, which are not replaced then, are those of rows.

    Parameters
    ----------
    what : str
        Name of the parts in the plural.
    run : Run
    keep : bool
        Whether the results include the states of the covariances, by a `Keeping`.
    writer : ResultWriter, optional
        As in `fold`. A fold of rows has none.
    least_kept : int
        Least number of components that the model keeps in memory.

    Raises
    ------
    PlanError
        If neither fits into the memory of a task; it states the smaller requirement.
    """
    chosen = _chosen_fold(k, source, partition, what, run=run, keep=keep, writer=writer, least_kept=least_kept)
    d = math.prod(partition.sample_shape)
    if chosen.of_rows:  # the weighted means of all parts
        chosen = replace(chosen, plan=replace(chosen.plan, held_bytes=chosen.plan.held_bytes + 8 * d))
    if (writer is not None and not chosen.of_rows) or isinstance(chosen.rule, PooledBlocks):
        return chosen
    # The joined components and means, beside the results of all parts.
    joined = d * (8 + least_kept * working_dtype(source.dtype).itemsize)
    return replace(chosen, plan=replace(chosen.plan, result_bytes=chosen.plan.result_bytes + joined))


def _chosen_fold(
    k: int | None,
    source: Source,
    partition: Partition,
    what: str,
    *,
    run: Run,
    keep: bool,
    writer: ResultWriter | None,
    least_kept: int,
) -> PartFold:
    """Return the fold of `choose_fold`, without what this process joins of its results."""

    def planned(rule: Any) -> FoldPlan | PlanError:
        try:
            return plan_for(rule, source, partition, run=run, writer=writer)
        except PlanError as error:
            return error

    exact: Any = exact_rule(k, partition, center=source.weights is None)
    exact = Keeping(exact) if keep else exact
    names = f"the covariances of {partition.n_parts:,} {what}"
    weights, n = source.weights, source.shape[0]
    of_rows = weights is not None
    rows = weighted_rows(source, no_values(tuple(source.shape[1:]), np.float64)) if of_rows else source
    if isinstance(partition, SharedGrid):
        return replace(_shared_fold(exact, rows, partition, run, least_kept), of_rows=of_rows)
    if k is not None and not keep and n <= FEW_SAMPLES * partition.max_features:
        snapshots = SnapshotPCA(n, k, sample_weight=weights)
        if isinstance(plan := planned(snapshots), FoldPlan):
            note = f"Gram matrices of {n:,} samples were used instead of {names}"
            if (reads := _reads(plan, source)) > 1:
                note += f", and {len(plan.groups)} groups of {what} in turn read the stack {_times(reads)}"
            return PartFold(snapshots, snapshots, partition, plan, note)
    if of_rows:
        return PartFold(exact, exact, partition, plan_for(exact, rows, partition, run=run), of_rows=True)
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
            note = f"{why}: incremental SVD was used instead and read the stack {_times(own)}"
            return PartFold(rule, rule, partition, streaming, note)
        if isinstance(plan, PlanError):
            plan = streaming
    if isinstance(plan, PlanError):
        raise plan
    if reads <= 1:
        return PartFold(exact, exact, partition, plan)
    groups = f"{len(plan.groups)} groups of {what} in turn"
    note = f"{names} take {readable_size(size)}: {groups} read the stack {_times(reads)}"
    return PartFold(exact, exact, partition, plan, note)


def _shared_fold(exact: Any, source: Source, whole: SharedGrid, run: Run, least_kept: int) -> PartFold:
    """Return the fold of shared cells: of whole samples, or of the largest blocks of cells that fit into a task.

    Raises
    ------
    PlanError
        If no blocks fit into the memory of a task, or the joined state does not fit into that of this process.
    """
    try:
        return PartFold(exact, exact, whole, plan_for(exact, source, whole, run=run))
    except PlanError as error:
        refusal = error
    if isinstance(source, Outline) and source.chunks[0] > 1:  # chunks of fewer samples can still be chosen
        raise refusal
    grid = whole.grid
    in_chunks = (max(1, chunk // cell) for chunk, cell in zip(source.chunks[1:], grid.cell_shape, strict=False))
    # Smaller blocks take little memory beside their covariance, of which this process receives one for each block.
    least = max(_SMALLEST_BLOCK, grid.max_features**2 // 8)
    for cells in cuts(grid.grid_shape, tuple(in_chunks)):
        if cells.max_features * grid.max_features < least:
            break
        blocks = SharedGrid(grid, cells.cell_shape)
        rule = PooledBlocks(tuple(map(blocks.groups_in, range(blocks.n_parts))))
        try:
            plan = plan_for(rule, source, blocks, run=run)
        except PlanError as error:
            refusal = error
            continue
        plan = replace(plan, result_bytes=_joined_bytes(exact, source, whole, plan, least_kept))
        if plan.caller_bytes > usable_bytes():
            raise PlanError(
                f"the covariances and components of samples of {whole.n_features(0):,} attributes need "
                f"{plan.caller_bytes / 1e6:,.0f} MB of memory, and this process may use {usable_bytes() / 1e6:,.0f} "
                f"MB: use fewer components, or fit a model to parts of the samples"
            )
        return PartFold(exact, rule, blocks, plan, f"{blocks.n_parts} blocks of cells were read, not whole samples")
    raise refusal


def _joined_bytes(exact: Any, source: Source, whole: SharedGrid, plan: FoldPlan, least_kept: int) -> int:
    """Return the bytes of the results of all blocks in this process, and of what is computed from them."""
    d, dtype = whole.n_features(0), whole.split_dtype(source.dtype)
    mean = exact.result_bytes(d, dtype)
    components = least_kept * d * working_dtype(dtype).itemsize
    finishing = exact.state_bytes(d, dtype) + exact.work_bytes(1, d, dtype) + mean
    # The allocator does not return the memory of many small results.
    return int(plan.result_bytes + max(finishing, 2 * mean + components))


def _reads(plan: FoldPlan | PlanError, source: Source) -> float:
    """Return the mean number of times that a plan decodes each chunk of the stack; infinity without a plan."""
    if isinstance(plan, PlanError):
        return math.inf
    stack = source.decoded_bytes(tuple((0, length) for length in source.shape[1:]))
    return sum(source.decoded_bytes(group.region) for group in plan.groups) / stack


def _times(reads: float) -> str:
    return "once" if reads <= 1 else f"{reads:.3g} times"
