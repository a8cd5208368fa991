"""The pass that writes a compressed store: codes, residuals and the quality of every sample, shard by shard."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import zarr
from numpy.typing import DTypeLike

from dpca.choices import NOISE_SHARE
from dpca.codec.cells import CellCodec
from dpca.codec.dead_zone import NEAREST, DeadZone, from_coarse_to_fine
from dpca.codec.goal import Goal
from dpca.codec.interpolation import folded
from dpca.codec.masks import coded_mask, mask_bytes, of_values
from dpca.codec.quantize import integer_dtype, to_integers
from dpca.codec.quantized import Quantized
from dpca.codec.residual import differences
from dpca.codec.waves import RUN, stored
from dpca.engine.sources.filled import Filled
from dpca.engine.sources.source import Source, batches
from dpca.jobs.base.shards import ShardPass
from dpca.jobs.compressed.encode_memory import EncodeMemory, form_of
from dpca.jobs.compressed.encode_until import write_until_met
from dpca.jobs.scores.score_write import joined_quality
from dpca.kernels.algebra.linalg import release_scratch
from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import to_pixels
from dpca.kernels.quality import quality_of
from dpca.representation.compressed.compressed_form import (
    GAPS,
    INFINITIES,
    StoreForm,
    longest_score,
    pixels_of,
    read_codec,
    residual_dtype,
)
from dpca.storage.arrays.arrays import create_array, open_written, write_shard
from dpca.storage.arrays.layout import SAMPLE, Layout
from dpca.storage.arrays.reading import array_in, open_array, root_facts
from dpca.storage.errors import DataError, StoreError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.workspace import Workspace

#: Name of the checkpoint with the arrays and settings of the whole stack.
PLAN = "plan"


@dataclass(frozen=True)
class EncodeJob:
    """The data that all tasks of an encoding share.

    Parameters
    ----------
    source : Source
        The stack, samples on axis 0.
    store : str
        Zarr group of the store, with all arrays except codes.
    fingerprint : str
        Fingerprint of that group.
    max_error : float or None
        Error bound of every value.
    n_spatial : int
        Number of spatial axes of a sample.
    attempt : Checkpoints
        Holds the `PLAN` of this attempt to write the store.
    plain : bool
        Whether the store has only residuals.
    goal : Goal, optional
        Of the quality of samples.
    decoded : int, optional
        Samples that are decoded and compared at once, which changes no byte; default as many as are encoded at once.
    """

    source: Source
    store: str
    fingerprint: str
    max_error: float | None
    n_spatial: int
    attempt: Checkpoints
    plain: bool = False
    goal: Goal | None = None
    decoded: int | None = None

    @property
    def form(self) -> StoreForm:
        """Layout of the arrays."""
        return form_of(self.source, plain=self.plain)

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return math.ceil(self.source.shape[0] / self.form.shard_rows)

    def span(self, shard: int) -> tuple[int, int]:
        """Return the first sample of a shard, and the one behind the last."""
        rows = self.form.shard_rows
        return shard * rows, min((shard + 1) * rows, self.source.shape[0])

    def write(self, shard: int, nearest: int = 0) -> dict[str, Array]:
        """Write one shard; return the quality of its samples. The first ``nearest`` samples get no dead zone."""
        start, stop = self.span(shard)
        codes, residual, quality = encode_rows(self, start, stop, stored_plan(self.attempt)[0]["least"], nearest)
        write_rows(self.store, start, codes, residual)
        if isinstance(self.source, Filled):
            _write_masks(self, self.source, start, stop)
        return quality


def write_codes(
    job: EncodeJob, group: zarr.Group, n_positions: int, work: Workspace, run: Run
) -> tuple[int, list[dict[str, Array]]]:
    """Write codes and residuals, shard by shard; return the peak memory of a process and the quality of each shard."""
    source, form = job.source, job.form
    if source.in_process:
        run = run.here()  # the source is in the memory of this process
    facts, n = root_facts(group), source.shape[0]
    waves, largest = facts["waves"], longest_score(facts, facts["waves"]) / facts["step"]
    dtype = integer_dtype(largest if n_positions else 0.0)
    entry = "tile" if form.tiled else SAMPLE  # `verify` checks that an axis has one length
    shape, names = ((n_positions, RUN, -(-n // RUN)), ("wave", "run")) if waves else ((n_positions, n), (entry,))
    create_array(group, "codes", shape, dtype, form.codes(n_positions, waves), ("position", *names), codec="packed")
    promised = facts["residual_step"] is not None
    if promised:
        least = facts["residual_step"] * Quantized.of(*stored_plan(job.attempt)).least_noise_step
        small = residual_dtype(facts, least, plain=not n_positions)
        small = np.dtype(np.uint32) if facts.get("interpolated") else small
        axes = (entry, *facts["axes"][1:])
        create_array(group, "residual", source.shape, small, form.residual, axes, codec=facts["residual_codec"])
    for name in masks_of(source):
        width = mask_bytes((form.rows, *mask_of(name, np.empty((0, *source.shape[1:]))).shape[1:]))
        layout = Layout((1, width), (form.shard_rows // form.rows, width))
        axes = "chunk", "byte" if name == GAPS else f"byte_of_{name}"
        create_array(group, name, (-(-n // form.rows), width), np.uint8, layout, axes, codec="zstd")
    values = array_in(group, "basis").size if n_positions else 0
    memory = EncodeMemory(source, form, n_positions, promised, values)
    job = replace(job, decoded=memory.decoded_at_once(run.task_bytes()))
    writing = ShardPass("encode", work, run, os.path.basename(job.attempt.folder))
    return write_until_met(job, range(job.n_shards), writing, job.goal)


def stored_plan(attempt: Checkpoints) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays and settings of a `Quantized` from the checkpoint of the whole stack."""
    kept = attempt.load(PLAN)
    if kept is None:
        raise StoreError(f"the plan in '{attempt.folder}' is gone: run the same command again")
    return kept


@lru_cache(maxsize=1)
def _codec_of(store: str, fingerprint: str, attempt: str) -> CellCodec:
    """Read the codec of a store once in each process. ``attempt`` distinguishes attempts to write the same store."""
    return read_codec(open_written(store))


def write_rows(store: str, start: int, codes: Array, residual: Array | None) -> None:
    """Write the codes and residuals of a whole shard that begins at sample ``start``."""
    if len(codes):
        array = open_array(os.path.join(store, "codes"), mode="r+")
        if array.ndim == 3:
            write_shard(array, (0, 0, start // RUN), stored(codes))
        else:
            write_shard(array, (0, start), codes)
    if residual is not None:
        write_shard(open_array(os.path.join(store, "residual"), mode="r+"), start, residual)


def masks_of(source: Source) -> list[str]:
    """Return the names of the masks of samples: none, `GAPS`, or also `INFINITIES`."""
    if not isinstance(source, Filled):
        return []
    return [GAPS, INFINITIES] if source.infinite else [GAPS]


def mask_of(name: str, samples: Array) -> Array:
    """Return a mask of samples: which values are missing, or (n, 2, *sample_shape) are positive and negative infinity.

    Infinities are missing values, too.
    """
    if name == GAPS:
        return ~np.isfinite(samples)
    return np.stack([samples == np.inf, samples == -np.inf], axis=1)


def _write_masks(job: EncodeJob, source: Filled, start: int, stop: int) -> None:
    """Write the masks of the samples of a shard, as many samples in a mask as in a chunk of codes."""
    given = source.given
    rows, whole = job.form.rows, tuple((0, length) for length in given.shape[1:])
    arrays = {name: open_array(os.path.join(job.store, name), mode="r+") for name in masks_of(job.source)}
    coded = {name: np.zeros((-(-(stop - start) // rows), a.shape[1]), np.uint8) for name, a in arrays.items()}
    for i, (_, samples) in enumerate(batches(given, (start, stop), whole, rows)):
        for name, out in coded.items():
            found = coded_mask(mask_of(name, samples))
            out[i, : len(found)] = found
    for name, array in arrays.items():
        write_shard(array, (start // rows, 0), coded[name])


def encode_rows(
    job: EncodeJob, start: int, stop: int, least: Array | None, nearest: int = 0
) -> tuple[Array, Array | None, dict[str, Array]]:
    """Return codes (n_positions, n), or waves of whole runs, residuals if any, and the quality of the samples.

    The first ``nearest`` samples, which are whole runs, are encoded without a dead zone.
    """
    codec, facts = _codec_of(job.store, job.fingerprint, job.attempt.folder), root_facts(open_written(job.store))
    source, rows = job.source, job.form.shard_rows
    dtype = open_array(os.path.join(job.store, "codes"), mode="r+").dtype
    codes = np.empty((len(codec.cell), -(-(stop - start) // RUN) * RUN), dtype)
    residual = None
    if facts["residual_step"] is not None:
        dtype = open_array(os.path.join(job.store, "residual"), mode="r+").dtype
        residual = np.empty((stop - start, *source.shape[1:]), dtype)
    quality: list[dict[str, Array]] = []
    block = EncodeMemory(source, job.form).encoded_at_once
    whole = tuple((0, length) for length in source.shape[1:])
    filled = source if isinstance(source, Filled) else None
    for first, samples in batches(source if filled is None else filled.given, (start, stop), whole, rows):
        for row in range(0, len(samples), block):
            x, masks = samples[row : row + block], dict[str, Array]()
            if filled is not None:
                masks = {name: mask_of(name, x) for name in masks_of(source)}
                x = filled.filled(x, first + row)
            here = slice(first - start + row, first - start + row + len(x))
            if job.goal is not None and job.goal.every_sample:
                found = _encode_each(job, job.goal, codec, facts, x, codes.dtype, least)
            else:
                few = min(len(x), max(0, nearest - here.start))
                zones = (x[:few], NEAREST), (x[few:], DeadZone(least))
                parts = [codec.encode(some, codes.dtype, zone) for some, zone in zones if len(some)]
                found = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
            codes[:, here.start : here.start + found.shape[1]] = found
            found = codec.of_samples(found)
            for part in _cut(len(x), job.decoded or block):
                left = None if residual is None else residual[here][part]
                gaps = masks[GAPS][part] if masks else None
                measured = _compare(job, codec, facts, x[part], found[:, part], left, first + row + part.start, gaps)
                counts = {name: mask[part].reshape(len(x[part]), -1).sum(axis=1) for name, mask in masks.items()}
                quality.append(measured | counts)
    release_scratch()
    codes = codes if codec.waves else codes[:, : stop - start]
    return codes, residual, joined_quality(quality)


def _cut(n: int, count: int) -> Iterator[slice]:
    """Cut samples into so many at a time."""
    return (slice(start, min(start + count, n)) for start in range(0, n, count))


def _compare(
    job: EncodeJob,
    codec: CellCodec,
    facts: dict[str, Any],
    x: Array,
    codes: Array,
    residual: Array | None,
    first: int,
    missing: Array | None = None,
) -> dict[str, Array]:
    """Return the quality of what codes of samples stand for; overwrites their residuals, if there are any."""
    if residual is None:
        y = codec.decode(codes, pixels=pixels_of(facts))
    else:
        y, step = codec.decode(codes), facts["residual_step"]
        if missing is not None and len(codec.cell):
            x = np.where(missing, y, x)  # residuals of missing values are 0; without components, these would be steps
        unit = None if codec.noise is None else codec.noise.steps
        left = x - y if unit is None else (x - y) / unit
        if codec.interpolation is not None:
            left, made = codec.interpolation.encode(left)
            residual[...] = folded(left)
        else:
            left = to_integers(np.rint(left / step), residual.dtype)
            residual[...] = differences(left, facts["differences"])
            made = left * step
        y += made if unit is None else made * unit
        y = to_pixels(y, *pixels_of(facts))
    low, high = facts["data_range"]
    if missing is not None:
        x = x.astype(y.dtype, copy=False)
        y[missing] = x[missing]
    measured = quality_of(x, y, data_range=high - low, n_spatial=job.n_spatial)
    if missing is not None:
        measured = of_values(measured, missing)
    if codec.noise is not None:
        measured[NOISE_SHARE] = codec.noise.shares(x, y, missing)
    measured = {name: values.astype(np.float32) for name, values in measured.items()}
    if job.max_error is not None:
        measured["max_error"] = largest_errors(x, y)
        _require_kept(measured["max_error"], job.max_error, job.source.name, first)
    return measured


def _encode_each(
    job: EncodeJob, goal: Goal, codec: CellCodec, facts: dict[str, Any], x: Array, dtype: DTypeLike, least: Array | None
) -> Array:
    """Return the codes of samples with the coarsest dead zone by which each, or each run of waves, meets the goal."""
    run_rows = RUN if codec.waves else 1
    found, left = np.empty(0), np.arange(-(-len(x) // run_rows))
    for zone in from_coarse_to_fine(least):
        places = (left[:, None] * run_rows + np.arange(run_rows)).ravel()
        some = x[places[places < len(x)]]
        codes = codec.encode(some, dtype, zone)
        if len(left) * run_rows >= found.shape[-1]:
            found = codes
        else:
            found[:, places] = codes
        codes = codec.of_samples(codes)
        parts = _cut(len(some), job.decoded or len(some))
        errors = np.concatenate([_errors(job, goal, codec, facts, some[part], codes[:, part]) for part in parts])
        left = left[np.maximum.reduceat(errors, np.arange(0, len(some), run_rows)) > goal.allowed]
        if not len(left):
            break
        del some, codes  # before the next ones are there
    return found


def _errors(job: EncodeJob, goal: Goal, codec: CellCodec, facts: dict[str, Any], x: Array, codes: Array) -> Array:
    """Return the error of each sample in the measure of the goal."""
    low, high = facts["data_range"]
    y = codec.decode(codes, pixels=pixels_of(facts))
    return goal.errors(quality_of(x, y, data_range=high - low, n_spatial=job.n_spatial, measures=(goal.measure,)))


def largest_errors(x: Array, y: Array) -> Array:
    """Return the largest difference (n,) of values of each sample, float64, rounded up if it is not exact."""
    if x.dtype.kind == "f":
        wide = (np.abs(np.subtract(a, b, dtype=np.float64)) for a, b in zip(x, y, strict=True))
        found = np.array([errors.max() for errors in wide])
        return np.where(found > 0, np.nextafter(found, np.inf), 0.0)
    # Differences of unsigned integers are exact.
    apart = (np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64) for a, b in zip(x, y, strict=True))
    exact = [int(errors.max()) for errors in apart]
    return np.array([np.nextafter(float(e), np.inf) if int(float(e)) < e else float(e) for e in exact])


def _require_kept(errors: Array, promised: float, name: str, first: int) -> None:
    if not (errors <= promised).all():
        worst = int(np.argmax(errors))
        raise DataError(
            f"a value of sample {first + worst} of {name} would have an error of {errors[worst]:g}, above the error "
            f"bound {promised:g}: give a larger bound, or the true range with --data-range LOW,HIGH (data_range)"
        )
