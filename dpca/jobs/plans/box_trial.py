"""The time to write the scores of large samples: a box of some samples is tried, so that no whole sample is read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpca.jobs.plans.timing import fewest_seconds, line
from dpca.jobs.scores.box_write import DecodeBoxes, EncodeBoxes, create_reconstructions
from dpca.jobs.scores.boxes import Boxes
from dpca.jobs.scores.score_write import WriteJob, create_scores, found_coordinates
from dpca.representation.linear import LinearRepresentation
from dpca.representation.score_layout import score_layout
from dpca.storage.arrays.arrays import create_root, write_shard
from dpca.storage.disk import folder_bytes

# Bytes of the box of some samples that is tried. Of a quarter of the samples, too, for the fixed part of the time.
_MOST_BYTES, _PART = 2**27, 4


@dataclass(frozen=True)
class BoxTrial:
    """The cost of one sample in both passes: processor seconds, and bytes of its reconstruction."""

    seconds: float
    written: float


def try_boxes(job: WriteJob, basis: LinearRepresentation, boxes: Boxes, folder: Path) -> BoxTrial:
    """Encode and decode the first box of a few samples; return the cost of a sample.

    Parameters
    ----------
    job : WriteJob
        Its store is ignored.
    basis : LinearRepresentation
    boxes : Boxes
    folder : Path
        A temporary folder.
    """
    source, encoded = job.source, boxes.encoded(basis)
    size = max(math.prod(b - a for a, b in region) for region in encoded) * source.dtype.itemsize
    most = max(1, min(source.shape[0], boxes.rows, _MOST_BYTES // size))
    parts = [max(1, most // _PART), most]
    stores = {rows: folder / f"boxes {rows}.zarr" for rows in parts}

    def passes(rows: int) -> tuple[EncodeBoxes, DecodeBoxes]:
        few = replace(boxes, rows=rows)
        own = replace(job, rows=rows, store=str(stores[rows]))
        return EncodeBoxes(own, few), DecodeBoxes(own, few)

    for rows, path in stores.items():
        group, found = (
            create_root(path, kind=basis.scores_kind, version=0, fingerprint=""),
            found_coordinates(job.axes, None),
        )
        scores = np.zeros((rows, *basis.score_shape), basis.score_dtype(source.dtype))
        scores[(slice(None), *basis.score_places(encoded[0]))] = passes(rows)[0].write(0, 0)["scores"]
        layout = score_layout(rows, basis.score_shape, scores.dtype.itemsize)
        shape = (source.shape[0], *basis.score_shape)
        write_shard(create_scores(group, basis, shape, scores, layout, (job.axes, found)), 0, scores)
        if job.reconstruct:
            create_reconstructions(source, basis, boxes, group, found)
    turns: tuple[tuple[int, Callable[[int, Path], object]], ...] = (
        (len(encoded), lambda rows, _: passes(rows)[0].write(0, 0)),
        (len(boxes.decoded), lambda rows, _: passes(rows)[1].write(0, 0)),
    )
    seconds = 0.0
    for count, work in turns:
        fixed, each = line(parts, fewest_seconds(parts, work, folder / "turn"))
        seconds += count * (fixed / boxes.rows + each)
    written = folder_bytes(stores[most] / "reconstructions") / most * len(boxes.decoded) if job.reconstruct else 0.0
    return BoxTrial(seconds, written)
