"""Scores, reconstructions and quality of large samples, box by box: no task holds a whole sample.

::

    pass 1    a box of some samples  -> partial scores       summed over boxes in this process: the scores
    pass 2    a box of some samples, and their scores -> a box of reconstructions, one shard for each sample;
              sums of squared errors and of similarities     summed over boxes in this process: the quality

Scores of cells are not sums: each box has its own. Those of patches may be larger than samples: pass 1 writes each box
as a shard. The windows of SSIM extend beyond the box of their first pixel, so that pass 2 also decodes the next pixels,
the halo. Sums over boxes are float64. The boxes are determined by the shape, the components and, if memory is short, by
the memory of a task, and not by the chunks of the stack.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from typing import cast

import numpy as np
import zarr

from dpca.engine.folds.plan import TASK_OVERHEAD
from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.source import Source, batches
from dpca.jobs.base.shards import ShardPass
from dpca.jobs.scores.boxes import (
    BOXES,
    Boxes,
    BoxPass,
    OfModel,
    cells_in,
    choose_boxes,
    read_scores,
    together,
    tried_box,
    write_boxes,
)
from dpca.jobs.scores.score_write import (
    SHARD_COPIES,
    WriteJob,
    create_scores,
    found_coordinates,
    joined_quality,
    require_memory,
    stack_layout,
    task_bytes,
    write_centers,
    write_quality,
)
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.linalg import release_scratch
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.box_quality import BoxQuality, inside, means_of_boxes, with_halo
from dpca.kernels.pixels import Pixels
from dpca.kernels.quality import quality_bytes
from dpca.models.base.store import stored_basis
from dpca.representation.base import Representation
from dpca.representation.divided import DividedRepresentation, in_any_boxes
from dpca.storage.arrays.arrays import choose_codec, create_array, kept_layout, write_shard
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.layout import SAMPLE, Layout
from dpca.storage.arrays.reading import open_array
from dpca.storage.run import Run
from dpca.storage.transaction.workspace import Workspace


def plan_scores(
    source: Source,
    basis: Representation,
    axes: Sequence[str],
    *,
    reconstruct: bool,
    budget: int,
    kept: Layout | None = None,
) -> Boxes | None:
    """Choose boxes for a pass over a stack; nothing is read or written.

    ``kept`` is the layout of the reconstructions of an interrupted run, which another memory does not change.

    Returns
    -------
    Boxes or None
        None if samples are written whole, by `dpca.jobs.scores.score_write`: those below `LARGE_SAMPLE` that fit.

    Raises
    ------
    PlanError
        If a task does not fit ``budget`` bytes.
    """
    divided, whole = in_any_boxes(basis), stack_layout(source, basis, axes)
    need = task_bytes(source, basis, whole.shards[0], reconstruct)
    if divided is None or kept == whole:
        require_memory(f"{whole.shards[0]:,} samples", need, budget)
        return None

    def box_bytes(boxes: Boxes) -> int:
        return box_task_bytes(source, divided, boxes, axes)

    return choose_boxes(divided, source.shape, source.dtype, axes, (whole, need, box_bytes), budget, kept)


def box_task_bytes(source: Source, basis: DividedRepresentation, boxes: Boxes, axes: Sequence[str]) -> int:
    """Bytes that a task of either pass takes at most, in addition to the memory of its process."""
    n_spatial = basis.n_spatial(axes[1:])
    regions = {tuple(b - a for a, b in around): around for _, around in boxes.encoded(basis)}
    for core in boxes.decoded:
        region = basis.aligned(with_halo(core, boxes.shape, n_spatial))
        regions[tuple(b - a for a, b in region)] = region
    return (
        TASK_OVERHEAD
        + basis.held_bytes
        + max(_region_bytes(source, basis, region, boxes.rows) for region in regions.values())
    )


def _region_bytes(source: Source, basis: DividedRepresentation, region: Region, rows: int) -> int:
    shape, dtype = tuple(b - a for a, b in region), source.dtype
    size, count = math.prod(shape), min(rows, together(region, dtype))
    values = count * size * dtype.itemsize
    # A batch, or two, and a copy and the encoded bytes in Zarr.
    chunks = 4 * math.prod(source.chunks) * dtype.itemsize
    reading = (3 + (count < rows)) * values + chunks + source.extra_bytes(region)
    scores = rows * math.prod(cells_in(basis, region)) * basis.score_shape[-1]
    work = basis.box_bytes(region, count, dtype, pixels=True) + quality_bytes(shape, dtype)
    # The box of a sample without its halo is copied as a pair.
    pairs = 4 * size * working_dtype(dtype).itemsize
    return reading + scores * 3 * 8 + work + pairs + SHARD_COPIES * size * dtype.itemsize


class EncodeBoxes(BoxPass[OfModel]):
    """The first pass: its results are ``scores``."""

    def write(self, group: int, box: int) -> dict[str, Array]:
        """Return the scores of a box of some samples, or their summands; those that are large are written."""
        job = self.job
        basis = cast(DividedRepresentation, stored_basis(job.model, job.fingerprint))
        (region, around), (start, stop) = self.boxes.encoded(basis)[box], self.span(group)
        part, scores = basis.box(around), list[Array]()
        for first, samples in batches(job.source, (start, stop), around, together(around, job.source.dtype)):
            scores.append(basis.own_scores(part.summands(samples, job.source.name, first), region, around).copy())
        release_scratch()
        if not basis.large_scores:
            return {"scores": np.concatenate(scores)}
        out = open_array(os.path.join(job.store, "scores"), mode="r+")
        corner = [*(place.start for place in basis.score_places(region)), 0]
        for i, one in enumerate(itertools.chain.from_iterable(scores)):
            write_shard(out, (start + i, *corner), one[None])
        return {}


class DecodeBoxes(BoxPass[WriteJob]):
    """The second pass: its results are sums over boxes, of squared errors and of similarities of windows."""

    def write(self, group: int, box: int) -> dict[str, Array]:
        """Write a box of some reconstructions, and return their quality."""
        job, shape = self.job, self.boxes.shape
        basis = cast(DividedRepresentation, stored_basis(job.model, job.fingerprint))
        core, (start, stop), n_spatial = self.boxes.decoded[box], self.span(group), basis.n_spatial(job.axes[1:])
        quality = BoxQuality(shape, core, n_spatial, job.data_range[1] - job.data_range[0], job.ssim)
        region = basis.aligned(quality.needed)
        part, sums = basis.box(region), list[dict[str, Array]]()
        scores = read_scores(open_array(os.path.join(job.store, "scores")), (start, stop), basis, region)
        pixels = Pixels(job.source.dtype, job.data_range)
        out = open_array(os.path.join(job.store, "reconstructions"), mode="r+") if job.reconstruct else None
        for first, x in batches(job.source, (start, stop), region, together(region, job.source.dtype)):
            here = slice(first - start, first - start + len(x))
            y = part.decode(scores[here], "the scores", first, pixels=pixels)
            sums.append(quality.sums(x, y, region))
            if out is not None:
                write_boxes(out, first, core, y[inside(core, region)])
        release_scratch()
        return joined_quality(sums)


def write_score_boxes(
    job: WriteJob, boxes: Boxes, group: zarr.Group, coordinates: Coordinates | None, *, work: Workspace, run: Run
) -> int:
    """Write what `dpca.jobs.scores.score_write.write_scores` writes, box by box; return the peak memory of a process.

    Costs two reads of the stack, and two of the components for each group of samples.
    """
    if job.source.in_process:
        run = run.here()  # the source is in the memory of this process
    basis = cast(DividedRepresentation, stored_basis(job.model, job.fingerprint))
    found, n = found_coordinates(job.axes, coordinates), job.source.shape[0]
    if job.reconstruct:
        create_reconstructions(job.source, basis, boxes, group, found)
    write_centers(group, basis, job.axes, found)
    encoded, attempt = boxes.encoded(basis), str((boxes.layout, job.rows))
    encoding = ShardPass("encode", work, run, attempt, BOXES)
    if basis.large_scores:
        dtype = basis.score_dtype(job.source.dtype)
        layout = boxes.scores(basis, job.source.dtype)
        if kept_layout(work.store, "scores") not in (None, layout):
            del group["scores"]  # an interrupted run had other boxes, and none of its shards counts
        create_scores(group, basis, (n, *basis.score_shape), np.ones(1, dtype), layout, (job.axes, found))
    peak = encoding.write(EncodeBoxes(job, boxes), boxes.units(n, encoded))
    if not basis.large_scores:
        _write_sums(job, boxes, encoding, group, found)
    measuring = ShardPass("scores", work, run, attempt, BOXES)
    peak = max(peak, measuring.write(DecodeBoxes(job, boxes), boxes.units(n, boxes.decoded)))
    shape, n_spatial = boxes.shape, basis.n_spatial(job.axes[1:])
    quality = []
    for number in range(job.n_shards):
        parts = [measuring.quality(number, box) for box in range(len(boxes.decoded))]
        quality.append(means_of_boxes(parts, shape, n_spatial))
    write_quality(group, quality, found.dims[0] if coordinates else SAMPLE)
    stored_basis.cache_clear()  # it may take gigabytes
    return peak


def summed_over_boxes(
    encoding: ShardPass, boxes: Boxes, basis: DividedRepresentation, number: int, span: tuple[int, int]
) -> Array:
    """Return the sums (n, *summand_shape), float64, of the results of `EncodeBoxes` for a group of samples."""
    total = np.zeros((span[1] - span[0], *basis.summand_shape))
    for box, (region, _) in enumerate(boxes.encoded(basis)):
        total[(slice(None), *basis.score_places(region))] += encoding.quality(number, box)["scores"]
    return total


def _write_sums(job: WriteJob, boxes: Boxes, encoding: ShardPass, group: zarr.Group, found: Coordinates) -> None:
    """Write the scores of all samples, from the results of the first pass."""
    basis, dtype = cast(DividedRepresentation, stored_basis(job.model, job.fingerprint)), job.source.dtype
    for number in range(job.n_shards):
        start, stop = job.span(number)
        total = summed_over_boxes(encoding, boxes, basis, number, (start, stop))
        with np.errstate(over="ignore"):
            scores = basis.scores_of_sums(total, dtype)
        check_finite(scores, start, job.source.name, f"has scores beyond the range of {scores.dtype}")
        if not number:
            shape, layout = (job.source.shape[0], *basis.score_shape), boxes.scores(basis, dtype)
            array = create_scores(group, basis, shape, scores, layout, (job.axes, found))
        write_shard(array, start, scores)


def create_reconstructions(
    source: Source, basis: DividedRepresentation, boxes: Boxes, group: zarr.Group, found: Coordinates
) -> None:
    """Create the array of reconstructions, or check that of an interrupted run."""
    # The originals show how well reconstructions compress.
    first = tried_box(basis, source.dtype)
    tried = np.empty((1, *(b - a for a, b in first)), source.dtype)
    source.reader()((0, 1), first, tried)
    check_finite(tried, 0, source.name)
    codec = choose_codec(tried)
    create_array(
        group,
        "reconstructions",
        source.shape,
        source.dtype,
        boxes.layout,
        found.dims,
        codec=codec,
        attributes=found.stated,
    )
