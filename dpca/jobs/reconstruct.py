"""From scores and a model back to a stack."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dpca.engine.memory import peak_resident_bytes, thread_count
from dpca.jobs.stages import NOTHING, StageCost
from dpca.jobs.transform import SCORES_VERSION
from dpca.models.band_basis import BandBasis
from dpca.models.basis import Basis
from dpca.models.cell_basis import CellBasis, to_pixels
from dpca.models.linear_basis import LinearBasis
from dpca.models.stored_basis import load_any, model_fingerprint, stored_basis
from storage.arrays import (
    choose_codec,
    create_array,
    create_root,
    open_array,
    read_into,
    root_facts,
    write_shard,
    write_strings,
)
from storage.disk import require_free_space
from storage.errors import DataError, StoreError
from storage.layout import choose_layout
from storage.progress import Progress, no_progress
from storage.stack import STACK_KIND, STACK_VERSION
from storage.tasks import run_in_order
from storage.workspace import Workspace, fingerprint_of

Array = NDArray[Any]

_KINDS = (CellBasis.scores_kind, BandBasis.scores_kind, LinearBasis.scores_kind)


@dataclass(frozen=True)
class _Job:
    scores: str
    model: str
    fingerprint: str
    samples: str
    rows: int
    dtype: str
    data_range: tuple[float, float]


def reconstruct_store(
    model: str | os.PathLike[str],
    scores: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    client: Any | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> StageCost:
    """Write the stack that stored scores stand for, in the dtype, range and layout of the original.

    Parameters
    ----------
    model, scores : path-like
        A stored model, and a store that `transform_store` made with it.
    target : path-like
        Where the stack store appears once it is whole.
    client, overwrite, progress
        As for `fit_store`.

    Raises
    ------
    StoreError
        If ``scores`` is not a scores store of this version, or does not belong to the model.
    """
    facts = _open_scores(scores)
    basis: Basis = load_any(model).basis_
    scores_array = open_array(os.path.join(os.fspath(scores), "scores"))
    _check_match(scores, facts, scores_array.shape, basis)
    n = scores_array.shape[0]
    dtype, axes = np.dtype(facts["dtype"]), tuple(facts["axes"])
    shape = (n, *basis.sample_shape)
    fingerprint = fingerprint_of("reconstruction", STACK_VERSION, facts["fingerprint"], model_fingerprint(model))
    began = time.perf_counter()
    with Workspace(target, kind=STACK_KIND, fingerprint=fingerprint, overwrite=overwrite) as work:
        if work.state == "complete":
            return NOTHING
        layout = choose_layout(shape, dtype.itemsize, axes, basis.cell_shape)
        if work.state == "new":
            require_free_space(target, math.prod(shape) * dtype.itemsize, "the reconstructed stack")
        root = create_root(
            work.store,
            kind=STACK_KIND,
            version=STACK_VERSION,
            fingerprint=fingerprint,
            axes=list(axes),
            data_range=facts["data_range"],
            source={"kind": "reconstruction", "name": os.path.basename(os.path.normpath(scores)), "count": n},
        )
        low, high = map(float, facts["data_range"])
        job = _Job(
            os.path.join(os.path.abspath(scores), "scores"),
            os.path.abspath(model),
            model_fingerprint(model),
            str(work.store / "samples"),
            layout.shards[0],
            dtype.name,
            (low, high),
        )
        first = to_pixels(basis.reconstruct(np.asarray(scores_array[:8])), dtype, job.data_range)
        create_array(root, "samples", shape, dtype, layout, axes, codec=choose_codec(first))
        starts = [s for s in range(0, n, job.rows) if not work.is_done(str(s))]
        bar = progress("reconstruct", n, "samples")
        bar.advance(n - sum(min(job.rows, n - s) for s in starts))
        peak = 0
        calls = ((job, start) for start in starts)
        try:
            for start, held in zip(
                starts, run_in_order(reconstruct_one, calls, client=client, threads=thread_count()), strict=True
            ):
                work.mark_done(str(start))
                bar.advance(min(job.rows, n - start))
                peak = max(peak, held)
        finally:
            bar.close()
        write_strings(root, "name", np.asarray(open_array(os.path.join(os.fspath(scores), "name"))[...]).tolist())
        work.publish()
    return StageCost(time.perf_counter() - began, math.prod(shape) * dtype.itemsize, peak)


def reconstruct_one(job: _Job, start: int) -> int:
    """Write one shard of samples, the body of a task; return the most memory that this process ever held."""
    scores = open_array(job.scores)
    samples = open_array(job.samples, mode="r+")
    basis = stored_basis(job.model, job.fingerprint)
    stop = min(start + job.rows, scores.shape[0])
    values = np.empty((stop - start, *samples.shape[1:]), job.dtype)
    block = max(1, 2**24 // (4 * math.prod(samples.shape[1:])))
    part = np.empty((stop - start, *scores.shape[1:]), scores.dtype)
    read_into(scores, slice(start, stop), part)
    for row in range(0, stop - start, block):
        values[row : row + block] = to_pixels(basis.reconstruct(part[row : row + block]), values.dtype, job.data_range)
    write_shard(samples, start, values)
    return peak_resident_bytes()


def _check_match(scores: str | os.PathLike[str], facts: dict[str, Any], shape: tuple[int, ...], basis: Basis) -> None:
    same_kind = facts["kind"] == basis.scores_kind
    if not same_kind or tuple(shape[1:]) != basis.score_shape or facts["sample_shape"] != list(basis.sample_shape):
        raise DataError(
            f"'{scores}' holds {facts['kind']} of {tuple(shape[1:])} for samples of {facts['sample_shape']} but the "
            f"model makes {basis.scores_kind} of {basis.score_shape} for {basis.sample_shape}: use the model that made "
            f"them"
        )


def _open_scores(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        group = zarr.open_group(os.fspath(path), mode="r")
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"there is no scores store at '{path}': give one that 'dpca transform' made") from error
    facts = root_facts(group)
    if facts.get("kind") not in _KINDS:
        raise StoreError(f"'{path}' is not a scores store: give one that 'dpca transform' made")
    if facts.get("version") != SCORES_VERSION:
        raise StoreError(
            f"'{path}' is a scores store of version {facts.get('version')} and this program reads version "
            f"{SCORES_VERSION}: update dask-dpca or make it again"
        )
    return facts
