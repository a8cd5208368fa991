"""Plan the time and memory of denoising: the fold is planned exactly, and a box of some samples is tried."""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from dpca.engine.folds.rehearsal import Workers, rehearsing
from dpca.engine.sources.source import Source, as_source
from dpca.jobs.denoising.denoise import DenoiseJob, OutputForm, output_form
from dpca.jobs.plans.plan import JobPlan, combined, numbers_of_workers
from dpca.jobs.plans.timing import fewest_seconds, line
from dpca.jobs.plans.tried import TriedInput, TriedStage
from dpca.kernels.algebra.types import Array, Region
from dpca.models.denoising.denoiser import Denoiser
from dpca.storage.arrays.arrays import choose_codec, create_array, create_root
from dpca.storage.arrays.layout import boxes_of
from dpca.storage.disk import folder_bytes
from dpca.storage.ingest import ingest
from dpca.storage.progress import JobProgress, no_progress
from dpca.storage.readers import Reader
from dpca.storage.run import Run
from dpca.storage.stack import STACK_KIND, Stack
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.checkpoints import Checkpoints

# Most samples that are denoised on trial and most bytes of them, and the least number of samples if there are enough.
_MOST, _MOST_BYTES, _LEAST = 256, 2**26, 16


def plan_denoising(
    given: Stack | Reader,
    denoiser: Denoiser,
    *,
    reading: ReadOptions = ReadOptions(),
    workers: Sequence[int] | None = None,
    budget: int | None = None,
    progress: JobProgress = no_progress,
) -> list[JobPlan]:
    """Plan `dpca.jobs.denoise_store`: seconds, memory and bytes of each stage. Nothing is written.

    Parameters
    ----------
    given : Stack or Reader
    denoiser : Denoiser
        Not fitted.
    reading : ReadOptions
        How the samples of a reader are read.
    workers, budget, progress
        As for `plan_job`.

    Returns
    -------
    list of JobPlan
        One for each number of workers.

    Raises
    ------
    DataError, PlanError
        As `dpca.jobs.denoise_store`.

    Notes
    -----
    As `plan_job`, in some seconds. The signal of some samples may have fewer components than that of all, which takes
    less time.
    """
    several = numbers_of_workers(workers, denoiser.memory_budget or budget)
    with tempfile.TemporaryDirectory() as folder:
        tried = _TriedDenoising(given, denoiser, reading, several[0], Path(folder))
        with closing(progress("plan", 1, "job")):
            stages = list(tried.stages())
    return combined(stages, several, tried.source, tried.written, denoiser)


class _TriedDenoising(TriedInput):
    """The stages of denoising. Each is tried on a few samples when it is planned."""

    def __init__(
        self, given: Stack | Reader, denoiser: Denoiser, reading: ReadOptions, workers: Workers, folder: Path
    ) -> None:
        super().__init__(given, reading, workers, folder)
        self.model, self.written = clone(denoiser), 0

    def stages(self) -> Iterator[TriedStage]:
        """Yield the stages in order."""
        if isinstance(self.given, Reader):
            yield self.ingested(self.given)
        else:
            self.source, self.axes = as_source(self.given), self.given.axes
        yield self._noise()
        yield self._denoise()

    def _noise(self) -> TriedStage:
        model, began = clone(self.model), time.process_time()
        with rehearsing(self.workers, str(self.folder / "fold")) as rehearsal:
            model.fit(self.source, run=Run(memory=self.workers.budget, threads=self.workers.n))
        alone = time.process_time() - began - rehearsal.spent
        moved = sum(fold.planned(self.workers).read_bytes for fold in rehearsal.costs)
        return TriedStage("noise", moved, max(0.0, alone), tuple(rehearsal.costs))

    def _denoise(self) -> TriedStage:
        source, model, n = self.source, self.model, self.source.shape[0]
        form, grids = self._form(source, self.workers.budget), model.grids_for(source)
        box = tuple((0, min(b, size)) for b, size in zip(form.layout.shards[1:], source.shape[1:], strict=True))
        crop = self._cropped(box, len(grids.cell_shape))
        most = min(n, max(_LEAST, min(_MOST, _MOST_BYTES // self._bytes(crop))))
        parts = sorted({min(most, max(_LEAST, most // 4)), most})
        values = np.empty((most, *(b for _, b in crop)), source.dtype)
        source.reader()((0, most), crop, values)
        sigma = model.sigma
        if np.ndim(sigma):
            sigma = np.asarray(sigma).reshape(source.shape[1:])[tuple(slice(a, b) for a, b in crop)]
        few = {count: self._stack(values[:count]) for count in parts}
        own = clone(model).set_params(cell_shape=grids.cell_shape, sigma=sigma)
        if model.n_before(n):
            own.set_params(offset=0.0)  # a corner may not tell it
        own.fit(few[most])
        form = self._form(source, self.workers.budget, own.filters_.nbytes / own.filters_.mean.size)
        jobs = {count: self._job(stack, own) for count, stack in few.items()}

        def work(count: int, target: Path) -> None:
            shutil.rmtree(Path(jobs[count].samples) / "c", ignore_errors=True)  # shards that are there stay
            for unit in jobs[count].units:
                jobs[count].write(*unit)

        spent = fewest_seconds(parts, work, self.folder / "denoised")
        share = self.decoded / n / self._bytes(crop)
        self.written = round(n * share * folder_bytes(Path(jobs[most].samples)) / most)
        alone, each = line([parts[0], parts[-1]], [spent[0], spent[-1]])
        units = math.ceil(n / form.rows)
        total = share * (each + alone * units / n)
        # The samples of a task, if its boxes were whole samples.
        rows = max(1, form.rows // len(boxes_of(source.shape[1:], form.layout.shards[1:])))
        return TriedStage("denoise", self.decoded, 0.0, (), n, rows, total, form.task_bytes)

    def _form(self, source: Source, budget: int, held: float = 0.0) -> OutputForm:
        dtype = self.model.output_dtype(source.dtype)
        return output_form(source, self.axes, dtype, budget, self.model.time_filter, held=held)

    def _cropped(self, box: Region, n_spatial: int) -> Region:
        """Return a part of a box of which enough samples fit the trial."""
        lengths = [b for _, b in box]
        while _LEAST * math.prod(lengths) * self.source.dtype.itemsize > _MOST_BYTES:
            axis = int(np.argmax(lengths[:n_spatial]))
            if lengths[axis] == 1:
                break
            lengths[axis] = -(-lengths[axis] // 2)
        return tuple((0, length) for length in lengths)

    def _bytes(self, crop: Region) -> int:
        return math.prod(b for _, b in crop) * self.source.dtype.itemsize

    def _stack(self, values: Array) -> Stack:
        """Write some values to a new stack."""
        path = self.folder / f"some {len(values)}"
        np.save(path.with_suffix(".npy"), values)
        return ingest(path.with_suffix(".npy"), path.with_suffix(".zarr"), axes=self.axes[1:])

    def _job(self, stack: Stack, model: Any) -> DenoiseJob:
        """Return the job that denoises a stack."""
        path, few, dtype = Path(stack.path).with_suffix(".out"), as_source(stack), model.output_dtype(stack.dtype)
        form = self._form(few, sys.maxsize)
        kept, samples = Checkpoints(str(path.with_suffix(".filters"))), str(path / "samples")
        grids, rows = model.grids_for(few), (form.rows, form.read_rows)
        job = DenoiseJob(few, grids, kept, samples, form.layout, *rows, model.time_filter)
        job.keep(model.filters_, lambda _: None)
        root = create_root(path, kind=STACK_KIND, version=0, fingerprint="")
        create_array(root, "samples", few.shape, dtype, form.layout, self.axes, codec=choose_codec(job.first(dtype)))
        return job
