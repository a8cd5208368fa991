"""The pass that writes a compressed store: codes, residuals and the quality of every sample, shard by shard."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import zarr
from numpy.typing import DTypeLike

from dpca.codec.cells import CellCodec
from dpca.codec.dead_zone import NEAREST, DeadZone, from_coarse_to_fine
from dpca.codec.goal import Goal
from dpca.codec.interpolation import folded
from dpca.codec.quantize import integer_dtype, to_integers
from dpca.codec.residual import differences
from dpca.codec.waves import RUN, stored
from dpca.engine.folds.plan import TASK_OVERHEAD
from dpca.engine.sources.source import Source, batches
from dpca.jobs.compressed.encode_until import write_until_met
from dpca.jobs.scores.score_write import SHARD_COPIES, record_of, require_memory
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.linalg import release_scratch
from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import Pixels, to_pixels
from dpca.kernels.quality import quality_bytes, quality_of
from dpca.representation.compressed.compressed_form import (
    StoreForm,
    largest_residual,
    longest_score,
    pixels_of,
    read_codec,
)
from dpca.storage.arrays.arrays import create_array, open_written, write_shard
from dpca.storage.arrays.reading import array_in, open_array, root_facts
from dpca.storage.errors import DataError, StoreError
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.remote.tasks import map_shards
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints

#: Name of the checkpoint with the arrays and settings of the whole stack.
PLAN = "plan"
# Bytes of floating-point samples that are encoded at a time.
_BLOCK_BYTES = 3 * 2**24


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
    checkpoints : Checkpoints
        Holds the quality of each finished shard, its done-marker.
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
    checkpoints: Checkpoints
    plain: bool = False
    goal: Goal | None = None
    decoded: int | None = None

    @property
    def form(self) -> StoreForm:
        """Layout of the arrays."""
        return StoreForm(tuple(self.source.shape), self.source.dtype.itemsize, self.plain)

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return math.ceil(self.source.shape[0] / self.form.shard_rows)

    def unit(self, shard: int, nearest: int = 0) -> str:
        """Name of a shard's record; ``nearest`` is the number of samples without a dead zone."""
        return f"shard-{shard:06d}" + (f"-{nearest}" if nearest else "")

    def record(self, shard: int, nearest: int = 0) -> dict[str, Array]:
        """Return the quality of the samples of a finished shard.

        Raises
        ------
        StoreError
            If it is missing.
        """
        return record_of(self.checkpoints, self.unit(shard, nearest))


def write_codes(job: EncodeJob, group: zarr.Group, n_positions: int, run: Run) -> tuple[int, list[dict[str, Array]]]:
    """Write codes and residuals, shard by shard; return the peak memory of a process and the quality of each shard."""
    source, form = job.source, job.form
    if source.in_process:
        run = run.here()  # the source is in the memory of this process
    facts, n = root_facts(group), source.shape[0]
    waves, largest = facts["waves"], longest_score(facts, facts["waves"]) / facts["step"]
    dtype = integer_dtype(largest if n_positions else 0.0)
    shape, names = ((n_positions, RUN, -(-n // RUN)), ("wave", "run")) if waves else ((n_positions, n), ("sample",))
    create_array(group, "codes", shape, dtype, form.codes(n_positions, waves), ("position", *names), codec="packed")
    if facts["residual_step"] is not None:
        small = integer_dtype(largest_residual(facts, plain=not n_positions) / facts["residual_step"])
        small = np.dtype(np.uint32) if facts.get("interpolated") else small
        create_array(
            group, "residual", source.shape, small, form.residual, facts["axes"], codec=facts["residual_codec"]
        )
    rows = form.shard_rows
    promised = facts["residual_step"] is not None
    budget, values = run.task_bytes(), array_in(group, "basis").size if n_positions else 0
    job = replace(job, decoded=plan_codes(source, budget, n_positions, form, promised=promised, n_values=values))

    def write(shards: Mapping[int, int]) -> int:
        lengths = {s: min((s + 1) * rows, n) - s * rows for s in shards}
        calls = (
            (s, lengths[s], None if job.checkpoints.load(job.unit(s, nearest)) is not None else (job, s, nearest))
            for s, nearest in shards.items()
        )
        stage = run.progress("encode", sum(lengths.values()), "samples")
        peaks = map_shards(encode_one, calls, stage=stage, client=run.client, threads=run.n_threads, name="encode")
        return max([*peaks, peak_resident_bytes() if run.client is None else 0])

    peak, nearest = write_until_met(job.goal, range(job.n_shards), write, job.record)
    return peak, [job.record(s, nearest.get(s, 0)) for s in range(job.n_shards)]


def plan_codes(
    source: Source,
    budget: int,
    n_positions: int = 0,
    form: StoreForm | None = None,
    *,
    promised: bool = True,
    n_values: int = 0,
) -> int:
    """Return how many samples are decoded at once: where ``budget`` bytes a task are short, fewer than are encoded.

    Residuals are counted only where an error of every value is ``promised``. Without a ``form`` a store with a promise
    may come to have components or none: both must fit.

    Raises
    ------
    PlanError
        If a shard does not fit, though single samples are decoded, and the store has as few codes as possible.
    """
    if form is None:
        shape, itemsize = tuple(source.shape), source.dtype.itemsize
        both = [StoreForm(shape, itemsize), *([StoreForm(shape, itemsize, plain=True)] if promised else [])]
        return min(plan_codes(source, budget, n_positions, one, promised=promised) for one in both)
    decoded, rows = _rows_at_once(source, form), min(form.shard_rows, source.shape[0])
    how: dict[str, Any] = {"promised": promised, "n_values": n_values}
    while decoded > 1 and not form.plain and task_bytes(source, form, n_positions, decoded, **how) > budget:
        decoded //= 2
    require_memory(rows, task_bytes(source, form, n_positions, decoded, **how), budget)
    return decoded


def task_bytes(
    source: Source,
    form: StoreForm,
    n_positions: int,
    decoded: int | None = None,
    *,
    promised: bool = True,
    n_values: int = 0,
) -> int:
    """Bytes that `encode_one` takes at most beyond what its process holds anyway.

    With so many rows of codes, components of so many values, and the samples decoded at once.
    """
    sample, dtype = math.prod(source.shape[1:]), source.dtype
    rows, block = min(form.shard_rows, source.shape[0]), _rows_at_once(source, form)
    exact = promised or dtype.kind == "f"
    unit = 8 if exact else working_dtype(dtype).itemsize
    # Codes, and residuals if any, of 32 bits.
    written = rows * (n_positions + (sample if promised else 0)) * 4
    reading = rows * sample * dtype.itemsize + 4 * math.prod(source.chunks) * dtype.itemsize
    # What is encoded is read as bytes, or copied in floating point. Small integers are decoded without any.
    encoding = block * sample * (0 if dtype == np.uint8 else unit)
    small = Pixels(dtype, (0, 0)).are_small
    of_a_value = 5 * unit if promised else dtype.itemsize if small else unit + dtype.itemsize
    decoding = (decoded or block) * sample * of_a_value
    # Before anything is decoded, components are read and their dual is computed; the mean is read, and what it is of
    # samples that are not filtered.
    work = max(encoding, decoding + quality_bytes(source.shape[1:], dtype), 32 * sample + 16 * n_values)
    # Samples that are encoded once more, for a goal of each; scores and waves of them; components, what samples are
    # multiplied with, and components times the step; two slabs and the mean.
    work += block * sample * dtype.itemsize + 3 * unit * (block * n_positions + n_values + sample)
    return reading + SHARD_COPIES * written + work + TASK_OVERHEAD


def stored_plan(checkpoints: Checkpoints) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays and settings of a `Quantized` from the checkpoint of the whole stack."""
    kept = checkpoints.load(PLAN)
    if kept is None:
        raise StoreError(f"the plan in '{checkpoints.folder}' is gone: run the same command again")
    return kept


def _rows_at_once(source: Source, form: StoreForm) -> int:
    """Return the number of samples that are encoded at a time."""
    if form.plain:
        return min(source.shape[0], form.rows)
    sample = math.prod(source.shape[1:]) * working_dtype(source.dtype).itemsize
    most = max(1, _BLOCK_BYTES // sample)
    # Whole runs of waves. Matrix products are also faster with multiples of 16.
    return min(source.shape[0], max(RUN, most // RUN * RUN))


@lru_cache(maxsize=1)
def _codec_of(store: str, fingerprint: str, records: str) -> CellCodec:
    """Read the codec of a store once in each process. ``records`` distinguishes attempts to write the same store."""
    return read_codec(open_written(store))


def encode_one(job: EncodeJob, shard: int, nearest: int = 0) -> int:
    """Write one shard, the body of a task; return the peak memory of this process."""
    rows = job.form.shard_rows
    start, stop = shard * rows, min((shard + 1) * rows, job.source.shape[0])
    least = stored_plan(job.checkpoints)[0]["least"]
    codes, residual, record = encode_rows(job, start, stop, least, nearest)
    write_rows(job.store, start, codes, residual)
    job.checkpoints.save(job.unit(shard, nearest), record, {"n_samples": stop - start})
    return peak_resident_bytes()


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


def encode_rows(
    job: EncodeJob, start: int, stop: int, least: Array | None, nearest: int = 0
) -> tuple[Array, Array | None, dict[str, Array]]:
    """Return codes (n_positions, n), or waves of whole runs, residuals if any, and the quality of the samples.

    The first ``nearest`` samples, which are whole runs, are encoded without a dead zone.
    """
    codec, facts = _codec_of(job.store, job.fingerprint, job.checkpoints.folder), root_facts(open_written(job.store))
    source, rows = job.source, job.form.shard_rows
    dtype = open_array(os.path.join(job.store, "codes"), mode="r+").dtype
    codes = np.empty((len(codec.cell), -(-(stop - start) // RUN) * RUN), dtype)
    residual = None
    if facts["residual_step"] is not None:
        dtype = open_array(os.path.join(job.store, "residual"), mode="r+").dtype
        residual = np.empty((stop - start, *source.shape[1:]), dtype)
    quality: dict[str, list[Array]] = {}
    block = _rows_at_once(source, job.form)
    whole = tuple((0, length) for length in source.shape[1:])
    for first, samples in batches(source, (start, stop), whole, rows):
        for row in range(0, len(samples), block):
            x = samples[row : row + block]
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
                measured = _compare(job, codec, facts, x[part], found[:, part], left, first + row + part.start)
                for name, values in measured.items():
                    quality.setdefault(name, []).append(values)
    release_scratch()
    codes = codes if codec.waves else codes[:, : stop - start]
    return codes, residual, {name: np.concatenate(parts) for name, parts in quality.items()}


def _cut(n: int, count: int) -> Iterator[slice]:
    """Cut samples into so many at a time."""
    return (slice(start, min(start + count, n)) for start in range(0, n, count))


def _compare(
    job: EncodeJob, codec: CellCodec, facts: dict[str, Any], x: Array, codes: Array, residual: Array | None, first: int
) -> dict[str, Array]:
    """Return the quality of what codes of samples stand for; overwrites their residuals, if there are any."""
    if residual is None:
        y = codec.decode(codes, pixels=pixels_of(facts))
    else:
        y, step = codec.decode(codes), facts["residual_step"]
        if codec.interpolation is not None:
            left, made = codec.interpolation.encode(x - y)
            residual[...] = folded(left)
            y += made
        else:
            left = to_integers(np.rint((x - y) / step), residual.dtype)
            residual[...] = differences(left, facts["differences"])
            y += left * step
        y = to_pixels(y, *pixels_of(facts))
    low, high = facts["data_range"]
    measured = quality_of(x, y, data_range=high - low, n_spatial=job.n_spatial)
    measured = {name: values.astype(np.float32) for name, values in measured.items()}
    if job.max_error is not None:
        measured["max_error"] = largest_errors(x, y)
        _require_kept(measured["max_error"], job.max_error, job.source.name, first)
    return measured


def _encode_each(
    job: EncodeJob, goal: Goal, codec: CellCodec, facts: dict[str, Any], x: Array, dtype: DTypeLike, least: Array | None
) -> Array:
    """Return the codes of samples with the coarsest dead zone by which each, or each run of waves, meets the goal."""
    unit = RUN if codec.waves else 1
    found, left = np.empty(0), np.arange(-(-len(x) // unit))
    for zone in from_coarse_to_fine(least):
        places = (left[:, None] * unit + np.arange(unit)).ravel()
        some = x[places[places < len(x)]]
        codes = codec.encode(some, dtype, zone)
        if len(left) * unit >= found.shape[-1]:
            found = codes
        else:
            found[:, places] = codes
        codes = codec.of_samples(codes)
        parts = _cut(len(some), job.decoded or len(some))
        errors = np.concatenate([_errors(job, goal, codec, facts, some[part], codes[:, part]) for part in parts])
        left = left[np.maximum.reduceat(errors, np.arange(0, len(some), unit)) > goal.allowed]
        if not len(left):
            break
        del some, codes  # before the next ones are there
    return found


def _errors(job: EncodeJob, goal: Goal, codec: CellCodec, facts: dict[str, Any], x: Array, codes: Array) -> Array:
    """Return the errors of samples, of which a goal speaks."""
    low, high = facts["data_range"]
    y = codec.decode(codes, pixels=pixels_of(facts))
    how: dict[str, Any] = {"data_range": high - low, "n_spatial": job.n_spatial, "measures": (goal.measure,)}
    return goal.errors(quality_of(x, y, **how))


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
