"""The fold: applies one rule to every part of a partition, as a Dask graph of segments."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dask
from dask.base import compute
from dask.delayed import delayed

from dpca.engine.folds.callbacks import FoldCallback, FoldProgress
from dpca.engine.folds.callbacks import FoldReport as FoldReport
from dpca.engine.folds.checkpoint import load_results
from dpca.engine.folds.fold_tasks import GroupResult, GroupTask, Results, ResultWriter, group_graph
from dpca.engine.folds.identity import digest
from dpca.engine.folds.linked_fold import LinkedFold
from dpca.engine.folds.plan import FoldPlan, PlanError, plan_fold
from dpca.engine.folds.rehearsal import rehearsal
from dpca.engine.folds.rounds import RoundScheme
from dpca.engine.sources.source import Source
from dpca.partition.base import Partition
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State
from dpca.storage.progress import Stage
from dpca.storage.remote.clusters import cluster_errors
from dpca.storage.remote.memory import peak_resident_bytes, task_budget, usable_bytes
from dpca.storage.remote.reports import listening
from dpca.storage.remote.sharing import share_storage_options
from dpca.storage.run import Run


def fold(
    rule: Rule,
    source: Source,
    partition: Partition,
    *,
    run: Run = Run(),
    scheme: RoundScheme | None = None,
    plan: FoldPlan | None = None,
    stage: str = "fit",
    writer: ResultWriter | None = None,
    callback: FoldCallback | None = None,
) -> tuple[Results, FoldReport]:
    """Fold a rule over each part of a partition of a stack.

    If the rule can merge states, segments of the samples are folded in parallel and merged as a tree. Otherwise each
    segment begins with the final state of the one before it.

    A fold in rounds, or one with a ``callback``, folds a few segments at a time, link by link, see
    `dpca.engine.folds.linked_fold`. At the end of each link the states are transferred to this process and kept. If a
    worker is lost, its work is repeated from there. The results do not depend on ``callback``.

    Parameters
    ----------
    rule : Rule
        The rule: averageable for `Averaging`, summable for `DataParallel`.
    source : Source
        The samples. Threads of this process fold a numpy array.
    partition : Partition
        The partition of the attributes.
    run : Run
        Its cluster runs the fold; the default is threads of this process. Its ``memory`` limits each task, and its
        progress counts the bytes read. Its checkpoints hold finished segments and groups: a fold does not repeat those
        of its own, and does not touch those of other rules, parameters, sources or plans.
    scheme : Averaging or DataParallel, optional
        The work of the streams in a round, for a fold in synchronous rounds. The result depends on it, not on the
        workers.
    plan : FoldPlan, optional
        The result of `plan_for` for the same arguments, if it is known.
    stage : str
        Name of the progress bar, and of the tasks on Dask's dashboard.
    writer : ResultWriter, optional
        Writes the results, if memory does not hold them all. With a callback, it must write in tasks.
    callback : FoldCallback, optional
        Is called in this process at intervals, before the fold has ended. It is not called if memory does not hold the
        states of all parts at once, or if checkpoints hold results of some of them.

    Returns
    -------
    results : list of dict
        The result of ``rule.finish`` for each part, in order; with a writer, what it returns for each.
    report : FoldReport

    Raises
    ------
    PlanError
        Before anything runs, if the memory of a task cannot hold one part, with the states of all streams of a
        round.
    DataError
        At a value that is not finite.
    """
    if (stand_in := rehearsal()) is not None:
        guessed, planned = stand_in.fold(rule, source, partition, scheme, stage, writer)
        return guessed, FoldReport(planned, 0.0, 0)
    folding = _Folding(rule, source, partition, run, scheme, plan, stage, writer).links(callback)
    try:
        while True:
            progress = next(folding)
            if callback is not None:
                callback(progress)
    except StopIteration as ended:
        found: tuple[Results, FoldReport] = ended.value
        return found
    finally:
        folding.close()


def iter_fold(
    rule: Rule,
    source: Source,
    partition: Partition,
    *,
    run: Run = Run(),
    scheme: RoundScheme | None = None,
    plan: FoldPlan | None = None,
    stage: str = "fit",
    callback: FoldCallback | None = None,
    resume_from: Sequence[State] | None = None,
) -> Generator[FoldProgress, None, tuple[Results, FoldReport]]:
    """Fold as `fold` does, link by link. Each link yields a `FoldProgress`; the last one returns the results.

    Nothing runs between two links. A closed, unfinished fold keeps its checkpoints.

    Parameters
    ----------
    resume_from : sequence of State, optional
        Initial states of a chain: those after the samples before the plan's only segment.
    """
    return _Folding(rule, source, partition, run, scheme, plan, stage, resume_from=resume_from).links(callback)


def plan_for(
    rule: Rule,
    source: Source,
    partition: Partition,
    *,
    run: Run = Run(),
    scheme: RoundScheme | None = None,
    writer: ResultWriter | None = None,
) -> FoldPlan:
    """Return the plan of `fold` for these arguments. Parameters and errors are those of `fold`.

    The attributes of a band are spread over the whole sample, so each of several tasks reads all samples. In one
    process, the threads of a single task fold them instead if that saves reading.
    """
    run = run.here() if source.in_process else run
    planned = partial(plan_fold, source, partition, rule, scheme=scheme)
    plan = planned(budget=run.task_bytes(), n_parallel=1 if scheme is not None else run.n_parallel())
    if run.client is None and scheme is None and run.n_threads > 1 and len(plan.groups) > 1:
        try:
            together = planned(budget=task_budget(None, 1) if run.memory is None else run.memory, threads=run.n_threads)
        except PlanError:
            together = plan
        plan = together if together.read_bytes < plan.read_bytes else plan
    if writer is not None:
        group = 0 if writer.in_tasks else plan.result_bytes // len(plan.groups)
        plan = replace(plan, result_bytes=writer.kept_bytes * partition.n_parts + group)
    if plan.caller_bytes > usable_bytes():
        held, fewer = "", "components"
        if plan.held_bytes:
            held, fewer = f", arrays of one entry a sample {plan.held_bytes / 1e6:,.0f} MB", "components or samples"
        results = plan.result_bytes + plan.object_bytes
        raise PlanError(
            f"the results of {partition.n_parts:,} parts need {results / 1e6:,.0f} MB of memory{held}, and "
            f"this process may use {usable_bytes() / 1e6:,.0f} MB: use fewer {fewer}"
        )
    return plan


@dataclass(frozen=True)
class _Folding:
    """The arguments of one fold."""

    rule: Rule
    source: Source
    partition: Partition
    run: Run
    scheme: RoundScheme | None
    plan: FoldPlan | None
    stage: str
    writer: ResultWriter | None = None
    resume_from: Sequence[State] | None = None

    def links(self, callback: FoldCallback | None) -> Generator[FoldProgress, None, tuple[Results, FoldReport]]:
        """Fold link by link, as `iter_fold`."""
        began = time.perf_counter()
        run = self.run.here() if self.source.in_process else self.run
        plan = self.plan or plan_for(
            self.rule, self.source, self.partition, run=run, scheme=self.scheme, writer=self.writer
        )
        if run.checkpoints is not None:
            # Each fold has a folder of its own. Another budget or cluster has other groups, another rule other arrays.
            within = [self.writer] if self.writer is not None and self.writer.in_tasks else []
            run = run.below(digest(self.rule, plan, self.source, self.partition, self.scheme, *within))

        def report(peak: int) -> FoldReport:
            return FoldReport(plan, time.perf_counter() - began, peak or peak_resident_bytes())

        results: Results = [{} for _ in range(self.partition.n_parts)]
        bar = run.progress(self.stage, plan.read_bytes, "B")
        try:
            with cluster_errors(run.client):
                outcomes = yield from replace(self, run=run).outcomes(plan, report, bar, callback)
        finally:
            bar.close()
        for group, (found, _) in zip(plan.groups, outcomes, strict=True):
            for index, result in zip(group.partitions, found, strict=True):
                results[index] = result
        return results, report(max(held for _, held in outcomes))

    def outcomes(
        self, plan: FoldPlan, report: Callable[[int], FoldReport], bar: Stage, callback: FoldCallback | None
    ) -> Generator[FoldProgress, None, list[GroupResult]]:
        """Return the results of each group, from checkpoints or computed, in parallel or link by link."""
        dtype, kept = self.partition.split_dtype(self.source.dtype), self.run.checkpoints
        common = (plan.batch_rows, plan.threads, plan.checkpoint_rows, self.source.name, dtype)
        row_bytes = [math.prod(b - a for a, b in group.region) * self.source.dtype.itemsize for group in plan.groups]
        in_tasks = self.writer if self.writer is not None and self.writer.in_tasks else None

        left, lock = [self.source.shape[0]] * len(plan.groups), threading.Lock()

        def reported(g: int, n: int) -> None:
            """Count samples of a group, from any thread."""
            with lock:
                n = min(n, left[g])
                left[g] -= n
                if n:
                    bar.advance(row_bytes[g] * n)

        def arrived(g: int, outcome: GroupResult) -> GroupResult:
            """Count the remaining samples of a finished group, and return what remains of its results."""
            reported(g, left[g])
            if self.writer is None or self.writer.in_tasks:
                return outcome
            return self.writer.write_all(plan.groups[g].partitions, outcome[0]), outcome[1]

        outcomes: dict[int, GroupResult] = {}
        missing: dict[int, GroupTask] = {}
        for g, group in enumerate(plan.groups):
            work = GroupTask(self.rule, self.partition, group, *common, f"group-{g:06d}", self.stage, kept, in_tasks)
            if kept is not None and (found := load_results(kept, work.name)):
                outcomes[g] = arrived(g, (found, 0))
            else:
                missing[g] = work
        compute_graph = partial(_compute_graph, self.run, plan.threads)
        linked = partial(
            LinkedFold, self.source, plan.segments, self.scheme, self.run, compute_graph, report, bar, row_bytes
        )
        if callback is not None and len(missing) == len(plan.groups) and linked(missing).fit_memory():
            outcomes = yield from linked(missing, self.resume_from).outcomes(callback)
        elif self.scheme is not None:
            for g, work in missing.items():
                outcomes |= yield from linked({g: work}).outcomes(None)
        else:
            number_of = {work.name: g for g, work in missing.items()}
            with listening(self.run.client, lambda what, n: reported(number_of[what.split()[0]], n)) as name:
                works = {g: replace(work, reports=name) for g, work in missing.items()}
                graph = {g: group_graph(work, self.source, plan.segments) for g, work in works.items()}
                outcomes |= compute_graph(graph, arrived)
        return [outcomes[g] for g in range(len(plan.groups))]


def _compute_graph(
    run: Run, threads: int, graph: dict[Any, Any], arrived: Callable[[Any, Any], Any] = lambda key, outcome: outcome
) -> dict[Any, Any]:
    """Compute the nodes of a graph, on the cluster or on threads of this process; each node uses ``threads`` of them.

    ``arrived`` receives each node and its outcome, in one of the threads, and returns the outcome to keep.
    """
    if run.client is None:
        reporting = [delayed(_arrived, pure=False)(node, arrived, g) for g, node in graph.items()]
        at_once = max(1, run.n_threads // threads)
        return dict(zip(graph, compute(*reporting, scheduler="threads", num_workers=at_once), strict=True))
    from distributed import as_completed

    share_storage_options(run.client)
    # The graph contains states on purpose; the option suppresses Dask's warning.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}):
        futures = run.client.compute(list(graph.values()))
    number_of = dict(zip(futures, graph, strict=True))
    found: dict[Any, Any] = {}
    try:
        for future in as_completed(futures, loop=run.client.loop):
            found[number_of[future]] = arrived(number_of[future], future.result())
            future.release()  # otherwise its worker would keep all its results until the end
    except BaseException:
        run.client.cancel(futures)
        raise
    return found


def _arrived(outcome: Any, arrived: Callable[[Any, Any], Any], g: Any) -> Any:
    return arrived(g, outcome)
