"""The pass that makes a compressed store longer: links to what stays, and shards that hold new samples."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpca.codec.waves import RUN, restored
from dpca.engine.memory import peak_resident_bytes, task_budget, thread_count
from dpca.engine.plan import Outline
from dpca.jobs.encode_write import EncodeJob, encode_rows, plan_codes, write_rows
from dpca.jobs.own_stack import KEPT_STACK
from dpca.kernels.types import Array
from dpca.representation.compressed import Compressed
from dpca.representation.compressed_views import ALONG
from dpca.storage.disk import atomic_write_bytes
from dpca.storage.errors import StoreError
from dpca.storage.inherited import link_or_copy
from dpca.storage.manifest import CHECKSUMS, METADATA
from dpca.storage.progress import Progress
from dpca.storage.reading import StoredArray, array_in, open_group, read_into
from dpca.storage.tasks import map_shards

#: Arrays with an entry for each sample, from which others follow.
QUALITY = ("mse", "ssim", "max_error")
# What is written anew, because it has an entry for each sample or speaks of all.
_ANEW = (METADATA, ALONG, "name", "psnr", *QUALITY)
_LINKED = "linked"


@dataclass(frozen=True)
class AppendJob:
    """What the tasks share: shards are those of the longer store, samples of the source are the new ones.

    Parameters
    ----------
    encode : EncodeJob
        Of the new samples, to the longer store.
    before : Compressed
    """

    encode: EncodeJob
    before: Compressed

    @property
    def run(self) -> int:
        """Samples that are encoded together."""
        return RUN if self.before.codec.waves else 1

    @property
    def rows(self) -> int:
        """Places of a shard; samples lie at places, new ones in runs of their own."""
        return int(self.before.stored("codes").shards[-1]) * self.run  # type: ignore[index]

    @property
    def ends(self) -> int:
        """Where the samples before end."""
        return int(self.before.places(np.array([len(self.before) - 1]))[0]) + 1

    @property
    def begins(self) -> int:
        """Where the new samples begin."""
        return math.ceil(self.ends / self.run) * self.run

    @property
    def length(self) -> int:
        """Places of the longer store."""
        return self.begins + int(self.encode.source.shape[0])

    @property
    def shards(self) -> range:
        """Those that hold new samples."""
        return range(self.begins // self.rows, math.ceil(self.length / self.rows))

    @property
    def records(self) -> dict[str, Array]:
        """The quality of the new samples."""
        kept = [self.encode.checkpoints.load(self.encode.unit(shard)) for shard in self.shards]
        if None in kept:
            raise StoreError(f"a record in '{self.encode.checkpoints.folder}' is gone: run the same command again")
        parts = [record[0] for record in kept if record is not None]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def grow(job: AppendJob) -> None:
    """Give every file that stays a second name in the longer store, and its arrays their length."""
    before, target, kept = Path(job.before.path), Path(job.encode.store), job.encode.checkpoints
    shard = job.begins // job.rows
    tails = (f"codes/c/0{'/0' * job.before.codec.waves}/{shard}", f"residual/c/{shard}{'/0' * (job.before.ndim - 1)}")
    for path in sorted(before.rglob("*")) if kept.load(_LINKED) is None else ():
        inside = path.relative_to(before)
        left_out = inside.parts[0] in _ANEW or inside.as_posix() in tails
        # Checksums are written with the manifest; a store inside has its own.
        left_out |= path.name == CHECKSUMS and inside.parts[0] != KEPT_STACK
        if path.is_file() and not left_out:
            (target / inside).parent.mkdir(parents=True, exist_ok=True)
            (target / inside).unlink(missing_ok=True)
            link_or_copy(os.fspath(path), os.fspath(target / inside))
    kept.save(_LINKED, {}, {})
    _lengthen(target / "codes", -1, math.ceil(job.length / job.run))
    if (target / "residual").exists():
        _lengthen(target / "residual", 0, job.length)


def _lengthen(array: Path, axis: int, n: int) -> None:
    """State how long an array is along an axis, in a new file: the old one is another store's, too."""
    metadata = json.loads((array / METADATA).read_bytes())
    metadata["shape"][axis] = n
    atomic_write_bytes(array / METADATA, json.dumps(metadata).encode())


def write_appended(job: AppendJob, client: Any | None, progress: Progress) -> int:
    """Write the shards that hold new samples; return the most memory that any one process held."""
    encode, rows = job.encode, job.rows
    source, kept = encode.source, encode.checkpoints
    if source.in_process:
        client = None  # its memory is here
    whole = Outline(source.name, (job.length, *source.shape[1:]), source.dtype, source.chunks)
    promised = job.before.facts["residual_step"] is not None
    plan_codes(whole, task_budget(client, thread_count()), len(job.before.codec.cell), promised=promised)
    counts = {s: min((s + 1) * rows, job.length) - max(s * rows, job.begins) for s in job.shards}
    shards = ((s, n, None if kept.load(encode.unit(s)) else (job, s)) for s, n in counts.items())
    stage = progress("append", source.shape[0], "samples")
    peaks = map_shards(_append_one, shards, stage=stage, client=client, threads=thread_count(), name="append")
    return max([*peaks, peak_resident_bytes() if client is None else 0])


def _append_one(job: AppendJob, shard: int) -> int:
    """Do one shard, the body of a task; return the most memory that this process ever held."""
    begins, encode = job.begins, job.encode
    start, stop = shard * job.rows, min((shard + 1) * job.rows, job.length)
    first = max(start, begins)
    codes, residual, record = encode_rows(encode, first - begins, stop - begins, None)
    if start < begins:
        old = open_group(job.before.path)
        there = _read(array_in(old, "codes"), -1, start // job.run, begins // job.run)
        codes = np.concatenate([restored(there) if job.run > 1 else there, codes], axis=1)
        if residual is not None:
            there = _read(array_in(old, "residual"), 0, start, job.ends)
            gap = np.zeros((begins - job.ends, *there.shape[1:]), there.dtype)
            residual = np.concatenate([there, gap, residual])
    write_rows(encode.store, start, codes, residual)
    encode.checkpoints.save(encode.unit(shard), record, {"n_samples": stop - first})
    return peak_resident_bytes()


def _read(array: StoredArray, axis: int, start: int, stop: int) -> Array:
    """Return a part of an array, along one axis."""
    parts, lengths = [slice(None)] * array.ndim, list(array.shape)
    parts[axis], lengths[axis] = slice(start, stop), stop - start
    read_into(array, tuple(parts), values := np.empty(lengths, array.dtype))
    return values
