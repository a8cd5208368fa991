"""Fill the gaps of a stack: a fit to the values that are there, and a pass that writes complete samples."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from dpca.choices import INFINITE
from dpca.engine.folds.plan import TASK_OVERHEAD
from dpca.engine.sources.source import Source, as_source, batches
from dpca.jobs.base.input_stack import inherited_of, open_or_ingest
from dpca.jobs.base.shards import ShardPass
from dpca.jobs.base.stages import NOTHING, StageCost, stopwatch
from dpca.jobs.denoising.denoise import outline_of
from dpca.jobs.scores.score_write import SHARD_COPIES, found_coordinates, require_memory
from dpca.kernels.algebra.types import Array, Region
from dpca.models.cells.band_pca import BandPCA
from dpca.models.cells.cell_pca import CellPCA
from dpca.models.linear.pca import PCA
from dpca.partition.base import Partition
from dpca.representation.base import Representation
from dpca.representation.gappy import GappyRepresentation
from dpca.storage.arrays.arrays import create_array, create_root, kept_layout, write_shard, write_strings
from dpca.storage.arrays.coordinates import write_coordinates
from dpca.storage.arrays.layout import SHARD_BYTES, Layout, axes_for, boxes_of, choose_layout
from dpca.storage.arrays.reading import open_array
from dpca.storage.disk import require_free_space
from dpca.storage.errors import DataError, StoreError
from dpca.storage.input import fingerprint_of_input
from dpca.storage.ranges import found_range
from dpca.storage.readers import Reader
from dpca.storage.run import Run
from dpca.storage.stack import STACK_KIND, STACK_VERSION, Stack
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.workspace import Workspace, fingerprint_of

#: Name of the map of standard errors beside the samples.
ERRORS = "standard_error"
# Name of the model among the checkpoints, and bytes of samples that are filled together.
_MODEL, _BLOCK_BYTES = "model", 2**25
# Smallest shards that are tried if memory is short.
_LEAST_SHARD = 2**20


@dataclass(frozen=True)
class FillJob:
    """The data that all tasks of the second pass share, see `dpca.jobs.base.shards.ShardJob`."""

    source: Source
    partition: Partition
    missing: Any
    model: Checkpoints
    store: tuple[str, str]
    """Paths of the samples and of their standard errors."""
    layout: Layout

    def span(self, shard: int) -> tuple[int, int]:
        """Return the first sample of a shard, and the one behind the last."""
        rows = self.layout.shards[0]
        return shard * rows, min((shard + 1) * rows, self.source.shape[0])

    def write(self, shard: int) -> dict[str, Array]:
        """Write the shards of some samples; return the range of the values, and what was filled."""
        if (found := self.model.load(_MODEL)) is None:
            raise StoreError(f"the model in '{self.model.folder}' is gone: run the same command again")
        arrays, (start, stop) = found[0], self.span(shard)
        basis = GappyRepresentation(self.partition, **arrays, missing=self.missing)
        shape, dtype = self.source.shape[1:], self.source.dtype
        samples, errors = np.empty((stop - start, *shape), dtype), np.empty((stop - start, *shape), np.float32)
        whole = tuple((0, length) for length in shape)
        for first, batch in batches(self.source, (start, stop), whole, block_rows(self.source)):
            here = slice(first - start, first - start + len(batch))
            samples[here], errors[here] = basis.filled(batch, self.source.name)
        for path, values in zip(self.store, (samples, errors), strict=True):
            out = open_array(path, mode="r+")
            for box in self.boxes:
                inner = tuple(slice(a, b) for a, b in box)
                write_shard(out, (start, *(a for a, _ in box)), np.ascontiguousarray(values[(slice(None), *inner)]))
        known = ~np.isnan(errors)
        filled = errors[known & (errors > 0)].astype(np.float64)
        there = samples[known]
        low, high = (float(there.min()), float(there.max())) if there.size else (math.inf, -math.inf)
        counts = [len(filled), float(filled @ filled), int((~known).sum())]
        return {"range": np.array([low, high], np.float64), "filled": np.array(counts, np.float64)}

    @property
    def boxes(self) -> list[Region]:
        """The boxes of a sample in shards."""
        return boxes_of(self.source.shape[1:], self.layout.shards[1:])

    @property
    def units(self) -> Iterator[tuple[int]]:
        """All units."""
        return ((shard,) for shard in range(math.ceil(self.source.shape[0] / self.layout.shards[0])))


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
        layout = kept_layout(work.store, "samples") or _layout(stack, samples, planned, within.task_bytes())
        if work.state == "new":
            size = layout.stored_values(stack.shape) * (stack.dtype.itemsize + 4)
            require_free_space(target, size, "the filled stack and its errors")
        kept = Checkpoints(str(work.scratch / "model"), str(work.scratch))
        if not work.is_done("fit"):
            chosen.fit(
                stack, run=replace(within, checkpoints=Checkpoints(str(work.scratch / "fit"), str(work.scratch)))
            )
            basis = chosen.basis_
            arrays = {name: np.asarray(getattr(basis, name)) for name in ("mean", "components")}
            variances = {name: np.asarray(getattr(basis, name)) for name in ("explained_variance", "total_variance")}
            kept.save(_MODEL, {**arrays, **variances}, {})
            report, error = chosen.fit_report_, float(getattr(chosen, "held_out_rmse_", math.nan))
            facts = {"read": report.plan.read_bytes, "peak": report.peak_memory, "error": _or_none(error)}
            work.mark_done("fit", record=facts)
        facts = work.record("fit")
        store = str(work.store / "samples"), str(work.store / ERRORS)
        job = FillJob(samples, planned.partition, chosen.missing_value, kept, store, layout)
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
        shards = ShardPass("fill", work, within, str(layout))
        peak = shards.write(job, job.units)
        write_strings(root, "name", stack.names.tolist(), along.dims[0])
        spans, filled = (np.array([shards.quality(*unit)[key] for unit in job.units]) for key in ("range", "filled"))
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


def plan_filling(model: PCA | CellPCA, samples: Source, run: Run) -> Any:
    """Return a basis of the size that the fit of a model will find, as `dpca.models.base.estimator.Estimator.plan_fit`.

    Raises
    ------
    DataError, PlanError
        As `fill_store`.
    """
    return model.plan_fit(samples, samples.axes or axes_for(samples.shape[1:]), run)[0]


def block_rows(source: Source) -> int:
    """Return the number of samples that are filled together."""
    return max(1, _BLOCK_BYTES // (8 * math.prod(source.shape[1:])))


def _layout(stack: Stack, source: Source, basis: Representation, budget: int) -> Layout:
    """Return the layout of the output: shards of whole samples that fit into the memory of a task."""
    size, shard_bytes = stack.dtype.itemsize, SHARD_BYTES
    whole = tuple((0, length) for length in stack.sample_shape)
    block = block_rows(source)
    gappy = basis.work_bytes(block, stack.dtype) + 3 * basis.nbytes
    while True:
        layout = choose_layout(stack.shape, size, stack.axes, shard_bytes=shard_bytes, part_bytes=shard_bytes)
        values = layout.shards[0] * math.prod(stack.sample_shape)
        reading = 2 * source.decoded_bytes(whole) * source.chunks[0] + 2 * block * math.prod(stack.sample_shape) * size
        need = values * (size + 4) * (1 + SHARD_COPIES) + reading + gappy + TASK_OVERHEAD
        if need <= budget or shard_bytes <= _LEAST_SHARD:
            break
        shard_bytes //= 2
    require_memory(f"{layout.shards[0]:,} samples", need, budget)
    return layout


def _or_none(number: float) -> float | None:
    return None if math.isnan(number) else number
