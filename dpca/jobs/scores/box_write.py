"""Scores, reconstructions and quality of large samples, box by box: no task holds a whole sample.

::

    pass 1    a box of some samples  -> partial scores       summed over boxes in this process: the scores
    pass 2    a box of some samples, and their scores -> a box of reconstructions, one shard for each sample;
              sums of squared errors and of similarities     summed over boxes in this process: the quality

Scores of cells are not sums: each box has its own. The windows of SSIM extend beyond the box of their first pixel, so
that pass 2 also decodes the next pixels, the halo. Sums over boxes are float64. The boxes are determined by the shape,
the components and, if memory is short, by the memory of a task, and not by the chunks of the stack.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import zarr

from dpca.engine.folds.plan import TASK_OVERHEAD
from dpca.engine.sources.source import Source, batches, check_finite
from dpca.jobs.base.shards import ShardPass
from dpca.jobs.scores.score_write import (
    SHARD_COPIES,
    TRIED_BYTES,
    WriteJob,
    create_scores,
    found_coordinates,
    require_memory,
    stack_layout,
    task_bytes,
    write_centers,
    write_quality,
)
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.linalg import release_scratch
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.pixels import Pixels
from dpca.kernels.quality import WINDOW, has_ssim, mse_per_sample, quality_bytes, ssim_per_sample
from dpca.models.base.store import stored_basis
from dpca.representation.base import Representation
from dpca.representation.linear import LinearRepresentation, in_boxes
from dpca.representation.score_layout import score_layout
from dpca.storage.arrays.arrays import choose_codec, create_array, write_shard
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.layout import SAMPLE, Layout, box_shape, boxes_of, choose_layout
from dpca.storage.arrays.reading import open_array, read_into
from dpca.storage.run import Run
from dpca.storage.transaction.workspace import Workspace

#: Samples of more bytes in floating point are encoded and decoded in boxes.
LARGE_SAMPLE = 64 * 2**20
# Bytes of the components and the temporary arrays of a box: enough for few large boxes, and several fit into a worker.
_BOX_BYTES = 2**29
# Boxes of fewer attributes than this are not worth their tasks.
_LEAST_BOX = 2**16
# Bytes of a block of boxes in floating point: several samples share a read of the components.
_BLOCK_BYTES = 48 * 2**20
# Most samples of a unit of work, and most bytes of their scores in this process.
_UNIT_ROWS, _UNIT_BYTES = 256, 64 * 2**20


@dataclass(frozen=True)
class Boxes:
    """How large samples are divided.

    Parameters
    ----------
    layout : Layout
        Chunks and shards of the reconstructions. A shard is a box of one sample.
    shape : tuple of int
        Shape of a sample.
    rows : int
        Samples of a unit of work, and of a shard of scores.
    """

    layout: Layout
    shape: tuple[int, ...]
    rows: int

    @property
    def decoded(self) -> list[Region]:
        """Boxes of the second pass: shards of the reconstructions."""
        return self.layout.boxes(self.shape)

    def encoded(self, basis: LinearRepresentation) -> list[Region]:
        """Return the boxes of the first pass, which do not divide cells."""
        found = self.decoded
        if all(basis.aligned(region) == region for region in found):
            return found
        cells = tuple(b - a for a, b in basis.aligned(tuple((0, 1) for _ in self.shape)))
        return boxes_of(self.shape, box_shape(self.shape, math.prod(self.layout.shards[1:]), cells))

    def units(self, n_samples: int, boxes: Sequence[Region]) -> Iterator[tuple[int, int]]:
        """Return the units of work: a number of rows of samples, and the number of a box."""
        return itertools.product(range(math.ceil(n_samples / self.rows)), range(len(boxes)))


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
    divided, whole = in_boxes(basis), stack_layout(source, basis, axes)
    need = task_bytes(source, basis, whole.shards[0], reconstruct)
    if divided is None or kept == whole:
        require_memory(f"{whole.shards[0]:,} samples", need, budget)
        return None

    def box_bytes(boxes: Boxes) -> int:
        return box_task_bytes(source, divided, boxes, axes)

    return choose_boxes(divided, source.shape, source.dtype, axes, (whole, need, box_bytes), budget, kept)


def choose_boxes(
    basis: LinearRepresentation,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    axes: Sequence[str],
    needs: tuple[Layout, int, Callable[[Boxes], int]],
    budget: int,
    kept: Layout | None,
) -> Boxes | None:
    """Return the first boxes that fit a budget; None if samples below `LARGE_SAMPLE` fit whole.

    ``needs`` are the layout of whole samples, the bytes of a task for them, and the function of those for boxes.
    """
    whole, need, box_bytes = needs
    small = decoded_bytes(shape, dtype) <= LARGE_SAMPLE
    if kept is None and small and need <= budget:
        return None
    what, rows = f"{whole.shards[0]:,} samples", unit_rows(basis, shape[0], dtype)
    found = possible_boxes(basis, shape, dtype, axes) if kept is None else [Boxes(kept, tuple(shape[1:]), rows)]
    for boxes in found:
        if (each := box_bytes(boxes)) <= budget:
            return boxes
        if not small:
            what, need = f"a box of {math.prod(boxes.layout.shards[1:]):,} attributes", each
    require_memory(what, need, budget)
    return None


def decoded_bytes(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Return the bytes of one sample of a stack in floating point."""
    return math.prod(shape[1:]) * working_dtype(dtype).itemsize


def possible_boxes(
    basis: LinearRepresentation, shape: tuple[int, ...], dtype: np.dtype[Any], axes: Sequence[str]
) -> Iterator[Boxes]:
    """Yield boxes of decreasing size."""
    work, k = basis.score_dtype(dtype).itemsize, basis.score_shape[-1]
    most = max(_LEAST_BOX, _BOX_BYTES // (work * (3 * k + 10)))
    rows = unit_rows(basis, shape[0], dtype)
    previous = None
    while most >= _LEAST_BOX:
        part = most * dtype.itemsize
        layout = choose_layout(shape, dtype.itemsize, axes, basis.cell_shape, part, part)
        boxes = Boxes(Layout((1, *layout.chunks[1:]), (1, *layout.shards[1:])), tuple(shape[1:]), rows)
        if boxes != previous:
            yield boxes
        previous, most = boxes, most // 2


def unit_rows(basis: LinearRepresentation, n_samples: int, dtype: np.dtype[Any]) -> int:
    """Return the number of samples of a unit of work."""
    return max(1, min(n_samples, _UNIT_ROWS, _UNIT_BYTES // basis.score_bytes(dtype)))


def box_task_bytes(source: Source, basis: LinearRepresentation, boxes: Boxes, axes: Sequence[str]) -> int:
    """Bytes that a task of either pass takes at most, in addition to the memory of its process."""
    n_spatial = basis.n_spatial(axes[1:])
    regions = {tuple(b - a for a, b in region): region for region in boxes.encoded(basis)}
    for core in boxes.decoded:
        region = basis.aligned(with_halo(core, boxes.shape, n_spatial))
        regions[tuple(b - a for a, b in region)] = region
    return (
        TASK_OVERHEAD
        + 3 * basis.held_bytes
        + max(_region_bytes(source, basis, region, boxes.rows) for region in regions.values())
    )


def _region_bytes(source: Source, basis: LinearRepresentation, region: Region, rows: int) -> int:
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


def cells_in(basis: LinearRepresentation, region: Region) -> tuple[int, ...]:
    """Return the number of cells in a box along each axis of the grid, none if cells do not divide samples."""
    return tuple(place.stop - place.start for place in basis.score_places(region))


def together(region: Region, dtype: np.dtype[Any]) -> int:
    """Return the number of samples of which a box is encoded or decoded at a time."""
    return max(1, _BLOCK_BYTES // (working_dtype(dtype).itemsize * math.prod(b - a for a, b in region)))


def with_halo(core: Region, shape: Sequence[int], n_spatial: int) -> Region:
    """Return a box with the pixels of all SSIM windows that begin in it."""
    halo = [WINDOW - 1 if axis < n_spatial and n_spatial > 1 else 0 for axis in range(len(shape))]
    return tuple((a, min(b + more, n)) for (a, b), more, n in zip(core, halo, shape, strict=True))


def windows_in(core: Region, shape: Sequence[int], n_spatial: int) -> tuple[Region, int]:
    """Return the pixels of all SSIM windows that begin in a box, and their number; 0 if there are none."""
    starts = [(a, min(b, n - WINDOW + 1)) for (a, b), n in zip(core[:n_spatial], shape, strict=False)]
    count = math.prod(max(0, b - a) for a, b in (*starts, *core[n_spatial:]))
    return (*((a, b + WINDOW - 1) for a, b in starts), *core[n_spatial:]), count


@dataclass(frozen=True)
class EncodeBoxes:
    """The first pass. Its units are a group of samples and a box; results are their ``scores``."""

    job: WriteJob
    boxes: Boxes

    def span(self, group: int) -> tuple[int, int]:
        """Return the first sample of a group, and the one behind the last."""
        return self.job.span(group)

    def write(self, group: int, box: int) -> dict[str, Array]:
        """Return the scores of a box of some samples, which are a part of a sum if cells do not divide samples."""
        job = self.job
        basis = cast(LinearRepresentation, stored_basis(job.model, job.fingerprint))
        region, (start, stop) = self.boxes.encoded(basis)[box], self.span(group)
        part = basis.box(region)
        scores = np.empty((stop - start, *part.score_shape), part.score_dtype(job.source.dtype))
        for first, samples in batches(job.source, (start, stop), region, together(region, job.source.dtype)):
            scores[first - start : first - start + len(samples)] = part.encode(samples, job.source.name, first)
        release_scratch()
        return {"scores": scores}


@dataclass(frozen=True)
class DecodeBoxes:
    """The second pass. Results are sums over a box of each sample: squared errors, and similarities of windows."""

    job: WriteJob
    boxes: Boxes

    def span(self, group: int) -> tuple[int, int]:
        """Return the first sample of a group, and the one behind the last."""
        return self.job.span(group)

    def write(self, group: int, box: int) -> dict[str, Array]:
        """Write a box of some reconstructions, and return their quality."""
        job, shape = self.job, self.boxes.shape
        basis = cast(LinearRepresentation, stored_basis(job.model, job.fingerprint))
        core, (start, stop), n_spatial = self.boxes.decoded[box], self.span(group), basis.n_spatial(job.axes[1:])
        measured = job.ssim and has_ssim(shape, n_spatial)
        windows, n_windows = windows_in(core, shape, n_spatial) if measured else (core, 0)
        region = basis.aligned(with_halo(core, shape, n_spatial) if n_windows else core)
        part, width = basis.box(region), job.data_range[1] - job.data_range[0]
        scores = read_scores(open_array(os.path.join(job.store, "scores")), (start, stop), basis, region)
        pixels = Pixels(job.source.dtype, job.data_range)
        out = open_array(os.path.join(job.store, "reconstructions"), mode="r+") if job.reconstruct else None
        sums = {name: np.zeros(stop - start) for name in ("mse", "ssim")[: 1 + measured]}
        for first, x in batches(job.source, (start, stop), region, together(region, job.source.dtype)):
            here = slice(first - start, first - start + len(x))
            y = part.decode(scores[here], "the scores", first, pixels=pixels)
            place = inside(core, region)
            sums["mse"][here] = mse_per_sample(x[place], y[place], data_range=width) * math.prod(x[place].shape[1:])
            if n_windows:
                seen = inside(windows, region)
                ssim = ssim_per_sample(x[seen], y[seen], data_range=width, n_spatial=n_spatial)
                sums["ssim"][here] = ssim * n_windows
            if out is not None:
                write_boxes(out, first, core, y[place])
        release_scratch()
        return sums


def read_scores(
    scores: zarr.Array[Any],
    samples: tuple[int, int],
    basis: LinearRepresentation,
    region: Region,
    n_components: int | None = None,
) -> Array:
    """Read the scores of an aligned box of some samples, or those of the first components."""
    k = basis.score_shape[-1] if n_components is None else n_components
    box = (slice(*samples), *basis.score_places(region), slice(k))
    out = np.empty((samples[1] - samples[0], *cells_in(basis, region), k), scores.dtype)
    read_into(scores, box, out)
    return out


def write_boxes(out: zarr.Array[Any], first: int, core: Region, values: Array) -> None:
    """Write a box of some samples, one shard for each."""
    for i, one in enumerate(values):
        write_shard(out, (first + i, *(a for a, _ in core)), one[None])


def inside(box: Region, region: Region) -> tuple[slice, ...]:
    """Return the place of a box in samples of a region."""
    return (slice(None), *(slice(a - o, b - o) for (a, b), (o, _) in zip(box, region, strict=True)))


def write_score_boxes(
    job: WriteJob, boxes: Boxes, group: zarr.Group, coordinates: Coordinates | None, *, work: Workspace, run: Run
) -> int:
    """Write what `dpca.jobs.scores.score_write.write_scores` writes, box by box; return the peak memory of a process.

    Costs two reads of the stack, and two of the components for each group of samples.
    """
    if job.source.in_process:
        run = run.here()  # the source is in the memory of this process
    basis = cast(LinearRepresentation, stored_basis(job.model, job.fingerprint))
    found, n = found_coordinates(job.axes, coordinates), job.source.shape[0]
    if job.reconstruct:
        create_reconstructions(job.source, basis, boxes, group, found)
    write_centers(group, basis, job.axes, found)
    encoded, attempt = boxes.encoded(basis), str((boxes.layout, job.rows))
    encoding = ShardPass("encode", work, run, attempt)
    peak = encoding.write(EncodeBoxes(job, boxes), boxes.units(n, encoded))
    for number in range(job.n_shards):
        start, stop = job.span(number)
        total = np.zeros((stop - start, *basis.score_shape))
        for box, region in enumerate(encoded):
            total[(slice(None), *basis.score_places(region))] += encoding.quality(number, box)["scores"]
        with np.errstate(over="ignore"):
            scores = total.astype(basis.score_dtype(job.source.dtype))
        check_finite(scores, start, job.source.name, f"has scores beyond the range of {scores.dtype}")
        if not number:
            layout = score_layout(job.rows, basis.score_shape, scores.dtype.itemsize)
            array = create_scores(group, basis, (n, *basis.score_shape), scores, layout, (job.axes, found))
        write_shard(array, start, scores)
    measuring = ShardPass("scores", work, run, attempt)
    peak = max(peak, measuring.write(DecodeBoxes(job, boxes), boxes.units(n, boxes.decoded)))
    shape, n_spatial = boxes.shape, basis.n_spatial(job.axes[1:])
    counts = {"mse": math.prod(shape), "ssim": windows_in(tuple((0, s) for s in shape), shape, n_spatial)[1]}
    quality = []
    for number in range(job.n_shards):
        parts = [measuring.quality(number, box) for box in range(len(boxes.decoded))]
        quality.append({name: np.sum([part[name] for part in parts], axis=0) / counts[name] for name in parts[0]})
    write_quality(group, quality, found.dims[0] if coordinates else SAMPLE)
    return peak


def tried_box(basis: LinearRepresentation, dtype: np.dtype[Any]) -> Region:
    """Return a small box of whole cells, on which codecs are tried."""
    shape = basis.sample_shape
    box = box_shape(shape, TRIED_BYTES // dtype.itemsize, (1,) * len(shape))
    return basis.aligned(tuple((0, b) for b in box))


def create_reconstructions(
    source: Source, basis: LinearRepresentation, boxes: Boxes, group: zarr.Group, found: Coordinates
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
