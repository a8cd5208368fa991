"""What all estimators share: learning from any source, projecting and back, lazy in lazy out, saving and loading."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpca.engine.boundary import guarded
from dpca.engine.checkpoint import Checkpoints
from dpca.engine.fold import FoldReport
from dpca.engine.memory import usable_bytes
from dpca.engine.plan import PlanError
from dpca.engine.source import Source, check_numeric
from dpca.models.store import ESTIMATORS, Kept, StoredModel, load_any, save_model
from dpca.representation.basis import Basis
from dpca.representation.lazy import as_lazy, default_client, is_lazy, map_samples, scores_of
from dpca.representation.reconstruction import samples_of
from dpca.rules.state import Rule, working_dtype
from storage.errors import DataError
from storage.progress import Progress, no_progress

Array = NDArray[Any]
E = TypeVar("E", bound=type)

_FLAGS = ("center", "shuffle", "shared", "keep_channels")
_NAMES = ("method", "solver", "mapping", "execution")
# What docstrings of several estimators say alike, in the place of the name in braces; see `documented`.
_SHARED = {
    "memory_budget": """\
    memory_budget : int, optional
        Bytes that one task may take beyond what its process holds; default from the workers' limits or the machine.
""",
    "whole_samples": """\
    components_ : array (n_components, n_features)
        Orthonormal rows, ordered by variance; the entry of largest magnitude is positive. float32, or float64 for
        float64 input and wide integers. Beyond the rank of the data they are arbitrary.
    mean_ : array (n_features,), float64
""",
    "where": """\
    Runs on the current ``distributed.Client`` if there is one and the input is on disk or a Dask array, else on threads
    of this process.
""",
}


def documented(**texts: str) -> Callable[[E], E]:
    """Return a decorator that writes texts into the docstring of a class, in the place of ``{their name}``.

    What stands for a whole paragraph is indented as in the docstring and ends with a line break.
    """

    def write(cls: E) -> E:
        doc = cls.__doc__ or ""  # nothing under python -OO
        for name, text in (texts | _SHARED).items():
            doc = doc.replace(f"    {{{name}}}\n", text).replace(f"{{{name}}}", text)
        cls.__doc__ = doc
        return cls

    return write


class Estimator(ABC, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base of all estimators.

    A subclass learns (`_fit`), has a ``basis_``, and says what a store keeps of it (`_kept`) and how it comes back
    (`_from_store`).
    """

    #: What stores of it state to be, and the newest version of them that is read.
    store_kind: ClassVar[str]
    store_version: ClassVar[int] = 1

    random_state: Any
    memory_budget: int | None

    components_: Array
    sample_shape_: tuple[int, ...]
    fit_report_: FoldReport

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "store_kind" in vars(cls):
            ESTIMATORS[cls.store_kind] = cls

    @abstractmethod
    def _fit(self, X: Any, **running: Any) -> None:
        """Learn; ``running`` are the client, the checkpoints and the progress of all folds that this takes."""

    @abstractmethod
    def _in_memory(self, X: Any) -> Array:
        """Return samples to be mapped that are held in memory, checked."""

    @property
    @abstractmethod
    def basis_(self) -> Basis:
        """What maps samples to scores and back: what tasks are sent."""

    @abstractmethod
    def _kept(self) -> Kept:
        """Return what a store holds of this model."""

    @classmethod
    @abstractmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        """Return the model that a store holds.

        Raises
        ------
        KeyError, TypeError, ValueError
            If what it states makes no sense.
        """

    # -- learning

    @abstractmethod
    def plan_fit(self, source: Source, axes: Sequence[str], client: Any | None) -> tuple[Basis, bool]:
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
        basis : Basis
            Of the size of what will be found; its arrays take no memory, and hold zeros.
        known : bool
            Whether that is the size. Where it depends on the data, the least it can be is taken: one component of each
            partition, or their mean where their sum is known; as few bands as there can be.

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
        client: Any | None = None,
        checkpoints: Checkpoints | None = None,
        progress: Progress = no_progress,
    ) -> Self:
        """Find the components.

        Parameters
        ----------
        X : array (n_samples, *sample_shape), numpy, Dask or Zarr; storage.Stack; or path of a stack store or Zarr array
            Or a source of the engine, such as `dpca.engine.held_out.RemainingSource`.
        y : ignored
        client : distributed.Client, optional
            Default: the current one, if any.
        checkpoints : Checkpoints, optional
            Folder of a fit that was stopped, to go on from; whatever is drawn at random needs an integer
            ``random_state`` then. It may hold other fits beside: each finds its own.
        progress : Progress, optional
            Told the bytes read in each pass.

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
        self._fit(X, client=client or default_client(), checkpoints=checkpoints, progress=progress)
        return self

    def _begin_stream(self) -> None:
        """Check what a first batch needs: parameters, and that no components are known without their sums.

        Raises
        ------
        DataError
            For a model that was fitted or loaded, too: only one that has taken in all of its samples by
            ``partial_fit`` can go on.
        """
        if hasattr(self, "components_"):
            raise DataError(
                f"this {type(self).__name__} was fitted by fit() or read by load() and keeps no state to go on from: "
                f"give all samples to fit(), or begin with a new estimator, sklearn.base.clone(model)"
            )
        check_parameters(self)

    # -- using

    def transform(self, X: Any) -> Any:
        """Return the scores (n_samples, *score_shape) of samples.

        The shape of one sample's scores ends with ``n_components``; before it come the places of cells, or the bands. A
        numpy array gives a numpy array. A Dask array, a Zarr array, a stack or a path gives a Dask array that computes
        chunk by chunk.

        Raises
        ------
        DataError
            For samples of another shape than those of the fit, or, once they are computed, values that are not finite.
        """
        check_is_fitted(self, "components_")
        return self._each_sample(X, scores_of, self.basis_, self.basis_.score_shape, self.components_.dtype)

    def inverse_transform(self, X: Any, n_components: int | None = None) -> Any:
        """Return the samples (n_samples, *sample_shape) that scores stand for, neither rounded nor clipped.

        Parameters
        ----------
        X : array (n_samples, *score_shape), numpy, Dask or Zarr; or the path of a Zarr array
            Scores of all components, or of ``n_components``.
        n_components : int, optional
            Use only so many of the first components; default all.

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
        return samples_of(self.basis_, X, n_components)

    def _each_sample(self, X: Any, function: Any, basis: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """Apply ``function(basis, samples, name)`` to samples in memory, or lazily to each chunk of them."""
        if not is_lazy(X):
            return guarded(function, "X")(basis, self._of_this_shape(self._in_memory(X)), "X")
        lazy = self._of_this_shape(as_lazy(X))
        check_numeric(lazy.shape, lazy.dtype, "X")
        return map_samples(lazy, function, basis, shape, np.result_type(working_dtype(lazy.dtype), dtype))

    def _of_this_shape(self, X: Any) -> Any:
        if tuple(X.shape[1:]) != self.sample_shape_:
            raise DataError(
                f"samples have shape {tuple(X.shape[1:])} but this model was fitted to {self.sample_shape_}"
            )
        return X

    # -- keeping

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a Zarr group, which appears under ``path`` only when it is whole; see `load`.

        Raises
        ------
        StoreError
            If ``path`` exists and is something else, unless it may be replaced (``overwrite``).
        """
        check_is_fitted(self, "components_")
        save_model(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote; nothing in it is executed. It keeps no state for ``partial_fit``.

        Raises
        ------
        StoreError
            If there is no such model, or it is damaged or comes from a newer version.
        """
        model: Self = load_any(path, cls)
        return model


def check_parameters(model: Any) -> None:
    """Refuse what no estimator could take: arrays for single values, and flags, names, seeds and budgets that are none.

    Raises
    ------
    DataError
    """
    for name, value in model.get_params(deep=False).items():
        if isinstance(value, np.ndarray) and (value.ndim > 1 or name not in ("cell_shape", "data_range")):
            raise DataError(f"{name} is an array of {value.shape}: give a single value, or a tuple where that is meant")
        if name in _FLAGS and not (isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1))):
            raise DataError(f"{name} is {value!r}: give True or False")
        if name in _NAMES and not isinstance(value, str):
            raise DataError(f"{name} is {value!r}: give a name, as the documentation lists them")
    budget = getattr(model, "memory_budget", None)
    number = isinstance(budget, int | float | np.integer | np.floating) and not isinstance(budget, bool)
    if budget is not None and not (number and 0 <= budget < math.inf):
        raise DataError(f"memory_budget is {budget!r}: give a number of bytes, or None for what the machine has")
    try:
        check_random_state(getattr(model, "random_state", None))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"random_state is {model.random_state!r}: give an integer of 0 to 2**32 - 1, a RandomState, or None"
        ) from error


def check_states_fit(rule: Rule, sizes: Iterable[int], dtype: DTypeLike) -> None:
    """Refuse states, of so many attributes each, that this process has no room for, twice, to take in a batch.

    Raises
    ------
    PlanError
    """
    need, room = 2 * sum(rule.state_bytes(size, dtype) for size in sizes), usable_bytes()
    if need > room:
        raise PlanError(
            f"what partial_fit keeps takes {need / 1e6:,.0f} MB but this process may hold {room / 1e6:,.0f} MB: use "
            f"fit, fewer components or smaller batches, cells or bands"
        )


def checked_rank(k: Any, n_features: int, n_samples: int | None, what: str = "a sample", remedy: str = "") -> int:
    """Return the number of components as an int, refusing what so many samples and attributes of ``what`` cannot have.

    Raises
    ------
    DataError
    """
    wanted = whole_number(k, "n_components", 1, ", or None to keep all where that is possible")
    if wanted > n_features:
        raise DataError(
            f"n_components is {wanted} but {what} has only {n_features} attributes: ask for at most that many{remedy}"
        )
    if n_samples is not None and wanted > n_samples:
        raise DataError(f"n_components is {wanted} but there are only {n_samples} samples: ask for at most that many")
    return wanted


def whole_number(value: Any, name: str, least: int, otherwise: str = "") -> int:
    """Return the value of a parameter as an int.

    Raises
    ------
    DataError
        If it is none, or less than ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        expected = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise DataError(f"{name} is {value!r}: give {expected}{otherwise}")
    return int(value)


def no_values(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return zeros that take no memory, in the place of what a fit will find."""
    return np.broadcast_to(np.zeros((), dtype), shape)
