"""Whether a job fits the memory, and with shards of which size: one decision for the job and for its plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from sklearn.base import clone

from dpca.choices import NOISE_SHARE
from dpca.engine.folds.plan import Outline, PlanError
from dpca.engine.sources.source import Source, as_source
from dpca.jobs.base.filled_samples import tiled_source
from dpca.jobs.compressed.cell_choice import cells_tried
from dpca.jobs.compressed.encode import check_goal, wanted_goal
from dpca.jobs.compressed.encode_tiles import check_encoding
from dpca.jobs.denoising.noise_level import check_noise_plan
from dpca.jobs.scores.box_write import plan_scores
from dpca.jobs.scores.boxes import decoded_bytes
from dpca.jobs.scores.settings import CompressionSettings
from dpca.representation.by_blocks import LARGE_SAMPLE
from dpca.storage.arrays.layout import SHARD_BYTES
from dpca.storage.arrays.tiles import Tiles
from dpca.storage.ingest import plan_ingest
from dpca.storage.readers import Reader
from dpca.storage.run import Run
from dpca.storage.stack import Stack

# Sizes of shards that are tried where memory is short, each half of the one before.
_HALVED = 8
# Numbers of values of a tile that are tried.
_TILE_VALUES = [2**power for power in range(20, 12, -1)]
_FEWEST = ", even with as few components as the choice can come to"


def plan_shards(given: Stack | Reader, settings: CompressionSettings, run: Run) -> tuple[int, int]:
    """Refuse a job if a stage does not fit the memory, however small the shards of the stack that it ingests.

    Parameters
    ----------
    given : Stack or Reader
        Of a reader, the first few samples are read.
    settings : CompressionSettings
    run : Run
        Where the fit will run. Its ``memory`` limits every task, those of a fit only if the model has no
        ``memory_budget``.

    Returns
    -------
    size : int
        Bytes of all samples, decoded.
    shard_bytes : int
        Those of a shard of the stack at most.

    Raises
    ------
    PlanError
        Naming the stage, what it takes, the limit, and the setting that fits.
    DataError
        If the source or the parameters are wrong.
    """
    refused, tried = None, set()
    run = run.limited_to(run.task_bytes())
    sizes = [SHARD_BYTES >> halved for halved in range(1 if isinstance(given, Stack) else _HALVED)]
    # Small shards are better than tiles.
    for divide, shard_bytes in ((divide, size) for divide in (False, True) for size in sizes):
        try:
            source, axes = _outline(given, settings, run, shard_bytes)
            # Plans of many cells take seconds, and smaller shards of large samples have the same chunks.
            if (attempt := (divide, source.chunks)) not in tried:
                tried.add(attempt)
                _check_stages(source, axes, settings, run, divide=divide)
                return math.prod(source.shape) * source.dtype.itemsize, shard_bytes
        except PlanError as error:
            refused = refused if divide else error
            if divide and settings.goal is None:
                break
    assert refused is not None
    raise refused


def _outline(
    given: Stack | Reader, settings: CompressionSettings, run: Run, shard_bytes: int
) -> tuple[Source, Sequence[str]]:
    """Return the samples as they will be read, and their axes; refuse an ingest that does not fit the memory."""
    if isinstance(given, Stack):
        return as_source(given), given.axes
    with _stage("ingest"):
        cells = settings.model.cell_shape_for
        shape, dtype, layout, axes = plan_ingest(given, settings.reading, cells, run.task_bytes(), shard_bytes)
    return Outline(given.name, shape, dtype, layout.chunks), axes


def _check_stages(
    source: Source, axes: Sequence[str], settings: CompressionSettings, run: Run, *, divide: bool
) -> None:
    """Refuse a job if a stage after the ingest does not fit the memory."""
    if settings.goal is not None:
        choose_tiles(source, axes, settings, run, divide=divide)
        return
    with _stage("fit"):
        basis, known = settings.model.plan_fit(source, axes[1:], run)
    with _stage("scores", "" if known else _FEWEST):
        plan_scores(source, basis, axes, reconstruct=settings.reconstruct, budget=run.task_bytes())


def choose_tiles(
    source: Source, axes: Sequence[str], settings: CompressionSettings, run: Run, *, divide: bool = True
) -> Tiles | None:
    """Return the largest tiles with which a job with a goal fits the memory; None if samples are encoded whole.

    Samples are divided if they have more than 64 MiB in floating point, or with ``divide`` if they do not fit whole.

    Raises
    ------
    PlanError
        If not even small tiles fit.
    DataError
        If the parameters are wrong.
    """
    refused = None
    if small := decoded_bytes(source.shape, source.dtype) <= LARGE_SAMPLE:
        try:
            _plan_encoding(source, axes, settings, run)
            return None
        except PlanError as error:
            if not divide:
                raise
            refused = error
    cells = settings.model.cell_shape_for(axes[1:])
    units, of_tiles = (*cells, *source.shape[1 + len(cells) :]), replace(settings, model=settings.model_of_tiles())
    for tiles in dict.fromkeys(Tiles.of_size(source.shape, most, units) for most in _TILE_VALUES):
        if small and tiles.n_tiles == 1:
            continue
        try:
            _plan_encoding(tiled_source(source, tiles, axes, gaps=settings.with_gaps), axes, of_tiles, run)
            return tiles
        except PlanError as error:
            refused = refused if small else error
    assert refused is not None
    raise refused


def _plan_encoding(source: Source, axes: Sequence[str], settings: CompressionSettings, run: Run) -> None:
    """Refuse the fit and the encoding of samples, or of tiles, that do not fit the memory."""
    model, memory = settings.model, run.task_bytes()
    with _stage("fit"):
        if settings.choose_cells:
            model = clone(model).set_params(**cells_tried(model, source.shape[1:], axes[1:])[0])
        model.plan_fit(source, axes[1:], run)
    wanted = wanted_goal(settings.goal or {}, every_sample=settings.every_sample)
    if wanted.name == NOISE_SHARE:
        with _stage("noise"):
            check_noise_plan(settings.noise, source, run)
    with _stage("encode", _FEWEST):
        check_goal(wanted, source.shape[1:], len(model.cell_shape_for(axes[1:])))
        check_encoding(source, axes, memory, promised=wanted.has_residual)


@contextmanager
def _stage(name: str, why: str = "") -> Iterator[None]:
    try:
        yield
    except PlanError as error:
        raise PlanError(f"stage {name!r} of this job does not fit the memory{why}: {error}") from error
