"""The second pass of filling gaps: whole samples in shards, or boxes of large samples.

::

    cells               a box of some samples -> the filled box
    whole components    a box of some samples -> its summands; their sums over boxes: what is expected of each sample
                        a box of some samples, and what is expected of them -> the filled box
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import zarr

from dpca.engine.folds.plan import TASK_OVERHEAD
from dpca.engine.sources.source import Source, batches
from dpca.jobs.base.shards import ShardPass
from dpca.jobs.scores.box_write import EncodeBoxes, summed_over_boxes
from dpca.jobs.scores.boxes import BOXES, Boxes, BoxPass, choose_boxes, together, write_boxes
from dpca.jobs.scores.score_write import SHARD_COPIES, require_memory
from dpca.kernels.algebra.linalg import release_scratch
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.box_quality import inside
from dpca.models.base.store import stored_basis
from dpca.representation.gappy import GappyRepresentation
from dpca.storage.arrays.arrays import write_shard
from dpca.storage.arrays.layout import SHARD_BYTES, Layout, choose_layout
from dpca.storage.arrays.reading import open_array
from dpca.storage.errors import StoreError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.workspace import Workspace

#: Name of the map of standard errors beside the samples.
ERRORS = "standard_error"
# Bytes of samples that are filled together.
_BLOCK_BYTES = 2**25
# Smallest shards that are tried if memory is short.
_LEAST_SHARD = 2**20


@dataclass(frozen=True)
class FillJob:
    """The data that all tasks of the second pass share, see `dpca.jobs.base.shards.ShardJob`.

    Parameters
    ----------
    source : Source
    model, fingerprint : str
        Path of the fitted model, and its fingerprint.
    store : str
        Group of the samples and of their standard errors.
    rows : int
        Samples of a shard, or of a unit of boxes.
    """

    source: Source
    model: str
    fingerprint: str
    store: str
    rows: int

    def span(self, shard: int) -> tuple[int, int]:
        """Return the first sample of a shard, and the one behind the last."""
        return shard * self.rows, min((shard + 1) * self.rows, self.source.shape[0])

    @property
    def basis(self) -> GappyRepresentation:
        """The basis of the model, which is read once in each process."""
        return cast(GappyRepresentation, stored_basis(self.model, self.fingerprint))

    def opened(self) -> list[zarr.Array[Any]]:
        """Open the samples and their standard errors for writing."""
        return [open_array(os.path.join(self.store, name), mode="r+") for name in ("samples", ERRORS)]

    def write(self, shard: int) -> dict[str, Array]:
        """Write the shards of some samples; return the range of the values, and what was filled."""
        basis, (start, stop), shape = self.basis, self.span(shard), self.source.shape[1:]
        samples = np.empty((stop - start, *shape), self.source.dtype)
        errors = np.empty((stop - start, *shape), np.float32)
        whole = tuple((0, length) for length in shape)
        for first, batch in batches(self.source, (start, stop), whole, block_rows(self.source)):
            here = slice(first - start, first - start + len(batch))
            samples[here], errors[here] = basis.filled(batch, self.source.name)
        for out, values in zip(self.opened(), (samples, errors), strict=True):
            write_shard(out, start, values)
        return filled_facts(samples, errors)

    @property
    def units(self) -> Iterator[tuple[int]]:
        """All units."""
        return ((shard,) for shard in range(math.ceil(self.source.shape[0] / self.rows)))


def filled_facts(samples: Array, errors: Array) -> dict[str, Array]:
    """Return the range of values (1, 2), and the numbers of filled and missing values and squares of errors (1, 3)."""
    known = ~np.isnan(errors)
    filled = errors[known & (errors > 0)].astype(np.float64)
    there = samples[known]
    low, high = (float(there.min()), float(there.max())) if there.size else (math.inf, -math.inf)
    counts = [len(filled), float(filled @ filled), int((~known).sum())]
    return {"range": np.array([[low, high]], np.float64), "filled": np.array([counts], np.float64)}


@dataclass(frozen=True)
class FillBoxes(BoxPass[FillJob]):
    """The pass that fills boxes.

    Parameters
    ----------
    job, boxes
        As for `BoxPass`.
    expected : Checkpoints, optional
        What is expected of the samples of each group, of a model of whole samples.
    """

    expected: Checkpoints | None

    def write(self, group: int, box: int) -> dict[str, Array]:
        """Write a box of some samples, and of their standard errors; return the facts of its batches."""
        job, core, (start, stop) = self.job, self.boxes.decoded[box], self.span(group)
        basis, facts = job.basis, list[dict[str, Array]]()
        region = basis.aligned(core)
        part, expected, outputs = basis.box(region), self._expected(group), job.opened()
        for first, samples in batches(job.source, (start, stop), region, together(region, job.source.dtype)):
            few = None if expected is None else expected[first - start : first - start + len(samples)]
            own = [values[inside(core, region)] for values in part.filled(samples, job.source.name, few)]
            for out, values in zip(outputs, own, strict=True):
                write_boxes(out, first, core, np.ascontiguousarray(values))
            facts.append(filled_facts(own[0], own[1]))
        release_scratch()
        return {key: np.concatenate([one[key] for one in facts]) for key in facts[0]}

    def _expected(self, group: int) -> Array | None:
        if self.expected is None:
            return None
        if (found := self.expected.load(str(group))) is None:
            raise StoreError(f"'{group}' in '{self.expected.folder}' is gone: run the same command again")
        return found[0]["expected"]


def fill_boxes(job: FillJob, boxes: Boxes, work: Workspace, run: Run) -> tuple[ShardPass, int]:
    """Write filled samples and their standard errors in boxes; return the pass, and the peak memory of a process."""
    basis, n, attempt, peak, kept = job.basis, job.source.shape[0], str((boxes.layout, job.rows)), 0, None
    if basis.adds_boxes:
        kept, encoding = (
            Checkpoints(str(work.scratch / "expected"), str(work.scratch)),
            ShardPass("expect", work, run, attempt, BOXES),
        )
        peak = encoding.write(EncodeBoxes(job, boxes), boxes.units(n, boxes.decoded))
        for group in range(math.ceil(n / job.rows)):
            sums = summed_over_boxes(encoding, boxes, basis, group, job.span(group))
            kept.save(str(group), {"expected": basis.expected_of_sums(sums, job.source.dtype)}, {})
    shards = ShardPass("fill", work, run, attempt, BOXES)
    return shards, max(peak, shards.write(FillBoxes(job, boxes, kept), boxes.units(n, boxes.decoded)))


def block_rows(source: Source) -> int:
    """Return the number of samples that are filled together."""
    return max(1, _BLOCK_BYTES // (8 * math.prod(source.shape[1:])))


def plan_samples(
    source: Source, axes: Sequence[str], basis: GappyRepresentation, budget: int, kept: Layout | None
) -> tuple[Layout, Boxes | None]:
    """Return the layout of the output and, if samples are large or do not fit, their boxes.

    ``kept`` is the layout of an interrupted run.

    Raises
    ------
    PlanError
        If a task does not fit ``budget`` bytes.
    """
    whole, need = _whole(source, axes, basis, budget)
    if kept is not None and math.prod(kept.shards[1:]) >= math.prod(source.shape[1:]):
        require_memory(f"{whole.shards[0]:,} samples", need, budget)
        return kept, None

    def box_bytes(boxes: Boxes) -> int:
        return fill_box_bytes(source, basis, boxes)

    boxes = choose_boxes(basis, source.shape, source.dtype, axes, (whole, need, box_bytes), budget, kept)
    return (whole, None) if boxes is None else (boxes.layout, boxes)


def _whole(source: Source, axes: Sequence[str], basis: GappyRepresentation, budget: int) -> tuple[Layout, int]:
    """Return the layout of whole samples that a task holds, if possible, and its bytes."""
    (_, *lengths), size, shard_bytes = source.shape, source.dtype.itemsize, SHARD_BYTES
    sample, block, whole = math.prod(lengths), block_rows(source), tuple((0, length) for length in lengths)
    gappy = basis.work_bytes(block, source.dtype) + 3 * basis.nbytes
    while True:
        layout = choose_layout(source.shape, size, axes, shard_bytes=shard_bytes, part_bytes=None)
        reading = 2 * source.decoded_bytes(whole) * source.chunks[0] + 2 * block * sample * size
        need = layout.shards[0] * sample * (size + 4) * (1 + SHARD_COPIES) + reading + gappy + TASK_OVERHEAD
        if need <= budget or shard_bytes <= _LEAST_SHARD:
            return layout, need
        shard_bytes //= 2


def fill_box_bytes(source: Source, basis: GappyRepresentation, boxes: Boxes) -> int:
    """Bytes that a task of either pass over boxes takes at most, in addition to the memory of its process."""
    regions = {tuple(b - a for a, b in region): region for region in map(basis.aligned, boxes.decoded)}
    most = max(_region_bytes(source, basis, region, boxes.rows) for region in regions.values())
    expected = 2 * boxes.rows * math.prod(basis.summand_shape) * 8 if basis.adds_boxes else 0
    return TASK_OVERHEAD + basis.held_bytes + most + expected


def _region_bytes(source: Source, basis: GappyRepresentation, region: Region, rows: int) -> int:
    size, dtype = math.prod(b - a for a, b in region), source.dtype
    count = min(rows, together(region, dtype))
    reading = (1 + (count < rows)) * count * size * dtype.itemsize
    reading += 4 * math.prod(source.chunks) * dtype.itemsize + source.extra_bytes(region)
    # The filled samples and their errors, of parts and of the box, and copies for their range.
    filled = count * size * (3 * (dtype.itemsize + 4) + 9)
    shards = SHARD_COPIES * size * max(dtype.itemsize, 4)
    return reading + basis.box_bytes(region, count, dtype) + filled + shards
