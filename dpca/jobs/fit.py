"""From a stack to a stored model."""

from __future__ import annotations

import os
import time
from typing import Any

from dpca.engine.checkpoint import Checkpoints
from dpca.jobs.stages import NOTHING, StageCost
from dpca.models.cell_pca import CellPCA
from dpca.models.cell_store import KIND, VERSION, load_model, write_model
from storage.progress import Progress, no_progress
from storage.stack import Stack
from storage.workspace import Workspace, fingerprint_of


def fit_fingerprint(stack_fingerprint: str, n_components: int | None, cell_shape: int | tuple[int, ...]) -> str:
    """Return what tells this model from any other: the stack's content and the settings."""
    cell = [cell_shape] if isinstance(cell_shape, int) else list(cell_shape)
    return fingerprint_of(KIND, VERSION, stack_fingerprint, n_components, cell)


def fit_store(
    stack: Stack,
    target: str | os.PathLike[str],
    *,
    n_components: int | None,
    cell_shape: int | tuple[int, ...],
    client: Any | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> tuple[CellPCA, StageCost]:
    """Fit a `CellPCA` to a stack and store it; a fit that was stopped goes on, one that is done is only loaded.

    Parameters
    ----------
    stack : Stack
    target : path-like
        Where the model appears once it is whole.
    n_components, cell_shape
        As for `CellPCA`.
    client : distributed.Client, optional
        Cluster to run on.
    overwrite : bool
        Whether another store at ``target`` may be replaced.
    progress : Progress
        Told the bytes read.

    Returns
    -------
    model : CellPCA
    cost : StageCost

    Raises
    ------
    DataError, PlanError
        As `CellPCA.fit`.
    StoreError
        If ``target`` is something else, or the stack cannot be read.
    """
    fingerprint = fit_fingerprint(stack.fingerprint, n_components, cell_shape)
    with Workspace(target, kind=KIND, fingerprint=fingerprint, overwrite=overwrite) as work:
        if work.state == "complete":
            return load_model(target), NOTHING
        began = time.perf_counter()
        model = CellPCA(n_components, cell_shape=cell_shape)
        checkpoints = Checkpoints(str(work.scratch / "fold"))
        model.fit(stack, client=client, checkpoints=checkpoints, progress=progress)
        write_model(model, work.store, fingerprint)
        work.publish()
    report = model.fit_report_
    return model, StageCost(time.perf_counter() - began, report.plan.read_bytes, report.peak_memory)
