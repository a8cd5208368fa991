"""Reconstruct a stack from scores and a model."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from dpca.engine.folds.plan import TASK_OVERHEAD
from dpca.jobs.base.shards import ShardPass
from dpca.jobs.base.stages import NOTHING, StageCost, stopwatch
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
from dpca.storage.remote.objects import absolute
from dpca.storage.run import Run
from dpca.storage.stack import STACK_KIND, STACK_VERSION
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.workspace import Workspace, fingerprint_of

# Bytes of a block of samples in floating point.
_BLOCK_BYTES = 2**24


@dataclass(frozen=True)
class DecodeJob:
    """The data that all tasks share. Scores, model and samples are given by path.

    Parameters
    ----------
    scores, identity : str
        Path of the scores, and what identifies their content.
    model, fingerprint : str
        Path of the model, and its fingerprint.
    n_components : int or None
        Number of components to use.
    samples : str
        Path of the array to write.
    data_range : (float, float)
        Range of its values.
    n_samples, rows : int
        Number of all samples, and of those in a shard.
    """

    scores: str
    identity: str
    model: str
    fingerprint: str
    n_components: int | None
    samples: str
    data_range: tuple[float, float]
    n_samples: int
    rows: int

    def span(self, shard: int) -> tuple[int, int]:
        """Return the first sample of a shard, and the one behind the last."""
        return shard * self.rows, min((shard + 1) * self.rows, self.n_samples)

    def write(self, shard: int) -> dict[str, Array]:
        """Write one shard of samples."""
        scores, samples = open_again(self.scores, self.identity), open_array(self.samples, mode="r+")
        basis, (start, stop) = stored_basis(self.model, self.fingerprint, self.n_components), self.span(shard)
        values = np.empty((stop - start, *samples.shape[1:]), samples.dtype)
        block, pixels = _block(basis), Pixels(values.dtype, self.data_range)
        part = _read(scores, start, stop, basis)
        for row in range(0, stop - start, block):
            values[row : row + block] = basis.decode(part[row : row + block], self.scores, start + row, pixels=pixels)
        write_shard(samples, start, values)
        return {}


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
    facts = read_scores_facts(scores)
    known = model_fingerprint(model)
    path, stored = absolute(model), os.path.join(absolute(scores), "scores")
    basis = stored_basis(path, known)
    scores_array = open_array(stored)
    check_match(scores, facts, scores_array.shape, basis)
    basis = basis.leading(n_components)
    level = basis.score_shape[-1]
    n = scores_array.shape[0]
    dtype, axes = np.dtype(facts["dtype"]), tuple(facts["axes"])
    shape = (n, *basis.sample_shape)
    size = math.prod(shape) * dtype.itemsize
    low, high = map(float, facts["data_range"])

    def steps(work: Workspace) -> StageCost:
        cost = stopwatch()
        layout = choose_layout(shape, dtype.itemsize, axes, basis.cell_shape)
        rows = layout.shards[0]
        require_memory(rows, task_bytes(scores_array, basis, min(rows, n), dtype), run.task_bytes())
        if work.state == "new":
            require_free_space(target, size, "the reconstructed stack")
        root = create_root(
            work.store,
            kind=STACK_KIND,
            version=STACK_VERSION,
            fingerprint=work.fingerprint,
            axes=list(axes),
            data_range=facts["data_range"],
            settings={"n_components": n_components},
            source={"kind": "reconstruction", "name": os.path.basename(os.path.normpath(scores)), "count": n},
            **({} if request is None else {"request": request}),
        )
        used, samples = None if n_components is None else level, str(work.store / "samples")
        identity = array_identity(scores_array)
        job = DecodeJob(stored, identity, path, known, used, samples, (low, high), n, rows)
        pixels = Pixels(dtype, job.data_range)
        first = basis.decode(_read(scores_array, 0, min(8, n), basis), job.scores, pixels=pixels)
        dims = ((dims_of(scores_array) or axes)[0], *axes[1:])
        stated = {**facts.get("attributes", {}), BESIDE: scores_array.attrs.get(BESIDE, "")}
        found = coordinates_in(open_group(scores), dims, shape, stated) or Coordinates(axes, {}, {})
        write_coordinates(root, found)
        codec = choose_codec(first)
        create_array(root, "samples", shape, dtype, layout, found.dims, codec=codec, attributes=found.stated)
        peak = ShardPass("reconstruct", work, run).write(job, ((shard,) for shard in range(math.ceil(n / rows))))
        write_strings(root, "name", np.asarray(open_array(os.path.join(scores, "name"))[...]).tolist(), found.dims[0])
        return cost(size, peak)

    fingerprint = fingerprint_of("reconstruction", STACK_VERSION, facts["fingerprint"], known, level)
    return Job(target, STACK_KIND, fingerprint, (model, scores), run.overwrite).run(steps) or NOTHING


def task_bytes(scores: zarr.Array[Any], basis: Representation, rows: int, dtype: np.dtype[Any]) -> int:
    """Bytes that `DecodeJob.write` takes at most, in addition to the memory of its process."""
    reading = rows * math.prod(basis.score_shape) + 4 * math.prod(scores.chunks)
    written = (1 + SHARD_COPIES) * rows * math.prod(basis.sample_shape) * dtype.itemsize
    work = basis.work_bytes(min(rows, _block(basis)), dtype, pixels=True)
    return reading * scores.dtype.itemsize + written + work + 3 * basis.nbytes + TASK_OVERHEAD


def _block(basis: Representation) -> int:
    """Return how many samples are decoded at a time."""
    return max(1, _BLOCK_BYTES // (4 * math.prod(basis.sample_shape)))


def _read(scores: zarr.Array[Any], start: int, stop: int, basis: Representation) -> Array:
    """Read the scores of some samples, only those of the components in the basis."""
    part = np.empty((stop - start, *basis.score_shape), scores.dtype)
    read_into(scores, (slice(start, stop), *(slice(length) for length in basis.score_shape)), part)
    return part
