"""From a stack to a stored model."""

from __future__ import annotations

import math
import os
import time
import warnings
from typing import Any, NamedTuple

from dpca.engine.checkpoint import Checkpoints
from dpca.jobs.stages import NOTHING, StageCost, held_by
from dpca.models.estimator import Estimator
from dpca.models.rank import UnmetError
from dpca.models.store import load_any, write_model
from dpca.storage.disk import remove_tree
from dpca.storage.outputs import check_output
from dpca.storage.progress import Progress, no_progress
from dpca.storage.stack import Stack
from dpca.storage.workspace import Workspace, fingerprint_of


class Fitted(NamedTuple):
    """The result of a fit: the model, its cost, and sentences that a user should know of."""

    model: Any
    cost: StageCost
    notes: list[str]


def fit_store(
    stack: Stack,
    target: str | os.PathLike[str],
    model: Estimator,
    *,
    client: Any | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    request: str | None = None,
) -> Fitted:
    """Fit a model to a stack and store it; a fit that was stopped goes on, one that is done is only loaded.

    Parameters
    ----------
    stack : Stack
    target : path-like
        Where the model appears once it is whole.
    model : Estimator
        Not fitted; its ``random_state``, if it has one, must be an integer. It is fitted unless ``target`` is there
        already.
    client : distributed.Client, optional
        Cluster to run on.
    overwrite : bool
        Whether another store at ``target`` may be replaced.
    progress : Progress
        Told the bytes read.
    request : str, optional
        What the store is to state of the request for it, by which a program can recognize that it served it before;
        the store then states the numbers of a report, too.

    Returns
    -------
    Fitted
        Its cost is `NOTHING` and there are no notes where ``target`` was there already.

    Raises
    ------
    DataError, PlanError
        As the model's ``fit``. Where the components that it found cannot be what was asked for, nothing of it stays.
    StoreError
        If ``target`` is something else, or is, holds or lies in the stack, or the stack cannot be read.
    """
    check_output(target, stack)
    # An array of someone else's does not state its range, on which some choices of components depend.
    fingerprint = fingerprint_of(
        model.store_kind, model.store_version, stack.fingerprint, stack.data_range, model.fit_settings()
    )
    with Workspace(target, kind=model.store_kind, fingerprint=fingerprint, overwrite=overwrite) as work:
        if work.state == "complete":
            return Fitted(load_any(target), NOTHING, [])
        began = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            kept = Checkpoints(str(work.scratch / "fold"), str(work.scratch))
            try:
                model.fit(stack, client=client, checkpoints=kept, progress=progress)
            except UnmetError:
                # Nothing that the next try, for something else, could use: leave no trace of this one.
                remove_tree(work.scratch)
                work.scratch.mkdir()
                raise
        stated = {} if request is None else {"request": request, "numbers": model.report_numbers()}
        write_model(model, work.store, fingerprint, stated)
        work.publish()
    report: Any = model.fit_report_
    n_passes = int(model.report_numbers().get("passes", 1))
    # The report is that of the first pass.
    peak = report.peak_memory if n_passes == 1 or client is None else max(report.peak_memory, held_by(client))
    cost = StageCost(time.perf_counter() - began, n_passes * report.plan.read_bytes, peak)
    warned = dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning))
    return Fitted(model, cost, [*([report.note] if report.note else []), *_reached(model.target_numbers()), *warned])


def _reached(target: dict[str, Any]) -> list[str]:
    """Say how a target of quality was met, if there was one."""
    if not target:
        return []
    name, asked, reached, error, left_out = target.values()
    where = f"{left_out:,} samples that were left out of the fit" if left_out else "samples of the fit"
    spread = f" (standard error {error:.2g})" if error else ""
    kind = "" if name == "target_ssim" else ", before values are rounded to those of the stack"
    return [
        f"{name} is {asked:g}, and {math.inf if reached is None else reached:.6g} is reached on {where}{spread}{kind}"
    ]
