"""From a stack and a cell PCA to a compressed store."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr

from dpca.choices import COMPRESSED
from dpca.codec.goal import Goal
from dpca.codec.quantize import promised_error
from dpca.codec.quantized import Quantized
from dpca.engine.checkpoint import Checkpoints
from dpca.engine.source import as_source
from dpca.jobs.encode_trials import Trials, cell_components
from dpca.jobs.encode_write import PLAN, EncodeJob, stored_plan, write_codes
from dpca.jobs.score_write import write_quality
from dpca.jobs.stages import NOTHING, StageCost
from dpca.jobs.transform import check_channels, stated_range, with_range
from dpca.models.cell_pca import CellPCA
from dpca.models.store import load_any, model_fingerprint
from dpca.partition.cells import CellGrid
from dpca.representation.compressed import COMPRESSED_VERSION
from dpca.representation.compressed_form import write_quantized
from dpca.representation.compressed_views import ALONG
from dpca.storage.arrays import create_root, write_strings
from dpca.storage.coordinates import write_coordinates
from dpca.storage.errors import DataError
from dpca.storage.layout import SAMPLE
from dpca.storage.objects import Place
from dpca.storage.outputs import check_output
from dpca.storage.progress import Progress, no_progress
from dpca.storage.ranges import type_range
from dpca.storage.stack import Stack
from dpca.storage.tasks import one_blas_thread
from dpca.storage.workspace import Workspace, fingerprint_of


def encode_store(
    stack: Stack,
    model: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    client: Any | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    request: str | None = None,
    **goal: float | None,
) -> StageCost:
    """Compress a stack: quantized scores of its cells, as few as a goal takes.

    Parameters
    ----------
    stack : Stack
        The samples; the model may have been fitted to others.
    model : path-like
        A stored `CellPCA`, with at least as many components of a cell as are worth keeping.
    target : path-like
        Where the store appears once it is whole; `dpca.open_compressed` reads it.
    client, overwrite, progress
        As for `fit_store`.
    request : str, optional
        What the store is to state of the request for it.
    **goal : float
        Exactly one of ``ratio``, ``psnr``, ``mse``, ``ssim``, ``max_error`` and ``max_relative_error``; see
        `dpca.codec.goal.Goal`. The last two hold for every value, the others are met on some hundred samples; the store
        states what is reached by each sample.

    Raises
    ------
    DataError
        If the goal makes no sense or cannot be met, or the model is of another kind or for other samples.
    PlanError, StoreError
        As `fit_store`.
    """
    check_output(target, stack, model)
    check_channels(stack)
    wanted = wanted_goal(goal)
    fingerprint = fingerprint_of(
        COMPRESSED,
        COMPRESSED_VERSION,
        stack.fingerprint,
        model_fingerprint(model),
        stack.data_range,
        wanted.name,
        wanted.value,
    )
    with Workspace(target, kind=COMPRESSED, fingerprint=fingerprint, overwrite=overwrite) as work:
        if work.state == "complete":
            return NOTHING
        facts = {} if request is None else {"request": request}
        stack = with_range(stack, client=client, progress=progress)
        cost = fill_codes(stack, model, work, work.scratch, wanted, facts=facts, client=client, progress=progress)
        work.publish()
    return cost


def wanted_goal(given: Mapping[str, float | None]) -> Goal:
    """Return the one goal that is given, see `dpca.codec.goal.Goal`.

    Raises
    ------
    DataError
        If there is none, or several, or its value makes no sense.
    """
    try:
        return Goal.of(**given)
    except ValueError as error:
        raise DataError(str(error)) from error


def fill_codes(
    stack: Stack,
    model: str | os.PathLike[str],
    work: Workspace,
    records: Place,
    wanted: Goal,
    *,
    facts: Mapping[str, Any],
    client: Any | None,
    progress: Progress,
) -> StageCost:
    """Write what is still missing of a compressed store in a workspace; ``records`` are kept of each finished shard.

    The store states ``facts`` about the job.
    """
    began = time.perf_counter()
    fitted = load_any(model)
    if not isinstance(fitted, CellPCA):
        raise DataError(f"'{model}' is a {fitted.store_kind} model but only cells are encoded: fit a CellPCA")
    if fitted.sample_shape_ != tuple(stack.sample_shape):
        raise DataError(
            f"'{stack.path}' has samples of {tuple(stack.sample_shape)} but the model was fitted to "
            f"{fitted.sample_shape_}: use the stack's own model"
        )
    source, kept, grid = as_source(stack), Checkpoints(str(records), str(work.scratch)), fitted.grid_
    stated = {**facts, **stated_facts(stack, fitted.grid_, wanted), "model": model_fingerprint(model)}
    if kept.load(PLAN) is None:
        with one_blas_thread():  # products of cells are too small for more
            found = Trials(source, cell_components(fitted), stated).reach(wanted)
        kept.save(PLAN, found.arrays, found.settings)
    chosen = Quantized.of(*stored_plan(kept))
    stated |= chosen.settings
    if (along := stack.coordinates) is not None:
        stated |= {"dims": list(along.dims), "attributes": along.stated}
    # Metadata without spaces: half of it, which counts where samples are few.
    with zarr.config.set({"json_indent": None}):
        group = create_root(
            work.store, kind=COMPRESSED, version=COMPRESSED_VERSION, fingerprint=work.fingerprint, **stated
        )
        try:
            write_quantized(group, chosen, grid, stack.axes)
            if along is not None:
                write_coordinates(group.require_group(ALONG), along)
            job = EncodeJob(
                source,
                str(work.store),
                work.fingerprint,
                stated.get("max_error"),
                grid.n_spatial,
                kept,
                not len(chosen.cell),
            )
            peak = write_codes(job, group, len(chosen.cell), client, progress)
        except OverflowError as error:
            raise DataError(
                f"'{stack.path}' cannot be encoded with a step this fine ({error}): ask for less"
            ) from error
        dim = SAMPLE if along is None else along.dims[0]
        write_quality(group, (kept.load(job.unit(s)) for s in range(job.n_shards)), kept.folder, dim)
        write_strings(group, "name", stack.names.tolist(), dim)
    return StageCost(time.perf_counter() - began, stack.nbytes, peak)


def stated_facts(stack: Stack, grid: CellGrid, wanted: Goal) -> dict[str, Any]:
    """Return what a compressed store states of its samples and of its goal.

    Raises
    ------
    DataError
        If nobody stated the data range, or no value of this type can keep what is promised.
    """
    data_range = stated_range(stack)
    max_error = _promise(wanted, data_range)
    beyond = max_error is not None or type_range(stack.dtype) is None
    facts: dict[str, Any] = {
        "axes": list(stack.axes),
        "sample_shape": list(stack.sample_shape),
        "dtype": stack.dtype.name,
        "data_range": list(data_range),
        "n_samples": stack.n_samples,
        # With a promise, also values beyond the stated range come back; and values that are appended may lie beyond the
        # range of those before, unless that is the range of their type.
        "clip": list(_whole_range(stack.dtype, data_range) if beyond else data_range),
        "cell_shape": list(grid.cell_shape),
        "overlap": getattr(grid, "overlap", 0),
        "goal": {"name": wanted.name, "value": wanted.value},
        "source": stack.source,
        "residual_step": None,
    }
    if max_error is not None:
        facts |= {"max_error": max_error, "residual_step": 2 * _allowed(max_error, stack.dtype, data_range)}
    return facts


def _promise(goal: Goal, data_range: tuple[float, float]) -> float | None:
    if not goal.is_promise:
        return None
    return goal.value if goal.name == "max_error" else goal.value * (data_range[1] - data_range[0])


def _allowed(max_error: float, dtype: np.dtype[Any], data_range: tuple[float, float]) -> float:
    try:
        return promised_error(max_error, dtype, max(map(abs, data_range)))
    except ValueError as error:
        raise DataError(str(error)) from error


def _whole_range(dtype: np.dtype[Any], data_range: tuple[float, float]) -> tuple[float, float]:
    return data_range if dtype.kind == "f" else (float(np.iinfo(dtype).min), float(np.iinfo(dtype).max))
