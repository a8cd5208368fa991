"""The convergence and the processor time of streaming rules, as a function of samples seen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.folds.callbacks import Marks
from dpca.engine.folds.fold import fold
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.partition.whole import Whole
from dpca.pipelines.studies.convergence.reference import Reference
from dpca.rules.base.rule import Wrapper
from dpca.rules.base.state import ALL, AttributeBlocks, State
from dpca.storage.errors import DataError
from dpca.storage.remote.memory import task_budget
from dpca.storage.run import Run


@dataclass(frozen=True)
class ConvergenceCurve:
    """The course of one rule.

    Attributes
    ----------
    rule : str
        Its name.
    samples : sequence of int
        Number of samples seen at each point.
    seconds : sequence of float
        Processor time of all updates up to each point, without reading and measuring; one BLAS thread.
    convergence : sequence of float
        Alakkari 2020, equation 2.24, in float64; -inf for the best components themselves.
    failure : str
        Reason if the rule ended early.
    """

    rule: str
    samples: Sequence[int]
    seconds: Sequence[float]
    convergence: Sequence[float]
    failure: str = ""


@dataclass(frozen=True)
class RulePass:
    """One pass of a rule: its results at each mark, not yet measured."""

    samples: list[int]
    seconds: list[float]
    found: list[dict[str, Array]]
    failure: str = ""

    def course(self, name: str, reference: Reference, *, run: Run = Run()) -> ConvergenceCurve:
        """Measure the results."""
        bases = [found["components"] for found in self.found]
        values = reference.convergence(bases, run=run) if bases else []
        return ConvergenceCurve(name, self.samples, self.seconds, values, self.failure)


def run_rule(
    rule: Any,
    source: Source,
    marks: Sequence[int],
    *,
    value_range: tuple[float, float] | None = None,
    run: Run = Run(),
    stage: str = "",
) -> RulePass:
    """Run a rule once over the samples of a source in their order, and record its results at some marks.

    Parameters
    ----------
    rule : Rule
        A streaming rule; wrap it in `dpca.rules.InBatches` for mini-batches of one size.
    source : Source
    marks : sequence of int
        Numbers of samples, at most those of the source.
    value_range : tuple of 2 floats, optional
        Values that the rule sees as 0 and 1, as floats: step sizes of the literature assume pixels on this scale. By
        default values are not scaled.
    run : Run
        Its progress receives the bytes read.
    stage : str
        Name of the stage in the progress.

    Returns
    -------
    RulePass
        If the rule diverges, the results until then.

    Notes
    -----
    Holds the results of every mark: k d numbers each.
    """
    timed: Any = _Timed(rule, value_range, [])
    passed = RulePass([], [], [])

    def note(n: int, found: dict[str, Array]) -> None:
        passed.found.append(found)
        passed.samples.append(n)
        passed.seconds.append(sum(timed.seconds))

    whole = Whole(tuple(source.shape[1:]))
    try:
        # One task runs at a time and may use all memory.
        callback = Marks(marks, lambda progress: note(progress.n_samples, rule.finish(progress.states()[0])))
        alone = replace(run, memory=task_budget(None, 1))
        (found,), _ = fold(timed, source, whole, run=alone, stage=stage, callback=callback)
        if source.shape[0] in marks:
            note(source.shape[0], found)
    except (DataError, PlanError):
        # An error of the samples or the machine, not of the rule.
        raise
    except (ValueError, _Diverged) as error:
        return replace(passed, failure=str(error))
    return passed


class _Diverged(Exception):
    """A rule raised an error."""


@dataclass(frozen=True)
class _Timed(Wrapper):
    """A rule that sees scaled values, and records the processor seconds of each update."""

    value_range: tuple[float, float] | None
    seconds: list[float]

    # One stream, divided at the marks.
    mergeable: ClassVar[bool] = False

    def is_batch_invariant(self, dtype: DTypeLike) -> bool:
        return True

    def init(self, n_features: int, dtype: DTypeLike, blocks: AttributeBlocks = ALL) -> State:
        state: State = self.rule.init(n_features, self._dtype(dtype), blocks)
        return state

    def update(self, state: State, batch: Array) -> State:
        x = batch if self.value_range is None else _scaled(batch, self.value_range, self._dtype(batch.dtype))
        began = time.thread_time()
        try:
            state = self.rule.update(state, x)
        except ValueError as error:
            raise _Diverged(str(error)) from error
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
    """Return up to ``points`` numbers of samples: whole batches, equally far apart in the logarithm, the last all.

    The first one is at the end of the first batch.
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
