"""The generator behind `StreamingPCA.iter_fit`."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpca.engine.folds.boundary import named_errors
from dpca.engine.folds.callbacks import FoldCallback, FoldProgress, Pace
from dpca.engine.folds.fold import iter_fold, plan_for
from dpca.engine.sources.source import Source, batches
from dpca.models.base.callbacks import Progress
from dpca.partition.whole import Whole
from dpca.rules.base.keeping import Keeping, pop_state
from dpca.storage.errors import DataError
from dpca.storage.run import Run

# Relative difference of two sums of the same weights.
_ROUNDING = 1e-9


@dataclass
class _PacedLinks(FoldCallback):
    """Stops of the fold according to the pace."""

    pace: Pace
    most: int | None

    def until(self, n_samples: int) -> int:
        """Return the number of samples at the next stop."""
        return self.pace.until(n_samples)

    @property
    def exact(self) -> bool:
        """Whether the next stop may lie inside a chunk, so that the first progress comes early."""
        return self.pace.is_early

    def __call__(self, progress: FoldProgress) -> None:
        """Do nothing: `iterate` handles each stop."""


def iterate(model: Any, source: Source, run: Run, *, pace: Pace, max_samples: int | None) -> Iterator[Progress]:
    """Fit a `StreamedModel` to the remaining samples of a source, and yield the progress so far.

    The model has a rule, and a state if samples were fitted before. Whenever the generator is suspended, closed or left
    by an exception, the model is consistent and nothing runs.
    """
    if source.weights is not None:
        yield from _weighted(model, source, run, pace, max_samples)
        return
    n, whole = source.shape[0], Whole(tuple(source.shape[1:]))
    seen = model.n_samples_seen_ if model._states else 0
    if seen != int(seen):
        raise DataError(
            f"this model has seen samples of the weight {seen:g}, which is not a number of samples of {source.name}: "
            f"use partial_fit"
        )
    if seen > n:
        raise DataError(f"this model has seen {seen:,} samples but {source.name} has {n:,}: give the same stack again")
    rule: Any = Keeping(replace(model._stream_rule, chain=True))
    plan = plan_for(rule, source, whole, run=run)
    left = tuple((max(start, seen), stop) for start, stop in plan.segments if stop > seen)
    plan = replace(plan, segments=left, read_bytes=plan.read_bytes // n * (n - seen))
    most = None if max_samples is None else seen + max_samples
    callback = _PacedLinks(pace, most)
    folding = iter_fold(rule, source, whole, run=run, plan=plan, callback=callback, resume_from=model._states)
    try:
        while seen < n:
            try:
                progress = next(folding)
            except StopIteration as ended:
                (found,), _ = ended.value
                model._set_state(pop_state(found), found)
                break
            model._set_state(progress.reached[0])
            if pace.is_over or (most is not None and progress.n_samples >= most):
                break
            if pace.arrived(progress.n_samples) and (snapshot := _snapshot(model, pace)) is not None:
                yield Progress.of(snapshot, n, pace.seconds)
        yield Progress.of(model, n, pace.seconds, finished=True)
    finally:
        folding.close()
        if model._states:
            # Copy the state, because yielded models share it.
            model._states = [model._states[0].copy()]


def _weighted(model: Any, source: Source, run: Run, pace: Pace, max_samples: int | None) -> Iterator[Progress]:
    """Do the same for samples with weights that are not whole numbers, batch by batch of the rule in this process."""
    n, region = source.shape[0], tuple((0, length) for length in source.shape[1:])
    rule, every_weight = model._stream_rule, np.asarray(source.weights)
    sums = np.cumsum(every_weight)
    seen = float(model.n_samples_seen_) if model._states else 0.0
    start = int(np.searchsorted(sums, seen * (1 + _ROUNDING), side="right"))
    if not math.isclose(seen, sums[start - 1] if start else 0.0, rel_tol=_ROUNDING):
        raise DataError(
            f"this model has seen samples of the weight {seen:g}, which is not that of the first samples of "
            f"{source.name}: give the same stack and weights again, or use partial_fit"
        )
    chain: Any = Keeping(replace(rule, chain=True))
    plan_for(chain, source, Whole(tuple(source.shape[1:])), run=run)  # does it fit into memory?
    state = model._states[0] if model._states else rule.init(math.prod(source.shape[1:]), source.dtype)
    weigh, most = named_errors(rule.weigh, source.name), math.inf if max_samples is None else seen + max_samples
    for first, batch in batches(source, (start, n), region, rule.size) if start < n else ():
        pace.until(model.n_samples_seen_ if model._states else 0)
        weights = every_weight[first : first + len(batch)]
        state = weigh(state.copy(), batch.reshape(len(batch), -1), weights)
        model._set_state(state)
        if pace.is_over or model.n_samples_seen_ >= most:
            break
        if pace.arrived(model.n_samples_seen_) and (snapshot := _snapshot(model, pace)) is not None:
            yield Progress.of(snapshot, int(sums[-1]), pace.seconds)
    yield Progress.of(model, int(sums[-1]), pace.seconds, finished=True)


def _snapshot(model: Any, pace: Pace) -> Any:
    """Return a copy of a model with its components, None if there are none yet."""
    began, found = time.perf_counter(), copy.copy(model)
    try:
        model._previous_components = found.components_
    except DataError:
        return None
    if not model.keep_state:
        found._states = None
    pace.called_back(time.perf_counter() - began)
    return found
