"""Base of the estimators of parts, such as cells, that support missing values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from dpca.engine.sources.source import Source
from dpca.models.base.callbacks import FitCallbacks
from dpca.models.base.parameters import require_seed
from dpca.models.base.passes import Passes
from dpca.models.base.samples import allows_gaps, fitted_source
from dpca.models.cells.partition_rule import joined_results
from dpca.models.cells.partitioned import PartitionedPCA
from dpca.models.cells.rank_choice import RankChoice
from dpca.models.gaps.gap_fit import (
    GAP_SOLVER,
    GapModels,
    check_gap_parameters,
    check_gap_results,
    fit_complete,
    fit_gaps,
    rank_with_gaps,
    require_counts,
)
from dpca.models.gaps.with_gaps import WithGaps
from dpca.parameters.cells import CHOICES
from dpca.partition.base import Partition
from dpca.representation.base import Representation
from dpca.representation.linear import LinearRepresentation
from dpca.rules.gaps.expectation import GapEM
from dpca.storage.run import Run


class PartsWithGaps(WithGaps, PartitionedPCA):
    """Base of the estimators of parts, such as cells, that support missing values. Each part has its own model."""

    #: The only values of some parameters that such a fit supports, besides those for the number of components.
    required_with_gaps: ClassVar[dict[str, Any]] = {"keep_state": False, "validation_fraction": None}

    def _fit(self, X: Any, run: Run, callbacks: FitCallbacks | None = None) -> None:
        if not allows_gaps(self) or not self._fit_with_gaps(fitted_source(self, X)[1], run, callbacks):
            super()._fit(X, run, callbacks)

    def _fit_with_gaps(self, source: Source, run: Run, callbacks: FitCallbacks | None) -> bool:
        """Fit samples that may have missing values; return False if they have none and are not fitted."""
        require_counts(source)
        check_gap_parameters(self, self._required_with_gaps())
        if source.complete:
            return False
        # A callback sees models of one fit only.
        complete = partial(self._fit, run=run.below("complete"))
        if callbacks is None and source.with_gaps and fit_complete(complete, source, self.missing_value):
            return True
        passes, partition = Passes(source, run, callbacks=callbacks), self._partition(source, source.axes, run)
        k = self._rank_with_gaps(partition, source)
        if not source.with_gaps:
            return False
        if run.checkpoints is not None:
            require_seed(self.random_state)

        def set_fitted(model: Any, found: GapModels, n: int) -> None:
            results = found.results(k)
            check_gap_results(results, k, source.name)
            model._set_partitions(partition, joined_results(partition, source.dtype, k, results), n)
            model._set_target({})
            model.held_out_rmse_ = found.held_out_rmse

        passes.set_fitted = set_fitted
        found = fit_gaps(passes, partition, k, self.missing_value, self._seed(), passes.show)
        if found is None:
            return False
        set_fitted(self, found, source.shape[0])
        self.fit_report_ = replace(passes.report, note=f"values are missing: {passes.count} passes, {GAP_SOLVER}")
        return True

    def _rank_with_gaps(self, partition: Partition, source: Source) -> int:
        """Return the number of components of a fit to samples with missing values, after checks."""
        return rank_with_gaps(self, self._required_with_gaps(), partition.max_features, source.shape[0])

    def _required_with_gaps(self) -> dict[str, Any]:
        RankChoice.of(self.get_params())  # rejects parameters that contradict each other
        return dict.fromkeys(name for name in CHOICES if name != "n_components") | self.required_with_gaps

    def plan_fit(self, source: Source, axes: Sequence[str], run: Run) -> tuple[Representation, bool]:
        """Plan a fit; see `Estimator.plan_fit`."""
        if allows_gaps(self):
            partition = self._partition(source, axes, run)
            Passes(source, run.limited_to(self.memory_budget)).plan(
                partition, GapEM(self._rank_with_gaps(partition, source))
            )
        return super().plan_fit(source, axes, run)

    @property
    def basis_(self) -> LinearRepresentation:
        """The mean and the components with their partition, as tasks receive them."""
        return self._with_gaps(super().basis_)
