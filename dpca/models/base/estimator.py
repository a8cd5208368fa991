"""Base of all estimators: fitting any source, transforming lazily or in memory, saving and loading."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._set_output import _get_output_config

from dpca.engine.folds.fold import FoldReport
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.base.callbacks import Callback, FitCallbacks, may_end_early
from dpca.models.base.each_sample import EachSample
from dpca.models.base.labelled import Labels, labelled_samples, labelled_scores, samples_for_model, samples_to_fit
from dpca.models.base.parameters import also_called, check_parameters, given_parameters
from dpca.models.base.passes import run_of_fit
from dpca.models.base.samples import allows_gaps, counts_and_fractions, dense_samples, masked_as_nan, weighted_source
from dpca.models.base.storable import Storable
from dpca.models.streaming.streaming_methods import describe_option
from dpca.parameters.cells import CHOICES
from dpca.parameters.declaration import StoragePolicy, declared_in
from dpca.representation.base import Representation
from dpca.representation.reconstruction import samples_of
from dpca.rules.base.state import State
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.errors import DataError
from dpca.storage.run import Run


class Estimator(ABC, EachSample, Storable, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base of all estimators.

    A subclass implements `_fit` and ``basis_``, and is `Storable`.
    """

    #: Kind of the stores of scores.
    scores_kind: ClassVar[str]
    #: Whether jobs without reconstructions measure SSIM.
    measures_ssim: ClassVar[bool] = True
    #: Whether `fit` supports weights that are not whole numbers.
    any_weights: ClassVar[bool] = False
    #: Whether `partial_fit` supports missing values.
    fills_in_one_pass: ClassVar[bool] = False
    #: Title of the report, before the name of the stack.
    report_title: ClassVar[str]

    # Parameters of all estimators. Each subclass is a dataclass, and its constructor only sets parameters.
    random_state: Any
    memory_budget: int | None

    n_samples_seen_: int
    n_features_in_: int
    sample_shape_: tuple[int, ...]
    fit_report_: FoldReport

    _states: list[State] | None = None  # states of partial_fit, one for each part of the partition

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_samples_seen_")

    @abstractmethod
    def _fit(self, X: Any, run: Run, callbacks: FitCallbacks | None = None) -> None:
        """Fit the samples; ``run`` has the memory budget of this estimator, if it is given."""

    @property
    @abstractmethod
    def basis_(self) -> Representation:
        """The map from samples to scores and back, as it is sent to tasks."""

    # -- fitting

    @abstractmethod
    def plan_fit(self, source: Source, axes: Sequence[str], run: Run) -> tuple[Representation, bool]:
        """Plan a fit to a source without reading it. The estimator does not change.

        Parameters
        ----------
        source : Source
        axes : sequence of str
            Names of the axes of a sample.
        run : Run
            How the fit will run.

        Returns
        -------
        basis : Representation
            Has the size of the basis that the fit will find. Its arrays are zeros and take no memory.
        known : bool
            Whether the size is exact. If the size depends on the data, it is the smallest possible one: one component
            for each part of the partition, or the mean number if the total is given; the fewest bands.

        Raises
        ------
        PlanError
            If the fit does not fit into memory.
        DataError
            If the parameters do not match the source.
        """

    @also_called("dim", "sample_dim")
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        sample_dim: str | Sequence[str] | None = None,
        key: str | Sequence[str] | None = None,
        run: Run = Run(),
        callback: Callback | None = None,
        max_seconds: float | None = None,
        max_samples: int | None = None,
    ) -> Self:
        """Fit the model to samples.

        Parameters
        ----------
        X : array (n_samples, *sample_shape), Stack, path or Source
            A numpy, Dask or Zarr array; an ``xarray.DataArray`` of numpy or Dask; a `dpca.storage.Stack`; the path of a
            stack store, a Zarr array, or a file with random access (``.npy``, netCDF, ...); or a source of the engine,
            such as `dpca.engine.sources.held_out.RemainingSource`. `PCA` and `StreamingPCA` also accept several
            variables: a list, a tuple or a dict of such arrays, or a ``Dataset``.
        y : ignored
        sample_weight : array_like (n_samples,), optional
            How often each sample counts. With whole numbers, the model is that of a stack with each sample repeated in
            succession, and ``n_samples_seen_`` is the sum of the weights. 0 leaves a sample out, which may then hold
            any value. A chunk without samples is not read. The time of the fit grows with the sum of the weights.
            Other weights are supported, too, and take one more pass for the mean, except in `KernelPCA` and with Gram
            matrices of cells or bands: variances have the divisor sum(weights) - 1, and ``n_samples_seen_`` is the
            number of positive weights, or with ``keep_state`` the sum of all.
        sample_dim : str or sequence of str, optional
            For a ``DataArray``: the sample dim, or several dims that together number the samples; default the first.
            ``dim`` is the same, as in xeofs.
            The other dims are the axes of a sample, in their order, except that "channel" or "rgb" comes last.
        key : str or sequence of str, optional
            Name of the array in a file, a Zarr group or an ``xarray.Dataset``, required if there are several. The
            fitted model uses this name for other paths, too. For several variables, several names.
        run : Run
            Its ``client`` runs the fit; the default is the current one, if any. If the fit was interrupted, it resumes
            from the ``checkpoints``; a fit that uses random numbers then requires an integer ``random_state``. Several
            fits may share their folder. The ``progress`` receives the number of bytes read in each pass.
        callback : callable (dpca.Progress), optional
            Receives the progress so far, with a fitted model: after 16, 64, 256 and 1,024 samples, then about every
            second, with at most a twentieth of the time spent on it, and at the end. If it returns True, the fit ends
            early. An exception ends the fit, too. The result does not depend on the callback. For rules with rounding
            errors that depend on the batches, the first call comes after a whole batch. The solver "dual" of `PCA` has
            components only at the end, as have the last layer of `PatchCascade` and `BandPCA` by blocks of attributes;
            "power" has them in its last pass.
        max_seconds, max_samples : float and int, optional
            Budgets. When one is used up, the fit ends with a model of the samples so far, ``n_samples_seen_`` of them,
            but not before there is a model. With checkpoints, another call of ``fit`` resumes from there with a new
            budget.

        Warns
        -----
        ConvergenceWarning
            If the components have not converged. The message recommends what to change.

        Raises
        ------
        DataError
            If values are not finite, there are fewer than 2 samples, parameters do not match the data, or the rule
            diverges.
        PlanError
            If the state and a batch do not fit into the memory budget.
        """
        check_parameters(self)
        gaps = allows_gaps(self)
        X, labels = self._samples_to_fit(masked_as_nan(X) if gaps else X, sample_dim, key, gaps=gaps)
        callbacks = FitCallbacks.requested(self, callback, max_seconds, max_samples)
        if callbacks is not None:
            callbacks.beside = self._names_of(labels, key)
        X = X if sample_weight is None else weighted_source(self, X, sample_weight)
        with may_end_early(self, callbacks):
            run = run_of_fit(run, self.memory_budget)
            self._fit(self._prepared(X, labels, run), run, callbacks)
            self.__dict__.update(self._names_of(labels, key))
        return self

    def _samples_to_fit(
        self, X: Any, sample_dim: str | Sequence[str] | None, key: Any = None, *, gaps: bool = False
    ) -> tuple[Any, Any]:
        """Return the samples of a fit and their labels; see `samples_to_fit`."""
        return samples_to_fit(X, sample_dim, key, gaps=gaps)

    def _names_of(self, labels: Any, key: Any) -> dict[str, Any]:
        """Return the attributes of a model of samples with these labels."""
        return {"_labels": labels, "_key": key}

    def _prepared(self, X: Any, labels: Labels | None, run: Run) -> Any:
        """Return what `_fit` reads: the samples, or a source of rows that are computed from them."""
        return X

    def _batch(self, X: Any, sample_dim: str | Sequence[str] | None, sample_weight: Any) -> Array:
        """Return the samples of a ``partial_fit`` call in memory, after checks. The first batch sets the labels.

        Each sample is there as often as its weight says, or once if weights are not whole numbers, see `fractions_of`.
        """
        if allows_gaps(self) and not self.fills_in_one_pass:
            raise DataError(
                "gaps is 'iterate', which requires several passes: use fit instead of partial_fit, or StreamingPCA"
            )
        fresh = self._states is None
        labels: Labels | None
        if is_labelled(X):
            known = None if fresh else self._labels
            samples, labels = labelled_samples(X, sample_dim) if known is None else samples_for_model(X, known)
            X = samples.values
        else:
            X, labels = samples_to_fit(X, sample_dim)
        if fresh:
            self._labels = labels
        rows = dense_samples(self, X, sample_weight, reset=fresh)
        if sample_weight is None:
            return rows
        return rows.repeat(counts_and_fractions(sample_weight, len(rows), any_weights=True)[0], axis=0)

    def _seed(self) -> int:
        """Return the seed of this fit, from ``random_state``."""
        return int(check_random_state(self.random_state).randint(2**31))

    # -- transforming

    @property
    def _encoder(self) -> Any:
        """The representation that `transform` passes to `_each_sample`; the default is ``basis_``."""
        return self.basis_

    def transform(self, X: Any) -> Any:
        """Return the scores (n_samples, *score_shape) of samples.

        The last axis of the scores of a sample is the component. The axes before it are the grid of cells, or the band,
        unless ``flatten`` is set. The output depends on the input:

        - A numpy array yields a numpy array.
        - A Dask array, a Zarr array, a stack or a path yields a Dask array that is computed chunk by chunk.
        - A ``DataArray`` yields a ``DataArray``, lazy if the input is lazy, with the coordinates of the samples and the
          dim "component". Scores of cells on (lat, lon) also have the coordinates "cell_lat" and "cell_lon" of the cell
          centers. Dims that are not dims of the fitted samples number the samples.
        - After ``set_output(transform="pandas")`` or ``"polars"``, the output is a table in memory with a column for
          each score; see `get_feature_names_out`.

        Raises
        ------
        DataError
            If the samples have another shape than in the fit, or values are not finite. A lazy output raises the latter
            when it is computed.
        """
        basis, named = self._encoder, samples_for_model(X, self._labels) if is_labelled(X) else None
        X = X if named is None else named[0].values
        scores = self._each_sample(X, Representation.encode, basis, basis.score_shape, basis.score_dtype)
        table, flat = _get_output_config("transform", self)["dense"] != "default", getattr(self, "flatten", False)
        if table or flat:
            scores = scores.reshape(scores.shape[0], math.prod(scores.shape[1:]))
        if named is None or table:
            return scores
        labelled, labels = named
        return labelled.scores(scores, basis, labels, self.get_feature_names_out() if flat else None)

    def inverse_transform(self, X: Any, n_components: int | None = None) -> Any:
        """Return the reconstruction (n_samples, *sample_shape) of samples from scores, neither rounded nor clipped.

        Parameters
        ----------
        X : array (n_samples, *score_shape), numpy, Dask or Zarr; or the path of a Zarr array
            Scores of all components, or of ``n_components``. In memory or in Dask, scores of a sample may also lie
            along one axis, as in a table. Or a ``DataArray`` as returned by `transform`.
        n_components : int, optional
            Number of leading components to use; default all.

        Returns
        -------
        array
            Lazy for lazy scores, as `transform`. Chunks of a store with only unused components are not read. A
            ``DataArray`` has the dims, their coordinates, the name and the attributes of the samples of the fit.

        Raises
        ------
        DataError
            If the scores have another shape, or fewer components are available than requested.
        """
        basis = self.basis_
        if not is_labelled(X):
            return samples_of(basis, X, n_components)
        labels = self._labels or Labels.of_shape(self.sample_shape_)
        scores = labelled_scores(X, basis, n_components, labels)
        return scores.samples(samples_of(basis, scores.values, n_components), labels)

    # -- jobs and reports

    @abstractmethod
    def check_parameters_for(self, n_samples: int) -> None:
        """Reject parameters that are invalid for this number of samples, as far as this is known without the data."""

    @abstractmethod
    def fit_description(self, axes: Sequence[str]) -> str:
        """Return a description of the fit for logs, given the names of the axes of a sample."""

    @abstractmethod
    def report_numbers(self) -> dict[str, Any]:
        """Return the numbers of the fitted model for a report; see `dpca.report.record`."""

    def target_numbers(self) -> dict[str, Any]:
        """Return the quality target and the value reached; empty without a target."""
        return {}

    def expected_mse(self, data_range: tuple[float, float]) -> float | None:
        """Return the mean squared error of the samples of the fit before rounding, or None if it must be measured.

        The error is of values scaled so that ``data_range`` has length 1.
        """
        return None

    def cell_shape_for(self, axes: Sequence[str]) -> tuple[int, ...] | None:
        """Return the cell shape that chunks of a stack should match, given the names of the axes; None for any."""
        return None

    def fit_settings(self) -> dict[str, Any]:
        """Return the parameters that identify a stored fit: all, but those that stores keep if given only if given."""
        given, declared = self._given_parameters(), declared_in(type(self))
        added = StoragePolicy.GIVEN, StoragePolicy.LATER_WITH_STATE, StoragePolicy.AS_ARRAY
        later = {name for name, one in declared.items() if one.kept in added} - given.keys()
        return {
            name: describe_option(value) for name, value in self.get_params(deep=False).items() if name not in later
        }

    def job_settings(self) -> dict[str, Any]:
        """Return the parameters that identify a job on this estimator: those that are given."""
        return {"model": self._given_parameters()}

    def component_maps(self, count: int) -> Array | None:
        """Return the first components (count, *sample_shape), each part at its position; None if there are none."""
        return None

    def _given_parameters(self) -> dict[str, Any]:
        """Return the parameters that differ from their defaults, and ``n_components`` if no alternative is given."""
        given, parameters = given_parameters(self), self.get_params(deep=False)
        if "n_components" in parameters and not given.keys() & set(CHOICES):
            given["n_components"] = parameters["n_components"]
        return {name: describe_option(value) for name, value in given.items()}
