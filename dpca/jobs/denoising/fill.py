"""Fill the gaps of a stack: a fit to the values that are there, and a pass that writes complete samples."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from dpca.choices import INFINITE
from dpca.engine.sources.source import Source, as_source
from dpca.jobs.base.input_stack import inherited_of, open_or_ingest
from dpca.jobs.base.shards import ShardPass, Unit
from dpca.jobs.base.stages import NOTHING, StageCost, stopwatch
from dpca.jobs.denoising.denoise import outline_of
from dpca.jobs.denoising.fill_write import ERRORS, FillJob, fill_boxes, plan_samples
from dpca.jobs.scores.score_write import found_coordinates
from dpca.models.base.parameters import no_values
from dpca.models.base.store import stored_basis, write_model
from dpca.models.cells.band_pca import BandPCA
from dpca.models.cells.cell_pca import CellPCA
from dpca.models.linear.pca import PCA
from dpca.representation.gappy import GappyRepresentation
from dpca.storage.arrays.arrays import create_array, create_root, kept_layout, write_strings
from dpca.storage.arrays.coordinates import write_coordinates
from dpca.storage.arrays.layout import axes_for
from dpca.storage.disk import require_free_space
from dpca.storage.errors import DataError
from dpca.storage.input import fingerprint_of_input
from dpca.storage.ranges import found_range
from dpca.storage.readers import Reader
from dpca.storage.run import Run
from dpca.storage.stack import STACK_KIND, STACK_VERSION, Stack
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.workspace import Workspace, fingerprint_of


def fill_store(
    source: Stack | Reader,
    target: str | os.PathLike[str],
    model: PCA | CellPCA | None = None,
    *,
    reading: ReadOptions = ReadOptions(),
    run: Run = Run(),
    request: str | None = None,
) -> StageCost:
    """Write a stack in which missing values are replaced by their expectation, with a map of standard errors.

    Values that are there do not change. An interrupted run resumes. The stack is read once to count values, once for
    each pass of the fit, about five to ten times, and once more. Every chunk is written once.

    Parameters
    ----------
    source : Stack or Reader
        Samples of a reader are ingested first, beside the output, with missing floating-point values as NaN. They are
        removed when it is complete.
    target : path-like
        Path of the stack store. It appears there when it is complete, with ``samples``, in the dtype of the stack, and
        ``standard_error``, of the same shape, float32: 0 where a value was there, and NaN for attributes that have no
        value in any sample, which remain missing.
    model : PCA, CellPCA or StreamingPCA, optional
        Not fitted, with ``gaps="iterate"``. Default: `PCA` of 10 components.
    reading : ReadOptions
        How the samples of a reader are read.
    run : Run
        As for `fit_store`.
    request : str, optional
        As for `fit_store`.

    Raises
    ------
    DataError
        If a parameter does not fit the stack, or a value is infinite.
    PlanError
        If a task does not fit the memory; nothing is written.
    StoreError
        As `fit_store`.
    """
    chosen = clone(filling_model() if model is None else model)
    if chosen.gaps != "iterate":
        raise DataError(f"gaps is {chosen.gaps!r} in the model: use gaps='iterate' to fill missing values")
    if isinstance(chosen, BandPCA):
        raise DataError("the model is a BandPCA, which fills samples by its method fill: give a PCA or CellPCA here")
    infinite = chosen.missing_value == INFINITE
    reading = replace(reading, gaps=True, infinite=infinite)
    given = chosen.job_settings()
    given = {name: value for name, value in given.get("model", given).items() if name != "memory_budget"}
    settings = {"model": type(chosen).__name__, **given}
    read = () if isinstance(source, Stack) else (reading.as_dict(),)
    fingerprint = fingerprint_of("filled", STACK_VERSION, fingerprint_of_input(source), settings, *read)

    def steps(work: Workspace) -> StageCost:
        within = replace(run.limited_to(chosen.memory_budget), overwrite=False)
        planned = plan_filling(chosen, outline_of(source, reading, within), within)
        stack, ingested = open_or_ingest(source, work, reading, run=within)
        cost, samples = stopwatch(), as_source(stack)
        samples.with_gaps = True
        budget, kept = within.task_bytes(), kept_layout(work.store, "samples")
        layout, boxes = plan_samples(samples, stack.axes, planned, budget, kept)
        if work.state == "new":
            size = layout.stored_values(stack.shape) * (stack.dtype.itemsize + 4)
            require_free_space(target, size, "the filled stack and its errors")
        path = work.scratch / "fitted"
        if not work.is_done("fit"):
            chosen.fit(
                stack, run=replace(within, checkpoints=Checkpoints(str(work.scratch / "fit"), str(work.scratch)))
            )
            write_model(chosen, path, fingerprint)
            report, error = chosen.fit_report_, float(getattr(chosen, "held_out_rmse_", math.nan))
            facts = {"read": report.plan.read_bytes, "peak": report.peak_memory, "error": _or_none(error)}
            work.mark_done("fit", record=facts)
        facts = work.record("fit")
        rows = layout.shards[0] if boxes is None else boxes.rows
        job = FillJob(samples, str(path), fingerprint, str(work.store), rows)
        name = os.path.basename(source.path) if isinstance(source, Stack) else source.name
        stated: dict[str, Any] = {
            "kind": STACK_KIND,
            "version": STACK_VERSION,
            "fingerprint": work.fingerprint,
            "axes": list(stack.axes),
            "settings": settings,
            "source": {"kind": "filled", "name": name, "count": stack.n_samples},
            **({} if request is None else {"request": request}),
        }
        root = create_root(work.store, **stated)
        along = found_coordinates(stack.axes, stack.coordinates)
        write_coordinates(root, along)
        unknown = {"may_be_missing": True}
        of_samples = along.stated | unknown | ({"may_be_infinite": True} if infinite else {})
        create_array(root, "samples", stack.shape, stack.dtype, layout, along.dims, attributes=of_samples)
        text = {"long_name": "standard error of filled values"} | unknown
        create_array(root, ERRORS, stack.shape, np.dtype(np.float32), layout, along.dims, attributes=text)
        if boxes is None:
            shards = ShardPass("fill", work, within, str(layout))
            peak, units = shards.write(job, job.units), list[Unit](job.units)
        else:
            shards, peak = fill_boxes(job, boxes, work, within)
            units = list(boxes.units(samples.shape[0], boxes.decoded))
        stored_basis.cache_clear()  # it may take gigabytes
        write_strings(root, "name", stack.names.tolist(), along.dims[0])
        spans, filled = (np.concatenate([shards.quality(*unit)[key] for unit in units]) for key in ("range", "filled"))
        count, squares, left = filled.sum(axis=0).tolist()
        found: dict[str, Any] = {
            "filled": int(count),
            "left_missing": int(left),
            "mean_standard_error": math.sqrt(squares / count) if count else 0.0,
            "held_out_rmse": facts["error"],
        }
        span = stack.data_range or found_range(spans[:, 0].min(), spans[:, 1].max())
        create_root(work.store, **stated, **found, data_range=list(span))
        return ingested + cost(facts["read"] + stack.nbytes, max(peak, facts["peak"]))

    def publish(work: Workspace, _: StageCost) -> None:
        work.set_aside()
        work.publish()

    inherited = inherited_of(source, reading)
    return Job(target, STACK_KIND, fingerprint, (source,), run.overwrite, inherited).run(steps, publish) or NOTHING


def filling_model(n_components: int = 10, cell: Any = None, missing_value: float | str | None = None) -> PCA | CellPCA:
    """Return an unfitted model that fills gaps: of whole samples, or of cells of a shape."""
    common: dict[str, Any] = {"gaps": "iterate", "missing_value": missing_value, "random_state": 0}
    return PCA(n_components, **common) if cell is None else CellPCA(n_components, cell_shape=cell, **common)


def plan_filling(model: PCA | CellPCA, samples: Source, run: Run) -> GappyRepresentation:
    """Return a basis of the size that the fit of a model will find, as `dpca.models.base.estimator.Estimator.plan_fit`.

    Raises
    ------
    DataError, PlanError
        As `fill_store`.
    """
    found: Any = model.plan_fit(samples, samples.axes or axes_for(samples.shape[1:]), run)[0]
    k, shape = found.score_shape[-1], found.score_shape
    variances = no_values(shape, np.float64), no_values(shape[:-1], np.float64)
    counts = k, math.prod(found.sample_shape)
    return GappyRepresentation(found.partition, found.mean, found.components, *variances, counts=counts)


def _or_none(number: float) -> float | None:
    return None if math.isnan(number) else number
