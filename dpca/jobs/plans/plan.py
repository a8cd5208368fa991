"""Plan the time and memory of each stage of a job, for any number of workers, from trials on a few samples."""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from sklearn.base import clone

from dpca.choices import COMPRESSED, NOISE_SHARE
from dpca.codec.goal import Goal
from dpca.engine.clusters.cluster import keep_freed_memory
from dpca.engine.folds.rehearsal import Workers, rehearsing
from dpca.engine.sources.source import Source, as_source
from dpca.engine.sources.tiled import TiledSource, TiledStack
from dpca.jobs.base.stages import StagePlan
from dpca.jobs.compressed.cell_choice import choose_cells
from dpca.jobs.compressed.encode import stated_facts, wanted_goal, write_planned
from dpca.jobs.compressed.encode_memory import EncodeMemory, form_of
from dpca.jobs.compressed.encode_trials import Trials, cell_components
from dpca.jobs.compressed.encode_write import PLAN
from dpca.jobs.denoising.noise_level import goal_with_noise
from dpca.jobs.plans.box_trial import try_boxes
from dpca.jobs.plans.shard_plan import choose_tiles, plan_shards
from dpca.jobs.plans.tile_trial import MeasuringPass, try_measuring
from dpca.jobs.plans.timing import fewest_seconds, line
from dpca.jobs.plans.tried import TriedInput, TriedStage
from dpca.jobs.scores import box_write, score_write
from dpca.jobs.scores.score_write import WriteJob
from dpca.jobs.scores.settings import CompressionSettings
from dpca.jobs.scores.transform import fill_scores
from dpca.models.base.store import model_fingerprint, write_model
from dpca.models.base.value_range import spanned_range
from dpca.models.denoising.denoiser import Denoiser
from dpca.models.scores import SCORES_VERSION
from dpca.models.weights.attribute_weights import check_weights_of
from dpca.representation.compressed.compressed import COMPRESSED_VERSION
from dpca.representation.divided import DividedRepresentation
from dpca.storage.disk import folder_bytes
from dpca.storage.errors import DataError
from dpca.storage.progress import JobProgress, no_progress
from dpca.storage.readers import Reader
from dpca.storage.remote.memory import peak_resident_bytes, room_within, thread_count, usable_bytes
from dpca.storage.remote.tasks import one_blas_thread
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.workspace import Workspace


@dataclass(frozen=True)
class JobPlan:
    """The plan of a job for a number of workers.

    Attributes
    ----------
    workers, cores : int
        Processes of one thread each, and the processors that they share: those of this machine or, if there are more
        workers, one for each of them.
    samples : int
    sample_shape : tuple of int
    dtype : str
    bytes_decoded, bytes_written : int
        Bytes of all samples, and of the output.
    stages : dict of str to StagePlan
        In order.
    worker_memory, own_memory : int
        Peak memory of a worker and of this process, in bytes.
    memory_allowed : int
        Memory budget of a task in bytes.
    model : estimator
        The model, not fitted, with the chosen cells if the job chooses them.
    """

    workers: int
    cores: int
    samples: int
    sample_shape: tuple[int, ...]
    dtype: str
    bytes_decoded: int
    bytes_written: int
    stages: dict[str, StagePlan]
    worker_memory: int
    own_memory: int
    memory_allowed: int
    model: Any

    @property
    def seconds(self) -> float:
        """Seconds of all stages."""
        return sum(stage.seconds for stage in self.stages.values())

    @property
    def memory(self) -> int:
        """Peak memory of all workers and this process, in bytes."""
        return self.workers * self.worker_memory + self.own_memory

    @property
    def bytes_a_second(self) -> float:
        """Decoded bytes a second of the fastest stage, which the storage must deliver, less what its codec saves."""
        return max(stage.bytes / max(stage.seconds, 1e-9) for stage in self.stages.values())


def plan_job(
    given: Stack | Reader,
    settings: CompressionSettings,
    *,
    workers: Sequence[int] | None = None,
    budget: int | None = None,
    progress: JobProgress = no_progress,
) -> list[JobPlan]:
    """Plan a job of `dpca.jobs.compress`: seconds, memory and bytes of each of its stages.

    The folds of the fit are planned exactly. A few batches of one group of cells, and a few shards, are tried on
    samples of the source in this process, in a temporary folder.

    Parameters
    ----------
    given : Stack or Reader
        As `dpca.jobs.open_input` opens it.
    settings : CompressionSettings
    workers : sequence of int, optional
        Numbers of workers; default one number, that of the processors of this machine.
    budget : int, optional
        Memory budget of a task in bytes; default as on a local cluster with a worker for each processor.
    progress : callable
        Opens the only stage, see `dpca.storage.progress`.

    Returns
    -------
    list of JobPlan
        One for each number of workers.

    Raises
    ------
    DataError
        As `dpca.jobs.compress`, and if some samples cannot reach the goal.
    PlanError
        If a stage does not fit the memory.

    Notes
    -----
    Takes some seconds of one processor, and the time to choose cells if the job does. Times are processor seconds of
    this machine, combined as the tasks run. The busiest worker's share of the tasks counts. Reading ahead overlaps with
    arithmetic if there are processors for both. Merges are counted level by level, and work in a single process in
    full. The time of the scheduler for the tasks of a fit is a lower limit. Storage and network are assumed to keep up.
    """
    if settings.with_gaps:
        raise DataError("gaps is 'iterate' in the model, and the number of its passes is not known before: omit it")
    several = numbers_of_workers(workers, budget)
    shard_bytes = plan_shards(given, settings, Run(memory=several[0].budget))[1]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a few samples converge to nothing
        tried = _Tried(given, settings, several[0], Path(folder), shard_bytes)
        with closing(progress("plan", 1, "job")):
            stages = list(tried.stages())
    whole = tried.source.source if isinstance(tried.source, TiledSource) else tried.source
    return combined(stages, several, whole, round(tried.bytes_written), tried.model)


def numbers_of_workers(workers: Sequence[int] | None, budget: int | None) -> list[Workers]:
    """Return the workers to plan for, see `plan_job`."""
    here = thread_count()
    room = room_within(usable_bytes() // here) if budget is None else budget
    return [Workers(n, max(n, here), room) for n in ([here] if workers is None else workers)]


def combined(
    stages: Sequence[TriedStage], several: Sequence[Workers], source: Source, written: int, model: Any
) -> list[JobPlan]:
    """Return the plan of a job for each number of workers, from its stages, source, output bytes and model."""
    found = []
    shape, dtype = tuple(source.shape), source.dtype
    for each in several:
        planned: dict[str, StagePlan] = {}
        held = 0
        for stage in stages:
            plan = stage.planned(each)
            held = held if stage.here else max(held, plan.memory)  # peak memory never decreases
            planned[stage.name] = StagePlan(plan.seconds, plan.bytes, plan.memory if stage.here else held)
        facts = (shape[0], shape[1:], dtype.name, math.prod(shape) * dtype.itemsize, written)
        found.append(JobPlan(each.n, each.cores, *facts, planned, held, peak_resident_bytes(), each.budget, model))
    return found


class _Tried(TriedInput):
    """The stages of a job. Each is tried on a few samples when it is planned."""

    def __init__(
        self, given: Stack | Reader, settings: CompressionSettings, workers: Workers, folder: Path, shard_bytes: int
    ) -> None:
        super().__init__(given, settings.reading, workers, folder, shard_bytes)
        self.settings, self.model = settings, clone(settings.model)
        check_weights_of(self.model, given)
        if getattr(self.model, "weighs_attributes", False) and isinstance(self.model.weights, str):
            self.model.set_params(
                weights=np.ones(())
            )  # a few samples have no coordinates, and times do not depend on them
        self.bytes_written = 0.0

    def cell_shape(self, axes: Sequence[str]) -> tuple[int, ...] | None:
        """Return the cells of the model."""
        found: tuple[int, ...] | None = self.model.cell_shape_for(axes)
        return found

    def stages(self) -> Iterator[TriedStage]:
        """Yield the stages in order."""
        if isinstance(self.given, Reader):
            yield self.ingested(self.given)
        else:
            self.source, self.axes = as_source(self.given), self.given.axes
            if self.given.data_range is None:
                with rehearsing(self.workers, str(self.folder / "fold")) as rehearsal:
                    self.data_range = spanned_range(self.source, Run())
                self.given = replace(self.given, data_range=self.data_range)
                yield TriedStage("range", self.decoded, 0.0, tuple(rehearsal.costs))
        if self.settings.goal is not None:
            self._divide()
        if NOISE_SHARE in (self.settings.goal or {}):
            yield self._estimate_noise()
        if self.settings.choose_cells:
            yield self._choose_cells()
        keep_freed_memory()  # as workers do
        yield self._fit()
        yield self._scores() if self.settings.goal is None else self._encode()

    def _divide(self) -> None:
        """Divide large samples into tiles, as the job does."""
        tiles = choose_tiles(self.source, self.axes, self.settings, Run(memory=self.workers.budget))
        if tiles is None:
            return
        self.source = TiledSource(self.source, tiles)
        if isinstance(self.given, Stack):
            self.given = TiledStack.of(self.given, tiles)
        else:
            self.data_range = self.few[-1].data_range
            self.few = self._of_source()

    def _estimate_noise(self) -> TriedStage:
        model = Denoiser() if self.settings.noise is None else clone(self.settings.noise)
        with rehearsing(self.workers, str(self.folder / "fold")) as rehearsal:
            if model.sigma is None:
                model.fit(self.source, run=Run(memory=self.workers.budget, threads=self.workers.n))
        moved = sum(fold.planned(self.workers).read_bytes for fold in rehearsal.costs)
        return TriedStage("noise", moved, 0.0, tuple(rehearsal.costs))

    def _choose_cells(self) -> TriedStage:
        stack = self.given if isinstance(self.given, Stack) else self.few[-1]
        began = time.process_time()
        with one_blas_thread():
            choice = choose_cells(stack, self.model, self._goal)
        self.model = clone(self.model).set_params(**choice.parameters)
        spent = time.process_time() - began
        return TriedStage("choose cells", choice.read_bytes, spent, here=True)

    def _fit(self) -> TriedStage:
        given: Any = self.given
        model = clone(self.model)
        if isinstance(given, Reader):
            given, bounds = self.source, self.few[-1].data_range
            if model.get_params().get("data_range", 0) is None:
                model.set_params(data_range=bounds)
        began = time.process_time()
        with rehearsing(self.workers, str(self.folder / "fold")) as rehearsal:
            model.fit(given, run=Run(memory=self.workers.budget, threads=self.workers.n))
        write_model(model, self.folder / "model.zarr", "planned")
        alone = time.process_time() - began - rehearsal.spent
        self.fitted = model
        moved = sum(fold.planned(self.workers).read_bytes for fold in rehearsal.costs)
        return TriedStage("fit", moved, alone, tuple(rehearsal.costs))

    def _scores(self) -> TriedStage:
        basis, path, size = self.fitted.basis_, self.folder / "model.zarr", {}
        kept, budget, n = self.settings.reconstruct, self.workers.budget, self.source.shape[0]
        boxes = box_write.plan_scores(self.source, basis, self.axes, reconstruct=kept, budget=budget)
        if boxes is not None:
            known, bounds = (
                model_fingerprint(path),
                (self.given if isinstance(self.given, Stack) else self.few[-1]).data_range,
            )
            ssim, axes = self.settings.measures_ssim, self.axes
            job = WriteJob(self.source, str(path), known, "", axes, boxes.rows, bounds or (0.0, 1.0), kept, ssim)
            tried = try_boxes(job, cast(DividedRepresentation, basis), boxes, self.folder)
            self.bytes_written = n * (basis.score_bytes(self.source.dtype) + tried.written) + folder_bytes(path)
            need = box_write.box_task_bytes(self.source, cast(DividedRepresentation, basis), boxes, axes)
            # The samples of a task, if its boxes were whole samples.
            rows = max(1, boxes.rows // len(boxes.decoded))
            return TriedStage("scores", 2 * self.decoded, 0.0, (), n, rows, tried.seconds, need)

        def work(stack: Stack, target: Path) -> None:
            reconstruct, ssim = self.settings.reconstruct, self.settings.measures_ssim
            with Workspace(target, kind=basis.scores_kind, fingerprint=str(SCORES_VERSION)) as space:
                fill_scores(stack, path, space, reconstruct=reconstruct, ssim=ssim, facts={}, run=Run())
                size[stack.n_samples] = folder_bytes(space.store)

        spent = fewest_seconds(self.few, work, self.folder / "scores")
        parts = [stack.n_samples for stack in self.few]
        alone, each = line(parts, spent)
        once, of_each = line(parts, [size[count] for count in parts])
        most = n * basis.score_bytes(self.source.dtype) + (self.decoded if self.settings.reconstruct else 0)
        self.bytes_written = once + min(most, n * of_each) + folder_bytes(path)
        rows = score_write.stack_layout(self.source, basis, self.axes).shards[0]
        need = score_write.task_bytes(self.source, basis, rows, kept)
        return TriedStage("scores", self.decoded, alone, (), n, rows, each, need)

    def _encode(self) -> TriedStage:
        goal, n = self._goal, self.source.shape[0]
        stack, grid = self.few[-1], self.fitted.grid_
        origin = self.source if isinstance(self.given, Stack) else as_source(stack)
        began = time.process_time()
        with one_blas_thread():
            trials = Trials(origin, cell_components(self.fitted), stated_facts(stack, grid, goal), n_samples=n)
            found = trials.reach(goal)
        reached = time.process_time() - began
        self.bytes_written = trials.stored_bytes(found)

        def write(some: Stack, space: Workspace) -> Checkpoints:
            kept = Checkpoints(str(space.scratch))
            kept.save(PLAN, found.arrays, found.settings)
            facts = stated_facts(some, grid, goal)
            # A few samples may miss a mean goal. A goal of every sample affects the time, so it is kept.
            own = goal if goal.every_sample else None
            write_planned(some, self.fitted, space, kept, own, facts, Run())
            return kept

        def work(some: Stack, target: Path) -> None:
            with Workspace(target, kind=COMPRESSED, fingerprint=str(COMPRESSED_VERSION)) as space:
                write(some, space)

        alone, each = line([some.n_samples for some in self.few], fewest_seconds(self.few, work, self.folder / "codes"))
        form = form_of(self.source, plain=not len(found.cell))
        memory = EncodeMemory(self.source, form, len(found.cell), goal.has_residual, found.basis.size)
        need = memory.task_bytes(memory.decoded_at_once(self.workers.budget))
        measuring = None
        if isinstance(self.source, TiledSource):
            seconds = try_measuring(stack, write, self.folder)
            measuring = MeasuringPass(self.source, self.axes, goal.has_residual, seconds)
        spent = reached + alone
        return TriedStage("encode", self.decoded, spent, (), n, form.shard_rows, each, need, second_pass=measuring)

    @cached_property
    def _goal(self) -> Goal:
        """The goal, with the noise of a few samples if it is a share of that."""
        wanted = wanted_goal(self.settings.goal or {}, every_sample=self.settings.every_sample)
        return goal_with_noise(wanted, self.few[-1], self.settings.noise, Run())[0]
