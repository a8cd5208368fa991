"""Denoise a stack to a stack: one pass finds the filters of cells, and a second one writes denoised samples."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import zarr
from sklearn.base import clone

from dpca.choices import POISSON
from dpca.engine.folds.plan import TASK_OVERHEAD, Outline
from dpca.engine.sources.source import Source, as_source, batches
from dpca.jobs.base.input_stack import inherited_of, open_or_ingest
from dpca.jobs.base.shards import ShardPass
from dpca.jobs.base.stages import NOTHING, StageCost, stopwatch
from dpca.jobs.scores.score_write import SHARD_COPIES, found_coordinates, require_memory
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.models.denoising.averages import BoxFilters, CellFilters
from dpca.models.denoising.camera import FACTS
from dpca.models.denoising.denoiser import Denoiser, block_rows, finished
from dpca.models.denoising.time_filter import WINDOW, context, in_context
from dpca.partition.shifted import ShiftedGrids
from dpca.report.record import report_folder
from dpca.storage.arrays.arrays import (
    blosc_share,
    choose_codec,
    create_array,
    create_root,
    write_shard,
    write_strings,
)
from dpca.storage.arrays.coordinates import write_coordinates
from dpca.storage.arrays.layout import SHARD_BYTES, Layout, boxes_of, choose_layout
from dpca.storage.arrays.reading import open_array
from dpca.storage.disk import require_free_space
from dpca.storage.errors import StoreError
from dpca.storage.ingest import plan_ingest
from dpca.storage.input import fingerprint_of_input
from dpca.storage.ranges import found_range
from dpca.storage.readers import Reader
from dpca.storage.run import Run
from dpca.storage.stack import STACK_KIND, STACK_VERSION, Stack
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.workspace import Workspace, fingerprint_of

#: Maps beside the samples, and what they show.
MAPS = {
    "sigma": "standard deviation of the noise",
    "rank": "mean number of components of the cells of an attribute",
    "removed": "share of the variance that was removed",
}
# Smallest shards that are tried if memory is short, and samples of a unit of boxes of large samples.
_LEAST_SHARD, _UNIT_ROWS = 2**20, 64
# Bytes of values that are compressed to tell the space that integers need.
_TRIED_BYTES = 2**22
# Most shards of whole samples of a unit.
_MOST_SHARDS = 4


@dataclass(frozen=True)
class DenoiseJob:
    """The data that all tasks of the second pass share, see `dpca.jobs.base.shards.ShardJob`.

    Units are some samples and a box of these, which is a whole sample if samples are small. The filters of each box are
    a checkpoint of their own.
    """

    source: Source
    grids: ShiftedGrids
    filters: Checkpoints
    samples: str
    layout: Layout
    rows: int
    read_rows: int
    in_time: bool

    def span(self, group: int) -> tuple[int, int]:
        """Return the first sample of a unit, and the one behind the last."""
        return group * self.rows, min((group + 1) * self.rows, self.source.shape[0])

    @property
    def boxes(self) -> list[Region]:
        """The boxes of samples."""
        return boxes_of(self.source.shape[1:], self.layout.shards[1:])

    @property
    def units(self) -> Iterator[tuple[int, int]]:
        """All units: a group of samples, and a box."""
        return itertools.product(range(math.ceil(self.source.shape[0] / self.rows)), range(len(self.boxes)))

    def keep(self, filters: CellFilters, advance: Callable[[int], object]) -> None:
        """Keep the filters of each box, and ``advance`` by one for each."""
        for number, box in enumerate(self.boxes):
            self.filters.save(_name(number), filters.within(self.grids.reach(box), box).packed(), {})
            advance(1)

    def first(self, dtype: np.dtype[Any]) -> Array:
        """Return the first denoised samples, or a box of them."""
        return finished(next(self._denoised(self.span(0), 0)), dtype)

    def write(self, group: int, box: int) -> dict[str, Array]:
        """Write the shards of a unit."""
        out, core, (start, stop) = open_array(self.samples, mode="r+"), self.boxes[box], self.span(group)
        edge = self.layout.shards[0]
        shard = np.empty((min(edge, stop - start), *(b - a for a, b in core)), out.dtype)
        corner, at, low, high = [a for a, _ in core], start, math.inf, -math.inf
        for values in self._denoised((start, stop), box):
            taken = 0
            while taken < len(values):
                first, last = at // edge * edge, min(at // edge * edge + edge, stop)
                rows = min(last - at, len(values) - taken)
                shard[at - first : at - first + rows] = finished(values[taken : taken + rows], out.dtype)
                at, taken = at + rows, taken + rows
                if at == last:
                    write_shard(out, (first, *corner), done := shard[: last - first])
                    low, high = min(low, float(done.min())), max(high, float(done.max()))
        return {"range": np.array([low, high])}

    def _denoised(self, span: tuple[int, int], box: int) -> Iterator[Array]:
        """Yield a box of successive denoised samples."""
        if (found := self.filters.load(_name(box))) is None:
            raise StoreError(f"the filters in '{self.filters.folder}' are gone: run the same command again")
        filters, region, n = BoxFilters.unpacked(found[0]), self.grids.reach(self.boxes[box]), self.source.shape[0]
        rows = min(block_rows(region, filters.mean.dtype), max(self.layout.shards[0], WINDOW if self.in_time else 1))
        if not self.in_time:
            for _, x in batches(self.source, span, region, self.read_rows):
                yield from (filters.apply(x[few]) for few in blocks(len(x), rows))
            return
        parts = batches(self.source, context(*span, n), region, self.read_rows)
        for series, x in in_context(parts, span, n, rows):
            yield filters.apply(x, series)


def denoise_store(
    source: Stack | Reader,
    target: str | os.PathLike[str],
    denoiser: Denoiser | None = None,
    *,
    reading: ReadOptions = ReadOptions(),
    run: Run = Run(),
    request: str | None = None,
) -> StageCost:
    """Write a stack without its noise, with maps of the noise, the rank and the share of the variance removed.

    An interrupted run resumes. The stack is read twice, or more often if the covariances of all cells exceed the
    memory. Every chunk is written once.

    Parameters
    ----------
    source : Stack or Reader
        Samples of a reader are ingested first, beside the output. They are removed when it is complete.
    target : path-like
        Path of the stack store. It appears there when it is complete, with ``samples``, ``sigma``, ``rank`` and
        ``removed``. The report goes to ``<target stem>.report``.
    denoiser : Denoiser, optional
        Not fitted. Default: ``Denoiser()``.
    reading : ReadOptions
        How the samples of a reader are read.
    run : Run
        As for `fit_store`.
    request : str, optional
        As for `fit_store`.

    Raises
    ------
    DataError
        If a parameter does not fit the stack, or a value is not finite.
    PlanError
        If a task does not fit the memory; nothing is written.
    StoreError
        As `fit_store`.
    """
    chosen: Denoiser = Denoiser() if denoiser is None else clone(denoiser)
    settings = chosen.job_settings()
    read = () if isinstance(source, Stack) else (reading.as_dict(),)
    fingerprint = fingerprint_of("denoised", STACK_VERSION, fingerprint_of_input(source), settings, *read)

    def steps(work: Workspace) -> StageCost:
        within = replace(run.limited_to(chosen.memory_budget), overwrite=False)
        chosen.plan(outline_of(source, reading, within), within)
        stack, ingested = open_or_ingest(source, work, reading, run=within)
        samples = as_source(stack)
        cost, dtype = stopwatch(), chosen.output_dtype(stack.dtype)
        grids = chosen.grids_for(samples)
        kept, fold = (Checkpoints(str(work.scratch / name), str(work.scratch)) for name in ("filters", "fold"))

        def job_of(form: OutputForm) -> DenoiseJob:
            rows, path = (form.rows, form.read_rows), str(work.store / "samples")
            return DenoiseJob(samples, grids, kept, path, form.layout, *rows, chosen.time_filter)

        planned = partial(output_form, samples, stack.axes, dtype, within.task_bytes(), chosen.time_filter)
        if not work.is_done("filters"):
            form = planned()  # a task that does not fit is refused before the first pass
            # Integers with noise compress less than without it.
            share = _stored_share(_some_values(samples)) if chosen.keep_dtype else 1.0
            size = form.layout.stored_values(stack.shape) * dtype.itemsize
            require_free_space(target, round(share * size), "the denoised stack")
            chosen.fit(stack, run=replace(within, checkpoints=fold))
            form = planned(held=chosen.filters_.nbytes / math.prod(stack.sample_shape))
            job = job_of(form)
            with closing(within.progress("keep filters", len(job.boxes), "groups of cells")) as stage:
                job.keep(chosen.filters_, stage.advance)
            report = chosen.fit_report_
            camera: dict[str, float | None] = {}
            if chosen.noise == POISSON:
                camera = {name: getattr(chosen, f"{name}_") for name in FACTS}
            maps = {name: getattr(chosen, f"{name}_") for name in MAPS}
            found: dict[str, Any] = {"read": report.plan.read_bytes, "peak": report.peak_memory, "camera": camera}
            work.mark_done("filters", record={**found, "layout": [form.layout.chunks, form.layout.shards]}, arrays=maps)
        facts: dict[str, Any] = work.record("filters")
        form = planned(kept=Layout(*map(tuple, facts["layout"])))
        job, layout = job_of(form), form.layout
        name = os.path.basename(source.path) if isinstance(source, Stack) else source.name
        stated = {
            "kind": STACK_KIND,
            "version": STACK_VERSION,
            "fingerprint": work.fingerprint,
            "axes": list(stack.axes),
            "settings": settings,
            "source": {"kind": "denoised", "name": name, "count": stack.n_samples},
            **facts["camera"],
            **({} if request is None else {"request": request}),
        }
        root = create_root(work.store, **stated)
        along = found_coordinates(stack.axes, stack.coordinates)
        write_coordinates(root, along)
        first = job.first(dtype)
        if not (work.store / "samples").exists():
            size = layout.stored_values(stack.shape) * dtype.itemsize
            require_free_space(target, round(_stored_share(first) * size), "the denoised stack")
        codec = choose_codec(first)
        create_array(root, "samples", stack.shape, dtype, layout, along.dims, codec=codec, attributes=along.stated)
        shards = ShardPass("denoise", work, within, str((layout, form.rows)))
        peak = shards.write(job, job.units)
        _write_maps(root, along.dims[1:], layout, work.arrays("filters"))
        write_strings(root, "name", stack.names.tolist(), along.dims[0])
        spans = np.array([shards.quality(*unit)["range"] for unit in job.units])
        span = stack.data_range or found_range(spans[:, 0].min(), spans[:, 1].max())
        create_root(work.store, **stated, data_range=list(span))
        total = ingested + cost(facts["read"] + stack.nbytes, max(peak, facts["peak"]))
        # The report comes first, so that every store under its final name has one.
        shown = {**settings, "noise": chosen.noise, "cell_shape": grids.cell_shape, **facts["camera"]}
        with closing(within.progress("report", 1, "report")):
            from dpca.jobs.denoising.report import write_denoising_report  # imports matplotlib, which takes a second

            write_denoising_report(report_folder(target), stack, work.store, work.arrays("filters"), shown, total)
        return total

    def publish(work: Workspace, _: StageCost) -> None:
        work.set_aside()
        work.publish()

    inherited = inherited_of(source, reading)
    report = report_folder(target)
    return (
        Job(target, STACK_KIND, fingerprint, (source,), run.overwrite, inherited, report).run(steps, publish) or NOTHING
    )


def outline_of(given: Stack | Reader, reading: ReadOptions, run: Run) -> Source:
    """Return the samples of a stack, or what is known of those of a reader before they are ingested."""
    if isinstance(given, Stack):
        return as_source(given)
    shape, dtype, layout, axes = plan_ingest(given, reading, lambda axes: None, run.task_bytes())
    outline = Outline(given.name, shape, dtype, layout.chunks)
    outline.axes = axes[1:]
    return outline


def _some_values(source: Source) -> Array:
    """Return values of the first chunk in the middle of the samples."""
    starts = [n // chunk // 2 * chunk for chunk, n in zip(source.chunks, source.shape, strict=True)]
    stops = [min(a + chunk, n) for a, chunk, n in zip(starts, source.chunks, source.shape, strict=True)]
    size = math.prod(b - a for a, b in zip(starts[1:], stops[1:], strict=True)) * source.dtype.itemsize
    rows = min(stops[0] - starts[0], max(1, _TRIED_BYTES // size))
    values = np.empty((rows, *(b - a for a, b in zip(starts[1:], stops[1:], strict=True))), source.dtype)
    source.reader()((starts[0], starts[0] + rows), tuple(zip(starts[1:], stops[1:], strict=True)), values)
    return values


def _stored_share(values: Array) -> float:
    """Return the stored bytes of an array, as a share of its bytes, from some of its values."""
    return blosc_share(values) if choose_codec(values) == "blosc" else 1.0


class OutputForm(NamedTuple):
    """The layout of a denoised stack, the samples of a unit and those of a read, and the bytes of a task."""

    layout: Layout
    rows: int
    read_rows: int
    task_bytes: int


def output_form(
    source: Source,
    axes: Sequence[str],
    dtype: np.dtype[Any],
    budget: int,
    in_time: bool,
    *,
    held: float = 0.0,
    kept: Layout | None = None,
) -> OutputForm:
    """Return the form of the output for a source with these axes.

    ``held`` are bytes of the filters for each value of a sample, and ``kept`` is the layout of an interrupted run.

    Raises
    ------
    PlanError
        If a task exceeds the budget.
    """
    n, *lengths = source.shape
    # Samples around a block, which are in memory with it.
    around = 4 * WINDOW if in_time else 0
    shard_bytes = SHARD_BYTES
    while True:
        layout = kept or choose_layout(
            source.shape, dtype.itemsize, axes, shard_bytes=shard_bytes, part_bytes=shard_bytes
        )
        box, edge = [min(b, n) for b, n in zip(layout.shards[1:], lengths, strict=True)], layout.shards[0]
        whole = layout.shards[1:] == choose_layout(source.shape, dtype.itemsize, axes, part_bytes=None).shards[1:]
        # Few units begin within a chunk, which two of them decode.
        several = min(_MOST_SHARDS, source.chunks[0] // edge) if whole else (_UNIT_ROWS + 4 * around) // edge
        unit = min(max(1, several) * edge, n)
        # The halo of a box is at most a cell on each side; samples are filtered in blocks.
        region = math.prod(min(b + 128, n) for b, n in zip(box, lengths, strict=True))
        rows = min(block_rows(tuple((0, b) for b in box), dtype), edge)
        # Whole chunks are read, so that none is decoded for each block.
        read, chunk = max(rows, min(source.chunks[0], unit)), source.chunks[0]
        read = read // chunk * chunk or read
        reading = 2 * source.decoded_bytes(tuple((0, b) for b in box)) * source.chunks[0]
        # Scores have at most the bytes of the samples, see `FilterWriter.kept_bytes`.
        need = (1 + SHARD_COPIES) * edge * math.prod(box) * dtype.itemsize + reading + TASK_OVERHEAD
        need += math.ceil(held * region) + region * (
            2 * read * source.dtype.itemsize + 4 * (rows + around) * dtype.itemsize
        )
        if in_time:  # successive parts are joined to blocks with the samples around them
            need += 2 * (read + rows + around) * region * source.dtype.itemsize
        if need <= budget or kept is not None or shard_bytes <= _LEAST_SHARD:
            break
        shard_bytes //= 2
    require_memory(f"{edge:,} samples", need, budget)
    return OutputForm(layout, unit, read, need)


def _write_maps(root: zarr.Group, dims: tuple[str, ...], layout: Layout, maps: dict[str, Array]) -> None:
    """Write the maps beside the samples, with the chunks of a sample."""
    of_sample = Layout(layout.chunks[1:], layout.shards[1:])
    for name, text in MAPS.items():
        values = maps[name]
        array = create_array(root, name, values.shape, values.dtype, of_sample, dims, attributes={"long_name": text})
        for box in boxes_of(values.shape, of_sample.shards):
            inner = tuple(slice(start, stop) for start, stop in box)
            write_shard(array, [start for start, _ in box], np.ascontiguousarray(values[inner]))


def _name(box: int) -> str:
    return f"box-{box:06d}"
