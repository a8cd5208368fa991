"""The quality of large samples that a compressed store holds as tiles.

Tiles are encoded as samples are. Their quality chooses the step and the shards to write again. The quality of whole
samples comes from a second pass over boxes of some tiles: squared errors without overlaps, and SSIM with the windows
that extend beyond a tile. So a goal is checked with the numbers of whole samples.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dpca.codec.masks import of_share
from dpca.codec.waves import RUN
from dpca.engine.folds.plan import TASK_OVERHEAD
from dpca.engine.sources.filled import Filled
from dpca.engine.sources.source import Source, as_source, batches
from dpca.engine.sources.tiled import TiledSource, TiledStack
from dpca.jobs.base.filled_samples import tiled_stack
from dpca.jobs.base.shards import ShardPass
from dpca.jobs.compressed.encode_memory import check_encode_memory
from dpca.jobs.scores.boxes import BOXES
from dpca.jobs.scores.score_write import joined_quality, require_memory
from dpca.kernels.algebra.linalg import release_scratch
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.box_quality import BoxQuality, inside, means_of_boxes
from dpca.kernels.quality import quality_bytes
from dpca.representation.compressed.compressed import Compressed, TiledCompressed, compressed_in
from dpca.storage.arrays.arrays import open_written
from dpca.storage.arrays.layout import boxes_of, count_spatial
from dpca.storage.arrays.reading import root_facts
from dpca.storage.arrays.tiles import GROUP, Tiles
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.workspace import Workspace

# Tiles of a box along each axis that are tried: neighbors of larger boxes are decoded less often.
_TIMES = (8, 4, 2, 1)
# Tasks that are enough for smaller boxes not to be tried.
_ENOUGH_TASKS = 16
# Codes of a tile that are planned for before they are known: this share of its values.
POSITIONS = 1 / 4


@dataclass(frozen=True)
class MeasureJob:
    """The data that all tasks of the second pass share. Units are a group of samples and a box.

    Parameters
    ----------
    source : Source
        Whole samples.
    store, fingerprint, attempt : str
        The unfinished store, its fingerprint, and the attempt to write it.
    box : tuple of int
        Shape of a box.
    rows : int
        Samples that are decoded at a time.
    n_spatial : int
    data_range : (float, float)
    begin : int
        Number of earlier samples in the store, to which those of the source were appended.
    """

    source: Source
    store: str
    fingerprint: str
    attempt: str
    box: tuple[int, ...]
    rows: int
    n_spatial: int
    data_range: tuple[float, float]
    begin: int = 0

    @property
    def boxes(self) -> list[Region]:
        """All boxes of a sample."""
        return boxes_of(self.source.shape[1:], self.box)

    @property
    def n_groups(self) -> int:
        """Number of groups of samples."""
        return math.ceil(self.source.shape[0] / GROUP)

    @property
    def n_units(self) -> int:
        """Number of tasks."""
        return self.n_groups * len(self.boxes)

    def span(self, group: int) -> tuple[int, int]:
        """Return the first sample of a group, and the one behind the last."""
        return group * GROUP, min((group + 1) * GROUP, self.source.shape[0])

    def quality(self, core: Region) -> BoxQuality:
        """Return how a box is measured."""
        low, high = self.data_range
        return BoxQuality(tuple(self.source.shape[1:]), core, self.n_spatial, float(high - low), True)

    def write(self, group: int, box: int) -> dict[str, Array]:
        """Measure a box of some samples; return sums of squared errors and of similarities."""
        store, quality = _opened(self.store, self.fingerprint, self.attempt), self.quality(self.boxes[box])
        region, sums = quality.needed, []
        for first, x in batches(self.source, self.span(group), region, self.rows):
            y = store.filled(self.begin + np.arange(first, first + len(x)), region)
            if store.has_gaps:
                missing = np.isnan(x)
                x[missing] = y[missing]
            sums.append(quality.sums(x, y, region))
            if store.has_gaps:
                core = missing[inside(quality.core, region)].reshape(len(x), -1)
                sums[-1]["missing"] = core.sum(axis=1, dtype=np.float64)
            del y
        release_scratch()
        return joined_quality(sums)

    def task_bytes(self, store: TiledCompressed | None, tiles: Tiles, *, promised: bool) -> int:
        """Return the most bytes that a task takes beyond its process; without a store, with `POSITIONS` of codes."""
        shape = {tuple(b - a for a, b in self.quality(core).needed) for core in self.boxes}
        most = max(shape, key=math.prod)
        rows, dtype, tile = min(self.rows, *self.span(0)[1:]), self.source.dtype, math.prod(tiles.tile_shape)
        values = rows * math.prod(most) * dtype.itemsize
        reading = (2 - (self.rows >= GROUP)) * values + 4 * math.prod(self.source.chunks) * dtype.itemsize
        if store is not None:
            decoding = store.read_bytes((slice(rows), *(slice(length) for length in tiles.tile_shape)))
            held = 3 * (sum(part.nbytes for part in store.codec.components.rows) + 8 * tile)
        else:
            codes = int(POSITIONS * tile) * RUN * (8 + 32)
            decoding = codes + tile * (2 * RUN * dtype.itemsize + 16 + (RUN * 72 if promised else RUN * 16))
            held = 3 * 8 * tile
        gaps = rows * math.prod(most) * (1 + 2 * dtype.itemsize) if self.source.with_gaps else 0
        return TASK_OVERHEAD + reading + 2 * values + decoding + held + gaps + quality_bytes(most, dtype)


@lru_cache(maxsize=1)
def _opened(store: str, fingerprint: str, attempt: str) -> TiledCompressed:
    """Open an unfinished store once in each process."""
    found = compressed_in(open_written(store), store)
    assert isinstance(found, TiledCompressed)
    return found


def measure_jobs(
    source: Source, tiles: Tiles, axes: Sequence[str], named: tuple[str, str, str], data_range: tuple[float, float]
) -> Iterator[MeasureJob]:
    """Yield passes with less and less memory; ``named`` are the store, its fingerprint and the attempt."""
    n_spatial = count_spatial(axes[1:])
    for times, rows in (*((times, GROUP) for times in _TIMES), (1, 4), (1, 1)):
        box = tuple(min(n, times * t) for n, t in zip(tiles.sample_shape, tiles.tile_shape, strict=True))
        yield MeasureJob(source, *named, box, rows, n_spatial, data_range)


def measure_job(
    jobs: Iterable[MeasureJob], tiles: Tiles, run: Run, *, promised: bool, store: TiledCompressed | None = None
) -> tuple[MeasureJob, int]:
    """Return the pass with the largest boxes that fit the memory and make enough tasks, and the bytes of a task.

    Sums over boxes are rounded, so that boxes must not depend on the number of workers.

    Raises
    ------
    PlanError
        If not even a tile fits.
    """
    budget = run.task_bytes()
    for job in jobs:
        need = job.task_bytes(store, tiles, promised=promised)
        if need <= budget and (job.n_units >= _ENOUGH_TASKS or job.box == tiles.tile_shape):
            break
    require_memory(f"a tile of {math.prod(tiles.tile_shape):,} attributes", need, budget)
    return job, need


def check_encoding(source: Source, axes: Sequence[str], budget: int, *, promised: bool) -> None:
    """Check that both passes of an encoding fit ``budget`` bytes; only tiles have a second one.

    Raises
    ------
    PlanError
    """
    check_encode_memory(source, budget, promised=promised)
    if isinstance(source, TiledSource):
        tiles = source.tiles
        whole = copy(source.source)
        whole.with_gaps = isinstance(source, Filled)
        jobs = measure_jobs(whole, tiles, axes, ("",) * 3, (0, 1))
        least = min(job.task_bytes(None, tiles, promised=promised) for job in jobs)
        require_memory(f"a tile of {math.prod(tiles.tile_shape):,} attributes", least, budget)


def divided_as(store: Compressed, stack: Stack) -> Stack:
    """Return a stack, in tiles of the same shape as a store if that has tiles."""
    if not isinstance(store, TiledCompressed):
        return stack
    tiles = Tiles(stack.n_samples, store.tiles.sample_shape, store.tiles.tile_shape)
    return tiled_stack(stack, tiles, gaps=store.has_gaps)


def measure_tiles(
    stack: TiledStack,
    of_tiles: Sequence[Mapping[str, Array]],
    work: Workspace,
    attempt: Checkpoints,
    run: Run,
    begin: int = 0,
) -> tuple[int, list[dict[str, Array]]]:
    """Return the peak memory of a process, and the quality of whole samples; largest errors are those of their tiles.

    ``begin`` is the number of earlier samples in the store. Costs another read of the stack. Each box is decoded once,
    and its neighbors as far as windows extend into them.
    """
    source, store = copy(as_source(stack.whole)), os.fspath(work.store)
    if source.in_process:
        run = run.here()  # the source is in the memory of this process
    opened = _opened(store, work.fingerprint, attempt.folder)
    source.with_gaps = opened.has_gaps
    facts = root_facts(open_written(store))
    named, promised = (store, work.fingerprint, attempt.folder), "max_error" in facts
    low, high = facts["data_range"]
    jobs = measure_jobs(source, stack.tiles, stack.axes, named, (low, high))
    job, _ = measure_job(jobs, stack.tiles, run, promised=promised, store=opened)
    job = replace(job, begin=begin)
    measuring = ShardPass("measure", work, run, str((os.path.basename(attempt.folder), job.box)), BOXES)
    peak = measuring.write(job, itertools.product(range(job.n_groups), range(len(job.boxes))))
    shape, found = tuple(source.shape[1:]), []
    for group in range(job.n_groups):
        parts = [measuring.quality(group, box) for box in range(len(job.boxes))]
        missing = np.sum([part.pop("missing", np.zeros(len(part["mse"]))) for part in parts], axis=0)
        means = of_share(means_of_boxes(parts, shape, job.n_spatial), 1 - missing / math.prod(shape))
        found.append({name: values.astype(np.float32) for name, values in means.items()})
    if promised:
        largest, tiles = joined_quality(of_tiles)["max_error"], stack.tiles
        samples = np.arange(tiles.n_samples)
        most = np.max([largest[tiles.entries(tile, samples)] for tile in range(tiles.n_tiles)], axis=0)
        for group, record in enumerate(found):
            record["max_error"] = most[slice(*job.span(group))]
    _opened.cache_clear()
    return peak, found
