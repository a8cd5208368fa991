"""What cell PCA and band PCA share: one principal component analysis for each partition of the attributes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpca.engine.boundary import guarded
from dpca.engine.checkpoint import Checkpoints
from dpca.engine.fold import FoldReport, fold
from dpca.engine.held_out import hold_out
from dpca.engine.plan import Partitioned
from dpca.engine.source import Source, as_samples, as_source, check_finite, check_numeric, opened
from dpca.kernels.dtypes import working_dtype
from dpca.models.convergence import check_result
from dpca.models.going_on import refuse_to_go_on
from dpca.models.parameters import check_parameters, check_states_fit, given_parameters
from dpca.models.partition_rule import by_partition, choose_rule, exact_rule
from dpca.models.rank_choice import RankChoice, Reached
from dpca.models.targets import Check, check_for, keep_chosen, value_range_for
from dpca.representation.basis import Basis
from dpca.representation.lazy import as_lazy, default_client, is_lazy, map_samples, scores_of
from dpca.representation.reconstruction import samples_of
from dpca.rules.state import Rule, State
from storage.errors import DataError
from storage.layout import CHANNEL, axes_for
from storage.progress import Progress, no_progress
from storage.stack import Stack

Array = NDArray[Any]


class Partition(Partitioned, Protocol):
    """A partition of the attributes whose values can be put back."""

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """How the partitions lie: the axes of the scores between samples and components."""

    @property
    def max_features(self) -> int:
        """Attributes of the largest partition."""

    def put(self, values: Array, index: int, origin: tuple[int, ...], block: Array) -> None:
        """Copy the values (n_samples, n_features) of a partition into a block that begins at ``origin``."""

    def to_samples(self, block: Array) -> Array:
        """Return the samples that all partitions, put into a block of whole samples, stand for; may overwrite it."""


_Stream = tuple[Partition, Partitioned, Rule, np.dtype[Any]]
"""What the first batch fixes: partitions, what is folded, by which rule, and the type of the samples."""


class PartitionedPCA(ABC, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the estimators with one principal component analysis for each partition.

    A subclass has the parameters ``n_components`` and ``memory_budget``, and says what the partitions are. The
    components of all partitions lie in place, ``components_`` (n_components, *sample_shape); where a partition has
    fewer attributes than there are components, the surplus rows are zero.
    """

    #: What one partition is called.
    part_name: ClassVar[str]
    #: What a store of the scores calls itself.
    scores_kind: ClassVar[str]
    #: Whether jobs measure SSIM where they keep no reconstructions.
    measures_ssim: ClassVar[bool] = True

    n_components: int | str | None
    data_range: tuple[float, float] | None
    random_state: Any
    memory_budget: int | None

    _states: list[State] | None = None  # of what partial_fit has seen
    _stream: _Stream

    @abstractmethod
    def _partition(self, source: Source, axes: Sequence[str] | None, **running: Any) -> Partition:
        """Return how a stack with these axes of a sample is split; ``running`` goes to the folds that this takes."""

    @abstractmethod
    def _basis_of(self, partition: Any, mean: Array, components: Array) -> Basis:
        """Return what projects and reconstructs."""

    @abstractmethod
    def _checked_components(self, n: int | None, partition: Any) -> int | None:
        """Return ``n_components``, or refuse it; ``n`` samples, None when they are not counted yet."""

    @abstractmethod
    def _name_of(self, place: tuple[int, ...]) -> str:
        """Return what the partition at a place of the grid is called."""

    def _n_spatial(self, partition: Any, axes: Sequence[str]) -> int:
        """Return how many axes of a sample are axes of space."""
        return sum(axis != CHANNEL for axis in axes)

    def _folded(self, partition: Any) -> Partitioned:
        """Return what is folded: the partition, or what holds together its parts that share components."""
        return cast("Partitioned", partition)

    # -- learning

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        client: Any | None = None,
        checkpoints: Checkpoints | None = None,
        progress: Progress = no_progress,
    ) -> Self:
        """Compute the components of every partition.

        Parameters
        ----------
        X : array (n_samples, *sample_shape), numpy, Dask or Zarr; storage.Stack; or path of a stack store or Zarr array
            Or a source of the engine, such as `dpca.engine.held_out.RemainingSource`.
        y : ignored
        client : distributed.Client, optional
            Default: the current one, if any.
        checkpoints : Checkpoints, optional
            Folder of a fit that was stopped, to go on from.
        progress : Progress, optional
            Told the bytes read.

        Raises
        ------
        DataError
            For values that are not finite, fewer than 2 samples, or more components than attributes or samples.
        PlanError
            When one partition at a time does not fit the memory budget.
        """
        check_parameters(self)
        stack = opened(X)
        source = whole = as_source(stack)
        choice, left_out = RankChoice.of(self.get_params()), None
        value_range = value_range_for(choice, self.data_range, stack, whole.dtype)
        if choice.validation_fraction is not None:
            source, left_out = hold_out(whole, choice.validation_fraction, self._random(0))
        if source.shape[0] < 2:
            raise DataError(f"{source.shape[0]} sample has no variance: a fit needs at least 2 samples")
        running: dict[str, Any] = {
            "client": client or default_client(),
            "checkpoints": checkpoints,
            "progress": progress,
        }
        axes = _axes_of(stack)
        partition = self._partition(source, axes, **running)
        check = None
        if choice.is_target:
            n_spatial = self._n_spatial(partition, axes or axes_for(source.shape[1:]))
            check = check_for(choice, whole, left_out, n_spatial, self._random(1), self.memory_budget)
        k, folded = self._to_compute(choice, source.shape[0], partition), self._folded(partition)
        budget = self.memory_budget
        rule, note = choose_rule(k, source, folded, f"{self.part_name}s", client=running["client"], budget=budget)
        results, report = fold(rule, source, folded, budget=budget, note=note, **running)
        settle = guarded(self._settle, source.name)
        settle(choice, rule, partition, folded, results, source.shape[0], source.dtype, value_range, check, left_out)
        self.fit_report_: FoldReport = report
        self._states = None
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Take in further samples, held in memory, and decompose again.

        Parameters
        ----------
        X : array (n_samples, *sample_shape)
            The first call fixes the sample shape, the dtype and the partitions. A batch that is refused changes
            nothing.

        Notes
        -----
        Keeps all covariances in memory, twice while it takes in a batch, and solves every eigenproblem at each call:
        for many batches, or when they lie in a store, `fit` is far cheaper. The attributes are there once two samples
        were seen.

        Raises
        ------
        DataError
            For a model that `fit` fitted or `load` read, which keeps no covariances to go on from; for samples that do
            not go with those before.
        """
        if self._states is None:
            refuse_to_go_on(self)
            check_parameters(self)
        X = np.ascontiguousarray(as_samples(X, "X"))
        choice = RankChoice.of(self.get_params())
        if choice.validation_fraction is not None or choice.name == "target_ssim":
            raise DataError(
                f"{choice.name} is met on samples that partial_fit does not keep: use fit, or target_mse or "
                f"target_psnr without validation_fraction"
            )
        value_range = value_range_for(choice, self.data_range, X, X.dtype)
        if X.dtype.kind == "f":
            check_finite(X, 0, "X")
        if self._states is None:
            partition = self._partition(as_source(X), None)
            folded = self._folded(partition)
            rule, values = exact_rule(self._to_compute(choice, None, partition), folded), folded.split_dtype(X.dtype)
            check_states_fit(rule, map(folded.n_features, range(folded.n_partitions)), values)
            before = [rule.init(folded.n_features(i), values) for i in range(folded.n_partitions)]
            self._stream = (partition, folded, rule, X.dtype)
        else:
            before = self._states
        partition, folded, rule, dtype = self._stream
        if (X.shape[1:], X.dtype) != (partition.sample_shape, dtype):
            raise DataError(
                f"this batch has samples of {X.shape[1:]} {X.dtype} but the first one had "
                f"{partition.sample_shape} {dtype}: all batches must agree"
            )
        everywhere, buffer = (0,) * (X.ndim - 1), np.empty(X.size, folded.split_dtype(dtype))
        parts = guarded(folded.split, "X")(X, range(len(before)), everywhere, buffer)
        update, finish = guarded(rule.update, "X"), guarded(rule.finish, "X")
        # What is updated is a copy: a batch that turns out to be beyond arithmetic leaves no trace.
        states = [update(state.copy(), part) for state, part in zip(before, parts, strict=True)]
        n = states[0].counts["n_samples"]
        if n >= 2:
            results = [finish(state.copy()) for state in states]
            settle = guarded(self._settle, "X")
            settle(choice, rule, partition, folded, results, n, dtype, value_range, None, None)
        self._states = states
        return self

    def _settle(
        self,
        choice: RankChoice,
        rule: Rule,
        partition: Partition,
        folded: Partitioned,
        results: list[dict[str, Array]],
        n: int,
        dtype: np.dtype[Any],
        value_range: tuple[float, float] | None,
        check: Check | None,
        left_out: Array | None,
    ) -> None:
        """Choose what is kept of what was found in n samples, and learn it."""
        results, places = by_partition(rule, folded, results, dtype)
        for result in results:
            check_result(result, f"the analysis of a {self.part_name}")
        reached = keep_chosen(choice, partition, results, n, value_range, check, places)
        self._learn(partition, results, n, dtype)
        self._remember(reached, left_out)

    def _to_compute(self, choice: RankChoice, n: int | None, partition: Partition) -> int | None:
        """Return how many components of each partition the rule is to find, None for all."""
        if not choice.adapts:
            return self._checked_components(n, partition)
        return choice.to_compute(math.prod(partition.sample_shape), partition.n_partitions, partition.max_features, n)

    def _remember(self, reached: Reached | None, left_out: Array | None) -> None:
        """Set the attributes that only targets give; those of a fit with another choice go."""
        learned = {
            "target_reached_": None if reached is None else reached.value,
            "target_standard_error_": None if reached is None else reached.standard_error,
            "validation_samples_": left_out,
        }
        for name, value in learned.items():
            if value is not None:
                setattr(self, name, value)
            elif hasattr(self, name):
                delattr(self, name)

    def _random(self, use: int) -> np.random.Generator:
        """Return the generator of one of the uses of ``random_state``."""
        return np.random.default_rng((int(check_random_state(self.random_state).randint(2**31)), use))

    def _learn(self, partition: Partition, results: list[dict[str, Array]], n: int, dtype: np.dtype[Any]) -> None:
        if RankChoice.of(self.get_params()).adapts:
            k = max([1, *(len(result["components"]) for result in results)])
        else:
            k = int(cast("int | None", self.n_components) or partition.max_features)
        out = working_dtype(dtype)
        components = np.zeros((k, *partition.sample_shape), out)
        mean = np.zeros((1, *partition.sample_shape))
        variance = np.zeros((partition.n_partitions, k))
        origin = (0,) * len(partition.sample_shape)
        total = np.array([result["total_variance"] for result in results])
        for i in range(len(results)):
            # Forgotten one after the other: all components are in memory once, not twice.
            result, results[i] = results[i], {}
            found = len(result["components"])
            partition.put(result["components"].astype(out, copy=False), i, origin, components[:found])
            partition.put(result["mean"][None], i, origin, mean)
            variance[i, :found] = result["explained_variance"]
        grid = partition.grid_shape
        components, mean = partition.to_samples(components), partition.to_samples(mean)
        self.restore(partition, components, mean[0], variance.reshape(*grid, k), total.reshape(grid), n)

    def restore(
        self,
        partition: Any,
        components: Array,
        mean: Array,
        explained_variance: Array,
        total_variance: Array,
        n_samples: int,
    ) -> None:
        """Set the learned attributes from what a store holds or a fit found."""
        self.components_ = components
        self.mean_ = mean
        self.explained_variance_ = explained_variance
        self.total_variance_ = total_variance
        share = np.zeros_like(explained_variance)
        np.divide(explained_variance, total_variance[..., None], out=share, where=total_variance[..., None] > 0)
        self.explained_variance_ratio_ = share
        self.singular_values_ = np.sqrt(explained_variance) * math.sqrt(n_samples - 1)
        self.n_samples_seen_ = n_samples
        self.n_components_ = len(components)
        self.sample_shape_ = partition.sample_shape
        self.n_features_in_ = math.prod(partition.sample_shape)
        self._basis_partition: Partition = partition
        self._basis = self._basis_of(partition, mean, components)

    def _checked_count(self, n: int | None, most: int, what: str, remedy: str) -> int | None:
        """Return ``n_components``, at most the attributes that ``what`` has, or refuse it."""
        k = self.n_components
        if k is None:
            return None
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise DataError(f"n_components is {k!r}: give a positive integer, or None to keep all")
        if k > most:
            raise DataError(
                f"n_components is {k} but {what} has only {most} attributes: ask for at most that many, or {remedy}"
            )
        if n is not None and k > n:
            raise DataError(f"n_components is {k} but there are only {n} samples: ask for at most that many")
        return int(k)

    # -- using

    @property
    def partition_(self) -> Partition:
        """How the attributes are split: the cells or bands."""
        check_is_fitted(self, "components_")
        return self._basis_partition

    @property
    def ranks_(self) -> Array:
        """Components that each partition keeps, integers (*grid_shape). Rows of ``components_`` beyond are zero."""
        check_is_fitted(self, "components_")
        partition, rows = self._basis_partition, np.ascontiguousarray(self.components_)
        everywhere, buffer = (0,) * (rows.ndim - 1), np.empty_like(rows).reshape(-1)
        parts = partition.split(rows, range(partition.n_partitions), everywhere, buffer)
        # Of length 1 or 0, up to rounding.
        ranks = np.array([(np.einsum("ij,ij->i", part, part) > 0.5).sum() for part in parts])
        return ranks.reshape(self._grid_shape)

    @property
    def _grid_shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.total_variance_.shape
        return shape

    def transform(self, X: Any) -> Any:
        """Return the scores (n_samples, *grid_shape, n_components).

        A numpy array gives a numpy array. A Dask array, a Zarr array, a stack or a path gives a Dask array that
        computes chunk by chunk.

        Raises
        ------
        DataError
            For samples of another shape than those of the fit, or, once they are computed, values that are not finite.
        """
        check_is_fitted(self, "components_")
        if not is_lazy(X):
            samples = as_samples(X, "X")
            self._check_samples(samples.shape)
            return scores_of(self._basis, samples, "X")
        lazy = as_lazy(X)
        check_numeric(lazy.shape, lazy.dtype, "X")
        self._check_samples(lazy.shape)
        dtype = np.result_type(working_dtype(lazy.dtype), self.components_.dtype)
        return map_samples(lazy, scores_of, self._basis, (*self._grid_shape, self.n_components_), dtype)

    def inverse_transform(self, X: Any, n_components: int | None = None) -> Any:
        """Return the samples (n_samples, *sample_shape) that scores stand for, neither rounded nor clipped.

        Parameters
        ----------
        X : array (n_samples, *grid_shape, n_components_), numpy, Dask or Zarr; or the path of a Zarr array
            Scores of all components, or of ``n_components``.
        n_components : int, optional
            Use only so many of the first components of each partition; default all.

        Returns
        -------
        array
            Lazy in, lazy out, as `transform`. Of scores in a store, chunks that hold only other components are never
            read.

        Raises
        ------
        DataError
            For scores of another shape, or more components than there are.
        """
        check_is_fitted(self, "components_")
        return samples_of(self._basis, X, n_components)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return names of the scores in the order of a flattened sample of them."""
        check_is_fitted(self, "components_")
        names = [
            f"{self._name_of(place)}_component{j}"
            for place in np.ndindex(self._grid_shape)
            for j in range(self.n_components_)
        ]
        return np.asarray(names, dtype=object)

    # -- what jobs and reports ask

    @property
    def report_title(self) -> str:
        """What the pictures of a report show."""
        return f"{self.part_name.capitalize()} PCA"

    def check_before(self, n_samples: int) -> None:
        """Refuse parameters that cannot be fitted to so many samples, as far as the parameters alone tell."""
        RankChoice.of(self.get_params())

    def cells_for(self, axes: Sequence[str]) -> tuple[int, ...] | None:
        """Return the cells that the chunks of a stack should fit, given the names of a sample's axes; None if any."""
        return None

    def job_settings(self) -> dict[str, Any]:
        """Return what identifies a job on this estimator: the parameters that are given."""
        return {"model": given_parameters(self)}

    def report_numbers(self) -> dict[str, Any]:
        """Return what a report says of the fitted model; see `dpca.report.record`."""
        ranks = self.ranks_
        low, high, total = int(ranks.min()), int(ranks.max()), int(ranks.sum())
        numbers = {
            "components": self.n_components_,
            "scalars_ratio": self.n_features_in_ / total if total else None,
        }
        if low != high:
            numbers["ranks"] = {"min": low, "mean": total / ranks.size, "max": high, "total": total}
        return numbers

    def pictured_components(self, count: int) -> Array:
        """Return the first components, those of every partition in place (count, *sample_shape)."""
        check_is_fitted(self, "components_")
        rows: Array = self.components_[:count]
        return rows

    def _check_samples(self, shape: tuple[int, ...]) -> None:
        if tuple(shape[1:]) != self.sample_shape_:
            raise DataError(f"samples have shape {tuple(shape[1:])} but this model was fitted to {self.sample_shape_}")


def _axes_of(stack: Any) -> Sequence[str] | None:
    """Names of the axes of a sample, where anything states them."""
    if isinstance(stack, Stack):
        return stack.axes[1:]
    return stack.axes if isinstance(stack, Source) else None
