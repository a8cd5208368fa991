"""Callbacks of fits with the progress so far, and budgets of time and samples that end a fit early."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from dpca.engine.folds.boundary import named_errors
from dpca.engine.folds.callbacks import FoldCallback, FoldProgress, FoldReport, Pace
from dpca.kernels.algebra.types import Array
from dpca.rules.base.state import State
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_real, whole_number
from dpca.storage.remote.memory import thread_count
from dpca.storage.remote.tasks import one_blas_thread, run_in_order

T = TypeVar("T")
#: Smallest number of seconds between two calls of a callback.
EVERY = 1.0
_ESTIMATE = "captured_estimate"


@dataclass(frozen=True)
class Progress:
    """Progress of a fit: passed to callbacks, and returned by `StreamingPCA.iter_fit`.

    Attributes
    ----------
    model : estimator
        A fitted model of the samples so far, with all methods of the final model. With few samples it may have fewer
        components than ``n_components``. It is a copy that the fit does not change. If ``finished``, it is the
        estimator itself.
    n_samples_seen : int
        Samples in the model.
    n_samples : int
        Samples of the stack.
    seconds : float
        Time since the fit began, including earlier callbacks.
    captured_variance : float
        Share, 0 to 1, of the variance of the samples so far along the components: the sum of
        ``explained_variance_ratio_``. It is too large for few samples; nan for a model without components.
    captured_bound : float
        Certificate: the components capture at least this share of the optimum on the samples so far; nan if the method
        has no bound.
    captured_estimate : float
        Estimate of the same share, by the default method of `StreamingPCA`, else nan.
    finished : bool
        Whether the fit has ended.
    """

    model: Any
    n_samples_seen: int
    n_samples: int
    seconds: float
    captured_variance: float
    captured_bound: float
    captured_estimate: float
    finished: bool = False

    @classmethod
    def of(cls, model: Any, n_samples: int, seconds: float, *, finished: bool = False) -> Progress:
        """Return the progress of a fit from its model so far."""
        numbers = model.report_numbers() if hasattr(model, "report_numbers") else {}
        ratio = numbers.get("explained_variance_ratio", np.sum(getattr(model, "explained_variance_ratio_", math.nan)))
        bound, estimate = (float(getattr(model, f"{name}_", math.nan)) for name in ("captured_bound", _ESTIMATE))
        n = int(model.n_samples_seen_)
        return cls(model, n, n_samples, seconds, min(float(ratio), 1.0), bound, estimate, finished)


Callback = Callable[[Progress], Any]
"""A function that `fit` calls with each `Progress`. If it returns True, the fit ends."""


class Enough(BaseException):
    """A fit ends early with the model so far. Not an `Exception`, so that no handler of errors catches it."""


class Raised(BaseException):
    """A callback raised an error, the cause of this one. Not an `Exception`, so it never counts as a bad sample."""


@dataclass
class FitCallbacks:
    """The callback and the budgets of one fit.

    Parameters
    ----------
    estimator : estimator
        The estimator that is fitted; the models so far are copies of it.
    callback : callable, optional
    max_seconds, max_samples
        As in `Estimator.fit`.
    """

    estimator: Any
    callback: Callback | None = None
    max_seconds: float = math.inf
    max_samples: int | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of all models so far that the fit does not set."""
    latest: Any = field(default=None, init=False)
    """The last model so far, if there is one."""
    complete: bool = field(default=False, init=False)
    """Whether the last model contains all samples."""
    n_samples: int = field(default=0, init=False)
    """Samples of the stack, set by the first fold."""
    most: int | None = field(default=None, init=False)
    """Sample at which the fit ends, set when the fit starts or resumes."""

    def __post_init__(self) -> None:
        self.pace = Pace(math.inf if self.callback is None else EVERY, self.max_seconds)

    @classmethod
    def requested(
        cls, estimator: Any, callback: Callback | None, max_seconds: float | None, max_samples: int | None
    ) -> FitCallbacks | None:
        """Return the callback and budgets of a fit with these arguments, None without any.

        Raises
        ------
        DataError
            If the callback is not callable, or a budget is invalid.
        """
        if callback is None and max_seconds is None and max_samples is None:
            return None
        if callback is not None and not callable(callback):
            raise DataError(f"callback is of type {type(callback).__name__}: use a function of one dpca.Progress")
        return cls(estimator, callback, *checked_budgets(max_seconds, max_samples))

    def of_fold(
        self, make: Callable[[list[State]], Any], set_fitted: Callable[[Any, Any, int], None], n_samples: int
    ) -> FoldCallback:
        """Return the callback of one fold.

        Parameters
        ----------
        make : callable (states) -> found
            Computes the results from the states, which it may overwrite.
        set_fitted : callable (model, found, n_samples_seen)
            Sets the fitted attributes of a copy of the estimator from the results.
        n_samples : int
            Samples of the stack.
        """
        self.n_samples = n_samples
        return _CallbackInFold(self, make, set_fitted, n_samples)

    def show(self, set_fitted: Callable[[Any], None], n_samples: int, report: FoldReport | None = None) -> None:
        """Pass the model of all samples to the callback before further passes.

        Raises
        ------
        Enough
        """
        self.latest, self.complete, self.n_samples = self._model(set_fitted), True, n_samples
        if report is not None:
            self.latest.fit_report_ = report
        self._call_back(n_samples)

    def end(self, model: Any) -> None:
        """Pass the fitted estimator to the callback."""
        if self.callback is not None:
            n = max(self.n_samples, int(getattr(model, "n_samples_seen_", 0)))
            self.callback(Progress.of(model, n, self.pace.seconds, finished=True))

    def show_so_far(self, set_fitted: Callable[[Any], None], n_samples: int) -> None:
        """Make the model so far, if possible, and pass it to the callback.

        Raises
        ------
        Enough
        """
        began = time.perf_counter()
        try:
            self.latest = self._model(set_fitted)
        except DataError:
            # Few samples may have no model. If a value is invalid, the fit itself raises the error.
            return
        self._call_back(n_samples)
        self.pace.called_back(time.perf_counter() - began)

    def is_over(self, n_samples: int) -> bool:
        """Return whether a budget is used up."""
        return self.pace.is_over or (self.most is not None and n_samples >= self.most)

    def most_from(self, n_samples: int) -> int | None:
        """Return the sample at which the fit ends that started or resumed at ``n_samples``."""
        if self.most is None and self.max_samples is not None:
            self.most = n_samples + self.max_samples
        return self.most

    def _model(self, set_fitted: Callable[[Any], None]) -> Any:
        model = copy.copy(self.estimator)
        with warnings.catch_warnings():
            # The fit itself warns once, at its end.
            warnings.simplefilter("ignore", UserWarning)
            set_fitted(model)
        vars(model).update(self.beside)
        return model

    def _call_back(self, n_samples: int) -> None:
        progress = Progress.of(self.latest, n_samples, self.pace.seconds)
        try:
            answer = None if self.callback is None else self.callback(progress)
        except Exception as error:
            raise Raised from error
        # Only True ends the fit, also as the result of a comparison of numpy.
        if (isinstance(answer, bool | np.bool_) and answer) or self.is_over(progress.n_samples_seen):
            raise Enough


@dataclass
class _CallbackInFold(FoldCallback):
    """The callback of one fold of a fit."""

    callbacks: FitCallbacks
    make: Callable[[list[State]], Any]
    set_fitted: Callable[[Any, Any, int], None]
    n_samples: int

    def until(self, n_samples: int) -> int:
        """Return the sample at which to stop next."""
        self.most = self.callbacks.most_from(n_samples)
        return self.callbacks.pace.until(n_samples)

    @property
    def exact(self) -> bool:
        """Whether the next run of samples may end inside a chunk, for an early first result."""
        return self.callbacks.pace.is_early

    def __call__(self, progress: FoldProgress) -> None:
        """Call the callback if it is due. End the fit if a budget is used up and there is a model.

        Further passes do not call it: their models would contain fewer samples than the model of the first pass.
        """
        callbacks = self.callbacks
        due, over = callbacks.pace.arrived(progress.n_samples), callbacks.is_over(progress.n_samples)
        if callbacks.complete:
            if over:
                raise Enough
        elif due or over:

            def set_fitted(model: Any) -> None:
                named_errors(self._set_so_far, "the samples so far")(model, progress)

            callbacks.show_so_far(set_fitted, self.n_samples)

    def _set_so_far(self, model: Any, progress: FoldProgress) -> None:
        with one_blas_thread():
            found = self.make(progress.states())
        self.set_fitted(model, found, progress.n_samples)
        model.fit_report_ = progress.report()


@contextmanager
def may_end_early(model: Any, callbacks: FitCallbacks | None) -> Iterator[None]:
    """Let a callback or a budget end the fit in the block early, with the attributes of the last model so far."""
    try:
        yield
    except Enough:
        vars(model).update(vars(callbacks.latest if callbacks else model))
    except Raised as raised:
        raise raised.__cause__ from None  # type: ignore[misc]
    if callbacks is not None:
        callbacks.end(model)


def finish_all(rule: Any, states: list[State]) -> list[dict[str, Array]]:
    """Return the results of a rule for the states of all parts, and overwrite the states."""
    return list(run_in_order(rule.finish, ((state,) for state in states), threads=thread_count()))


def checked_budgets(max_seconds: Any, max_samples: Any) -> tuple[float, int | None]:
    """Return the budgets of seconds, infinity without a limit, and of samples, None without a limit.

    Raises
    ------
    DataError
        If a budget is not a positive number, or allows fewer than 2 samples.
    """
    seconds = math.inf if max_seconds is None else positive_seconds(max_seconds, "max_seconds")
    most = None if max_samples is None else whole_number(max_samples, "max_samples", 2, ", or None for no limit")
    return seconds, most


def positive_seconds(value: Any, name: str) -> float:
    """Return a number of seconds.

    Raises
    ------
    DataError
        If it is not a positive number.
    """
    if not is_real(value) or not value > 0:
        raise DataError(f"{name} is {value!r}: use a positive number of seconds")
    return float(value)
