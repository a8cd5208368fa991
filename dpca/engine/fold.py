"""The fold: one rule over every partition of a stack, as a Dask graph whose nodes are segments."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from dask.base import compute
from dask.delayed import delayed
from numpy.typing import NDArray

from dpca.engine.boundary import guarded
from dpca.engine.checkpoint import Checkpoints
from dpca.engine.identity import digest
from dpca.engine.memory import parallel_tasks, peak_resident_bytes, task_budget, thread_count, usable_bytes
from dpca.engine.plan import FoldPlan, Group, Partition, PlanError, plan_fold
from dpca.engine.source import DaskSource, Source, batches, held_by, is_in_memory, numbers_of
from dpca.kernels.linalg import release_scratch
from dpca.rules.rule import Rule
from dpca.rules.state import State
from storage.clusters import cluster_errors
from storage.progress import Progress, no_progress
from storage.tasks import one_blas_thread, run_in_order

Array = NDArray[Any]
Results = list[dict[str, Array]]
Outcome = tuple[Results, int]
"""Results of a group, and the most memory that the process that made them ever held."""


@dataclass(frozen=True)
class FoldReport:
    """What a fold cost."""

    plan: FoldPlan
    seconds: float
    peak_memory: int
    """Bytes held at most by any one process that worked on it, interpreter and all."""
    note: str = ""
    """What its caller says about it: a choice that was made for lack of memory, for example."""


class Partitioned(Partition, Protocol):
    """A partition whose values can be copied out of a batch."""

    def split(self, block: Array, parts: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Copy partitions of a block that begins at ``origin`` into ``buffer``: views (n_samples, n_features)."""


def fold(
    rule: Rule,
    source: Source,
    partition: Partitioned,
    *,
    client: Any | None = None,
    budget: int | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress = no_progress,
    stage: str = "fit",
    note: str = "",
) -> tuple[Results, FoldReport]:
    """Fold a rule over each partition of a stack.

    Segments of the samples are folded side by side and merged as a tree where the rule can merge; otherwise each
    begins with the state that the one before it ended with.

    Parameters
    ----------
    rule : Rule
        What to compute.
    source : Source
        Where the samples are. A numpy array is folded by threads of this process, where its memory is.
    partition : Partitioned
        How the attributes are split.
    client : distributed.Client, optional
        The cluster to run on; without one, threads of this process.
    budget : int, optional
        Bytes a task may take; default from the memory of the tightest worker or of this machine.
    checkpoints : Checkpoints, optional
        Where finished segments and groups are kept. A fold that finds its own there does not repeat them; those of
        other rules, parameters, sources or plans are left alone.
    progress : Progress
        Told the bytes read.
    stage : str
        What the progress is called.
    note : str
        For the report.

    Returns
    -------
    results : list of dict
        What ``rule.finish`` returned for each partition, in order.
    report : FoldReport

    Raises
    ------
    PlanError
        Before anything runs, when the budget cannot hold one partition.
    DataError
        At a value that is not finite.
    """
    began = time.perf_counter()
    if is_in_memory(source):
        client = None
    threads = thread_count()
    plan = plan_for(rule, source, partition, client=client, budget=budget)
    if plan.result_bytes > usable_bytes():
        raise PlanError(
            f"the results of {partition.n_partitions:,} partitions take {plan.result_bytes / 1e6:,.0f} MB but this "
            f"process may hold {usable_bytes() / 1e6:,.0f} MB: ask for fewer components"
        )
    kept: dict[int, Results] = {}
    if checkpoints is not None:
        # With another budget or cluster the groups hold other partitions, with another rule the states other arrays:
        # each fold has a folder of its own.
        checkpoints = Checkpoints(f"{checkpoints.folder}/{digest(plan, rule, source, partition)}")
        kept = {g: found for g in range(len(plan.groups)) if (found := checkpoints.load_results(group_name(g)))}
    missing = [g for g in range(len(plan.groups)) if g not in kept]
    graph = {g: _group_graph(rule, source, partition, plan, g, checkpoints) for g in missing}
    with cluster_errors(client):
        outcomes = _compute(graph, plan, source, client, threads, progress, stage)
    results: Results = [{} for _ in range(partition.n_partitions)]
    for g, group in enumerate(plan.groups):
        for index, result in zip(group.partitions, kept[g] if g in kept else outcomes[g][0], strict=True):
            results[index] = result
    peak = max((task_peak for _, task_peak in outcomes.values()), default=peak_resident_bytes())
    return results, FoldReport(plan, time.perf_counter() - began, peak, note)


def plan_for(
    rule: Rule, source: Source, partition: Partitioned, *, client: Any | None = None, budget: int | None = None
) -> FoldPlan:
    """Return what `fold` would run with these arguments; its parameters and errors.

    Partitions that lie all over a sample, as bands do, are read once by each of several tasks. In one process they are
    left to the threads of a single task instead, where that saves reading.
    """
    if is_in_memory(source):
        client = None
    threads = thread_count()
    plan = partial(
        plan_fold,
        source.shape,
        source.dtype,
        source.chunks,
        partition,
        rule,
        held=held_by(source),
    )
    side_by_side = plan(
        budget=task_budget(client, threads) if budget is None else budget, n_parallel=parallel_tasks(client, threads)
    )
    if client is not None or threads == 1 or len(side_by_side.groups) == 1:
        return side_by_side
    try:
        together = plan(budget=task_budget(None, 1) if budget is None else budget, threads=threads)
    except PlanError:
        return side_by_side
    return together if together.read_bytes < side_by_side.read_bytes else side_by_side


def _group_graph(
    rule: Rule, source: Source, partition: Partitioned, plan: FoldPlan, g: int, checkpoints: Checkpoints | None
) -> Any:
    """Delayed result of one group: its segments, merged in pairs of neighbors, then finished."""
    group, name = plan.groups[g], group_name(g)
    pieces = [
        source.piece(samples, group.region) if isinstance(source, DaskSource) else source for samples in plan.segments
    ]
    if len(plan.segments) == 1:
        fold_all = delayed(fold_group, pure=False)
        return fold_all(
            rule, pieces[0], partition, group, plan.segments[0], plan.batch_rows, checkpoints, name, plan.threads
        )
    leaf, merge = delayed(fold_segment, pure=False), delayed(merge_states, pure=False)
    states: list[Any] = []
    for s, (piece, samples) in enumerate(zip(pieces, plan.segments, strict=True)):
        before = None if rule.mergeable or not states else states.pop()
        place = segment_name(name, s)
        states.append(
            leaf(rule, piece, partition, group, samples, plan.batch_rows, checkpoints, place, plan.threads, before)
        )
    while len(states) > 1:
        pairs = [merge(rule, source.name, *states[i : i + 2]) for i in range(0, len(states) - 1, 2)]
        states = pairs + states[2 * len(pairs) :]
    finish = delayed(finish_group, pure=False)
    return finish(rule, source.name, states[0], checkpoints, name, len(plan.segments), plan.threads)


def _compute(
    graph: Mapping[int, Any],
    plan: FoldPlan,
    source: Source,
    client: Any | None,
    threads: int,
    progress: Progress,
    stage: str,
) -> dict[int, Outcome]:
    """Run what is missing; groups by their number."""
    weights = [
        int(np.prod([b - a for a, b in g.region])) * source.dtype.itemsize * source.shape[0] for g in plan.groups
    ]
    bar = progress(stage, sum(weights), "B")
    try:
        bar.advance(sum(weight for g, weight in enumerate(weights) if g not in graph))
        if client is None:
            told = [delayed(_advance, pure=False)(node, bar, weights[g]) for g, node in graph.items()]
            at_once = max(1, threads // plan.threads)
            return dict(zip(graph, compute(*told, scheduler="threads", num_workers=at_once), strict=True))
        from distributed import as_completed

        futures = client.compute(list(graph.values()))
        group_of = dict(zip(futures, graph, strict=True))
        outcomes: dict[int, Outcome] = {}
        try:
            for future in as_completed(futures):
                g = group_of[future]
                outcomes[g] = future.result()
                future.release()  # or its worker would hold all of its results until the end
                bar.advance(weights[g])
            return outcomes
        except BaseException:
            client.cancel(futures)
            raise
    finally:
        bar.close()


def fold_segment(
    rule: Rule,
    source: Source,
    partition: Partitioned,
    group: Group,
    samples: tuple[int, int],
    rows: int,
    checkpoints: Checkpoints | None,
    name: str,
    threads: int = 1,
    before: list[State] | None = None,
) -> list[State]:
    """Fold the rule over each partition of a group, for one run of samples: the body of a task.

    ``before`` is what the samples before these left, for a rule that cannot merge. Of several threads each updates the
    states of some partitions.
    """
    if checkpoints is not None and (kept := checkpoints.load_states(name)):
        return kept
    sizes = [partition.n_features(i) for i in group.partitions]
    dtype = partition.split_dtype(source.dtype)
    init = guarded(rule.init, source.name)
    states = [init(d, dtype) for d in sizes] if before is None else [state.copy() for state in before]
    origin = tuple(start for start, _ in group.region)
    buffer = np.empty(min(rows, samples[1] - samples[0]) * sum(sizes), dtype)
    with one_blas_thread():
        for first, block in batches(source, samples, group.region, rows):
            here = numbers_of(source, first, first + len(block))
            parts = guarded(partition.split, source.name, here)(block, group.partitions, origin, buffer)
            update = guarded(rule.update, source.name, here)
            states = list(run_in_order(update, zip(states, parts, strict=True), threads=threads))
    release_scratch()
    if checkpoints is not None:
        checkpoints.save_states(name, states)
    return states


def fold_group(
    rule: Rule,
    source: Source,
    partition: Partitioned,
    group: Group,
    samples: tuple[int, int],
    rows: int,
    checkpoints: Checkpoints | None,
    name: str,
    threads: int = 1,
) -> Outcome:
    """Fold and finish a group of a single segment where it is: its states never travel."""
    states = fold_segment(rule, source, partition, group, samples, rows, None, name, threads)
    return finish_states(rule, source.name, states, checkpoints, name, threads)


def merge_states(rule: Rule, called: str, a: list[State], b: list[State]) -> list[State]:
    """Merge the states of two neighboring segments of a source."""
    merge = guarded(rule.merge, called)
    with one_blas_thread():  # or the bytes would depend on how many threads BLAS has left
        return [merge(x.copy(), y) for x, y in zip(a, b, strict=True)]


def finish_group(
    rule: Rule,
    called: str,
    states: list[State],
    checkpoints: Checkpoints | None,
    name: str,
    n_segments: int,
    threads: int = 1,
) -> Outcome:
    """Finish a merged group; once its result is on disk, its segments are not needed any more."""
    outcome = finish_states(rule, called, list(states), checkpoints, name, threads, copy=True)
    if checkpoints is not None:
        for s in range(n_segments):
            checkpoints.remove(segment_name(name, s))
    return outcome


def group_name(g: int) -> str:
    """Name of a group's checkpoint."""
    return f"group-{g:06d}"


def segment_name(group: str, s: int) -> str:
    """Name of a segment's checkpoint."""
    return f"{group}-segment-{s:06d}"


def finish_states(
    rule: Rule,
    called: str,
    states: list[State],
    checkpoints: Checkpoints | None,
    name: str,
    threads: int = 1,
    *,
    copy: bool = False,
) -> Outcome:
    """Finish states, one after the other in each thread, and keep the results.

    Without ``copy`` the states are used up: each is free before the next one is finished. One that Dask gave us may
    serve it again, for a retry: finish a copy of it.
    """
    states.reverse()
    taken = (states.pop() for _ in range(len(states)))
    with one_blas_thread():
        results = list(
            run_in_order(
                guarded(rule.finish, called),
                ((state.copy() if copy else state,) for state in taken),
                threads=threads,
                window=threads,
            )
        )
    release_scratch()
    if checkpoints is not None:
        checkpoints.save_results(name, results)
    return results, peak_resident_bytes()


def _advance(outcome: Outcome, bar: Any, weight: int) -> Outcome:
    bar.advance(weight)
    return outcome
