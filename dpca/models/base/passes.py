"""Passes over one source: successive folds, each with its number and its folder of checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dpca.engine.folds.fold import FoldReport, fold, plan_for
from dpca.engine.folds.plan import FoldPlan
from dpca.engine.folds.rounds import Scheme
from dpca.engine.folds.watching import Watch
from dpca.engine.sources.sampling import first_samples
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.base.watching import Watching
from dpca.partition.base import Partition
from dpca.partition.whole import Whole
from dpca.representation.lazy import default_client
from dpca.rules.base.state import State
from dpca.storage.run import Run

Settle = Callable[[Any, Any, int], None]
Make = Callable[[list[State]], Any]

# Bytes of the samples for the first estimate of the mean.
_FIRST_BYTES = 2**24


def run_of_fit(run: Run, memory_budget: int | None) -> Run:
    """Return a run with the current client, if it has none, and the memory budget of an estimator, if it has one."""
    return replace(run, client=run.client or default_client()).limited_to(memory_budget)


class Passes:
    """Fold rules over a source; each call is a pass over the data.

    Parameters
    ----------
    source : Source
    run : Run
        Each pass has its own folder in the folder of its checkpoints.
    watching : Watching, optional
        The callback and budgets of the fit.
    settle : callable (model, found, n_samples_seen), optional
        Sets the fitted attributes of an estimator from results. Without it, there are no callbacks.
    """

    def __init__(
        self,
        source: Source,
        run: Run,
        *,
        watching: Watching | None = None,
        settle: Settle | None = None,
    ) -> None:
        self.source = source
        run = run.here() if source.in_process else run
        self.budget = run.task_bytes()
        self.run = run.limited_to(self.budget)
        self.count = 0
        self.report: FoldReport  # report of the first pass
        self.settle = settle
        self._watching = watching

    def __call__(self, rule: Any, *, look: Make | None = None) -> dict[str, Array]:
        """Fold a rule over whole samples."""
        return self.over(Whole(tuple(self.source.shape[1:])), rule, look=look)[0]

    def over(
        self,
        partition: Partition,
        rule: Any,
        *,
        scheme: Scheme | None = None,
        stage: str = "",
        look: Make | None = None,
    ) -> list[dict[str, Array]]:
        """Fold a rule over each partition of the samples.

        Parameters
        ----------
        stage : str
            Name of the pass in progress and checkpoints.
        look : callable (states) -> found, optional
            Computes the results from the states so far, for callbacks.
        """
        self.count += 1
        stage = stage or f"pass {self.count}"
        results, report = fold(
            rule,
            self.source,
            partition,
            run=self.run.below(stage.replace(" ", "-")),
            scheme=scheme,
            stage=stage,
            watch=self._watch(look),
        )
        if self.count == 1:
            self.report = report
        return results

    def show(self, found: Any) -> None:
        """Call the callback with the results of a complete pass, before further passes."""
        if self._watching is not None and self.settle is not None:
            settle, n = self.settle, self.source.shape[0]
            self._watching.show(lambda model: settle(model, found, n), n, self.report)

    def _watch(self, look: Make | None) -> Watch | None:
        watching, settle = self._watching, self.settle
        # If there is a complete model already, a budget may end a pass without results so far.
        if watching is None or settle is None or (look is None and not watching.complete):
            return None
        return watching.fold(look or list, settle, self.source.shape[0])

    def plan(self, partition: Partition, rule: Any) -> FoldPlan:
        """Plan a pass without running it; raise `PlanError` if it does not fit into the budget."""
        return plan_for(rule, self.source, partition, run=self.run)

    def first_mean(self) -> Array:
        """Return the mean (d,), float64, of the first samples, as an approximate shift for a first pass."""
        first = first_samples(self.source, _FIRST_BYTES)
        mean: Array = first.reshape(len(first), -1).mean(axis=0, dtype=np.float64)
        return mean
