"""Decode a compressed store to a stack store."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpca.engine.folds.plan import TASK_OVERHEAD
from dpca.jobs.base.shards import ShardPass
from dpca.jobs.base.stages import NOTHING, StageCost, stopwatch
from dpca.jobs.base.stored_samples import LEAST_DECODED, MOST_DECODED
from dpca.jobs.scores.score_write import SHARD_COPIES, require_memory
from dpca.kernels.algebra.types import Array
from dpca.models import open_compressed
from dpca.representation.compressed.compressed import Compressed, TiledCompressed
from dpca.storage.arrays.arrays import choose_codec, create_array, create_root, kept_layout, write_shard, write_strings
from dpca.storage.arrays.coordinates import write_coordinates
from dpca.storage.arrays.layout import SHARD_BYTES, Layout, choose_layout
from dpca.storage.arrays.reading import open_array
from dpca.storage.arrays.tiles import GROUP
from dpca.storage.disk import require_free_space
from dpca.storage.run import Run
from dpca.storage.stack import STACK_KIND, STACK_VERSION
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.workspace import Workspace, fingerprint_of


@dataclass(frozen=True)
class DecodeShards:
    """Decodes shards of a stack, see `dpca.jobs.base.shards.ShardJob`. Tasks open the store by its path.

    Units are some samples and a box of these, which is a whole sample unless the store has tiles.
    """

    given: Compressed
    samples: str
    layout: Layout
    rows: int

    def span(self, group: int) -> tuple[int, int]:
        """Return the first sample of a unit, and the one behind the last."""
        return group * self.rows, min((group + 1) * self.rows, len(self.given))

    @property
    def units(self) -> Iterator[tuple[int, int]]:
        """All units."""
        n_groups, n_boxes = math.ceil(len(self.given) / self.rows), len(self.layout.boxes(self.given.shape[1:]))
        return itertools.product(range(n_groups), range(n_boxes))

    def write(self, group: int, box: int) -> dict[str, Array]:
        """Write the shards of a unit."""
        (start, stop), region = self.span(group), self.layout.boxes(self.given.shape[1:])[box]
        values, out = self.given.decoded(np.arange(start, stop), region), open_array(self.samples, mode="r+")
        for row in range(start, stop, step := self.layout.shards[0]):
            write_shard(out, (row, *(a for a, _ in region)), values[row - start : row - start + step])
        return {}


def decode_store(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    n_components: int | None = None,
    run: Run = Run(),
    request: str | None = None,
) -> StageCost:
    """Write the samples of a compressed store to a stack store; see `dpca.jobs.reconstruct_store`."""
    given = open_compressed(path, level=n_components)
    fingerprint = fingerprint_of("decoded", STACK_VERSION, given.facts["fingerprint"], n_components)
    stated = {} if request is None else {"request": request}

    def steps(work: Workspace) -> StageCost:
        cost = stopwatch()
        layout, rows = _planned(given, kept_layout(work.store, "samples"), run.task_bytes())
        if work.state == "new":
            size = layout.stored_values(given.shape) * given.dtype.itemsize
            require_free_space(target, size, "the decoded stack")
        root = create_root(
            work.store,
            kind=STACK_KIND,
            version=STACK_VERSION,
            fingerprint=work.fingerprint,
            axes=list(given.axes),
            data_range=given.facts["data_range"],
            settings={"n_components": n_components},
            source={"kind": "decoded", "name": os.path.basename(given.path), "count": len(given)},
            **stated,
        )
        along = given.coordinates
        write_coordinates(root, along)
        codec = choose_codec(given.entries[:1])
        kinds = {"may_be_missing": given.has_gaps, "may_be_infinite": given.has_infinities}
        stated_along = along.stated | {name: True for name, held in kinds.items() if held}
        create_array(
            root, "samples", given.shape, given.dtype, layout, along.dims, codec=codec, attributes=stated_along
        )
        job = DecodeShards(given, str(work.store / "samples"), layout, rows)
        peak = ShardPass("reconstruct", work, run, str(rows)).write(job, job.units)
        write_strings(root, "name", given.names.tolist(), along.dims[0])
        return cost(given.nbytes, peak)

    return Job(target, STACK_KIND, fingerprint, (path,), run.overwrite).run(steps) or NOTHING


def _planned(given: Compressed, kept: Layout | None, budget: int) -> tuple[Layout, int]:
    """Return the layout of the stack, and the samples of a unit; ``kept`` is the layout of an interrupted run.

    Raises
    ------
    PlanError
    """
    need = 0
    for layout, rows in _possible(given, kept):
        rows = min(rows, len(given))
        box = [min(b, n) for b, n in zip(layout.shards[1:], given.shape[1:], strict=True)]
        need = given.read_bytes((slice(0, rows), *map(slice, box))) + TASK_OVERHEAD
        need += SHARD_COPIES * layout.shards[0] * math.prod(box) * given.dtype.itemsize
        if need <= budget:
            break
    require_memory(f"{rows:,} samples", need, budget)
    return layout, rows


def _possible(given: Compressed, kept: Layout | None) -> Iterator[tuple[Layout, int]]:
    """Yield layouts and the samples of a unit, with less and less memory. Boxes divide no tile if possible."""
    itemsize, cells = given.dtype.itemsize, given.facts["cell_shape"]
    if not isinstance(given, TiledCompressed):
        most = SHARD_BYTES
        while most:
            layout = kept or choose_layout(given.shape, itemsize, given.axes, cells, most, part_bytes=None)
            yield layout, layout.shards[0]
            most = 0 if layout.shards[0] == 1 or kept else most // 2
        return
    tile = given.tiles.tile_shape[: len(cells)]
    for rows in dict.fromkeys((min(GROUP, len(given)), 1)):
        most = MOST_DECODED
        while most >= LEAST_DECODED:
            layout = kept or choose_layout(given.shape, itemsize, given.axes, tile, part_bytes=most // rows)
            yield Layout((1, *layout.chunks[1:]), (1, *layout.shards[1:])), rows
            most //= 2
