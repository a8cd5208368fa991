"""The time to measure the quality of large samples that are encoded in tiles: decoded tiles of a trial are measured."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpca.choices import COMPRESSED
from dpca.engine.folds.rehearsal import Workers
from dpca.engine.sources.source import as_source
from dpca.engine.sources.tiled import TiledSource, TiledStack
from dpca.jobs.compressed.encode_tiles import MeasureJob, measure_job, measure_jobs
from dpca.jobs.plans.timing import fewest_seconds
from dpca.jobs.plans.tried import pass_seconds
from dpca.representation.compressed.compressed import COMPRESSED_VERSION
from dpca.storage.arrays.layout import count_spatial
from dpca.storage.arrays.tiles import GROUP, Tiles
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.workspace import Workspace


@dataclass(frozen=True)
class MeasuringPass:
    """The pass that measures whole samples after their tiles are encoded.

    Parameters
    ----------
    source : TiledSource
    axes : sequence of str
    promised : bool
        Whether the store has an error bound of each value.
    seconds : float
        Processor seconds of a value.
    """

    source: TiledSource
    axes: Sequence[str]
    promised: bool
    seconds: float

    def __call__(self, workers: Workers) -> tuple[float, int]:
        """Return the seconds for some workers, and the bytes of a task."""
        run = Run(memory=workers.budget, threads=workers.n)
        jobs = measure_jobs(self.source.source, self.source.tiles, self.axes, ("",) * 3, (0, 1))
        job, need = measure_job(jobs, self.source.tiles, run, promised=self.promised)
        # Neighbors of a box are decoded for its windows.
        values = sum(math.prod(b - a for a, b in job.quality(core).needed) for core in job.boxes)
        return pass_seconds(values * self.source.tiles.n_samples * self.seconds, job.n_units, workers), need


def try_measuring(tried: Stack, write: Callable[[TiledStack, Workspace], Checkpoints], folder: Path) -> float:
    """Return the processor seconds to decode and measure a value.

    Parameters
    ----------
    tried : Stack
        Tiles as samples.
    write : callable (stack, workspace) -> Checkpoints
        Writes a compressed store, and returns the checkpoint of its attempt.
    folder : Path
        A temporary folder.
    """
    tiles = Tiles(tried.n_samples, tried.sample_shape, tried.sample_shape)
    with Workspace(folder / "tiles.zarr", kind=COMPRESSED, fingerprint=str(COMPRESSED_VERSION)) as space:
        kept, bounds = write(TiledStack.of(tried, tiles), space), tried.data_range or (0.0, 1.0)
        named = os.fspath(space.store), space.fingerprint, kept.folder
        n_spatial = count_spatial(tried.axes[1:])
        job = MeasureJob(as_source(tried), *named, tried.sample_shape, GROUP, n_spatial, bounds)

        def work(groups: range, _: Path) -> None:
            for group in groups:
                job.write(group, 0)

        (spent,) = fewest_seconds([range(job.n_groups)], work, folder / "measured")
    return spent / math.prod(tried.shape)
