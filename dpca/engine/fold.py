"""The fold: one rule over every partition of a stack, as a Dask graph whose nodes are segments."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dask
from dask.base import compute
from dask.delayed import delayed

from dpca.engine.checkpoint import Checkpoints
from dpca.engine.fold_tasks import Outcome, Results, Work, group_graph
from dpca.engine.identity import digest
from dpca.engine.memory import parallel_tasks, peak_resident_bytes, task_budget, thread_count, usable_bytes
from dpca.engine.plan import FoldPlan, PlanError, plan_fold
from dpca.engine.rehearsal import rehearsal
from dpca.engine.rounds import Scheme
from dpca.engine.source import Source
from dpca.engine.strands import Strands
from dpca.engine.watching import FoldReport as FoldReport
from dpca.engine.watching import Look, Watch
from dpca.partition.base import Partition
from dpca.rules.rule import Rule
from dpca.rules.state import State
from dpca.storage.clusters import cluster_errors
from dpca.storage.progress import Progress, Stage, no_progress
from dpca.storage.sharing import share_storage_options


def fold(
    rule: Rule,
    source: Source,
    partition: Partition,
    *,
    scheme: Scheme | None = None,
    plan: FoldPlan | None = None,
    client: Any | None = None,
    budget: int | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress = no_progress,
    stage: str = "fit",
    note: str = "",
    watch: Watch | None = None,
) -> tuple[Results, FoldReport]:
    """Fold a rule over each partition of a stack.

    Segments of the samples are folded side by side and merged as a tree where the rule can merge; otherwise each
    begins with the state that the one before it ended with.

    A fold in rounds, or one that is watched, takes its segments a few at a time, link by link, see
    `dpca.engine.strands`. At the end of each link the states come to this process, which keeps them: what a lost worker
    takes with it is redone from there. One that is watched comes to the same results as one that is not.

    Parameters
    ----------
    rule : Rule
        What to compute: averageable for `Averaging`, summable for `DataParallel`.
    source : Source
        Where the samples are. A numpy array is folded by threads of this process, where its memory is.
    partition : Partition
        How the attributes are split.
    scheme : Averaging or DataParallel, optional
        What the streams of a round do, for a fold in synchronous rounds. The result depends on it, not on the workers.
    plan : FoldPlan, optional
        What `plan_for` returned for the same arguments, where it was asked before.
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
        What the progress is called, and its tasks on Dask's dashboard.
    note : str
        For the report.
    watch : Watch, optional
        Is shown the fold in this process, now and then, before it has ended. Not where memory does not hold the states
        of all partitions at once, nor where checkpoints hold results of some of them.

    Returns
    -------
    results : list of dict
        What ``rule.finish`` returned for each partition, in order.
    report : FoldReport

    Raises
    ------
    PlanError
        Before anything runs, when the budget cannot hold one partition, and what the streams of one round leave.
    DataError
        At a value that is not finite.
    """
    if (stand_in := rehearsal()) is not None:
        guessed, planned = stand_in.fold(rule, source, partition, scheme, stage)
        return guessed, FoldReport(planned, 0.0, 0, note)
    folding = iter_fold(
        rule,
        source,
        partition,
        scheme=scheme,
        plan=plan,
        client=client,
        budget=budget,
        checkpoints=checkpoints,
        progress=progress,
        stage=stage,
        note=note,
        watch=watch,
    )
    try:
        while True:
            look = next(folding)
            if watch is not None:
                watch.look(look)
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
    scheme: Scheme | None = None,
    plan: FoldPlan | None = None,
    client: Any | None = None,
    budget: int | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress = no_progress,
    stage: str = "fit",
    note: str = "",
    watch: Watch | None = None,
    begun: Sequence[State] | None = None,
) -> Generator[Look, None, tuple[Results, FoldReport]]:
    """Fold as `fold` does, link by link: each link ends with a `Look`, but the last, which ends with the results.

    Nothing runs between two links. A fold that is not gone on with keeps its checkpoints.

    Parameters
    ----------
    begun : sequence of State, optional
        What a chain begins with: the states after the samples before the first one of the plan's only segment.
    """
    began = time.perf_counter()
    client = None if source.in_process else client
    plan = plan or plan_for(rule, source, partition, scheme=scheme, client=client, budget=budget)
    if checkpoints is not None:
        # With another budget or cluster the groups hold other partitions, with another rule the states other arrays:
        # each fold has a folder of its own.
        settings = digest(rule, plan, source, partition, scheme)
        checkpoints = replace(checkpoints, folder=f"{checkpoints.folder}/{settings}")

    def report(peak: int) -> FoldReport:
        return FoldReport(plan, time.perf_counter() - began, peak or peak_resident_bytes(), note)

    run = _Run(rule, source, partition, scheme, plan, client, checkpoints, stage, report, begun)
    results: Results = [{} for _ in range(partition.n_partitions)]
    bar = progress(stage, plan.read_bytes, "B")
    try:
        with cluster_errors(client):
            outcomes = yield from run.outcomes(bar, watch)
    finally:
        bar.close()
    for group, (found, _) in zip(plan.groups, outcomes, strict=True):
        for index, result in zip(group.partitions, found, strict=True):
            results[index] = result
    return results, report(max(held for _, held in outcomes))


def plan_for(
    rule: Rule,
    source: Source,
    partition: Partition,
    *,
    scheme: Scheme | None = None,
    client: Any | None = None,
    budget: int | None = None,
) -> FoldPlan:
    """Return what `fold` would run with these arguments; its parameters and errors.

    Partitions that lie all over a sample, as bands do, are read once by each of several tasks. In one process they are
    left to the threads of a single task instead, where that saves reading.
    """
    client = None if source.in_process else client
    n_threads = thread_count()
    planned = partial(plan_fold, source, partition, rule, scheme=scheme)
    limit = task_budget(client, n_threads) if budget is None else budget
    plan = planned(budget=limit, n_parallel=1 if scheme is not None else parallel_tasks(client, n_threads))
    if client is None and scheme is None and n_threads > 1 and len(plan.groups) > 1:
        try:
            together = planned(budget=task_budget(None, 1) if budget is None else budget, threads=n_threads)
        except PlanError:
            together = plan
        plan = together if together.read_bytes < plan.read_bytes else plan
    if plan.result_bytes > usable_bytes():
        raise PlanError(
            f"the results of {partition.n_partitions:,} partitions take {plan.result_bytes / 1e6:,.0f} MB but this "
            f"process may hold {usable_bytes() / 1e6:,.0f} MB: ask for fewer components"
        )
    return plan


@dataclass(frozen=True)
class _Run:
    """One fold, and where it runs."""

    rule: Rule
    source: Source
    partition: Partition
    scheme: Scheme | None
    plan: FoldPlan
    client: Any | None
    checkpoints: Checkpoints | None
    stage: str
    report: Callable[[int], FoldReport]
    begun: Sequence[State] | None = None

    def outcomes(self, bar: Stage, watch: Watch | None) -> Generator[Look, None, list[Outcome]]:
        """Return the results of each group: those kept, and the others, computed side by side or link by link."""
        plan, dtype = self.plan, self.partition.split_dtype(self.source.dtype)
        common = (plan.batch_rows, plan.threads, plan.checkpoint_rows, self.source.name, dtype)
        row_bytes = [math.prod(b - a for a, b in group.region) * self.source.dtype.itemsize for group in plan.groups]
        outcomes: dict[int, Outcome] = {}
        missing: dict[int, Work] = {}
        for g, group in enumerate(plan.groups):
            work = Work(self.rule, self.partition, group, *common, f"group-{g:06d}", self.stage, self.checkpoints)
            if self.checkpoints is not None and (found := self.checkpoints.load_results(work.name)):
                outcomes[g] = found, 0
                bar.advance(row_bytes[g] * self.source.shape[0])
            else:
                missing[g] = work
        given = (self.source, plan.segments, self.scheme, self.client, self.computed, self.report, bar, row_bytes)
        strands = partial(Strands, *given)
        if watch is not None and len(missing) == len(plan.groups) and strands(missing).fit_memory():
            outcomes = yield from strands(missing, self.begun).outcomes(watch)
        elif self.scheme is not None:
            for g, work in missing.items():
                outcomes |= yield from strands({g: work}).outcomes(None)
        else:
            graph = {g: group_graph(work, self.source, plan.segments) for g, work in missing.items()}
            outcomes |= self.computed(graph, lambda g: bar.advance(row_bytes[g] * self.source.shape[0]))
        return [outcomes[g] for g in range(len(plan.groups))]

    def computed(self, graph: dict[Any, Any], done: Callable[[Any], None]) -> dict[Any, Any]:
        """Compute what nodes of a graph stand for, on the cluster or on threads; ``done`` is told of each."""
        if self.client is None:
            told = [delayed(_told, pure=False)(node, done, g) for g, node in graph.items()]
            at_once = max(1, thread_count() // self.plan.threads)
            return dict(zip(graph, compute(*told, scheduler="threads", num_workers=at_once), strict=True))
        from distributed import as_completed

        share_storage_options(self.client)
        # Dask would warn of a graph that holds states, as it is meant to here.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}):
            futures = self.client.compute(list(graph.values()))
        number_of = dict(zip(futures, graph, strict=True))
        found: dict[Any, Any] = {}
        try:
            for future in as_completed(futures):
                found[number_of[future]] = future.result()
                future.release()  # or its worker would hold all of its results until the end
                done(number_of[future])
        except BaseException:
            self.client.cancel(futures)
            raise
        return found


def _told(outcome: Any, done: Callable[[Any], None], g: Any) -> Any:
    done(g)
    return outcome
