"""From a stack to a stored model."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpca.engine.checkpoint import Checkpoints
from dpca.jobs.stages import NOTHING, StageCost, held_by
from dpca.models import cell_store, streaming_store
from dpca.models.cell_pca import CellPCA
from dpca.models.streaming_methods import describe_option
from dpca.models.streaming_pca import StreamingPCA
from storage.progress import Progress, no_progress
from storage.stack import Stack
from storage.workspace import Workspace, fingerprint_of


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
    kind, version = cell_store.KIND, cell_store.VERSION
    cell = [cell_shape] if isinstance(cell_shape, int) else list(cell_shape)
    fingerprint = fingerprint_of(kind, version, stack.fingerprint, n_components, cell)
    model = CellPCA(n_components, cell_shape=cell_shape)
    cost = _fit(model, stack, target, kind, fingerprint, cell_store.write_model, client, overwrite, progress)
    return (cell_store.load_model(target) if cost is NOTHING else model), cost


def fit_streaming_store(
    stack: Stack,
    target: str | os.PathLike[str],
    model: StreamingPCA,
    *,
    client: Any | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> tuple[StageCost, list[str]]:
    """Fit a `StreamingPCA` to a stack and store it; a fit that was stopped goes on, one that is done is recognized.

    Parameters
    ----------
    stack : Stack
    target : path-like
        Where the model appears once it is whole.
    model : StreamingPCA
        Not fitted; its ``random_state`` must be an integer. It is fitted unless ``target`` is there already.
    client, overwrite, progress
        As for `fit_store`.

    Returns
    -------
    cost : StageCost
    notes : list of str
        What the fit warned of.

    Raises
    ------
    DataError, PlanError
        As `StreamingPCA.fit`.
    StoreError
        If ``target`` is something else, or the stack cannot be read.
    """
    kind = streaming_store.KIND
    settings = {name: describe_option(value) for name, value in model.get_params().items()}
    fingerprint = fingerprint_of(kind, streaming_store.VERSION, stack.fingerprint, settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        cost = _fit(model, stack, target, kind, fingerprint, streaming_store.write_model, client, overwrite, progress)
    return cost, list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)))


def _fit(
    model: Any,
    stack: Stack,
    target: str | os.PathLike[str],
    kind: str,
    fingerprint: str,
    write: Callable[[Any, Path, str], None],
    client: Any | None,
    overwrite: bool,
    progress: Progress,
) -> StageCost:
    """Fit and store; `NOTHING` where the store is there already."""
    with Workspace(target, kind=kind, fingerprint=fingerprint, overwrite=overwrite) as work:
        if work.state == "complete":
            return NOTHING
        began = time.perf_counter()
        model.fit(stack, client=client, checkpoints=Checkpoints(str(work.scratch / "fold")), progress=progress)
        write(model, work.store, fingerprint)
        work.publish()
    report = model.fit_report_
    n_passes = int(model.get_params().get("n_passes", 1))
    # The report is that of the first pass.
    peak = report.peak_memory if n_passes == 1 or client is None else max(report.peak_memory, held_by(client))
    return StageCost(time.perf_counter() - began, n_passes * report.plan.read_bytes, peak)
