"""Fits that are watched: the model so far, now and then, and budgets of time and samples that end a fit early."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from dpca.engine.folds.boundary import guarded
from dpca.engine.folds.memory import thread_count
from dpca.engine.folds.watching import FoldProgress, FoldReport, Pace, Watch
from dpca.kernels.algebra.types import Array
from dpca.rules.base.state import State
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_real, whole_number
from dpca.storage.remote.tasks import one_blas_thread, run_in_order

T = TypeVar("T")
#: Seconds between looks, at least.
EVERY = 1.0
_ESTIMATE = "captured_estimate"


@dataclass(frozen=True)
class Progress:
    """A fit that is under way, or has ended.

    Attributes
    ----------
    model : estimator
        A fitted model of the samples so far, which does all that one of the whole stack does; of few samples it may
        have fewer components than were asked for. It is a copy, which the fit does not change any more. When the fit
        has ended it is the estimator itself.
    n_samples_seen : int
        Samples that the model was made from.
    n_samples : int
        Samples of the stack.
    seconds : float
        Since the fit began, with all looks before this one.
    captured_variance : float
        Share of the variance of the samples so far that the components explain, 0 to 1, as the fit estimates it: its
        ``explained_variance_ratio_``, summed. Of few samples too much; nan of a model without components.
    captured_bound : float
        Certificate: the components capture at least this share of what the best ones would, for the samples so far; nan
        where the method knows of none.
    captured_estimate : float
        Estimate of the same share, by `StreamingPCA`'s default method, else nan.
    finished : bool
        Whether this is the last one.
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
        """Return what a fitted model says of itself."""
        numbers = model.report_numbers() if hasattr(model, "report_numbers") else {}
        ratio = numbers.get("explained_variance_ratio", np.sum(getattr(model, "explained_variance_ratio_", math.nan)))
        bound, estimate = (float(getattr(model, f"{name}_", math.nan)) for name in ("captured_bound", _ESTIMATE))
        n = int(model.n_samples_seen_)
        return cls(model, n, n_samples, seconds, min(float(ratio), 1.0), bound, estimate, finished)


Callback = Callable[[Progress], Any]
"""Is called with each `Progress`; where it returns True, the fit ends there."""


class Enough(BaseException):
    """A fit ends with the last model so far. It is no `Exception`, so nothing on the way catches it as an error."""


class Raised(BaseException):
    """A callback raised an error, the cause of this one. Nothing on the way mistakes it for an error in the samples."""


@dataclass
class Watching:
    """What watches the folds of one fit.

    Parameters
    ----------
    estimator : estimator
        Copies of it are the models so far.
    callback : callable, optional
    max_seconds, max_samples
        As for `Estimator.fit`.
    """

    estimator: Any
    callback: Callback | None = None
    max_seconds: float = math.inf
    max_samples: int | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)
    """What models know beside what they learn."""
    latest: Any = field(default=None, init=False)
    """The last model so far, if there was one."""
    complete: bool = field(default=False, init=False)
    """Whether that is of all samples."""
    n_samples: int = field(default=0, init=False)
    """Of the stack, once it is known."""
    most: int | None = field(default=None, init=False)
    """Samples after which the fit ends, once it is known where it goes on."""

    def __post_init__(self) -> None:
        self.pace = Pace(math.inf if self.callback is None else EVERY, self.max_seconds)

    @classmethod
    def asked(
        cls, estimator: Any, callback: Callback | None, max_seconds: float | None, max_samples: int | None
    ) -> Watching | None:
        """Return what watches a fit with these arguments, None if they ask for nothing.

        Raises
        ------
        DataError
            For a callback that cannot be called, or budgets that are none.
        """
        if callback is None and max_seconds is None and max_samples is None:
            return None
        if callback is not None and not callable(callback):
            raise DataError(f"callback is of type {type(callback).__name__}: give a function of one dpca.Progress")
        return cls(estimator, callback, *checked_budgets(max_seconds, max_samples))

    def fold(
        self, make: Callable[[list[State]], Any], settle: Callable[[Any, Any, int], None], n_samples: int
    ) -> Watch:
        """Return what watches one fold.

        Parameters
        ----------
        make : callable (states) -> found
            Makes of states, which it may use up, what the estimator learns.
        settle : callable (model, found, n_samples_seen)
            Lets a copy of the estimator learn that.
        n_samples : int
            Of the stack.
        """
        self.n_samples = n_samples
        return _FoldWatch(self, make, settle, n_samples)

    def show(self, settle: Callable[[Any], None], n_samples: int, report: FoldReport | None = None) -> None:
        """Show the model of all samples, where further passes follow.

        Raises
        ------
        Enough
        """
        self.latest, self.complete, self.n_samples = self._model(settle), True, n_samples
        if report is not None:
            self.latest.fit_report_ = report
        self._tell(n_samples)

    def ended(self, model: T) -> T:
        """Show the estimator in the end, and return it."""
        if self.callback is not None:
            n = max(self.n_samples, int(getattr(model, "n_samples_seen_", 0)))
            self.callback(Progress.of(model, n, self.pace.seconds, finished=True))
        return model

    def look(self, settle: Callable[[Any], None], n_samples: int) -> None:
        """Make the model so far, if there can be one, and show it.

        Raises
        ------
        Enough
        """
        began = time.perf_counter()
        try:
            self.latest = self._model(settle)
        except DataError:
            # So few samples may have no model; if they are bad, the fit itself raises the error.
            return
        self._tell(n_samples)
        self.pace.looked(time.perf_counter() - began)

    def is_over(self, n_samples: int) -> bool:
        """Say whether a budget is used up."""
        return self.pace.is_over or (self.most is not None and n_samples >= self.most)

    def most_from(self, n_samples: int) -> int | None:
        """Return after how many samples the fit ends, which began, or went on, at ``n_samples``."""
        if self.most is None and self.max_samples is not None:
            self.most = n_samples + self.max_samples
        return self.most

    def _model(self, settle: Callable[[Any], None]) -> Any:
        model = copy.copy(self.estimator)
        with warnings.catch_warnings():
            # The fit itself warns, once, at its end.
            warnings.simplefilter("ignore", UserWarning)
            settle(model)
        vars(model).update(self.beside)
        return model

    def _tell(self, n_samples: int) -> None:
        told = Progress.of(self.latest, n_samples, self.pace.seconds)
        try:
            answer = None if self.callback is None else self.callback(told)
        except Exception as error:
            raise Raised from error
        # numpy's comparisons have a truth value of their own; what else is returned was meant for nobody
        if (isinstance(answer, bool | np.bool_) and answer) or self.is_over(told.n_samples_seen):
            raise Enough


@dataclass
class _FoldWatch(Watch):
    """Watches one fold of a fit."""

    watching: Watching
    make: Callable[[list[State]], Any]
    settle: Callable[[Any, Any, int], None]
    n_samples: int

    def until(self, n_samples: int) -> int:
        """Return when to stop next."""
        self.most = self.watching.most_from(n_samples)
        return self.watching.pace.until(n_samples)

    @property
    def exact(self) -> bool:
        """Whether the next link may end inside a chunk: there is to be something to see at once."""
        return self.watching.pace.is_early

    def look(self, look: FoldProgress) -> None:
        """Look, where it is time; end the fit where it is over and there is a model.

        In a further pass there are no looks, whose models would be of fewer samples than the one there is.
        """
        watching = self.watching
        due, over = watching.pace.arrived(look.n_samples), watching.is_over(look.n_samples)
        if watching.complete:
            if over:
                raise Enough
        elif due or over:

            def settle(model: Any) -> None:
                guarded(self._learn, "the samples so far")(model, look)

            watching.look(settle, self.n_samples)

    def _learn(self, model: Any, look: FoldProgress) -> None:
        with one_blas_thread():
            found = self.make(look.states())
        self.settle(model, found, look.n_samples)
        model.fit_report_ = look.report()


def watched(model: T, watching: Watching | None, learn: Callable[[], None]) -> T:
    """Let a model learn and return it; where that ends early, it knows what the last model so far does."""
    try:
        learn()
    except Enough:
        vars(model).update(vars(watching.latest if watching else model))
    except Raised as raised:
        raise raised.__cause__ from None  # type: ignore[misc]
    return model if watching is None else watching.ended(model)


def finish_all(rule: Any, states: list[State]) -> list[dict[str, Array]]:
    """Return what a rule finds in the states of all partitions, which are used up."""
    return list(run_in_order(rule.finish, ((state,) for state in states), threads=thread_count()))


def checked_budgets(max_seconds: Any, max_samples: Any) -> tuple[float, int | None]:
    """Return budgets of seconds, infinity for none, and of samples.

    Raises
    ------
    DataError
        If they are none.
    """
    seconds = math.inf if max_seconds is None else positive_seconds(max_seconds, "max_seconds")
    most = None if max_samples is None else whole_number(max_samples, "max_samples", 2, ", or None for no limit")
    return seconds, most


def positive_seconds(value: Any, name: str) -> float:
    """Return a number of seconds.

    Raises
    ------
    DataError
        If it is none, or not positive.
    """
    if not is_real(value) or not value > 0:
        raise DataError(f"{name} is {value!r}: give a positive number of seconds")
    return float(value)
