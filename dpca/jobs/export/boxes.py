"""Boxes of large samples for exported files: bands of successive values, so that a file gets few long writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpca.engine.folds.plan import TASK_OVERHEAD
from dpca.jobs.base.stored_samples import LEAST_DECODED, MOST_DECODED, StoredSamples
from dpca.jobs.export.sample_files import SampleKind
from dpca.jobs.scores.score_write import require_memory
from dpca.kernels.algebra.types import Region
from dpca.storage.arrays.layout import CHANNEL, boxes_of


@dataclass(frozen=True)
class ExportBoxes:
    """How large samples are divided: some samples, and boxes of these, channels last."""

    rows: int
    regions: list[Region]


def choose_export_boxes(given: StoredSamples, kind: SampleKind, n: int, budget: int) -> ExportBoxes:
    """Return the largest boxes of samples that a task of ``budget`` bytes can export.

    Raises
    ------
    PlanError
    """
    assert given.part is not None
    unit = list(given.part)
    if CHANNEL in given.axes:
        unit.append(unit.pop(given.axes.index(CHANNEL) - 1))
    for rows, most in sizes_tried(given, n):
        band = bands(kind.shape, unit, most // kind.dtype.itemsize)
        # A contiguous copy of a sample, in the byte order of the file.
        need = box_bytes(given, rows, band) + math.prod(band) * kind.dtype.itemsize
        if need <= budget:
            break
    require_memory(f"a box of {math.prod(band):,} attributes", need, budget)
    return ExportBoxes(rows, boxes_of(kind.shape, band))


def sizes_tried(given: StoredSamples, n: int) -> list[tuple[int, int]]:
    """Return numbers of samples of a task, and bytes of a box of one of them: those that are decoded together first."""
    halved = range(MOST_DECODED.bit_length() - LEAST_DECODED.bit_length() + 1)
    return [
        (rows, (MOST_DECODED >> times) // rows) for rows in dict.fromkeys((min(given.unit, n), 1)) for times in halved
    ]


def bands(shape: Sequence[int], unit: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the lengths of boxes of about ``most`` values, whole along as many of the last axes as possible.

    Along the others, they are multiples of ``unit``, at least one.
    """
    box = list(shape)
    for axis, (length, step) in enumerate(zip(shape, unit, strict=True)):
        others = math.prod(box) // length
        if math.prod(box) <= most:
            break
        box[axis] = min(length, max(1, most // others // step) * step)
    return tuple(box)


def box_bytes(given: StoredSamples, rows: int, box: Sequence[int]) -> int:
    """Return the memory in bytes of a task that reads a box of these lengths, channels last, of some samples."""
    lengths = list(box)
    if CHANNEL in given.axes:
        lengths.insert(given.axes.index(CHANNEL) - 1, lengths.pop())
    return TASK_OVERHEAD + given.read_bytes(rows, tuple((0, length) for length in lengths))
