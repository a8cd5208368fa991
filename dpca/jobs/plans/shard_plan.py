"""Whether a job fits the memory, and with shards of which size: one decision for the job and for its plan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sklearn.base import clone

from dpca.engine.folds.plan import Outline, PlanError
from dpca.engine.sources.source import as_source
from dpca.jobs.compressed.cell_choice import cells_tried
from dpca.jobs.compressed.encode import check_goal, wanted_goal
from dpca.jobs.compressed.encode_memory import check_encode_memory
from dpca.jobs.scores.box_write import plan_scores
from dpca.jobs.scores.settings import CompressionSettings
from dpca.storage.arrays.layout import SHARD_BYTES
from dpca.storage.ingest import plan_ingest
from dpca.storage.readers import Reader
from dpca.storage.run import Run
from dpca.storage.stack import Stack

# Sizes of shards that are tried where memory is short, each half of the one before.
_HALVED = 8


def plan_shards(given: Stack | Reader, settings: CompressionSettings, run: Run) -> tuple[int, int]:
    """Refuse a job if a stage does not fit the memory, however small the shards of the stack that it ingests.

    Parameters
    ----------
    given : Stack or Reader
        Of a reader, the first few samples are read.
    settings : CompressionSettings
    run : Run
        Where the fit will run. Its ``memory`` limits every task, those of a fit only if the model has no
        ``memory_budget``.

    Returns
    -------
    size : int
        Bytes of all samples, decoded.
    shard_bytes : int
        Those of a shard of the stack at most.

    Raises
    ------
    PlanError
        Naming the stage, what it takes, the limit, and the setting that fits.
    DataError
        If the source or the parameters are wrong.
    """
    refused = None
    run = run.limited_to(run.task_bytes())
    for halved in range(_HALVED):
        try:
            return _planned(given, settings, run, shard_bytes := SHARD_BYTES >> halved), shard_bytes
        except PlanError as error:
            refused = error
            if isinstance(given, Stack):
                break
    assert refused is not None
    raise refused


def _planned(given: Stack | Reader, settings: CompressionSettings, run: Run, shard_bytes: int) -> int:
    """Return the bytes of all samples, decoded; refuse a job if a stage does not fit the memory with such shards."""
    model, memory = settings.model, run.task_bytes()
    if isinstance(given, Stack):
        source: Any = as_source(given)
        axes = given.axes
    else:
        with _stage("ingest"):
            shape, dtype, layout, axes = plan_ingest(given, settings.reading, model.cell_shape_for, memory, shard_bytes)
        source = Outline(given.name, shape, dtype, layout.chunks)
    with _stage("fit"):
        if settings.choose_cells:
            model = clone(model).set_params(**cells_tried(model, source.shape[1:], axes[1:])[0])
        basis, known = model.plan_fit(source, axes[1:], run)
    name, known = ("scores", known) if settings.goal is None else ("encode", False)
    with _stage(name, "" if known else ", even with as few components as the choice can come to"):
        if settings.goal is None:
            plan_scores(source, basis, axes, reconstruct=settings.reconstruct, budget=memory)
        else:
            wanted = wanted_goal(settings.goal, every_sample=settings.every_sample)
            check_goal(wanted, source.shape[1:], len(model.cell_shape_for(axes[1:])))
            check_encode_memory(source, memory, promised=wanted.is_error_bound)
    size: int = math.prod(source.shape) * source.dtype.itemsize
    return size


@contextmanager
def _stage(name: str, why: str = "") -> Iterator[None]:
    try:
        yield
    except PlanError as error:
        raise PlanError(f"stage {name!r} of this job does not fit the memory{why}: {error}") from error
