"""The pass that writes a compressed store: codes, residuals and the quality of every sample, shard by shard."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import zarr

from dpca.codec.cells import CellCodec
from dpca.codec.interpolation import folded
from dpca.codec.quantize import integer_dtype, to_integers
from dpca.codec.residual import differences
from dpca.codec.waves import RUN, stored
from dpca.engine.checkpoint import Checkpoints
from dpca.engine.memory import peak_resident_bytes, task_budget, thread_count
from dpca.engine.plan import TASK_OVERHEAD
from dpca.engine.source import Source, batches
from dpca.jobs.score_write import SHARD_COPIES, require_memory
from dpca.kernels.dtypes import working_dtype
from dpca.kernels.linalg import release_scratch
from dpca.kernels.pixels import to_pixels
from dpca.kernels.quality import has_ssim, mse_per_sample, quality_bytes, ssim_per_sample
from dpca.kernels.types import Array
from dpca.representation.compressed_form import Form, pixels_of, read_codec
from dpca.storage.arrays import create_array, open_written, write_shard
from dpca.storage.errors import DataError, StoreError
from dpca.storage.progress import Progress
from dpca.storage.reading import open_array, root_facts
from dpca.storage.tasks import map_shards

#: What was chosen for the whole stack, by this name among the checkpoints.
PLAN = "plan"
# Bytes of floating-point samples that are encoded at once.
_BLOCK_BYTES = 3 * 2**24


@dataclass(frozen=True)
class EncodeJob:
    """What the tasks of one encoding share.

    Parameters
    ----------
    source : Source
        The stack, samples on axis 0.
    store : str
        Zarr group with everything but codes.
    fingerprint : str
        Of that group.
    max_error : float or None
        What is promised of every value.
    n_spatial : int
        How many axes of a sample are axes of space.
    checkpoints : Checkpoints
        Where each finished shard leaves its quality, the done-marker.
    plain : bool
        Whether the store has residuals only.
    """

    source: Source
    store: str
    fingerprint: str
    max_error: float | None
    n_spatial: int
    checkpoints: Checkpoints
    plain: bool = False

    @property
    def form(self) -> Form:
        """How the arrays lie."""
        return Form(tuple(self.source.shape), self.source.dtype.itemsize, self.plain)

    @property
    def n_shards(self) -> int:
        """Units of work."""
        return math.ceil(self.source.shape[0] / self.form.shard_rows)

    def unit(self, shard: int) -> str:
        """Name of a shard's record."""
        return f"shard-{shard:06d}"


def write_codes(job: EncodeJob, group: zarr.Group, n_positions: int, client: Any | None, progress: Progress) -> int:
    """Write codes and residuals, shard by shard; return the most memory that any one process held."""
    source, form = job.source, job.form
    if source.in_process:
        client = None  # its memory is here
    facts, n = root_facts(group), source.shape[0]
    width = facts["data_range"][1] - facts["data_range"][0]
    grid = read_codec(group).components.grid
    # A score is at most as long as the part of a centered sample that its component reaches.
    reach = grid.max_features * (2**grid.n_spatial if facts["overlap"] else 1)
    waves = facts["waves"]
    dtype = integer_dtype(math.sqrt(reach * (RUN if waves else 1)) * width / facts["step"])
    shape, names = ((n_positions, RUN, -(-n // RUN)), ("wave", "run")) if waves else ((n_positions, n), ("sample",))
    create_array(group, "codes", shape, dtype, form.codes(n_positions, waves), ("position", *names), codec="packed")
    if facts["residual_step"] is not None:
        # A decoded value lies within some widths of the range.
        far = width + max(map(abs, facts["data_range"])) if not n_positions else 4 * width
        small = np.dtype(np.uint32) if facts.get("interpolated") else integer_dtype(far / facts["residual_step"])
        create_array(
            group, "residual", source.shape, small, form.residual, facts["axes"], codec=facts["residual_codec"]
        )
    rows = form.shard_rows
    promised = facts["residual_step"] is not None
    plan_codes(source, task_budget(client, thread_count()), n_positions, form, promised=promised)
    shards = (
        (s, min((s + 1) * rows, n) - s * rows, None if job.checkpoints.load(job.unit(s)) is not None else (job, s))
        for s in range(job.n_shards)
    )
    stage = progress("encode", n, "samples")
    peaks = map_shards(encode_one, shards, stage=stage, client=client, threads=thread_count(), name="encode")
    return max([*peaks, peak_resident_bytes() if client is None else 0])


def plan_codes(
    source: Source, budget: int, n_positions: int = 0, form: Form | None = None, *, promised: bool = True
) -> None:
    """Refuse shards that do not fit ``budget`` bytes a task, if only with no code at all.

    Residuals are counted only where an error of every value is ``promised``.

    Raises
    ------
    PlanError
    """
    form = form or Form(tuple(source.shape), source.dtype.itemsize)
    rows = min(form.shard_rows, source.shape[0])
    require_memory(rows, task_bytes(source, form, n_positions, promised=promised), budget)


def task_bytes(source: Source, form: Form, n_positions: int, *, promised: bool = True) -> int:
    """Bytes that `encode_one` takes at most beyond what its process holds anyway."""
    sample, itemsize = math.prod(source.shape[1:]), source.dtype.itemsize
    rows = min(form.shard_rows, source.shape[0])
    block = _rows_at_once(source, form)
    # Codes, and residuals if any, of 32 bits; copies in floating point of what is encoded at once, and of its scores;
    # two slabs of the sample and its mean.
    written = rows * (n_positions + (sample if promised else 0)) * 4
    reading = rows * sample * itemsize + 4 * math.prod(source.chunks) * itemsize
    unit = 8 if promised else working_dtype(source.dtype).itemsize
    work = unit * block * 5 * sample + 8 * (2 * block * n_positions + 3 * sample)
    work += quality_bytes(source.shape[1:], source.dtype)
    return reading + SHARD_COPIES * written + work + TASK_OVERHEAD


def stored_plan(checkpoints: Checkpoints) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays, and the settings, of what was chosen for a whole stack, a `Quantized`."""
    kept = checkpoints.load(PLAN)
    if kept is None:
        raise StoreError(f"the plan in '{checkpoints.folder}' is gone: run the same command again")
    return kept


def _rows_at_once(source: Source, form: Form) -> int:
    """Return how many samples are encoded at once."""
    if form.plain:
        return min(source.shape[0], form.rows)
    sample = math.prod(source.shape[1:]) * working_dtype(source.dtype).itemsize
    most = max(1, _BLOCK_BYTES // sample)
    # Whole runs of waves; and products of matrices are fast with multiples of 16.
    return min(source.shape[0], max(RUN, most // RUN * RUN))


@lru_cache(maxsize=1)
def _codec_of(store: str, fingerprint: str, records: str) -> CellCodec:
    """Read the codec of a store once a worker; all can be encoded again there, with records elsewhere."""
    return read_codec(open_written(store))


def encode_one(job: EncodeJob, shard: int) -> int:
    """Do one shard, the body of a task; return the most memory that this process ever held."""
    rows = job.form.shard_rows
    start, stop = shard * rows, min((shard + 1) * rows, job.source.shape[0])
    least = stored_plan(job.checkpoints)[0]["least"]
    codes, residual, record = encode_rows(job, start, stop, least)
    write_rows(job.store, start, codes, residual)
    job.checkpoints.save(job.unit(shard), record, {"n_samples": stop - start})
    return peak_resident_bytes()


def write_rows(store: str, start: int, codes: Array, residual: Array | None) -> None:
    """Write the codes and residuals of a whole shard, which begins at this sample."""
    if len(codes):
        array = open_array(os.path.join(store, "codes"), mode="r+")
        if array.ndim == 3:
            write_shard(array, (0, 0, start // RUN), stored(codes))
        else:
            write_shard(array, (0, start), codes)
    if residual is not None:
        write_shard(open_array(os.path.join(store, "residual"), mode="r+"), start, residual)


def encode_rows(
    job: EncodeJob, start: int, stop: int, least: Array | None
) -> tuple[Array, Array | None, dict[str, Array]]:
    """Return codes (n_positions, n), of waves those of whole runs, residuals if any, and the quality of samples."""
    codec, facts = _codec_of(job.store, job.fingerprint, job.checkpoints.folder), root_facts(open_written(job.store))
    source, rows = job.source, job.form.shard_rows
    (low, high), step = facts["data_range"], facts["residual_step"]
    dtype = open_array(os.path.join(job.store, "codes"), mode="r+").dtype
    codes = np.empty((len(codec.cell), -(-(stop - start) // RUN) * RUN), dtype)
    residual = None
    if step is not None:
        dtype = open_array(os.path.join(job.store, "residual"), mode="r+").dtype
        residual = np.empty((stop - start, *source.shape[1:]), dtype)
    measures_ssim = has_ssim(source.shape[1:], job.n_spatial)
    quality: dict[str, list[Array]] = {}
    block = _rows_at_once(source, job.form)
    whole = tuple((0, length) for length in source.shape[1:])
    for first, samples in batches(source, (start, stop), whole, rows):
        for row in range(0, len(samples), block):
            x = samples[row : row + block]
            here = slice(first - start + row, first - start + row + len(x))
            found = codec.encode(x, codes.dtype, least)
            codes[:, here.start : here.start + found.shape[1]] = found
            found = codec.of_samples(found)[:, : len(x)]
            measured: dict[str, Array] = {}
            if residual is None:
                y = codec.decode(found, pixels=pixels_of(facts))
            else:
                y = codec.decode(found)
                if codec.interpolation is not None:
                    left, made = codec.interpolation.encode(x - y)
                    residual[here] = folded(left)
                    y += made
                else:
                    left = to_integers(np.rint((x - y) / step), residual.dtype)
                    residual[here] = differences(left, facts["differences"])
                    y += left * step
                y = to_pixels(y, *pixels_of(facts))
            if job.max_error is not None:
                measured["max_error"] = largest_errors(x, y)
                _require_kept(measured["max_error"], job.max_error, source.name, first + row)
            measured["mse"] = mse_per_sample(x, y, data_range=high - low)
            if measures_ssim:
                measured["ssim"] = ssim_per_sample(x, y, data_range=high - low, n_spatial=job.n_spatial)
            for name, values in measured.items():
                quality.setdefault(name, []).append(values.astype(np.float64 if name == "max_error" else np.float32))
    release_scratch()
    codes = codes if codec.waves else codes[:, : stop - start]
    return codes, residual, {name: np.concatenate(parts) for name, parts in quality.items()}


def largest_errors(x: Array, y: Array) -> Array:
    """Return the largest difference (n,) of values of each sample, exact where float64 holds it."""
    wide = np.int64 if x.dtype.kind in "iub" and x.dtype != np.uint64 else np.float64
    return np.array([np.abs(a.astype(wide) - b.astype(wide)).max() for a, b in zip(x, y, strict=True)], np.float64)


def _require_kept(errors: Array, promised: float, name: str, first: int) -> None:
    if not (errors <= promised).all():
        worst = int(np.argmax(errors))
        raise DataError(
            f"a value of sample {first + worst} of {name} would be off by {errors[worst]:g}, more than the "
            f"{promised:g} that was asked for: give a larger error, or the true range with --data-range LOW,HIGH "
            f"(data_range)"
        )
