"""The main job, for any estimator: from a source to a model, scores and their quality, or to a compressed store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from dpca.choices import COMPRESSED, NOISE_SHARE
from dpca.engine.sources.source import as_source
from dpca.engine.sources.tiled import TiledStack
from dpca.jobs.base.filled_samples import tiled_stack
from dpca.jobs.base.input_stack import inherited_of, kept_stack, open_or_ingest
from dpca.jobs.base.stages import StageRecord, held_by, stopwatch
from dpca.jobs.compressed.encode import wanted_goal
from dpca.jobs.denoising.noise_level import check_noise_of, goal_with_noise
from dpca.jobs.plans.plan import plan_job
from dpca.jobs.plans.shard_plan import choose_tiles, plan_shards
from dpca.jobs.scores.fit_and_encode import (
    fit_and_encode,
    fit_recorded,
    model_with_chosen_cells,
    reached_target,
)
from dpca.jobs.scores.settings import CompressionSettings
from dpca.jobs.scores.transform import check_channels, fill_scores, stated_range, with_range
from dpca.models.cells.cell_pca import CellPCA
from dpca.models.scores import SCORES_VERSION
from dpca.models.weights.attribute_weights import check_weights_of
from dpca.report.record import read_report, report_folder
from dpca.representation.compressed.compressed import COMPRESSED_VERSION
from dpca.storage.arrays.tiles import Tiles
from dpca.storage.errors import DataError, StoreError
from dpca.storage.input import fingerprint_of_input, open_input, require_varied, samples_of_input
from dpca.storage.readers import Reader
from dpca.storage.remote.objects import Place, place_of
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.workspace import Workspace, fingerprint_of

PathLike = str | os.PathLike[str]
# From this many decoded bytes, the seconds for a plan do not matter.
_WORTH_A_PLAN = 2**34
# Done-marker of the choice of tiles.
_TILES = "tiles"


@dataclass(frozen=True)
class CompressionResult:
    """The result of a job.

    Attributes
    ----------
    report : mapping
        Content of ``report.json``.
    folder : Path or ObjectPath
        Folder of the report.
    already_done : bool
        Whether the output was already complete.
    """

    report: Mapping[str, Any]
    folder: Place
    already_done: bool


def compress(
    source: PathLike | Sequence[PathLike] | Stack | Reader,
    output: PathLike,
    settings: CompressionSettings,
    *,
    run: Run = Run(),
    request: str | None = None,
    plan: bool | None = None,
) -> CompressionResult:
    """Ingest a source, fit a model, write scores and their quality, or a compressed store, and write a report.

    Parameters
    ----------
    source : path-like, sequence of these, dpca.storage.Stack, or dpca.storage.readers.Reader
        Images, archives or arrays, see `dpca.storage.ingest`. A Zarr array or stack store is read in place, without a
        copy.
    output : path-like
        Store of the scores, or the compressed store. A store of scores contains the model as ``model`` and, if
        ``keep_stack`` is set, the ingested stack as ``stack``. The report goes to ``<output stem>.report``.
    settings : CompressionSettings
    run : Run
        Whether to replace an output that has other settings, where the tasks run, and with how much memory.
    request : str, optional
        Text that the store keeps. A program can use it to recognize its earlier request.
    plan : bool, optional
        Whether to plan the time of each stage first if a cluster is used, see `plan_job`, and to report it with the
        actual time. Default: for more than 16 GiB of samples. Passes over missing values are not planned.

    Raises
    ------
    DataError, PlanError, StoreError
        With a message of one sentence. Nothing appears under ``output``. The next run resumes from the finished parts.

    Notes
    -----
    The memory of every stage is planned before the first one begins. All files are written to ``<output>.partial``; one
    rename at the end moves them to ``output``. An interrupted run resumes from its checkpoint. A finished run is
    recognized by the fingerprint of source and settings.
    """
    given = open_input(source, key=settings.key, axes=settings.axes, data_range=settings.reading.data_range)
    if (done := find_done(given, output, settings, overwrite=run.overwrite)) is not None:
        return done
    size, shard_bytes = plan_shards(given, settings, run)
    planning = run.client is not None and not settings.with_gaps and (size > _WORTH_A_PLAN if plan is None else plan)
    job, folder = _job(given, output, settings, run.overwrite), report_folder(output)
    run = replace(run, overwrite=False)  # only the output itself is replaced

    def steps(work: Workspace) -> dict[str, Any]:
        if work.state == "resumed":
            run.say(f"resumed the unfinished run in '{os.fspath(output)}.partial'")
        record = StageRecord(work, run.started)
        if planning and work.state == "new":
            run.say("plan time and memory")
            record.plan(plan_job(given, settings, workers=[run.n_parallel()], budget=run.task_bytes())[0].stages)
        run.task_bytes()  # starts the workers
        record.note_own("start")
        cells = settings.model.cell_shape_for
        stack, cost = open_or_ingest(given, work, settings.reading, cells=cells, run=run, shard_bytes=shard_bytes)
        record.keep("ingest", cost)
        stack = _with_range(stack, work, record, run, settings)
        accepted = settings.for_samples(stack.n_samples)
        stated = {} if request is None else {"request": request}
        if settings.goal is None:
            model_path = work.store / "model"
            # The model is not kept: of large samples, it takes gigabytes.
            reached = reached_target(fit_recorded(accepted.model, stack, model_path, record, run).model)
            run.say(f"write scores{', reconstructions and their' if settings.reconstruct else ' and'} quality")
            cost = fill_scores(
                stack,
                model_path,
                work,
                reconstruct=settings.reconstruct,
                ssim=settings.measures_ssim,
                facts={**_facts(settings), **reached, **stated},
                run=run,
            )
            record.keep("scores", cost)
        else:
            goal = wanted_goal(settings.goal, every_sample=settings.every_sample)
            divided = _divided(stack, accepted, work, run)
            model = accepted.model_of_tiles() if isinstance(divided, TiledStack) else accepted.model
            goal, cost = goal_with_noise(goal, divided, settings.noise, run, work)
            record.keep("noise", cost)
            if settings.choose_cells:
                model = model_with_chosen_cells(model, divided, goal, work, record, run)
            model_path = fit_and_encode(model, divided, work, goal, record, run, _facts(settings) | stated)
        # The report comes first, so that every store under its final name has one.
        with closing(run.progress("report", 1, "report")):
            return _write_report(given, stack, work.store, model_path, folder, accepted, record)

    def publish(work: Workspace, report: Any) -> None:
        if not settings.keep_stack:
            work.set_aside()
        work.publish()

    if (report := job.run(steps, publish)) is None:  # another run has completed it meanwhile
        return _earlier_result(given, output, settings)
    return CompressionResult(report, folder, False)


def _with_range(stack: Stack, work: Workspace, record: StageRecord, run: Run, settings: CompressionSettings) -> Stack:
    """Return a stack with its data range. A range found from the values is kept for a run that resumes this one."""
    if stack.data_range is not None:
        check_channels(stack)
        return stack
    if (found := record.facts("range")) is None:
        run.say(f"find the range of the {stack.dtype} values (--data-range LOW,HIGH saves this pass)")
        cost = stopwatch()
        kept = Checkpoints(str(work.scratch / "range"), str(work.scratch))
        kept_run = replace(run, checkpoints=kept)
        ranged = with_range(stack, kept_run, gaps=settings.with_gaps, infinite=settings.with_infinities)
        low, high = stated_range(ranged)
        found = {"low": low, "high": high}
        record.keep("range", cost(stack.nbytes, held_by(run.client)), facts=found)
    return replace(stack, data_range=(found["low"], found["high"]))


def _divided(stack: Stack, settings: CompressionSettings, work: Workspace, run: Run) -> Stack:
    """Return a stack, or its tiles if samples are large; those of an interrupted run, whatever its memory was."""
    if not work.is_done(_TILES):
        tiles = choose_tiles(as_source(stack), stack.axes, settings, run.limited_to(run.task_bytes()))
        work.mark_done(_TILES, record={"shape": None if tiles is None else list(tiles.tile_shape)})
    if (shape := work.record(_TILES)["shape"]) is None:
        return stack
    tiles = Tiles(stack.n_samples, stack.sample_shape, tuple(shape))
    run.say(f"divide each sample into {tiles.n_tiles:,} tiles of {' x '.join(map(str, shape))}")
    return tiled_stack(stack, tiles, gaps=settings.with_gaps)


def find_done(
    given: Stack | Reader, output: PathLike, settings: CompressionSettings, *, overwrite: bool = False
) -> CompressionResult | None:
    """Return the result of an earlier run of this job, or None if there is work to do.

    Needs no cluster. Call it before starting one, to find errors in the settings or the output early.

    Raises
    ------
    DataError, StoreError
        As `compress`.
    """
    job = _job(given, output, settings, overwrite)
    if settings.goal is not None:
        goal = wanted_goal(settings.goal, every_sample=settings.every_sample)
        check_noise_of(goal, settings.noise)
        if settings.with_gaps and (settings.choose_cells or settings.every_sample or goal.name == NOISE_SHARE):
            raise DataError(
                f"gaps is 'iterate' in the model, which choose_cells, every_sample and {NOISE_SHARE} do not support: "
                f"give cells and another goal of all samples"
            )
        if not isinstance(settings.model, CellPCA) or settings.reconstruct:
            raise DataError(
                "a compressed store requires cells and opens as reconstructions: give a CellPCA, and no reconstruct"
            )
        if settings.model.weights is not None:
            raise DataError("weights is given, which compressed stores do not support: leave it out, or write scores")
    elif settings.choose_cells or settings.every_sample or settings.noise is not None:
        raise DataError("choose_cells, every_sample or noise is given without a goal: give a goal, or leave them out")
    require_varied(given)
    settings.model.check_parameters_for(samples_of_input(given))
    check_weights_of(settings.model, given)
    return _earlier_result(given, output, settings) if job.is_done() else None


def _earlier_result(given: Stack | Reader, output: PathLike, settings: CompressionSettings) -> CompressionResult:
    """Return the result of an earlier run, whose store is complete; make its report again if it is gone."""
    folder = report_folder(output)
    if (report := read_report(folder)) is None:
        store = place_of(output)
        stack = given if isinstance(given, Stack) else kept_stack(store)
        if stack is None or settings.goal is not None:
            lost = "samples" if settings.goal is None else "components"
            raise StoreError(
                f"the report '{folder}' is gone, and its pictures need the {lost}, which '{output}' does not keep: run "
                f"the job again with --overwrite (overwrite=True) to make both"
            )
        report = _write_report(given, stack, store, store / "model", folder, settings, None)
    return CompressionResult(report, folder, True)


def _job(given: Stack | Reader, output: PathLike, settings: CompressionSettings, overwrite: bool) -> Job:
    kind, version = settings.model.scores_kind, SCORES_VERSION
    if settings.goal is not None:
        kind, version = COMPRESSED, COMPRESSED_VERSION
    fingerprint = fingerprint_of(kind, version, fingerprint_of_input(given), settings.as_dict())
    inherited = inherited_of(given, settings.reading)
    return Job(output, kind, fingerprint, (given,), overwrite, inherited, report_folder(output))


def _facts(settings: CompressionSettings) -> dict[str, Any]:
    """Return what the store and the report state about the settings."""
    return {"job": "compress", "settings": settings.as_dict()}


def _write_report(
    given: Stack | Reader,
    stack: Stack,
    store: Place,
    model: Place,
    folder: Place,
    settings: CompressionSettings,
    record: StageRecord | None,
) -> dict[str, Any]:
    # matplotlib takes a second to import, and is needed only here.
    from dpca.jobs.scores.report import write_job_report

    parts = (*(["stack"] if settings.keep_stack else []), "scores", "model", "reconstructions")
    return write_job_report(given, stack, store, model, folder, record, ssim=settings.measures_ssim, parts=parts)
