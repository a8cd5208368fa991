"""Folds with a state that is spread over blocks of attributes, because no task can hold all of it.

One block for each parallel task holds the attributes of a slab of a sample, in the state as in all batches. The samples
are read in sequence, so that the result is that of a chain up to rounding error. A worker that is lost takes its block
with it: the fold ends with an error, and resumes from the last checkpoint that all blocks have.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.folds.block_holder import BlockHolder, StoreOfBlocks, joined
from dpca.engine.folds.callbacks import FoldCallback, FoldProgress, FoldReport
from dpca.engine.folds.fold_tasks import GroupTask
from dpca.engine.folds.identity import digest
from dpca.engine.folds.plan import CHECKPOINT_BYTES, FoldPlan, Group, PlanError, Planner
from dpca.engine.folds.rehearsal import Workers, of_independent, rehearsal
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.partition.cells import CellGrid
from dpca.partition.whole import Whole
from dpca.rules.base.rule import Wrapper
from dpca.storage.progress import Stage
from dpca.storage.remote.actors import Actors, LocalObjects, Objects, threads_by_worker
from dpca.storage.remote.clusters import cluster_errors
from dpca.storage.remote.memory import peak_resident_bytes, usable_bytes
from dpca.storage.run import Run

# A checkpoint is written after reading this number of times its bytes, so that it takes a small share of the time.
_READ_FOR_EACH = 4
# Blocks that are cut at borders of chunks may be larger than those of equal size by this factor.
_SIMILAR = 1.25
# The sums of a block, those of all, and one of them in transit.
_SUMS = 3


def plan_spread(
    rule: Any, source: Source, run: Run, *, callback: bool = False, stored: bool = False
) -> tuple[CellGrid, FoldPlan]:
    """Return the blocks of attributes of a spread fold, and its plan.

    Parameters
    ----------
    rule : Rule
        A `spreadable` rule.
    source : Source
    run : Run
        There is one block for each parallel task, and its memory is that of a task.
    callback : bool
        Whether copies of the state are finished for callbacks.
    stored : bool
        Whether tasks write the components and the mean, so that this process holds neither.

    Raises
    ------
    PlanError
        If a block does not fit into the memory of a task, nor the result into that of this process.
    """
    run = run.here() if source.in_process else run
    budget, n = run.task_bytes(), run.n_parallel()
    if run.client is not None and source.segment_bytes is not None:
        raise PlanError(
            f"{source.name} is a Dask array, and workers cannot read blocks of its attributes: ingest it first, or "
            "give a Zarr array"
        )
    needs = []
    if not (grids := list(_cuts(source, n))):
        raise PlanError(
            f"samples of shape {source.shape[1:]} cannot be spread over blocks of attributes in {n} task(s): use more "
            "workers or threads"
        )
    for grid in grids:
        block: Any = _BlockOf(rule, source, callback)
        planner = Planner(source, grid, block, budget, n, 1, None)
        for rows in planner.row_counts():
            needs.append(max(planner.leaf_bytes(size, rows) + size.results for size in planner.sizes()))
            if needs[-1] <= budget:
                plan = _plan(planner, rows, needs[-1], stored)
                if plan.caller_bytes > usable_bytes():
                    raise PlanError(
                        f"the components need {plan.caller_bytes / 1e6:,.0f} MB of memory, and this process may use "
                        f"{usable_bytes() / 1e6:,.0f} MB: use fewer components"
                    )
                return grid, plan
    need = min(needs) / 1e6
    raise PlanError(
        f"one of {grids[-1].n_parts} blocks of attributes needs {need:,.0f} MB but a task may use {budget / 1e6:,.0f} "
        f"MB: allow at least {math.ceil(need):,} MB in addition to the memory of the process itself, or use more "
        f"workers, or fewer components{', or no callback or budget, which needs a copy of the state' * callback}"
    )


def spread_fold(
    rule: Any,
    source: Source,
    *,
    run: Run = Run(),
    stage: str = "fit",
    callback: FoldCallback | None = None,
    store: StoreOfBlocks | None = None,
) -> tuple[dict[str, Any], FoldReport]:
    """Fold a rule over whole samples, with its state spread over blocks of attributes.

    Parameters
    ----------
    rule : Rule
        A `spreadable` rule.
    source : Source
    run : Run
        Its cluster holds the blocks; the default is threads of this process. A run with checkpoints resumes from them.
    stage : str
        Name of the progress bar, and of the objects on Dask's dashboard.
    callback : FoldCallback, optional
        Its progress has no states, but a list of one result, that of the samples so far.
    store : StoreOfBlocks, optional
        Makes the store that blocks write their components and their mean to. By default, this process collects them.

    Returns
    -------
    result : dict
        The result of ``rule.finish``. With a store, components and mean are its arrays, and ``mean_largest`` () is the
        largest absolute value of the mean.
    report : FoldReport

    Raises
    ------
    PlanError
        Before anything runs, see `plan_spread`.
    DataError
        At a value that is not finite.
    ClusterError
        If a worker was lost. A run with checkpoints resumes.
    """
    run = run.here() if source.in_process else run
    grid, plan = plan_spread(rule, source, run, callback=callback is not None, stored=store is not None)
    if (stand_in := rehearsal()) is not None:
        parts, _ = stand_in.fold(rule, source, grid, None, stage)
        stand_in.costs[-1] = replace(stand_in.costs[-1], planned=partial(_plan_on, rule, source, store is not None))
        return of_independent(parts, grid, whole=store is None), FoldReport(plan, 0.0, 0, _note(grid))
    if run.checkpoints is not None:
        run = run.below(digest(rule, source, grid))
    began = time.perf_counter()
    bar = run.progress(stage, plan.read_bytes, "B")
    with cluster_errors(run.client):
        fold = _SpreadFold(rule, source, run, grid, plan, stage, bar, store)
        try:
            found = fold.run_all(callback)
            report = FoldReport(plan, time.perf_counter() - began, fold.drop(), _note(grid))
        finally:
            fold.close()
            bar.close()
    return found, report


def _plan_on(rule: Any, source: Source, stored: bool, workers: Workers) -> FoldPlan:
    return plan_spread(rule, source, Run(threads=workers.n, memory=workers.budget), stored=stored)[1]


@dataclass(frozen=True)
class _BlockOf(Wrapper):
    """A rule that states the memory of one block. The numbers of rows are those of the whole state."""

    source: Source
    copied: bool
    """Whether a copy of the state is finished while the state remains."""

    def _share(self, size: int, n_features: int) -> int:
        return math.ceil(size * n_features / math.prod(self.source.shape[1:]))

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a block of a state, or of two."""
        whole = self.rule.state_bytes(math.prod(self.source.shape[1:]), dtype)
        return (1 + self.copied) * self._share(whole, n_features)

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a block of a result."""
        return self._share(self.rule.result_bytes(math.prod(self.source.shape[1:]), dtype), n_features)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays, and of the sums over the blocks."""
        d = math.prod(self.source.shape[1:])
        sums = self.rule.summed_bytes(n_rows, d)
        # A rule has no more rows than attributes, but here the attributes are those of all blocks.
        least = max(n_features, 2 * math.isqrt(sums // 8))
        return int(self.rule.work_bytes(n_rows, min(d, least), dtype)) + _SUMS * sums


def _plan(planner: Planner, rows: int, task_bytes: int, stored: bool) -> FoldPlan:
    """Return the plan of a fold with one block for each cell."""
    source, sizes, grid = planner.source, planner.sizes(), planner.partition
    d, box = math.prod(source.shape[1:]), max(map(planner.box_bytes, sizes))
    # Of a stored result, this process holds what has no attributes.
    result = planner.rule.result_bytes(1 if stored else d, planner.values)
    state = max(size.states for size in sizes)
    return FoldPlan(
        groups=tuple(Group((i,), grid.region(i)) for i in range(grid.n_parts)),
        segments=((0, source.shape[0]),),
        batch_rows=rows,
        task_bytes=task_bytes,
        read_bytes=sum(map(planner.box_bytes, sizes)) * source.shape[0],
        result_bytes=result + (0 if stored else max(size.results for size in sizes)),
        held_bytes=sum({id(array): array.nbytes for array in source.held()}.values()),
        checkpoint_rows=max(1, max(CHECKPOINT_BYTES, _READ_FOR_EACH * state) // box // rows) * rows,
    )


def _note(grid: CellGrid) -> str:
    return f"the state was spread over {grid.n_parts} blocks of attributes"


def _cuts(source: Source, n: int) -> Iterator[CellGrid]:
    """Yield ways to cut samples into at most ``n`` slabs: at borders of chunks if they are similar, then of equal size.

    Slabs of equal size decode some chunks twice, but no slab decodes more chunks than the largest of the others.
    """
    shape, chunks = tuple(source.shape[1:]), source.chunks[1:]
    in_chunks = [math.ceil(length / chunk) for length, chunk in zip(shape, chunks, strict=True)]
    least = min(math.ceil(length / n) / length for length in shape)
    for steps, counts, most in ((chunks, in_chunks, _SIMILAR * least), ((1,) * len(shape), shape, least)):
        # Along the axis with the smallest blocks, the first of them.
        sizes = [min(math.ceil(c / n) * s, length) for c, s, length in zip(counts, steps, shape, strict=True)]
        shares = [size / length for size, length in zip(sizes, shape, strict=True)]
        axis = int(np.argmin(shares))
        if shares[axis] < 1 and shares[axis] <= most:
            yield CellGrid(shape, (*shape[:axis], sizes[axis], *shape[axis + 1 :]))


@dataclass
class _SpreadFold:
    """The blocks of one fold, and the sums over them."""

    rule: Any
    source: Source
    run: Run
    grid: CellGrid
    plan: FoldPlan
    stage: str
    bar: Stage
    store: StoreOfBlocks | None

    def __post_init__(self) -> None:
        source, kept = self.source, self.run.checkpoints
        works = {}
        for i, group in enumerate(self.plan.groups):
            box = Whole(tuple(b - a for a, b in group.region))
            dtype, one = box.split_dtype(source.dtype), Group((0,), group.region)
            sizes = (self.plan.batch_rows, 1, self.plan.checkpoint_rows, source.name, dtype)
            rule = self.rule.of_region(source.shape[1:], group.region)
            works[i] = GroupTask(rule, box, one, *sizes, f"block-{i:06d}", self.stage, kept)
        make = partial(BlockHolder, source=source, n_features=math.prod(source.shape[1:]))
        self._members = [list(works)]
        self._holders: Objects
        if self.run.client is None:
            self._holders = LocalObjects([make(works)])
        else:
            found = threads_by_worker(self.run.client, len(works))
            members = {address: [i for i in works if found[i] == address] for address in found}
            self._members = list(members.values())
            makers = {at: partial(make, {i: works[i] for i in members[at]}) for at in members}
            self._holders = Actors(self.run.client, makers, f"{self.stage} block")
        self.at = self._turn = 0

    def run_all(self, callback: FoldCallback | None) -> dict[str, Any]:
        """Fold all samples, and return the result."""
        n, began = self.source.shape[0], time.perf_counter()
        self._resume()
        mark = self.at + self.plan.checkpoint_rows
        while self.at < n:
            due = n if self.run.checkpoints is None else max(mark, self.at + 1)
            self._command("fold", min(n, due, self._pause(callback)))
            if mark <= self.at < n:
                self._keep()
                mark = self.at + self.plan.checkpoint_rows
            if callback is not None and self.at < n:
                seconds = time.perf_counter() - began
                report = FoldReport(self.plan, seconds, peak_resident_bytes(), _note(self.grid))
                try:
                    callback(FoldProgress(self.at, self._so_far, lambda report=report: report))  # type: ignore[misc]
                except BaseException:
                    self._keep()
                    raise
        found = self._finish(copy=False)
        for turn in (0, 1):
            self._forget(turn)
        return found

    def drop(self) -> int:
        """Free the results, and return the peak memory of the processes of blocks."""
        return max(self._holders.call("drop"))

    def close(self) -> None:
        """Release the blocks."""
        self._holders.close()

    def _pause(self, callback: FoldCallback | None) -> int:
        """Return the sample at which the callback is due."""
        if callback is None:
            return 2**62
        stop = max(self.at + 1, callback.until(self.at))
        whole = 1 if callback.exact else max(self.source.chunks[0], self.source.buffered_rows)
        stop = math.ceil(stop / whole) * whole
        return stop if callback.most is None else min(stop, max(self.at + 1, callback.most))

    def _so_far(self) -> list[Any]:
        found = self._finish(copy=True)
        self._holders.call("drop")
        return [found]

    def _finish(self, *, copy: bool) -> dict[str, Any]:
        """Return the result: arrays without attributes from the first block, and the attributes of all blocks."""
        small, rows = self._command("finish", copy)[0]
        if self.store is not None:
            store, owner = self.store(self.grid, len(small["explained_variance"]), copy)
            store.create()
            largest = np.max(self._command("write", store))
            return {**small, **store.arrays(owner), "mean_largest": largest}
        return {**small, **{name: self._fetched(name, n_rows) for name, n_rows in rows.items()}}

    def _fetched(self, name: str, n_rows: int | None) -> Array:
        """Return an array (n_rows, n_features), or (n_features,), from all blocks.

        It comes row by row, so that little is in transit.
        """
        shape, many = self.grid.sample_shape, 1 if n_rows is None else n_rows
        whole: Array = np.empty(0)
        for holder, members in enumerate(self._members):
            for i, row in itertools.product(members, range(many)):
                part = self._holders.call_one(holder, "fetch", i, name, row)
                if not whole.size:
                    whole = np.empty((many, *shape), part.dtype)
                region = self.plan.groups[i].region
                box = tuple(slice(a, b) for a, b in region)
                whole[row][box] = part.reshape([b - a for a, b in region])
        whole = whole.reshape(many, math.prod(shape))
        return whole[0] if n_rows is None else whole

    def _resume(self) -> None:
        """Start from the last checkpoint that all blocks have, or from the first sample."""
        kept = self.run.checkpoints
        marks = {} if kept is None else {turn: kept.load(f"all-{turn}") for turn in (0, 1)}
        known = {turn: mark[1]["at"] for turn, mark in marks.items() if mark is not None}
        for turn in sorted(known, key=lambda turn: -known[turn]):
            if set(self._command("load", turn)) == {known[turn]}:
                self.at, self._turn = known[turn], 1 - turn
                self.bar.advance(self.at * self._row_bytes)
                return
        self._command("start")

    def _keep(self) -> None:
        """Write a checkpoint. The one before it remains, because a power cut may damage the newest."""
        kept = self.run.checkpoints
        if kept is None:
            return
        kept.remove(f"all-{self._turn}")
        self._command("keep", self._turn)
        kept.save(f"all-{self._turn}", {}, {"at": self.at})
        self._turn = 1 - self._turn

    def _forget(self, turn: int) -> None:
        kept = self.run.checkpoints
        if kept is not None:
            for name in (f"all-{turn}", *(f"block-{i:06d}-{turn}" for i in range(self.grid.n_parts))):
                kept.remove(name)

    @property
    def _row_bytes(self) -> int:
        return self.plan.read_bytes // self.source.shape[0]

    def _command(self, name: str, *arguments: Any) -> list[Any]:
        """Run a method of all blocks, with the sums that they ask for, and return its results in order."""
        messages = self._in_order(self._holders.call("command", name, *arguments))
        while True:
            if errors := [message.value for message in messages if message.kind == "error"]:
                raise errors[0]
            if name == "fold":
                at = min(message.at for message in messages)
                self.bar.advance((at - self.at) * self._row_bytes)
                self.at = at
            kinds = {message.kind for message in messages}
            if kinds == {"done"}:
                return [message.value for message in messages]
            if len(kinds) > 1:
                raise RuntimeError(f"the blocks of a state wait for different things: {sorted(kinds)}")
            messages = self._in_order(self._holders.call("answer", joined(messages)))

    def _in_order(self, messages: Sequence[Any]) -> list[Any]:
        """Return what all blocks say in the order of the blocks, from what their holders say."""
        found: dict[int, Any] = {}
        for members, of_holder in zip(self._members, messages, strict=True):
            found.update(zip(members, of_holder, strict=True))
        return [found[i] for i in sorted(found)]
