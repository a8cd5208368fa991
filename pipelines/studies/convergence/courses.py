"""How close streaming rules come to the best components, and what it costs them, as samples go by."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.folds.fold import fold
from dpca.engine.folds.plan import PlanError
from dpca.engine.folds.watching import Marks
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.partition.whole import Whole
from dpca.pipelines.studies.convergence.reference import Reference
from dpca.rules.base.rule import Wrapper
from dpca.rules.base.state import State
from dpca.storage.errors import DataError
from dpca.storage.remote.memory import task_budget
from dpca.storage.run import Run


@dataclass(frozen=True)
class ConvergenceCurve:
    """What became of one rule.

    Attributes
    ----------
    rule : str
        Its name.
    samples : tuple of int
        How many samples had been seen at each point.
    seconds : tuple of float
        Processor time of all updates up to there: reading and measuring left out, one BLAS thread.
    convergence : tuple of float
        Alakkari 2020, equation 2.24, in float64; -inf for the best components themselves.
    failure : str
        Why the rule gave up before the end, if it did.
    """

    rule: str
    samples: tuple[int, ...]
    seconds: tuple[float, ...]
    convergence: tuple[float, ...]
    failure: str = ""


@dataclass(frozen=True)
class RulePass:
    """One pass of a rule: what it had found at each mark, before that is measured."""

    samples: list[int]
    seconds: list[float]
    found: list[dict[str, Array]]
    failure: str = ""

    def course(self, name: str, reference: Reference, *, run: Run = Run()) -> ConvergenceCurve:
        """Measure it."""
        bases = [found["components"] for found in self.found]
        values = reference.convergence(bases, run=run) if bases else []
        return ConvergenceCurve(name, tuple(self.samples), tuple(self.seconds), tuple(values), self.failure)


def run_rule(
    rule: Any,
    source: Source,
    marks: Sequence[int],
    *,
    value_range: tuple[float, float] | None = None,
    run: Run = Run(),
    stage: str = "",
) -> RulePass:
    """Give a rule the samples of a source in their order, once, and note what it has found at some marks.

    Parameters
    ----------
    rule : Rule
        A streaming rule; wrap it in `dpca.rules.InBatches` for mini-batches of one size.
    source : Source
    marks : sequence of int
        Numbers of samples, at most as many as there are.
    value_range : tuple of 2 floats, optional
        Values that the rule is to see as 0 and 1, as floats: the step sizes of the literature are meant for pixels
        scaled like that. By default the values stay as they are.
    run : Run
        Its progress counts the bytes read.
    stage : str
        Name of the pass in the progress.

    Returns
    -------
    RulePass
        If the rule refuses to go on, because it diverges, up to there.

    Notes
    -----
    Holds what is found at every mark: k d numbers each.
    """
    timed: Any = _Timed(rule, value_range, [])
    passed = RulePass([], [], [])

    def note(n: int, found: dict[str, Array]) -> None:
        passed.found.append(found)
        passed.samples.append(n)
        passed.seconds.append(sum(timed.seconds))

    whole = Whole(tuple(source.shape[1:]))
    try:
        # All memory is for the one task that runs at a time.
        watch = Marks(marks, lambda look: note(look.n_samples, rule.finish(look.states()[0])))
        alone = replace(run, memory=task_budget(None, 1))
        (found,), _ = fold(timed, source, whole, run=alone, stage=stage, watch=watch)
        if source.shape[0] in marks:
            note(source.shape[0], found)
    except (DataError, PlanError):
        # The samples' fault, or the machine's, not the rule's.
        raise
    except (ValueError, _GaveUp) as error:
        return RulePass(passed.samples, passed.seconds, passed.found, str(error))
    return passed


class _GaveUp(Exception):
    """A rule refused to go on."""


@dataclass(frozen=True)
class _Timed(Wrapper):
    """A rule that sees scaled values, and the processor seconds of each of its updates."""

    value_range: tuple[float, float] | None
    seconds: list[float]

    # One stream, cut at the marks.
    mergeable: ClassVar[bool] = False

    def is_batch_invariant(self, dtype: DTypeLike) -> bool:
        return True

    def init(self, n_features: int, dtype: DTypeLike) -> State:
        state: State = self.rule.init(n_features, self._dtype(dtype))
        return state

    def update(self, state: State, batch: Array) -> State:
        x = batch if self.value_range is None else _scaled(batch, self.value_range, self._dtype(batch.dtype))
        began = time.thread_time()
        try:
            state = self.rule.update(state, x)
        except ValueError as error:
            raise _GaveUp(str(error)) from error
        self.seconds.append(time.thread_time() - began)
        return state

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        return int(self.rule.state_bytes(n_features, self._dtype(dtype)))

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        seen = self._dtype(dtype)
        return int(self.rule.work_bytes(n_rows, n_features, seen)) + n_rows * n_features * seen.itemsize

    def _dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        return np.dtype(dtype) if self.value_range is None else working_dtype(dtype)


def marks_for(n_samples: int, points: int, batch_size: int) -> list[int]:
    """Return up to ``points`` numbers of samples, whole batches, equally far apart in their logarithm, the last all.

    The first one is at the end of the first batch, where most rules have hardly begun.
    """
    wanted = np.geomspace(min(batch_size, n_samples), n_samples, max(points, 2))
    whole = {min(n_samples, round(w / batch_size) * batch_size or n_samples) for w in wanted[:-1]}
    return sorted(whole | {n_samples})[-points:]


def _scaled(batch: Array, value_range: tuple[float, float], dtype: np.dtype[Any]) -> Array:
    low, high = value_range
    x = batch.astype(dtype)
    x -= dtype.type(low)
    x *= dtype.type(1 / (high - low))
    return x
