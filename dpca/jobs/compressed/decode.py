"""Decode a compressed store to a stack store."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from dpca.engine.folds.plan import TASK_OVERHEAD
from dpca.jobs.base.shards import ShardPass
from dpca.jobs.base.stages import NOTHING, StageCost, stopwatch
from dpca.jobs.scores.score_write import SHARD_COPIES, require_memory
from dpca.kernels.algebra.types import Array
from dpca.models import open_compressed
from dpca.representation.compressed.compressed import Compressed
from dpca.storage.arrays.arrays import choose_codec, create_array, create_root, kept_layout, write_shard, write_strings
from dpca.storage.arrays.coordinates import write_coordinates
from dpca.storage.arrays.layout import SHARD_BYTES, Layout, choose_layout
from dpca.storage.arrays.reading import open_array
from dpca.storage.disk import require_free_space
from dpca.storage.run import Run
from dpca.storage.stack import STACK_KIND, STACK_VERSION
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.workspace import Workspace, fingerprint_of


@dataclass(frozen=True)
class DecodeShards:
    """Decodes shards of a stack, see `dpca.jobs.base.shards.ShardJob`. Tasks open the store by its path."""

    given: Compressed
    samples: str
    rows: int

    def span(self, shard: int) -> tuple[int, int]:
        """Return the first sample of a shard, and the one behind the last."""
        return shard * self.rows, min((shard + 1) * self.rows, len(self.given))

    def write(self, shard: int) -> dict[str, Array]:
        """Write one shard of samples."""
        start, stop = self.span(shard)
        write_shard(open_array(self.samples, mode="r+"), start, self.given[start:stop])
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
        layout = kept_layout(work.store, "samples") or _layout(given, run.task_bytes())
        if work.state == "new":
            require_free_space(target, given.nbytes, "the decoded stack")
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
        codec = choose_codec(given[:1])
        create_array(
            root, "samples", given.shape, given.dtype, layout, along.dims, codec=codec, attributes=along.stated
        )
        job = DecodeShards(given, str(work.store / "samples"), layout.rows_per_shard)
        shards = range(layout.n_shards(len(given)))
        peak = ShardPass("reconstruct", work, run).write(job, ((shard,) for shard in shards))
        write_strings(root, "name", given.names.tolist(), along.dims[0])
        return cost(given.nbytes, peak)

    return Job(target, STACK_KIND, fingerprint, (path,), run.overwrite).run(steps) or NOTHING


def _layout(given: Compressed, budget: int) -> Layout:
    """Return chunks and shards of whole samples, in shards that a task can decode."""
    sample = math.prod(given.shape[1:]) * given.dtype.itemsize
    most, cells = SHARD_BYTES, given.facts["cell_shape"]
    while True:
        layout = choose_layout(given.shape, given.dtype.itemsize, given.axes, cells, most, part_bytes=None)
        rows = min(layout.rows_per_shard, len(given))
        need = given.read_bytes(slice(0, rows)) + SHARD_COPIES * rows * sample + TASK_OVERHEAD
        if need <= budget or layout.rows_per_shard == 1:
            require_memory(f"{rows:,} samples", need, budget)
            return layout
        most //= 2
