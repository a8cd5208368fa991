"""Reconstruct a stack from scores and a model."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from dpca.engine.folds.plan import TASK_OVERHEAD
from dpca.jobs.plans.stages import NOTHING, StageCost
from dpca.jobs.scores.score_write import SHARD_COPIES, require_memory
from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import Pixels
from dpca.models.base.store import model_fingerprint, stored_basis
from dpca.models.scores import check_match, read_scores_facts
from dpca.representation.base import Representation
from dpca.storage.arrays.arrays import choose_codec, create_array, create_root, write_shard, write_strings
from dpca.storage.arrays.coordinates import BESIDE, Coordinates, coordinates_in, dims_of, write_coordinates
from dpca.storage.arrays.layout import choose_layout
from dpca.storage.arrays.reading import array_identity, open_again, open_array, open_group, read_into
from dpca.storage.disk import require_free_space
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.remote.objects import absolute
from dpca.storage.remote.tasks import map_shards
from dpca.storage.run import Run
from dpca.storage.stack import STACK_KIND, STACK_VERSION
from dpca.storage.transaction.outputs import check_output
from dpca.storage.transaction.workspace import Workspace, fingerprint_of

# Bytes of a block of samples in floating point.
_BLOCK_BYTES = 2**24


@dataclass(frozen=True)
class _Job:
    """The data that all tasks share. Scores, model and samples are given by path."""

    scores: str
    identity: str
    model: str
    fingerprint: str
    n_components: int | None
    samples: str
    data_range: tuple[float, float]


def reconstruct_store(
    model: str | os.PathLike[str],
    scores: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    n_components: int | None = None,
    run: Run = Run(),
    request: str | None = None,
) -> StageCost:
    """Write the reconstruction of stored scores, with the dtype, range and layout of the original stack.

    Parameters
    ----------
    model, scores : path-like
        A stored model, and a store that `transform_store` made with it.
    target : path-like
        Path of the stack store. It appears there when it is complete.
    n_components : int, optional
        Use and read only this many leading components; default all.
    run : Run
        As for `fit_store`.
    request : str, optional
        As for `fit_store`.

    Raises
    ------
    StoreError
        If ``scores`` is not a scores store of this version.
    DataError
        If the scores belong to another model, or have fewer components.
    PlanError
        If a shard does not fit the memory of a worker; nothing is written.
    """
    check_output(target, model, scores)
    facts = read_scores_facts(scores)
    known = model_fingerprint(model)
    model, stored = absolute(model), os.path.join(absolute(scores), "scores")
    basis = stored_basis(model, known)
    scores_array = open_array(stored)
    check_match(scores, facts, scores_array.shape, basis)
    basis = basis.leading(n_components)
    level = basis.score_shape[-1]
    n = scores_array.shape[0]
    dtype, axes = np.dtype(facts["dtype"]), tuple(facts["axes"])
    shape = (n, *basis.sample_shape)
    fingerprint = fingerprint_of("reconstruction", STACK_VERSION, facts["fingerprint"], known, level)
    began = time.perf_counter()
    with Workspace(target, kind=STACK_KIND, fingerprint=fingerprint, overwrite=run.overwrite) as work:
        if work.state == "complete":
            return NOTHING
        layout = choose_layout(shape, dtype.itemsize, axes, basis.cell_shape)
        rows = layout.shards[0]
        need = task_bytes(scores_array, basis, min(rows, n), dtype)
        require_memory(rows, need, run.task_bytes())
        if work.state == "new":
            require_free_space(target, math.prod(shape) * dtype.itemsize, "the reconstructed stack")
        root = create_root(
            work.store,
            kind=STACK_KIND,
            version=STACK_VERSION,
            fingerprint=fingerprint,
            axes=list(axes),
            data_range=facts["data_range"],
            settings={"n_components": n_components},
            source={"kind": "reconstruction", "name": os.path.basename(os.path.normpath(scores)), "count": n},
            **({} if request is None else {"request": request}),
        )
        low, high = map(float, facts["data_range"])
        job = _Job(
            stored,
            array_identity(scores_array),
            model,
            known,
            None if n_components is None else level,
            str(work.store / "samples"),
            (low, high),
        )
        pixels = Pixels(dtype, job.data_range)
        first = basis.decode(_read(scores_array, 0, min(8, n), basis), job.scores, pixels=pixels)
        dims = ((dims_of(scores_array) or axes)[0], *axes[1:])
        stated = {**facts.get("attributes", {}), BESIDE: scores_array.attrs.get(BESIDE, "")}
        found = coordinates_in(open_group(scores), dims, shape, stated) or Coordinates(axes, {}, {})
        write_coordinates(root, found)
        codec = choose_codec(first)
        create_array(root, "samples", shape, dtype, layout, found.dims, codec=codec, attributes=found.stated)
        peaks = map_shards(
            reconstruct_one,
            ((s, min(rows, n - s), None if work.is_done(str(s)) else (job, s)) for s in range(0, n, rows)),
            lambda start, _: work.mark_done(str(start)),
            stage=run.progress("reconstruct", n, "samples"),
            client=run.client,
            threads=run.n_threads,
            name="reconstruct",
        )
        write_strings(root, "name", np.asarray(open_array(os.path.join(scores, "name"))[...]).tolist(), found.dims[0])
        work.publish()
    return StageCost(time.perf_counter() - began, math.prod(shape) * dtype.itemsize, max(peaks, default=0))


def task_bytes(scores: zarr.Array[Any], basis: Representation, rows: int, dtype: np.dtype[Any]) -> int:
    """Bytes that `reconstruct_one` takes at most, in addition to the memory of its process."""
    reading = rows * math.prod(basis.score_shape) + 4 * math.prod(scores.chunks)
    written = (1 + SHARD_COPIES) * rows * math.prod(basis.sample_shape) * dtype.itemsize
    work = basis.work_bytes(min(rows, _block(basis)), dtype, pixels=True)
    return reading * scores.dtype.itemsize + written + work + 3 * basis.nbytes + TASK_OVERHEAD


def reconstruct_one(job: _Job, start: int) -> int:
    """Write one shard of samples, the body of a task; return the peak memory of this process."""
    scores = open_again(job.scores, job.identity)
    samples = open_array(job.samples, mode="r+")
    basis = stored_basis(job.model, job.fingerprint, job.n_components)
    stop = min(start + (samples.shards or samples.chunks)[0], scores.shape[0])
    values = np.empty((stop - start, *samples.shape[1:]), samples.dtype)
    block, pixels = _block(basis), Pixels(values.dtype, job.data_range)
    part = _read(scores, start, stop, basis)
    for row in range(0, stop - start, block):
        values[row : row + block] = basis.decode(part[row : row + block], job.scores, start + row, pixels=pixels)
    write_shard(samples, start, values)
    return peak_resident_bytes()


def _block(basis: Representation) -> int:
    """Return how many samples are decoded at a time."""
    return max(1, _BLOCK_BYTES // (4 * math.prod(basis.sample_shape)))


def _read(scores: zarr.Array[Any], start: int, stop: int, basis: Representation) -> Array:
    """Read the scores of some samples, only those of the components in the basis."""
    part = np.empty((stop - start, *basis.score_shape), scores.dtype)
    read_into(scores, (slice(start, stop), *(slice(length) for length in basis.score_shape)), part)
    return part
