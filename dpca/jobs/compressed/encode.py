"""Encode a stack to a compressed store with the components of a cell PCA."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import zarr

from dpca.choices import COMPRESSED, INFINITE, NOISE_SHARE
from dpca.codec.goal import Goal
from dpca.codec.quantize import error_within_bound
from dpca.codec.quantized import Quantized
from dpca.engine.sources.filled import Filled
from dpca.engine.sources.source import as_source
from dpca.engine.sources.tiled import TiledStack
from dpca.jobs.base.filled_samples import FilledTiledStack, KeptFilling
from dpca.jobs.base.input_stack import KEPT_STACK, compressed_bytes
from dpca.jobs.base.stages import NOTHING, StageCost, stopwatch
from dpca.jobs.compressed.encode_tiles import check_encoding, measure_tiles
from dpca.jobs.compressed.encode_trials import Trials, cell_components
from dpca.jobs.compressed.encode_write import PLAN, EncodeJob, masks_of, stored_plan, write_codes
from dpca.jobs.denoising.noise_level import check_noise_of, goal_with_noise
from dpca.jobs.scores.score_write import write_quality
from dpca.jobs.scores.settings import kept_gaps
from dpca.jobs.scores.transform import check_channels, stated_range, with_range
from dpca.kernels.algebra.types import Array
from dpca.models.base.store import load_any, model_fingerprint
from dpca.models.cells.cell_pca import CellPCA
from dpca.models.cells.rank import UnmetError
from dpca.models.cells.targets import check_ssim
from dpca.models.denoising.denoiser import Denoiser
from dpca.models.gaps.filled_source import GapFilledStack
from dpca.partition.cells import CellGrid
from dpca.partition.shared import groups_of
from dpca.representation.compressed.compressed import COMPRESSED_VERSION, version_of
from dpca.representation.compressed.compressed_form import write_quantized
from dpca.representation.compressed.gap_filling import CellFilling
from dpca.representation.compressed.lazy_views import ALONG
from dpca.storage.arrays.arrays import create_root, write_strings
from dpca.storage.arrays.coordinates import write_coordinates
from dpca.storage.arrays.layout import SAMPLE
from dpca.storage.arrays.tiles import Tiles
from dpca.storage.disk import remove_tree
from dpca.storage.errors import DataError, PlanError
from dpca.storage.ranges import range_warning, type_range
from dpca.storage.remote.tasks import one_blas_thread
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.workspace import Workspace, fingerprint_of

# Number of steps that are tried on all samples.
_ROUNDS = 5


def encode_store(
    stack: Stack,
    model: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    run: Run = Run(),
    request: str | None = None,
    every_sample: bool = False,
    noise: Denoiser | None = None,
    **goal: float | None,
) -> StageCost:
    """Compress a stack: write quantized scores of its cells, with as few bytes as the goal allows.

    Parameters
    ----------
    stack : Stack
        The samples. The model can be fitted to other samples.
    model : path-like
        A stored `CellPCA`. Components that do not save bytes are dropped, so fit more rather than fewer. If it was
        fitted with ``shared=True`` to smaller samples, such as parts of large ones, samples are divided into tiles of
        this shape, and no task holds a whole sample.
    target : path-like
        Path of the store. It appears there when it is complete; `dpca.open_compressed` reads it.
    run : Run
        As for `fit_store`.
    request : str, optional
        Text that the store keeps. A program can use it to recognize its earlier request.
    every_sample : bool
        Whether each sample must meet the goal, instead of the mean, for ``psnr``, ``mse`` and ``ssim``.
    noise : Denoiser, optional
        Not fitted; its parameters describe the noise for ``noise_share``. Without ``sigma``, it is estimated in one
        more pass. Default: ``Denoiser()``, Gaussian noise, estimated in each cell.
    **goal : float
        Exactly one of ``ratio``, ``psnr``, ``mse``, ``ssim``, ``max_error``, ``max_relative_error`` and
        ``noise_share``; see `dpca.codec.goal.Goal`. Both errors are bounds of every value, the others hold for all
        samples together. The store states the quality of each sample.

    Raises
    ------
    DataError
        If the goal is invalid or cannot be reached, or the model is no `CellPCA` or was fitted to samples of another
        shape.
    PlanError, StoreError
        As `fit_store`.
    """
    check_channels(stack)
    wanted = wanted_goal(goal, every_sample=every_sample)
    check_noise_of(wanted, noise)
    fingerprint = fingerprint_of(
        COMPRESSED,
        COMPRESSED_VERSION,
        stack.fingerprint,
        model_fingerprint(model),
        stack.data_range,
        wanted.name,
        wanted.value,
        *(["every_sample"] if every_sample else []),
        *([] if noise is None else [noise.job_settings()]),
    )
    facts = {} if request is None else {"request": request}

    def steps(work: Workspace) -> StageCost:
        gaps = stack.data_range is None and stack.dtype.kind == "f" and kept_gaps(load_any(model))
        ranged = with_range(stack, run, gaps=bool(gaps), infinite=gaps == INFINITE)
        known, estimate = goal_with_noise(wanted, ranged, noise, run, work)
        return estimate + fill_codes(ranged, model, work, known, facts=facts, run=run)

    # An encoding with another goal cannot resume from this one.
    job = Job(target, COMPRESSED, fingerprint, (stack, model), run.overwrite, discard_on=(UnmetError,))
    return job.run(steps) or NOTHING


def wanted_goal(given: Mapping[str, float | None], *, every_sample: bool = False) -> Goal:
    """Return the one goal in a mapping, see `dpca.codec.goal.Goal`.

    Raises
    ------
    DataError
        If there is none, or several, or its value is invalid.
    """
    try:
        return Goal.of(every_sample=every_sample, **given)
    except ValueError as error:
        raise DataError(str(error)) from error


def fill_codes(
    stack: Stack,
    model: str | os.PathLike[str],
    work: Workspace,
    wanted: Goal,
    *,
    facts: Mapping[str, Any],
    run: Run,
) -> StageCost:
    """Write the missing parts of a compressed store in a workspace; the store states ``facts`` about the job.

    The step is chosen on some samples. If all samples together miss the goal,
    and finer codes of some shards do not suffice, everything is written again with another step.

    Raises
    ------
    PlanError
        If a task does not fit the memory, even with few codes.
    UnmetError
        If the goal cannot be reached.
    """
    cost = stopwatch()
    fitted, stack = _model_and_samples(stack, model)
    try:
        check_encoding(as_source(stack), stack.axes, run.task_bytes(), promised=wanted.has_residual)
    except PlanError as refusal:
        raise PlanError(f"{refusal}, or fit shared cells to parts of samples, which are then tiles") from refusal
    content = model_fingerprint(model)
    if isinstance(stack, FilledTiledStack):
        kept = KeptFilling(Checkpoints(str(work.scratch / "filling"), str(work.scratch)), content[:12])
        kept.save(_filling_of(fitted))
        stack = replace(stack, filling=kept)
    stated = {**facts, **stated_facts(stack, fitted.grid_, wanted), "model": content}
    if wanted.name == NOISE_SHARE and isinstance(stack, TiledStack):
        raise DataError(f"{NOISE_SHARE} is the goal, but '{model}' has tiles of the samples: fit it to whole samples")
    if wanted.every_sample and isinstance(as_source(stack), Filled):
        raise DataError("every_sample is set, but values may be missing: give a goal of all samples")
    aim, peak, reached = wanted, 0, ""
    for number in range(_ROUNDS):
        name = f"{content[:12]}-{number}"
        attempt, written = Checkpoints(str(work.scratch / name), str(work.scratch)), f"encode {name}"
        if not work.is_done(written):
            if attempt.load(PLAN) is None:
                _clear(work)
                with closing(run.progress("choose step", stack.n_samples, "samples")):
                    found = _planned(stack, fitted, stated, aim, reached, run)
                attempt.save(PLAN, found.arrays, found.settings)
            held, quality = write_planned(stack, fitted, work, attempt, wanted, stated, run)
            peak = max(peak, held)
            work.mark_done(written, record={"error": _error(wanted, stack, work, quality)})
        if wanted.is_error_bound or (error := work.record(written)["error"]) <= wanted.allowed:
            return cost(stack.nbytes, peak)
        each = "the worst" if wanted.every_sample else "all"
        reached = f"{each} of {stack.n_samples:,} samples reached {wanted.value_of(error):.6g}"
        aim = aim.stricter(error, wanted, number)
    raise UnmetError(
        f"{wanted.name} is {wanted.value:g} but {reached} in {_ROUNDS} attempts: set a weaker goal, or fit more "
        f"components"
    )


def _model_and_samples(stack: Stack, model: str | os.PathLike[str]) -> tuple[CellPCA, Stack]:
    """Return the stored model for the encoding of a stack, and the stack.

    It is in tiles if the model was fitted to tiles, and filled if the model supports missing values.

    Raises
    ------
    DataError
        If it is no `CellPCA`, has weights of attributes, or was fitted to samples of another shape.
    """
    fitted = load_any(model)
    if not isinstance(fitted, CellPCA):
        raise DataError(f"'{model}' is a {fitted.store_kind} model but only cells are encoded: fit a CellPCA")
    if hasattr(fitted, "weights_"):
        raise DataError(f"'{model}' has weights of attributes, which compressed stores do not support: omit weights")
    own, given, n_spatial = fitted.sample_shape_, tuple(stack.sample_shape), fitted.grid_.n_spatial
    if own == given:
        if not (gaps := kept_gaps(fitted)) or stack.dtype.kind != "f":
            return fitted, stack
        return fitted, GapFilledStack.of(stack, os.fspath(model), infinite=gaps == INFINITE)
    # Components of a place in a tile mean nothing elsewhere, so all cells must share them.
    alike = len(own) == len(given) and own[n_spatial:] == given[n_spatial:] and all(np.less_equal(own, given))
    if not (fitted.shared and alike):
        raise DataError(
            f"'{stack.path}' has samples of {given} but the model was fitted to {own}: give a model that was fitted to "
            f"samples of this shape, or with shared components to smaller tiles of them"
        )
    return fitted, TiledStack.of(stack, Tiles(stack.n_samples, given, own))


def _filling_of(fitted: CellPCA) -> CellFilling:
    """Return what fills the gaps of cells by the components of a model, which are shared."""
    components, (cells, _) = cell_components(fitted), groups_of(fitted.grid_, shared=bool(fitted.shared))
    explained = fitted.explained_variance_.reshape(fitted.grid_.n_parts, -1)
    totals, first = np.ravel(fitted.total_variance_), [members[0] for members in cells]
    return CellFilling.of(components, list(explained[first]), totals[first].tolist())


def _planned(stack: Stack, fitted: CellPCA, stated: dict[str, Any], aim: Goal, reached: str, run: Run) -> Quantized:
    """Return the arrays and settings for a goal; ``reached`` describes a failed earlier attempt, for errors."""
    with one_blas_thread():  # products of cells are too small for several threads
        try:
            components = cell_components(fitted)
            known = np.nan_to_num(components.mean, nan=stated["data_range"][0])
            trials = Trials(as_source(stack), replace(components, mean=known), stated)
            spanned = float(trials.samples.min()), float(trials.samples.max())
            if not reached and (warning := range_warning(spanned, stated_range(stack))):
                run.say(f"note: {warning}")
            return trials.reach(aim)
        except UnmetError as error:
            raise UnmetError(f"{error}; {reached}" if reached else str(error), error.computed) from error


def _clear(work: Workspace) -> None:
    """Remove the arrays of an earlier attempt."""
    for entry in work.store.iterdir() if work.store.is_dir() else ():
        if entry.is_dir() and entry.name != KEPT_STACK:
            remove_tree(entry)


def _error(wanted: Goal, stack: Stack, work: Workspace, quality: Sequence[Mapping[str, Array]]) -> float:
    """Return the error of all samples of an unfinished store; for a ratio, its share of the decoded bytes."""
    if wanted.is_of_samples:
        return wanted.error(np.concatenate([wanted.errors(record) for record in quality]))
    return compressed_bytes(work.store) / stack.nbytes


def write_planned(
    stack: Stack,
    fitted: CellPCA,
    work: Workspace,
    attempt: Checkpoints,
    wanted: Goal | None,
    stated: Mapping[str, Any],
    run: Run,
) -> tuple[int, list[dict[str, Array]]]:
    """Write a compressed store from its `PLAN` in the checkpoint of an attempt; return the result of `write_codes`.

    If the samples miss the goal and finer codes of some shards help, these shards are written again.
    """
    chosen, grid = Quantized.of(*stored_plan(attempt)), fitted.grid_
    if isinstance(stack, FilledTiledStack) and not len(chosen.cell):
        stack = replace(stack, filling=None)  # predictions need smooth values, not those of components
    source = as_source(stack)
    stated = {**stated, **chosen.settings}
    if (along := stack.coordinates) is not None:
        stated |= {"dims": list(along.dims), "attributes": along.stated}
    # Metadata without spaces has half the bytes, which matters for few samples.
    with zarr.config.set({"json_indent": None}):
        root = partial(create_root, work.store, kind=COMPRESSED, fingerprint=work.fingerprint)
        stated |= dict.fromkeys(masks_of(source), True)
        group = root(version=version_of(stated), **stated)
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
                attempt,
                not len(chosen.cell),
                None if wanted is None else replace(wanted, sigma=None),  # only the plan needs it
            )
            peak, quality = write_codes(job, group, len(chosen.cell), work, run)
        except OverflowError as error:
            raise DataError(
                f"'{stack.path}' cannot be encoded with a step this fine ({error}): set a weaker goal"
            ) from error
        for name in masks_of(source):
            if not sum(part.pop(name).sum() for part in quality):
                remove_tree(work.store / name)
                del stated[name]
                group = root(version=version_of(stated), **stated)
        if isinstance(stack, TiledStack):
            held, quality = measure_tiles(stack, quality, work, attempt, run)
            peak = max(peak, held)
        dim = SAMPLE if along is None else along.dims[0]
        write_quality(group, quality, dim)
        write_strings(group, "name", stack.names.tolist(), dim)
    return peak, quality


def stated_facts(stack: Stack, grid: CellGrid, wanted: Goal) -> dict[str, Any]:
    """Return the facts that a compressed store states about its samples and its goal.

    Raises
    ------
    DataError
        If the stack states no data range, the error bound is below the rounding error of the type, or SSIM is not
        defined for the samples.
    """
    check_goal(wanted, stack.sample_shape, grid.n_spatial)
    data_range = stated_range(stack)
    max_error = _promise(wanted, data_range)
    beyond = wanted.has_residual or type_range(stack.dtype) is None
    tiled = isinstance(stack, TiledStack)
    whole = stack.whole if isinstance(stack, TiledStack) else stack
    facts: dict[str, Any] = {
        "axes": list(stack.axes),
        "sample_shape": list(whole.sample_shape),
        **({"tile_shape": list(stack.sample_shape)} if tiled else {}),
        "dtype": stack.dtype.name,
        "data_range": list(data_range),
        "n_samples": whole.n_samples,
        # Values outside the data range are kept if there is an error bound. Appended values can be outside the range of
        # the first samples too, unless that is the range of their type.
        "clip": list(_whole_range(stack.dtype, data_range) if beyond else data_range),
        "cell_shape": list(grid.cell_shape),
        "overlap": getattr(grid, "overlap", 0),
        "goal": {"name": wanted.name, "value": wanted.value, **({"every_sample": True} if wanted.every_sample else {})},
        "source": stack.source,
        "residual_step": None,
    }
    if wanted.name == NOISE_SHARE:
        facts["residual_step"] = 1.0
    if max_error is not None:
        facts |= {"max_error": max_error, "residual_step": 2 * _allowed(max_error, stack.dtype, data_range)}
    return facts


def check_goal(goal: Goal, sample_shape: Sequence[int], n_spatial: int) -> None:
    """Reject a goal that is not defined for the samples.

    Raises
    ------
    DataError
    """
    if goal.name == "ssim":
        check_ssim(f"ssim is {goal.value:g}", tuple(sample_shape), n_spatial, "give psnr or mse instead")


def _promise(goal: Goal, data_range: tuple[float, float]) -> float | None:
    if not goal.is_error_bound:
        return None
    return goal.value if goal.name == "max_error" else goal.value * (data_range[1] - data_range[0])


def _allowed(max_error: float, dtype: np.dtype[Any], data_range: tuple[float, float]) -> float:
    try:
        return error_within_bound(max_error, dtype, max(map(abs, data_range)))
    except ValueError as error:
        raise DataError(str(error)) from error


def _whole_range(dtype: np.dtype[Any], data_range: tuple[float, float]) -> tuple[float, float]:
    return data_range if dtype.kind == "f" else (float(np.iinfo(dtype).min), float(np.iinfo(dtype).max))
