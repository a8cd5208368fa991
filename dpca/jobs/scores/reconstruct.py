"""Reconstruct a stack from scores and a model."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import zarr

from dpca.choices import COMPRESSED
from dpca.engine.folds.plan import TASK_OVERHEAD
from dpca.jobs.base.shards import ShardPass
from dpca.jobs.base.stages import NOTHING, StageCost, stopwatch
from dpca.jobs.compressed.decode import decode_store
from dpca.jobs.scores.boxes import (
    BOXES,
    Boxes,
    BoxPass,
    cells_in,
    choose_boxes,
    read_scores,
    together,
    tried_box,
    write_boxes,
)
from dpca.jobs.scores.score_write import SHARD_COPIES, require_memory
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.box_quality import inside
from dpca.kernels.pixels import Pixels
from dpca.models.base.store import model_fingerprint, stored_basis
from dpca.models.opening import kind_of
from dpca.models.scores import check_match, check_one_variable, model_inside, read_scores_facts, sample_coordinates
from dpca.representation.base import Representation
from dpca.representation.divided import DividedRepresentation, in_any_boxes
from dpca.storage.arrays.arrays import choose_codec, create_array, create_root, kept_layout, write_shard, write_strings
from dpca.storage.arrays.coordinates import write_coordinates
from dpca.storage.arrays.layout import Layout, choose_layout
from dpca.storage.arrays.reading import array_identity, open_again, open_array, open_group, read_into
from dpca.storage.disk import require_free_space
from dpca.storage.errors import DataError
from dpca.storage.remote.objects import absolute
from dpca.storage.run import Run
from dpca.storage.stack import STACK_KIND, STACK_VERSION
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.workspace import Workspace, fingerprint_of

# Bytes of a block of samples in floating point.
_BLOCK_BYTES = 2**24


@dataclass(frozen=True)
class DecodeJob:
    """The data that all tasks share. Scores, model and samples are given by path.

    Parameters
    ----------
    scores, identity : str
        Path of the scores, and what identifies their content.
    model, fingerprint : str
        Path of the model, and its fingerprint.
    n_components : int or None
        Number of components to use.
    samples : str
        Path of the array to write.
    data_range : (float, float)
        Range of its values.
    n_samples, rows : int
        Number of all samples, and of those in a shard.
    """

    scores: str
    identity: str
    model: str
    fingerprint: str
    n_components: int | None
    samples: str
    data_range: tuple[float, float]
    n_samples: int
    rows: int

    def span(self, shard: int) -> tuple[int, int]:
        """Return the first sample of a shard, and the one behind the last."""
        return shard * self.rows, min((shard + 1) * self.rows, self.n_samples)

    def write(self, shard: int) -> dict[str, Array]:
        """Write one shard of samples."""
        scores, samples = open_again(self.scores, self.identity), open_array(self.samples, mode="r+")
        basis, (start, stop) = stored_basis(self.model, self.fingerprint, self.n_components), self.span(shard)
        values = np.empty((stop - start, *samples.shape[1:]), samples.dtype)
        block, pixels = _block(basis), Pixels(values.dtype, self.data_range)
        part = _read(scores, start, stop, basis.score_shape[-1])
        for row in range(0, stop - start, block):
            values[row : row + block] = basis.decode(part[row : row + block], self.scores, start + row, pixels=pixels)
        write_shard(samples, start, values)
        return {}


class RebuildBoxes(BoxPass[DecodeJob]):
    """A pass that writes boxes of samples."""

    def write(self, group: int, box: int) -> dict[str, Array]:
        """Write a box of some samples."""
        job, core = self.job, self.boxes.decoded[box]
        scores, samples = open_again(job.scores, job.identity), open_array(job.samples, mode="r+")
        basis, (start, stop) = cast(DividedRepresentation, stored_basis(job.model, job.fingerprint)), self.span(group)
        region, level = basis.aligned(core), basis.level(job.n_components)
        part, pixels = basis.box(region, level), Pixels(samples.dtype, job.data_range)
        step = together(region, samples.dtype)
        for row in range(start, stop, step):
            some = read_scores(scores, (row, min(row + step, stop)), basis, region, level)
            values = part.decode(some, job.scores, row, pixels=pixels)
            write_boxes(samples, row, core, values[inside(core, region)])
        return {}


def reconstruct_store(
    model: str | os.PathLike[str] | None,
    scores: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    n_components: int | None = None,
    run: Run = Run(),
    request: str | None = None,
) -> StageCost:
    """Write the reconstruction of scores, or of a compressed store, with the dtype, range and layout of a stack.

    Parameters
    ----------
    model : path-like or None
        The stored model of the scores; None for the model inside their store, and for a compressed store.
    scores : path-like
        A store that `transform_store` made with the model, or a compressed store.
    target : path-like
        Path of the stack store. It appears there when it is complete.
    n_components : int, optional
        Use and read only this many leading components; default all.
    run : Run
        As for `fit_store`.
    request : str, optional
        As for `fit_store`.

    Raises
    ------
    StoreError
        If ``scores`` is not a scores store of this version.
    DataError
        If the scores belong to another model, or have fewer components.
    PlanError
        If a shard does not fit the memory of a worker; nothing is written.
    """
    if kind_of(scores) == COMPRESSED:
        if model is not None:
            raise DataError(f"'{scores}' is a compressed store, which needs no model: leave out '{model}'")
        return decode_store(scores, target, n_components, run, request)
    facts = read_scores_facts(scores)
    check_one_variable(scores, facts)
    model = model_inside(scores, open_group(scores)) if model is None else model
    known = model_fingerprint(model)
    path, stored = absolute(model), os.path.join(absolute(scores), "scores")
    basis = stored_basis(path, known)
    scores_array = open_array(stored)
    check_match(scores, facts, scores_array.shape, basis)
    level = basis.level(n_components)
    n = scores_array.shape[0]
    dtype, axes = np.dtype(facts["dtype"]), tuple(facts["axes"])
    shape = (n, *basis.sample_shape)
    size = math.prod(shape) * dtype.itemsize
    low, high = map(float, facts["data_range"])

    def steps(work: Workspace) -> StageCost:
        cost = stopwatch()
        boxes = plan_rebuilding(scores_array, basis, shape, dtype, axes, run, kept_layout(work.store, "samples"))
        layout = whole_layout(shape, dtype, axes, basis) if boxes is None else boxes.layout
        rows = layout.shards[0] if boxes is None else boxes.rows
        if work.state == "new":
            require_free_space(target, layout.stored_values(shape) * dtype.itemsize, "the reconstructed stack")
        root = create_root(
            work.store,
            kind=STACK_KIND,
            version=STACK_VERSION,
            fingerprint=work.fingerprint,
            axes=list(axes),
            data_range=facts["data_range"],
            settings={"n_components": n_components},
            source={"kind": "reconstruction", "name": os.path.basename(os.path.normpath(scores)), "count": n},
            **({} if request is None else {"request": request}),
        )
        used, samples = None if n_components is None else level, str(work.store / "samples")
        identity = array_identity(scores_array)
        job = DecodeJob(stored, identity, path, known, used, samples, (low, high), n, rows)
        pixels = Pixels(dtype, job.data_range)
        if boxes is None:
            first = basis.leading(n_components).decode(
                _read(scores_array, 0, min(8, n), level), job.scores, pixels=pixels
            )
        else:
            divided = cast(DividedRepresentation, basis)
            region = tried_box(divided, dtype)
            some = read_scores(scores_array, (0, 1), divided, region, level)
            first = divided.box(region, level).decode(some, job.scores, pixels=pixels)
        found = sample_coordinates(scores, scores_array, basis.sample_shape)
        write_coordinates(root, found)
        codec = choose_codec(first)
        create_array(root, "samples", shape, dtype, layout, found.dims, codec=codec, attributes=found.stated)
        if boxes is None:
            peak = ShardPass("reconstruct", work, run).write(job, ((shard,) for shard in range(math.ceil(n / rows))))
        else:
            passing = ShardPass("reconstruct", work, run, str((layout, rows)), BOXES)
            peak = passing.write(RebuildBoxes(job, boxes), boxes.units(n, boxes.decoded))
        write_strings(root, "name", np.asarray(open_array(os.path.join(scores, "name"))[...]).tolist(), found.dims[0])
        return cost(size, peak)

    fingerprint = fingerprint_of("reconstruction", STACK_VERSION, facts["fingerprint"], known, level)
    return Job(target, STACK_KIND, fingerprint, (model, scores), run.overwrite).run(steps) or NOTHING


def task_bytes(scores: zarr.Array[Any], basis: Representation, rows: int, dtype: np.dtype[Any]) -> int:
    """Bytes that `DecodeJob.write` takes at most, in addition to the memory of its process."""
    reading = rows * math.prod(basis.score_shape) + 4 * math.prod(scores.chunks)
    written = (1 + SHARD_COPIES) * rows * math.prod(basis.sample_shape) * dtype.itemsize
    work = basis.work_bytes(min(rows, _block(basis)), dtype, pixels=True)
    return reading * scores.dtype.itemsize + written + work + 3 * basis.nbytes + TASK_OVERHEAD


def _block(basis: Representation) -> int:
    """Return how many samples are decoded at a time."""
    return max(1, _BLOCK_BYTES // (4 * math.prod(basis.sample_shape)))


def _read(scores: zarr.Array[Any], start: int, stop: int, level: int) -> Array:
    """Read the scores of some samples, only those of the first components."""
    shape = (*scores.shape[1:-1], level)
    part = np.empty((stop - start, *shape), scores.dtype)
    read_into(scores, (slice(start, stop), *map(slice, shape)), part)
    return part


def whole_layout(shape: tuple[int, ...], dtype: np.dtype[Any], axes: tuple[str, ...], basis: Representation) -> Layout:
    """Return the layout of a stack that is written in whole samples."""
    return choose_layout(shape, dtype.itemsize, axes, basis.cell_shape, part_bytes=None)


def plan_rebuilding(
    scores: zarr.Array[Any],
    basis: Representation,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    axes: tuple[str, ...],
    run: Run,
    kept: Layout | None,
) -> Boxes | None:
    """Choose boxes of large samples; None if samples are decoded whole. ``kept`` is the layout of an interrupted run.

    Raises
    ------
    PlanError
        If a task does not fit the memory.
    """
    whole, budget = whole_layout(shape, dtype, axes, basis), run.task_bytes()
    rows, divided = whole.shards[0], in_any_boxes(basis)
    need = task_bytes(scores, basis, min(rows, shape[0]), dtype)
    if divided is None or kept == whole:
        require_memory(f"{rows:,} samples", need, budget)
        return None

    def box_bytes(boxes: Boxes) -> int:
        regions = [divided.aligned(core) for core in boxes.decoded]
        most = max(_region_bytes(scores, divided, region, dtype, boxes.rows) for region in regions)
        return TASK_OVERHEAD + divided.held_bytes + most

    return choose_boxes(divided, shape, dtype, axes, (whole, need, box_bytes), budget, kept)


def _region_bytes(
    scores: zarr.Array[Any], basis: DividedRepresentation, region: Region, dtype: np.dtype[Any], rows: int
) -> int:
    size, step = math.prod(b - a for a, b in region), min(rows, together(region, dtype))
    reading = 2 * step * math.prod(cells_in(basis, region)) * basis.score_shape[-1] + 4 * math.prod(scores.chunks)
    work = basis.box_bytes(region, step, dtype, pixels=True)
    return reading * scores.dtype.itemsize + work + (step + SHARD_COPIES) * size * dtype.itemsize
