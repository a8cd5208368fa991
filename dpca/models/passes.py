"""Passes over one source, one fold after the other, counted and kept apart on disk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dpca.engine.checkpoint import Checkpoints
from dpca.engine.fold import FoldReport, fold, plan_for
from dpca.engine.memory import task_budget, thread_count
from dpca.engine.plan import FoldPlan
from dpca.engine.rounds import Scheme
from dpca.engine.sampling import first_samples
from dpca.engine.source import Source
from dpca.kernels.types import Array
from dpca.partition.base import Partition
from dpca.partition.whole import Whole
from dpca.storage.progress import Progress, no_progress

# Samples of the first look at a source.
_FIRST_BYTES = 2**24


class Passes:
    """Fold rules over a source; each call is a pass over the data.

    Parameters
    ----------
    source : Source
    client : distributed.Client or None
    memory_budget : int or None
        Bytes of a task; default as in `fold`.
    checkpoints : Checkpoints or None
        Each pass has a folder of its own in theirs.
    progress : Progress
    """

    def __init__(
        self,
        source: Source,
        *,
        client: Any | None,
        memory_budget: int | None,
        checkpoints: Checkpoints | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self.source = source
        self.client = None if source.in_process else client
        self.budget = task_budget(self.client, thread_count()) if memory_budget is None else memory_budget
        self.count = 0
        self.report: FoldReport  # of the first pass
        self._checkpoints = checkpoints
        self._progress = progress

    def __call__(self, rule: Any) -> dict[str, Array]:
        """Fold a rule over whole samples."""
        return self.over(Whole(tuple(self.source.shape[1:])), rule)[0]

    def over(
        self, partition: Partition, rule: Any, *, scheme: Scheme | None = None, stage: str = ""
    ) -> list[dict[str, Array]]:
        """Fold a rule over each partition of the samples; ``stage`` is what progress and checkpoints call the pass."""
        self.count += 1
        kept, stage = self._checkpoints, stage or f"pass {self.count}"
        results, report = fold(
            rule,
            self.source,
            partition,
            scheme=scheme,
            client=self.client,
            budget=self.budget,
            checkpoints=None if kept is None else replace(kept, folder=f"{kept.folder}/{stage.replace(' ', '-')}"),
            progress=self._progress,
            stage=stage,
        )
        if self.count == 1:
            self.report = report
        return results

    def plan(self, partition: Partition, rule: Any) -> FoldPlan:
        """Plan a pass without running it; a `PlanError` says that it does not fit."""
        return plan_for(rule, self.source, partition, client=self.client, budget=self.budget)

    def first_mean(self) -> Array:
        """Return the mean (d,), float64, of the first samples: near enough to shift by in a first pass."""
        first = first_samples(self.source, _FIRST_BYTES)
        mean: Array = first.reshape(len(first), -1).mean(axis=0, dtype=np.float64)
        return mean
