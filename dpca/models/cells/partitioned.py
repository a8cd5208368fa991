"""Base of cell PCA and band PCA: one principal component analysis for each part of the attributes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, cast

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpca.engine.folds.boundary import named_errors
from dpca.engine.folds.fold import fold
from dpca.engine.folds.fold_tasks import Results
from dpca.engine.sources.held_out import hold_out
from dpca.engine.sources.source import Source, as_source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.models.base.callbacks import FitCallbacks
from dpca.models.base.component_model import ON_DISK
from dpca.models.base.convergence import check_result, check_scale
from dpca.models.base.parameters import check_parameters, check_states_fit, checked_rank, no_values
from dpca.models.base.samples import fitted_source, fractions_of
from dpca.models.base.store import StoredModel, count_of, stored_parameters
from dpca.models.base.value_range import spanned_range
from dpca.models.cells.cells_on_disk import CellsOnDisk, joined_cells
from dpca.models.cells.partition_rule import PartFold, choose_fold, exact_rule, joined_results, results_by_part
from dpca.models.cells.rank import UnmetError
from dpca.models.cells.rank_choice import RankChoice
from dpca.models.cells.targets import Validation, check_for, keep_chosen, stated_target, value_range_for
from dpca.models.cells.weighted_parts import WeightedParts, keep_weighted_states
from dpca.models.streaming.stored_states import RequiresState, read_states, stated_dtype, stored_arrays
from dpca.models.weights.parts_with_weights import PartsWithWeights
from dpca.parameters.cells import CHOICES, PartitionParameters
from dpca.partition.base import Partition
from dpca.representation.base import Representation
from dpca.representation.linear import LinearRepresentation
from dpca.rules.base.keeping import pop_state
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State
from dpca.storage.arrays.layout import axes_for, count_spatial, stack_axes
from dpca.storage.errors import DataError
from dpca.storage.run import Run

StoredArrays = dict[str, tuple[Array, tuple[str, ...]]]
"""Arrays of a store by name, with the names of their axes."""


class PartitionedPCA(PartitionParameters, PartsWithWeights):
    """Base of the estimators with one principal component analysis for each part of a partition.

    A subclass defines the partition. ``components_`` (n_components, *sample_shape) holds the components of each
    part at its attributes. If a part has fewer attributes than ``n_components``, its surplus rows are zero.
    """

    @abstractmethod
    def _partition(self, source: Source, axes: Sequence[str] | None, run: Run) -> Partition:
        """Return the partition of a stack with these axes of a sample; ``run`` is for the folds required."""

    @abstractmethod
    def _most_components(self, partition: Any) -> tuple[int, str]:
        """Return the largest possible number of components of a part, and the name of a part in errors."""

    @abstractmethod
    def _name_of(self, place: tuple[int, ...]) -> str:
        """Return the name of the partition at a position of the grid."""

    def _named(self, axes: Sequence[str] | None, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Return the names of the axes of a sample: those in ``axes`` of this model, of the source, or by the shape."""
        if self.axes is not None:
            return stack_axes(self.axes, shape[1:])[1:]
        return tuple(axes) if axes else axes_for(shape[1:])

    def _n_spatial(self, partition: Any, axes: Sequence[str]) -> int:
        """Return the number of spatial axes of a sample."""
        return count_spatial(axes)

    def _folded(self, partition: Any) -> Partition:
        """Return the partition to fold: this one, or one that joins partitions with shared components."""
        return cast("Partition", partition)

    # -- learning

    def _fit(self, X: Any, run: Run, callbacks: FitCallbacks | None = None) -> None:
        stack, whole = fitted_source(self, X)
        source, choice, left_out = whole, RankChoice.of(self.get_params()), None
        if choice.validation_fraction is not None:
            source, left_out = hold_out(whole, choice.validation_fraction, self._random(0))
        if source.shape[0] < 2:
            raise DataError(f"the stack has {source.shape[0]} sample: a fit requires at least 2 samples")
        partition, check = self._partition(source, whole.axes, run), None
        if choice.is_target:
            n_spatial = self._n_spatial(partition, self._named(whole.axes, source.shape))
            check = check_for(choice, whole, left_out, n_spatial, self._random(1), run.memory)
        value_range = value_range_for(choice, self.data_range, stack, lambda: spanned_range(whole, run))
        validation = Validation(value_range, check, left_out)
        weighted = WeightedParts(source, whole, self._folded(partition), run, self.get_params())
        n, stage, why = source.shape[0], "fit", ""
        computed = self._to_compute(choice, n, partition)
        while True:
            disk = self._disk(run) if callbacks is None else None
            folding, writer = self._folding(choice, source, partition, run, disk)
            join = partial(joined_cells, partition, source, disk) if writer is None else writer.joined

            def set_fitted(
                model: Any, results: Results, n: int, given: Any = (choice, partition, join), by: PartFold = folding
            ) -> None:
                for result, mean in zip(results, weighted.read_by(by)[1], strict=False):
                    result["mean"] = mean
                states = [*map(pop_state, results)] if self.keep_state else None
                found = results_by_part(by.exact, by.partition, results, source.dtype)
                named_errors(model._set_results, source.name)(*given, *found, n, validation)
                model._states = states
                if states is not None:
                    model._fixed = self._batch_settings(partition, whole.dtype)
                    keep_weighted_states(model, *weighted.read_by(by), n)

            how: Any = {"run": run, "plan": folding.plan, "stage": stage, "writer": writer}
            how["callback"] = folding.callback(callbacks, set_fitted, n)
            results, report = fold(folding.rule, weighted.read_by(folding)[0], folding.partition, **how)
            try:
                set_fitted(self, folding.joined(results), n)
                break
            except UnmetError as error:
                before, choice = computed, choice.wider(error) or choice
                if (computed := self._to_compute(choice, n, partition)) == before:
                    raise
            stage = f"fit again, {computed} components"
            why = f"{before} components of each {self.part_name} were too few: fitted again with up to {computed}"
        self.fit_report_ = replace(report, note="; ".join(filter(None, (folding.note, why))))

    def plan_fit(self, source: Source, axes: Sequence[str], run: Run) -> tuple[Representation, bool]:
        """Plan a fit; see `Estimator.plan_fit`."""
        source, shape, dtype = self._planned(source), tuple(source.shape[1:]), working_dtype(source.dtype)
        choice = RankChoice.of(self.get_params())
        if choice.validation_fraction is not None:
            source = hold_out(source, choice.validation_fraction, np.random.default_rng(0))[0]
        partition, run = self._partition(source, axes, run), run.limited_to(self.memory_budget)
        self._folding(choice, source, partition, run, self._disk(run))
        least = self._least_kept(choice, source.shape[0], partition)
        basis = LinearRepresentation(partition, no_values(shape, np.float64), no_values((least, *shape), dtype))
        return self._planned_basis(basis), not choice.adapts

    def _disk(self, run: Run) -> Run | None:
        """Return the run if joined components may be on disk, else None."""
        return None if self.keep_state or self._plans_weights else run

    def _folding(
        self, choice: RankChoice, source: Source, partition: Partition, run: Run, disk: Run | None
    ) -> tuple[PartFold, CellsOnDisk | None]:
        """Return the fold, and what writes the components of each group to disk; None if they are joined later."""
        k, folded = self._to_compute(choice, source.shape[0], partition), self._folded(partition)
        if keep := bool(self.keep_state):
            self._batch_settings(partition, source.dtype)
        what, least, writer = f"{self.part_name}s", self._least_kept(choice, source.shape[0], partition), None
        if disk is not None and (on_disk := CellsOnDisk.needed(partition, least, source, disk)) is not None:
            least, writer = 0, None if choice.adapts or folded is not partition else on_disk
        folding = choose_fold(k, source, folded, what, run=run, keep=keep, writer=writer, least_kept=least)
        return folding, None if folding.of_rows else writer

    def _least_kept(self, choice: RankChoice, n: int, partition: Partition) -> int:
        """Return the least number of rows of the components of a fit to n samples."""
        most = self._to_compute(choice, n, partition) or partition.max_features
        if not choice.adapts:
            return most
        mean = choice.mean_rank(math.prod(partition.sample_shape), partition.n_parts)
        return 1 if mean is None else min(most, max(1, math.ceil(mean)))

    def _batch_settings(
        self, partition: Partition, dtype: np.dtype[Any]
    ) -> tuple[Partition, Partition, Rule, np.dtype[Any]]:
        """Return the settings of all batches of `partial_fit`: the partition, the one to fold, the rule, the dtype."""
        folded = self._folded(partition)
        rule = exact_rule(self._to_compute(RankChoice.of(self.get_params()), None, partition), folded)
        check_states_fit(rule, map(folded.n_features, range(folded.n_parts)), folded.split_dtype(dtype))
        return partition, folded, rule, dtype

    def _empty_states(self) -> list[State]:
        """Return the states before any sample."""
        _, folded, rule, dtype = self._fixed
        return [rule.init(folded.n_features(i), folded.split_dtype(dtype)) for i in range(folded.n_parts)]

    @RequiresState
    def partial_fit(
        self, X: Any, y: Any = None, *, sample_weight: Any = None, sample_dim: str | Sequence[str] | None = None
    ) -> Self:
        """Update the model with further samples in memory.

        Parameters
        ----------
        X : array (n_samples, *sample_shape)
            The first call fixes the sample shape, the dtype and the partition. A rejected batch changes nothing.
        sample_weight, sample_dim
            As in `fit`, but ``n_samples_seen_`` is the sum of all weights. The dims are those of the first
            ``DataArray``.

        Notes
        -----
        Keeps all covariances in memory (twice during a call) and solves every eigenproblem at each call. For many
        batches, or batches in a store, `fit` is far cheaper. The fitted attributes exist after two samples.

        Raises
        ------
        DataError
            If `fit` or `load` made the model without ``keep_state``, or the samples do not match the earlier ones.
        """
        if self._states is None:
            check_parameters(self)
        X = np.ascontiguousarray(self._batch(X, sample_dim, sample_weight))
        choice = RankChoice.of(self.get_params())
        if choice.validation_fraction is not None or choice.name == "target_ssim":
            raise DataError(
                f"{choice.name} requires samples that partial_fit does not keep: use fit, or target_mse or "
                f"target_psnr without validation_fraction"
            )
        value_range = value_range_for(choice, self.data_range, X)
        if self._states is None:
            axes, run = self._labels.axes if self._labels else None, Run(memory=self.memory_budget)
            self._fixed = self._batch_settings(self._partition(as_source(X), axes, run), X.dtype)
        before = self._empty_states() if self._states is None else self._states
        partition, folded, rule, dtype = self._fixed
        if (X.shape[1:], X.dtype) != (partition.sample_shape, dtype):
            raise DataError(
                f"this batch has samples of {X.shape[1:]} {X.dtype}, but the first batch has "
                f"{partition.sample_shape} {dtype}: use the same shape and dtype in all batches"
            )
        parts = named_errors(folded.all_parts, "X")(X)
        finish, weights = named_errors(rule.finish, "X"), fractions_of(sample_weight)
        update = named_errors(rule.update if weights is None else partial(rule.weigh, weights=weights), "X")
        # The update changes a copy, so that a batch with an overflow leaves the model unchanged.
        states = [update(state.copy(), part) for state, part in zip(before, parts, strict=True)]
        n = states[0].counts["n_samples"]
        if n >= 2:
            results = [finish(state.copy()) for state in states]
            join, found = partial(joined_results, partition, dtype), results_by_part(rule, folded, results, dtype)
            named_errors(self._set_results, "X")(choice, partition, join, *found, n, Validation(value_range))
        self._states = states
        return self

    def _set_results(
        self,
        choice: RankChoice,
        partition: Partition,
        join: Callable[[int, Results], dict[str, Any]],
        results: Results,
        places: Array | None,
        n: int,
        validation: Validation,
    ) -> None:
        """Choose the components to keep from the results for n samples, and set the fitted attributes."""
        what = f"the analysis of {self.part_name}s"
        for name in ("total_variance", "explained_variance"):
            check_result({name: np.concatenate([result[name].ravel() for result in results])}, what, (name,))
        check_scale(results, what)
        reached = keep_chosen(choice, partition, results, n, validation.value_range, validation.check, places)
        k = None if choice.adapts else choice.value  # all that were computed, or chosen
        found = check_result(join(k or max(1, *(len(result["components"]) for result in results)), results), what)
        self._set_partitions(partition, found, n)
        self._set_target(stated_target(choice, reached, validation), validation.left_out)

    def _set_target(self, target: dict[str, Any], left_out: Array | None = None) -> None:
        """Set the attributes of a fit with a target; without one, delete those of an earlier fit."""
        self._target, reached = target, target.get("reached", math.nan)
        learned = {
            "target_reached_": (math.inf if reached is None else reached) if target else None,
            "target_standard_error_": target.get("standard_error"),
        }
        self._set_optional({**learned, "validation_samples_": left_out})

    def target_numbers(self) -> dict[str, Any]:
        """Return the target and the value reached, empty without a target."""
        return self._target or {}

    def _to_compute(self, choice: RankChoice, n: int | None, partition: Partition) -> int | None:
        """Return the number of components of each part that the rule finds in n samples, None for all."""
        if choice.adapts:
            return choice.to_compute(partition.sample_shape, partition.n_parts, partition.max_features, n)
        if self.n_components is None:
            return None
        most, what = self._most_components(partition)
        return checked_rank(self.n_components, most, n, what, f", or use larger {self.part_name}s")

    def _random(self, use: int) -> np.random.Generator:
        """Return the random generator of one use of ``random_state``."""
        return np.random.default_rng((self._seed(), use))

    def _set_partitions(self, partition: Partition, arrays: dict[str, Array], n: int) -> None:
        """Set the fitted attributes from the arrays of a store, or of a fit to n samples."""
        if n < 2:
            raise ValueError(f"{n} samples")
        super()._set_fitted(arrays, partition.sample_shape, n)
        self._set_basis_of(partition, self._arrays)

    # -- using

    @property
    def basis_(self) -> LinearRepresentation:
        """The mean and the components with their partition, as tasks receive them."""
        check_is_fitted(self)
        return self._basis

    @property
    def partition_(self) -> Any:
        """The partition of the attributes into cells or bands."""
        check_is_fitted(self)
        return self._known_partition

    @property
    def ranks_(self) -> Array:
        """Number of retained components of each part, integers (*grid_shape). Surplus rows are zero."""
        return self.basis_.ranks.reshape(self.total_variance_.shape)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the scores, in the order of the flattened scores of a sample."""
        check_is_fitted(self)
        places, levels = np.ndindex(self.total_variance_.shape), range(self.n_components_)
        return np.array([f"{self._name_of(place)}_component{j}" for place in places for j in levels], dtype=object)

    # -- for jobs and reports

    def check_parameters_for(self, n_samples: int) -> None:
        """Raise `DataError` if the parameters alone show that a fit to this many samples fails."""
        RankChoice.of(self.get_params())

    def report_numbers(self) -> dict[str, Any]:
        """Return the numbers of the fitted model for a report; see `dpca.report.record`."""
        ranks = self.ranks_
        low, high, total = int(ranks.min()), int(ranks.max()), int(ranks.sum())
        ratio = self.n_features_in_ / total if total else None
        numbers = super().report_numbers() | {"scalars_ratio": ratio}
        if low != high:
            numbers["ranks"] = {"min": low, "mean": total / ranks.size, "max": high, "total": total}
        return numbers

    # -- on disk

    def _facts(self, **own: Any) -> dict[str, Any]:
        """Return the facts of a store of this model."""
        parameters = stored_parameters(self)
        return {
            "sample_shape": list(self.sample_shape_),
            **own,
            "n_components": self.n_components_,
            "n_samples_seen": count_of(self.n_samples_seen_),
            **({ON_DISK: True} if self._on_disk else {}),
            **self._stored_weights(())[1],
            **({"target": self._target} if self._target else {}),
            **({"state": {"dtype": str(self._fixed[3])}} if self.keep_state and self._states else {}),
            **({"parameters": parameters} if parameters else {}),
        }

    def _stored_arrays(self, grid_axes: Sequence[str], components: StoredArrays | None = None) -> StoredArrays:
        """Return the arrays of a store of this model, with the names of their axes.

        Parameters
        ----------
        grid_axes : sequence of str
            Names of the axes of the grid.
        components : mapping, optional
            The arrays of the components. The default is one for whole samples.
        """
        axes, (mean, whole) = axes_for(self.sample_shape_), self._arrays
        return {
            "mean": (mean, axes),
            **self._stored_weights(axes)[0],
            **(components or {"components": (whole, ("component", *axes))}),
            "explained_variance": (self.explained_variance_, (*grid_axes, "component")),
            "total_variance": (self.total_variance_, tuple(grid_axes)),
            **(stored_arrays(self._states) if self.keep_state and self._states else {}),
        }

    @classmethod
    def _restored(cls, stored: StoredModel, partition: Partition, arrays: dict[str, Array], **own: Any) -> Self:
        """Return the fitted model of a store, from its partition, its arrays and parameters of its own."""
        given, k = stored.parameters(cls), stored.n_components
        if not given.keys() & set(CHOICES) and k != partition.max_features:
            given["n_components"] = k  # the default keeps all, also if there are more components than samples
        model = cls(**given, **own)
        model._set_partitions(partition, arrays, stored.n_samples)
        model._restore_weights(stored)
        if (state := stored.facts.get("state")) is not None:
            if not model.keep_state:
                raise ValueError("it has a state, but not keep_state=True")
            model._fixed = model._batch_settings(model.partition_, stated_dtype(state))
            read_states(stored, states := model._empty_states())
            model._states = states
        if (stated := stored.facts.get("target")) is not None:
            kinds = {"name": str, "asked": float, "reached": float, "standard_error": float, "left_out": int}
            known = {name: stated[name] if stated[name] is None else kind(stated[name]) for name, kind in kinds.items()}
            known["data_range"] = [float(value) for value in stated["data_range"]]
            model._set_target(known)
        return model

    @staticmethod
    def _shapes(sample_shape: tuple[int, ...], grid_shape: tuple[int, ...], k: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays in a store, except the components."""
        return {"mean": sample_shape, "explained_variance": (*grid_shape, k), "total_variance": grid_shape}
