"""What all estimators share: fitting to any source, transforming lazily or in memory, saving and loading."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from inspect import signature
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._set_output import _get_output_config

from dpca.engine.checkpoint import Checkpoints
from dpca.engine.fold import FoldReport
from dpca.engine.source import Source
from dpca.kernels.types import Array
from dpca.models.each_sample import EachSample
from dpca.models.labelled import Labels, given_to_fit, given_to_model, scores_given, taken_in
from dpca.models.parameters import check_parameters
from dpca.models.rank_choice import CHOICES
from dpca.models.samples import dense_samples
from dpca.models.storable import Storable
from dpca.models.streaming_methods import describe_option
from dpca.models.watching import Callback, Watching, watched
from dpca.representation.base import Representation
from dpca.representation.lazy import default_client
from dpca.representation.reconstruction import samples_of
from dpca.rules.state import State
from dpca.storage.labelled import is_labelled
from dpca.storage.progress import Progress, no_progress

#: Parameters that stores of earlier versions do not state: stores state them only where they are given.
LATER = ("flatten", "whiten", "keep_state", "track_scores")


class Estimator(ABC, EachSample, Storable, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base of all estimators.

    A subclass learns (`_fit`), has a ``basis_``, and is `Storable`.
    """

    #: What a store of the scores calls itself.
    scores_kind: ClassVar[str]
    #: Whether jobs measure SSIM where they keep no reconstructions.
    measures_ssim: ClassVar[bool] = True
    #: What the page of a report is called, before the name of the stack.
    report_title: ClassVar[str]

    # Parameters of all: a subclass is a dataclass of its own, whose constructor sets them and does nothing else.
    random_state: Any
    memory_budget: int | None

    n_samples_seen_: int
    n_features_in_: int
    sample_shape_: tuple[int, ...]
    fit_report_: FoldReport

    _states: list[State] | None = None  # of what partial_fit has seen, one for each partition

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_samples_seen_")

    @abstractmethod
    def _fit(self, X: Any, **running: Any) -> None:
        """Learn; ``running`` are the client, the checkpoints and the progress of all folds that this takes."""

    @property
    @abstractmethod
    def basis_(self) -> Representation:
        """What maps samples to scores and back: what tasks are sent."""

    # -- learning

    @abstractmethod
    def plan_fit(self, source: Source, axes: Sequence[str], client: Any | None) -> tuple[Representation, bool]:
        """Plan a fit to a source, none of which is read; this estimator is left as it is.

        Parameters
        ----------
        source : Source
        axes : sequence of str
            Names of a sample's axes.
        client : distributed.Client or None
            Where it will run.

        Returns
        -------
        basis : Representation
            As large as the fit will find it; its arrays take no memory, and hold zeros.
        known : bool
            Whether the size is exact. Where it depends on the data, it is the smallest possible one: one component of
            each partition, or their mean where their sum is known; the fewest bands.

        Raises
        ------
        PlanError
            If it does not fit the memory.
        DataError
            If the parameters do not fit the source.
        """

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_dim: str | Sequence[str] | None = None,
        key: str | None = None,
        client: Any | None = None,
        checkpoints: Checkpoints | None = None,
        progress: Progress = no_progress,
        callback: Callback | None = None,
        max_seconds: float | None = None,
        max_samples: int | None = None,
    ) -> Self:
        """Find the components.

        Parameters
        ----------
        X : array (n_samples, *sample_shape), Stack, path or Source
            A numpy, Dask or Zarr array; an ``xarray.DataArray`` of either; a `dpca.storage.Stack`; or the path of a
            stack store, a Zarr array, or a file that can be read anywhere in (``.npy``, netCDF, ...). Or a source of
            the engine, such as `dpca.engine.held_out.RemainingSource`.
        y : ignored
        sample_dim : str or sequence of str, optional
            Of a ``DataArray``: the dim that counts samples, or several that do so together; default the first. The
            others are the axes of a sample, in their order; one called "channel" or "rgb" comes last.
        key : str, optional
            Which array of a file, a Zarr group or an ``xarray.Dataset`` is meant, where there are several. From other
            paths this estimator then reads the array of this name, too.
        client : distributed.Client, optional
            Default: the current one, if any.
        checkpoints : Checkpoints, optional
            Folder of a fit that was stopped, to go on from; whatever is drawn at random needs an integer
            ``random_state`` then. It may hold other fits beside: each finds its own.
        progress : Progress, optional
            Told the bytes read in each pass.
        callback : callable (dpca.Progress), optional
            Is shown the model so far: after 16, 64, 256 and 1,024 samples, then each second, but rarely enough to take
            a twentieth of the time, and in the end. Where it returns True the fit ends there, and an exception ends it,
            too. The result does not depend on being watched. Rules whose rounding depends on their batches take these
            whole: there the first look comes later. The solver "dual" of `PCA` has components only in the end, as
            `PatchCascade` has its last layer; "power" in its last pass.
        max_seconds, max_samples : float and int, optional
            Budgets: when one is used up, the fit ends with a model of the samples so far, ``n_samples_seen_`` of them;
            not before there is a model. With ``checkpoints`` the same fit goes on from there, with as much to spend
            again.

        Warns
        -----
        ConvergenceWarning
            When the components have not converged; it says what to change.

        Raises
        ------
        DataError
            For values that are not finite, fewer than 2 samples, parameters that do not fit the data, or a rule that
            diverges.
        PlanError
            When the state and a batch do not fit the memory budget.
        """
        check_parameters(self)
        X, labels = given_to_fit(X, sample_dim, key)
        watching = Watching.asked(self, callback, max_seconds, max_samples)
        if watching is not None:
            watching.beside = {"_labels": labels, "_key": key}
        further = {} if watching is None else {"watching": watching}

        def learn() -> None:
            self._fit(X, client=client or default_client(), checkpoints=checkpoints, progress=progress, **further)
            self._labels, self._key = labels, key

        return watched(self, watching, learn)

    def _batch(self, X: Any, sample_dim: str | Sequence[str] | None) -> Array:
        """Return samples for ``partial_fit``, held in memory, checked; the first ones give the model their labels."""
        fresh = self._states is None
        labels: Labels | None
        if is_labelled(X):
            known = None if fresh else self._labels
            samples, labels = taken_in(X, sample_dim) if known is None else given_to_model(X, known)
            X = samples.values
        else:
            X, labels = given_to_fit(X, sample_dim)
        if fresh:
            self._labels = labels
        return dense_samples(self, X, reset=fresh)

    def _seed(self) -> int:
        """Return a seed of this fit, from what scikit-learn takes for one."""
        return int(check_random_state(self.random_state).randint(2**31))

    # -- using

    def transform(self, X: Any) -> Any:
        """Return the scores (n_samples, *score_shape) of samples.

        The shape of one sample's scores ends with ``n_components``; before it come the places of cells, or the bands,
        unless ``flatten`` asks for a single axis. A numpy array gives a numpy array. A Dask array, a Zarr array, a
        stack or a path gives a Dask array that computes chunk by chunk. A ``DataArray`` gives one, lazy if it is, with
        the coordinates of samples and the dim "component"; of cells of (lat, lon) also "cell_lat" and "cell_lon", at
        their centers. Its dims that are none of the model's count samples. After ``set_output(transform="pandas")`` or
        ``"polars"`` it is a table in memory with a column for each score, see `get_feature_names_out`.

        Raises
        ------
        DataError
            For samples of another shape than those of the fit, or, once they are computed, values that are not finite.
        """
        basis, named = self.basis_, given_to_model(X, self._labels) if is_labelled(X) else None
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
        """Return the samples (n_samples, *sample_shape) that scores stand for, neither rounded nor clipped.

        Parameters
        ----------
        X : array (n_samples, *score_shape), numpy, Dask or Zarr; or the path of a Zarr array
            Scores of all components, or of ``n_components``; in memory or in Dask also flat, as a table has them. Or a
            ``DataArray`` as `transform` gives it.
        n_components : int, optional
            Use only so many of the first components; default all.

        Returns
        -------
        array
            Lazy in, lazy out, as `transform`. Of scores in a store, chunks that hold only other components are never
            read. A ``DataArray`` has the dims, coordinates along them, name and attributes of that of the fit.

        Raises
        ------
        DataError
            For scores of another shape, or more components than there are.
        """
        basis = self.basis_
        if not is_labelled(X):
            return samples_of(basis, X, n_components)
        labels = self._labels or Labels.of_shape(self.sample_shape_)
        scores = scores_given(X, basis, n_components, labels)
        return scores.samples(samples_of(basis, scores.values, n_components), labels)

    # -- what jobs and reports ask

    @abstractmethod
    def check_before(self, n_samples: int) -> None:
        """Refuse parameters that cannot be fitted to so many samples, as far as the parameters alone tell."""

    @abstractmethod
    def announced(self, axes: Sequence[str]) -> str:
        """Say what is fitted to samples whose axes have these names."""

    @abstractmethod
    def report_numbers(self) -> dict[str, Any]:
        """Return what a report says of the fitted model; see `dpca.report.record`."""

    def target_numbers(self) -> dict[str, Any]:
        """Return what was asked for as a target of quality and what is reached, empty where nothing was."""
        return {}

    def expected_mse(self, data_range: tuple[float, float]) -> float | None:
        """Return the mean squared error of the samples of the fit, before rounding, or None if only a look tells.

        Of values that are scaled so that ``data_range`` has length 1.
        """
        return None

    def cells_for(self, axes: Sequence[str]) -> tuple[int, ...] | None:
        """Return the cells that the chunks of a stack should fit, given the names of a sample's axes; None if any."""
        return None

    def fit_settings(self) -> dict[str, Any]:
        """Return what identifies a stored fit: all parameters, but of those that came later only what is given."""
        given = self._given_parameters()
        values = self.get_params(deep=False).items()
        return {name: describe_option(value) for name, value in values if name in given or name not in LATER}

    def job_settings(self) -> dict[str, Any]:
        """Return what identifies a job on this estimator: the parameters that are given."""
        return {"model": self._given_parameters()}

    def pictured_components(self, count: int) -> Array | None:
        """Return the first components, those of every partition in place (count, *sample_shape); None if none."""
        return None

    def _given_parameters(self) -> dict[str, Any]:
        """Return the parameters that differ from their defaults; ``n_components`` where nothing else chooses them."""
        parameters = signature(type(self)).parameters
        given = {n: v for n, v in self.get_params(deep=False).items() if np.any(v != parameters[n].default)}
        if "n_components" in parameters and not given.keys() & set(CHOICES):
            given["n_components"] = self.get_params()["n_components"]
        return {name: describe_option(value) for name, value in given.items()}
