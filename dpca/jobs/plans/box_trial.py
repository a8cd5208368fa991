"""The time to write the scores of large samples: a box of some samples is tried, so that no whole sample is read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpca.jobs.plans.timing import fewest_seconds, line
from dpca.jobs.scores.box_write import DecodeBoxes, EncodeBoxes, create_reconstructions
from dpca.jobs.scores.boxes import Boxes
from dpca.jobs.scores.score_write import WriteJob, create_scores, found_coordinates
from dpca.kernels.box_quality import with_halo
from dpca.representation.divided import DividedRepresentation
from dpca.storage.arrays.arrays import create_root, write_shard
from dpca.storage.arrays.layout import Layout
from dpca.storage.disk import folder_bytes

# Bytes of the box of some samples that is tried. Of a quarter of the samples, too, for the fixed part of the time.
_MOST_BYTES, _PART = 2**27, 4


@dataclass(frozen=True)
class BoxTrial:
    """The cost of one sample in both passes: processor seconds, and bytes of its reconstruction."""

    seconds: float
    written: float


def try_boxes(job: WriteJob, basis: DividedRepresentation, boxes: Boxes, folder: Path) -> BoxTrial:
    """Encode and decode the first box of a few samples; return the cost of a sample.

    Parameters
    ----------
    job : WriteJob
        Its store is ignored.
    basis : DividedRepresentation
    boxes : Boxes
    folder : Path
        A temporary folder.
    """
    source, encoded = job.source, boxes.encoded(basis)
    size = max(math.prod(b - a for a, b in region) for _, region in encoded) * source.dtype.itemsize
    most = max(1, min(source.shape[0], boxes.rows, _MOST_BYTES // size))
    parts = [max(1, most // _PART), most]
    stores = {rows: folder / f"boxes {rows}.zarr" for rows in parts}

    def passes(rows: int) -> tuple[EncodeBoxes, DecodeBoxes]:
        few = replace(boxes, rows=rows)
        own = replace(job, rows=rows, store=str(stores[rows]))
        return EncodeBoxes(own, few), DecodeBoxes(own, few)

    def corners(layout: Layout) -> Iterator[range]:
        """Yield where shards begin along each axis of scores, of those that the second pass reads."""
        read = with_halo(boxes.decoded[0], boxes.shape, basis.n_spatial(job.axes[1:]))
        stops = [place.stop for place in basis.score_places(basis.aligned(read))] if basis.large_scores else []
        yield from (range(0, stop, s) for stop, s in itertools.zip_longest(stops, layout.shards[1:], fillvalue=1))

    for rows, path in stores.items():
        group, found = (
            create_root(path, kind=basis.scores_kind, version=0, fingerprint=""),
            found_coordinates(job.axes, None),
        )
        layout, dtype = replace(boxes, rows=rows).scores(basis, source.dtype), basis.score_dtype(source.dtype)
        shape = (source.shape[0], *basis.score_shape)
        array = create_scores(group, basis, shape, np.ones(1, dtype), layout, (job.axes, found))
        for first, *inner in itertools.product(range(0, rows, layout.shards[0]), *corners(layout)):
            lengths = (min(s, n - a) for s, n, a in zip(layout.shards[1:], shape[1:], inner, strict=True))
            write_shard(array, (first, *inner), np.zeros((min(rows, layout.shards[0]), *lengths), dtype))
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
