"""Passes over one source: successive folds, each with its number and its folder of checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dpca.engine.folds.block_holder import StoreOfBlocks
from dpca.engine.folds.callbacks import FoldCallback
from dpca.engine.folds.fold import FoldReport, fold, plan_for
from dpca.engine.folds.fold_tasks import ResultWriter
from dpca.engine.folds.plan import FoldPlan
from dpca.engine.folds.rounds import RoundScheme
from dpca.engine.folds.spread import spread_fold
from dpca.engine.sources.sampling import first_samples
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.base.callbacks import FitCallbacks
from dpca.partition.base import Partition
from dpca.partition.whole import Whole
from dpca.representation.lazy import default_client
from dpca.rules.base.state import State
from dpca.storage.run import Run

SetFitted = Callable[[Any, Any, int], None]
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
    callbacks : FitCallbacks, optional
        The callback and budgets of the fit.
    set_fitted : callable (model, found, n_samples_seen), optional
        Sets the fitted attributes of an estimator from results. Without it, there are no callbacks.
    """

    def __init__(
        self,
        source: Source,
        run: Run,
        *,
        callbacks: FitCallbacks | None = None,
        set_fitted: SetFitted | None = None,
    ) -> None:
        self.source = source
        run = run.here() if source.in_process else run
        self.budget = run.task_bytes()
        self.run = run.limited_to(self.budget)
        self.count = 0
        self.report: FoldReport  # report of the first pass
        self.set_fitted = set_fitted
        self._callbacks = callbacks

    def __call__(self, rule: Any, *, result_so_far: Make | None = None) -> dict[str, Array]:
        """Fold a rule over whole samples."""
        return self.over(Whole(tuple(self.source.shape[1:])), rule, result_so_far=result_so_far)[0]

    def over(
        self,
        partition: Partition,
        rule: Any,
        *,
        scheme: RoundScheme | None = None,
        stage: str = "",
        writer: ResultWriter | None = None,
        result_so_far: Make | None = None,
        source: Source | None = None,
    ) -> list[dict[str, Array]]:
        """Fold a rule over each part of the samples.

        Parameters
        ----------
        stage : str
            Name of the pass in progress and checkpoints.
        writer : ResultWriter, optional
            As in `fold`.
        result_so_far : callable (states) -> found, optional
            Computes the results from the states so far, for callbacks.
        source : Source, optional
            The samples in another arrangement.
        """
        self.count += 1
        stage = stage or f"pass {self.count}"
        results, report = fold(
            rule,
            self.source if source is None else source,
            partition,
            run=self.run.below(stage.replace(" ", "-")),
            scheme=scheme,
            stage=stage,
            writer=writer,
            callback=self._callback(result_so_far),
        )
        if self.count == 1:
            self.report = report
        return results

    def spread(
        self, rule: Any, *, stage: str, result_so_far: Make | None = None, store: StoreOfBlocks | None = None
    ) -> dict[str, Any]:
        """Fold a rule over whole samples, with its state spread over blocks of attributes; see `over`.

        ``result_so_far`` receives a list of one result. Blocks write their components to the ``store``, if given.
        """
        self.count += 1
        run, callback = self.run.below(f"{stage.replace(' ', '-')}-spread"), self._callback(result_so_far)
        result, report = spread_fold(rule, self.source, run=run, stage=stage, callback=callback, store=store)
        if self.count == 1:
            self.report = report
        return result

    def show(self, found: Any) -> None:
        """Call the callback with the results of a complete pass, before further passes."""
        if self._callbacks is not None and self.set_fitted is not None:
            set_fitted, n = self.set_fitted, self.source.shape[0]
            self._callbacks.show(lambda model: set_fitted(model, found, n), n, self.report)

    def _callback(self, result_so_far: Make | None) -> FoldCallback | None:
        callbacks, set_fitted = self._callbacks, self.set_fitted
        # If there is a complete model already, a budget may end a pass without results so far.
        if callbacks is None or set_fitted is None or (result_so_far is None and not callbacks.complete):
            return None
        return callbacks.of_fold(result_so_far or list, set_fitted, self.source.shape[0])

    def plan(
        self, partition: Partition, rule: Any, writer: ResultWriter | None = None, source: Source | None = None
    ) -> FoldPlan:
        """Plan a pass without running it; raise `PlanError` if it does not fit into the budget."""
        return plan_for(rule, self.source if source is None else source, partition, run=self.run, writer=writer)

    def first_mean(self) -> Array:
        """Return the mean (d,), float64, of the first samples, as an approximate shift for a first pass."""
        first = first_samples(self.source, _FIRST_BYTES)
        mean: Array = first.reshape(len(first), -1).mean(axis=0, dtype=np.float64)
        return mean
