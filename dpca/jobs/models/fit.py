"""Fit a model to a stack and store it."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dpca.jobs.base.stages import NOTHING, StageCost, held_by, stopwatch
from dpca.jobs.models.live import check_live, write_live
from dpca.models.base.callbacks import Callback
from dpca.models.base.callbacks import Progress as SoFar
from dpca.models.base.estimator import Estimator
from dpca.models.base.store import load_any, write_model
from dpca.models.cells.rank import UnmetError
from dpca.report.record import plain_numbers
from dpca.storage.errors import DataError
from dpca.storage.ranges import range_words
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.outputs import check_output
from dpca.storage.transaction.workspace import Workspace, fingerprint_of


class FitResult(NamedTuple):
    """The result of a fit: the model, its cost, notes for the user, and whether a budget ended the fit."""

    model: Any
    cost: StageCost
    notes: list[str]
    stopped: bool = False


def fit_store(
    stack: Stack,
    target: str | os.PathLike[str],
    model: Estimator,
    *,
    run: Run = Run(),
    request: str | None = None,
    live: str | os.PathLike[str] | None = None,
    max_seconds: float | None = None,
    max_samples: int | None = None,
    callback: Callback | None = None,
) -> FitResult:
    """Fit a model to a stack and store it. An interrupted fit resumes from its checkpoint; a finished one is loaded.

    Parameters
    ----------
    stack : Stack
        Or several variables, a `dpca.engine.sources.variables.VariableStack`, for estimators that analyze them.
    target : path-like
        Path of the model. It appears there when it is complete.
    model : Estimator
        Not fitted. If it has a ``random_state``, this must be an integer. The model is fitted unless ``target`` already
        exists.
    run : Run
        Whether to replace another store at ``target``, where the fit runs, and with how much memory. Its progress
        counts the bytes read.
    request : str, optional
        Text that the store keeps. A program can use it to recognize its earlier request. The store then also states the
        numbers of a report.
    live : path-like, optional
        Store of the model so far. It is replaced at each callback while the fit runs, and by the fitted model at the
        end. `dpca.jobs.read_live` reads it, from any process.
    max_seconds, max_samples, callback
        As in the model's ``fit``. If a budget ends the fit, the model so far is at ``live`` and there is nothing at
        ``target``; the same call resumes the fit.

    Returns
    -------
    Fitted
        The cost is `NOTHING` if ``target`` already existed. There are no notes then, nor if a budget ended the fit.

    Raises
    ------
    DataError, PlanError
        As the model's ``fit``. If the components cannot reach the requested quality, no files remain.
    StoreError
        If ``target`` is something else or overlaps the stack, or the stack cannot be read.
    """
    if live is not None:
        check_output(live, stack, target)
        check_live(live, model)
    elif max_seconds is not None or max_samples is not None:
        raise DataError("a budget (max_seconds, max_samples) requires a path for the model so far: give live=PATH")
    latest: list[SoFar] = []

    def on_progress(so_far: SoFar) -> Any:
        latest[:] = [so_far]
        if live is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # warnings of Zarr about codecs do not concern the fit
                write_live(so_far, live)
        return None if callback is None else callback(so_far)

    # An array not created by dpca states no range, but some choices of components depend on it.
    fingerprint = fingerprint_of(
        model.store_kind, model.store_version, stack.fingerprint, stack.data_range, model.fit_settings()
    )
    fit_callback = on_progress if live is not None or callback is not None else None

    def steps(work: Workspace) -> FitResult:
        cost, kept = stopwatch(), Checkpoints(str(work.scratch / "fold"), str(work.scratch))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            model.fit(
                stack,
                run=replace(run, checkpoints=kept),
                callback=fit_callback,
                max_seconds=max_seconds,
                max_samples=max_samples,
            )
        stopped = bool(latest) and latest[-1].n_samples_seen < latest[-1].n_samples
        if not stopped:
            stated = {} if request is None else {"request": request, "numbers": plain_numbers(model.report_numbers())}
            write_model(model, work.store, fingerprint, stated)
        notes = [] if stopped else _notes(model, caught)
        return FitResult(model, cost(*_bytes_and_peak(model, run.client)), notes, stopped)

    def publish(work: Workspace, fitted: FitResult) -> None:
        if not fitted.stopped:
            work.publish()
            fitted.model.stored_at(target)

    # A fit for another target of quality cannot resume from this one.
    job = Job(target, model.store_kind, fingerprint, (stack,), run.overwrite, discard_on=(UnmetError,))
    return job.run(steps, publish) or FitResult(_load_finished(target, live), NOTHING, [])


def _load_finished(target: str | os.PathLike[str], live: str | os.PathLike[str] | None) -> Any:
    """Return the finished model, and write it to ``live`` too."""
    model = load_any(target)
    if live is not None:
        write_live(SoFar.of(model, model.n_samples_seen_, 0.0, finished=True), live)
    return model


def _bytes_and_peak(model: Any, client: Any | None) -> tuple[int, int]:
    """Return the bytes that a fit read, and the peak memory of a process."""
    report: Any = model.fit_report_
    n_passes = int(model.report_numbers().get("passes", 1))
    # The report covers only the first pass.
    peak = report.peak_memory if n_passes == 1 or client is None else max(report.peak_memory, held_by(client))
    return n_passes * report.plan.read_bytes, peak


def _notes(model: Any, caught: Sequence[warnings.WarningMessage]) -> list[str]:
    warned = dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning))
    return [*_target_notes(model.target_numbers()), *warned]


def _target_notes(target: dict[str, Any]) -> list[str]:
    """Return how a target of quality was reached, if there was one."""
    if not target:
        return []
    name, asked, reached, error, left_out, bounds = target.values()
    where = f"{left_out:,} samples that were left out of the fit" if left_out else "samples of the fit"
    spread = f" (standard error {error:.2g})" if error else ""
    kind = "" if name == "target_ssim" else ", before values are rounded to the type of the stack"
    found = math.inf if reached is None else reached
    return [f"{name} is {asked:g}; {found:.6g} ({range_words(bounds)}) is reached on {where}{spread}{kind}"]
