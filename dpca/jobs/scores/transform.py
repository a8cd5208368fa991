"""Write a store of scores, reconstructions and quality from a stack and a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from dpca.engine.sources.source import as_source
from dpca.engine.sources.variables import VariableStack
from dpca.jobs.base.stages import NOTHING, StageCost, stopwatch
from dpca.jobs.scores.box_write import plan_scores, write_score_boxes
from dpca.jobs.scores.score_write import WriteJob, stack_layout, write_scores
from dpca.models.base.store import model_fingerprint, stored_basis
from dpca.models.base.value_range import spanned_range
from dpca.models.scores import SCORES_VERSION
from dpca.representation.base import MODEL_FACT
from dpca.representation.divided import DividedRepresentation
from dpca.representation.score_layout import score_layout
from dpca.storage.arrays.arrays import create_root, kept_layout, write_strings
from dpca.storage.arrays.layout import CHANNEL, SAMPLE
from dpca.storage.arrays.reading import open_group, root_facts
from dpca.storage.disk import require_free_space
from dpca.storage.errors import DataError
from dpca.storage.remote.objects import absolute
from dpca.storage.run import Run
from dpca.storage.stack import VARIABLES, Stack
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.workspace import Workspace, fingerprint_of


def transform_store(
    stack: Stack,
    model: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    reconstruct: bool = False,
    run: Run = Run(),
    request: str | None = None,
) -> StageCost:
    """Write the scores of every sample of a stack, with the quality of their reconstructions.

    Of several variables, the quality is ``variable_mse`` (n_samples, n_variables), in squared units of each.

    Parameters
    ----------
    stack : Stack
        Or a `dpca.engine.sources.variables.VariableStack`, with the variables of the fit.
    model : path-like
        A stored model of any kind.
    target : path-like
        Path of the store. It appears there when it is complete, with ``scores``, ``mse``, ``psnr``, ``ssim``, ``name``
        and, if requested, ``reconstructions``.
    reconstruct : bool
        Whether to keep the reconstructions.
    run : Run
        As for `fit_store`.
    request : str, optional
        Text that the store keeps. A program can use it to recognize its earlier request.

    Raises
    ------
    DataError
        If the samples have another shape than those of the model, or the variables differ.
    PlanError, StoreError
        As `fit_store`.
    """
    check_channels(stack)
    if isinstance(stack, VariableStack):
        _check_variables(stack, model, reconstruct)
        run = run if stack.in_tasks else run.here()
    known = model_fingerprint(model)
    kind = stored_basis(os.fspath(model), known).scores_kind
    # The quality depends on a stated range. Without one, the range of the values is used, which the content determines.
    fingerprint = fingerprint_of(kind, SCORES_VERSION, stack.fingerprint, known, reconstruct, stack.data_range)
    facts = {"settings": {"reconstruct": reconstruct}, **({} if request is None else {"request": request})}

    def steps(work: Workspace) -> StageCost:
        return fill_scores(with_range(stack, run), model, work, reconstruct=reconstruct, facts=facts, run=run)

    return Job(target, kind, fingerprint, (stack, model), run.overwrite).run(steps) or NOTHING


def fill_scores(
    stack: Stack,
    model: str | os.PathLike[str],
    work: Workspace,
    *,
    reconstruct: bool,
    ssim: bool = True,
    facts: Mapping[str, Any],
    run: Run,
) -> StageCost:
    """Write the missing parts of a scores store in a workspace; the store states ``facts`` about the job."""
    cost, store = stopwatch(), work.store
    path, known, data_range = absolute(model), model_fingerprint(model), stated_range(stack)
    basis = stored_basis(path, known)
    if basis.sample_shape != tuple(stack.sample_shape):
        raise DataError(
            f"'{stack.path}' has samples of {stack.sample_shape} but the model was fitted to {basis.sample_shape}: "
            f"use the stack's own model"
        )
    source = as_source(stack)
    several = {VARIABLES: list(stack.keys)} if isinstance(stack, VariableStack) else {}
    boxes = None  # errors of variables are those of whole samples
    if not several:
        kept = kept_layout(store, "reconstructions")
        boxes = plan_scores(source, basis, stack.axes, reconstruct=reconstruct, budget=run.task_bytes(), kept=kept)
    layout = stack_layout(source, basis, stack.axes) if boxes is None else boxes.layout
    rows = layout.shards[0] if boxes is None else boxes.rows
    if not (store / "scores" / "c").exists():
        dtype, shape = basis.score_dtype(stack.dtype), basis.score_shape
        whole = score_layout(rows, shape, dtype.itemsize)
        of_scores = whole if boxes is None else boxes.scores(cast(DividedRepresentation, basis), stack.dtype)
        need = of_scores.stored_values((stack.n_samples, *shape)) * dtype.itemsize
        need += layout.stored_values(source.shape) * stack.dtype.itemsize if reconstruct else 0
        require_free_space(store, need, "the scores" + (" with the reconstructions" if reconstruct else ""))
    coordinates = stack.coordinates
    group = create_root(
        store,
        kind=basis.scores_kind,
        version=SCORES_VERSION,
        fingerprint=work.fingerprint,
        axes=list(stack.axes),
        data_range=list(data_range),
        dtype=stack.dtype.name,
        sample_shape=list(stack.sample_shape),
        n_components=basis.score_shape[-1],
        source=stack.source,
        **facts,
        **several,
        **{MODEL_FACT: basis.fingerprint()},
        **({"attributes": coordinates.attributes} if coordinates and coordinates.attributes else {}),
        **({} if basis.cell_shape is None else {"cell_shape": list(basis.cell_shape)}),
    )
    job = WriteJob(source, path, known, str(store), stack.axes, rows, data_range, reconstruct, ssim)
    if boxes is None:
        peak = write_scores(job, group, coordinates, work=work, run=run)
    else:
        peak = write_score_boxes(job, boxes, group, coordinates, work=work, run=run)
    write_strings(group, "name", stack.names.tolist(), coordinates.dims[0] if coordinates else SAMPLE)
    return cost(stack.nbytes, peak)


def _check_variables(stack: VariableStack, model: str | os.PathLike[str], reconstruct: bool) -> None:
    """Reject variables other than those of a model, and reconstructions, which several variables do not support."""
    if reconstruct:
        raise DataError(
            "reconstruct is given, but reconstructions of several variables are not one array: leave it out, and use "
            "the model's inverse_transform in Python"
        )
    own = root_facts(open_group(model)).get(VARIABLES, {"keys": (), "shapes": ()})
    known, given = (
        ", ".join(f"{key} {tuple(shape)}" for key, shape in zip(keys, shapes, strict=True))
        for keys, shapes in ((own["keys"], own["shapes"]), (stack.keys, stack.shapes))
    )
    if known != given:
        raise DataError(
            f"'{stack.path}' has samples of {given}, but the model was fitted to {known or 'a single array'}: give the "
            f"variables of the fit, in its order"
        )


def check_channels(stack: Stack) -> None:
    """Reject a stack unless its channels are the last axis."""
    if stack.axes.count(CHANNEL) and stack.axes[-1] != CHANNEL:
        raise DataError(f"the axes of '{stack.path}' are {stack.axes}: channels must come last, move that axis first")


def with_range(stack: Stack, run: Run, *, gaps: bool = False, infinite: bool = False) -> Stack:
    """Return a stack with a data range: the stated one, or the range of its values, which takes a pass over them.

    With ``gaps``, NaN is a missing value; with ``infinite``, infinities are missing, too.
    """
    if stack.data_range is not None:
        return stack
    source = as_source(stack)
    source.with_gaps = gaps
    return replace(stack, data_range=spanned_range(source, run, finite=infinite))


def stated_range(stack: Stack) -> tuple[float, float]:
    """Return the data range of a stack, or raise DataError if it states none."""
    check_channels(stack)
    if stack.data_range is None:
        raise DataError(
            f"'{stack.path}' has {stack.dtype} values but states no data range, on which PSNR and SSIM depend: give it "
            f"with --data-range LOW,HIGH (data_range=(low, high))"
        )
    return stack.data_range
