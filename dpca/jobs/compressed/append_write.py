"""Write the longer store of an append: link the files that it reuses, write the shards that hold new samples."""

from __future__ import annotations

import json
import math
import os
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpca.choices import NOISE_SHARE
from dpca.codec.masks import coded_mask
from dpca.codec.waves import RUN, restored
from dpca.engine.sources.filled import Filled
from dpca.engine.sources.tiled import TiledSource
from dpca.jobs.base.shards import ShardPass
from dpca.jobs.compressed.encode_memory import EncodeMemory
from dpca.jobs.compressed.encode_until import write_until_met
from dpca.jobs.compressed.encode_write import EncodeJob, encode_rows, mask_of, masks_of, write_rows
from dpca.kernels.algebra.types import Array
from dpca.representation.compressed.compressed import Compressed
from dpca.representation.compressed.compressed_form import GAPS, INFINITIES, StoreForm
from dpca.representation.compressed.lazy_views import ALONG
from dpca.storage.arrays.arrays import write_shard
from dpca.storage.arrays.reading import StoredArray, array_in, open_array, open_group, read_into
from dpca.storage.disk import atomic_write_bytes
from dpca.storage.integrity.manifest import METADATA, Carried, carried_over
from dpca.storage.run import Run
from dpca.storage.transaction.inherited import link_or_copy
from dpca.storage.transaction.workspace import Workspace

#: Arrays with an entry for each sample. Others are computed from these.
QUALITY = ("mse", "ssim", "max_error", NOISE_SHARE)
# Written again, since they have an entry for each sample or describe all of them.
_ANEW = (METADATA, ALONG, "name", "psnr", *QUALITY)
# Arrays that grow, and along which axis. Their metadata and their last shard are written again.
_LONGER = {"codes": -1, "residual": 0, GAPS: 0, INFINITIES: 0}
_LINKED = "linked"


@dataclass(frozen=True)
class AppendJob:
    """The data that all tasks share. Shards are those of the longer store; the source has only the new samples.

    Parameters
    ----------
    encode : EncodeJob
        Encodes the new samples to the longer store.
    before : Compressed
    """

    encode: EncodeJob
    before: Compressed

    @property
    def run(self) -> int:
        """Samples that are encoded together."""
        return RUN if self.before.codec.waves else 1

    @property
    def old(self) -> Compressed:
        """The earlier samples, or their tiles."""
        return self.before.entries

    @property
    def rows(self) -> int:
        """Positions in a shard. Each sample has a position; new samples begin at a multiple of `run`."""
        return int(self.before.stored("codes").shards[-1]) * self.run  # type: ignore[index]

    @property
    def ends(self) -> int:
        """Position behind the last earlier sample."""
        return int(self.old.places(np.array([len(self.old) - 1]))[0]) + 1

    @property
    def begins(self) -> int:
        """Position of the first new sample."""
        return math.ceil(self.ends / self.run) * self.run

    @property
    def length(self) -> int:
        """Number of positions in the longer store."""
        return self.begins + int(self.encode.source.shape[0])

    @property
    def n_samples(self) -> int:
        """Number of samples in the longer store, or of their tiles."""
        return len(self.old) + int(self.encode.source.shape[0])

    @property
    def shards(self) -> range:
        """Shards that hold new samples."""
        return range(self.begins // self.rows, math.ceil(self.length / self.rows))

    def span(self, shard: int) -> tuple[int, int]:
        """Return the position of the first new sample in a shard, and the one behind the last."""
        return max(shard * self.rows, self.begins), min((shard + 1) * self.rows, self.length)

    def write(self, shard: int, nearest: int = 0) -> dict[str, Array]:
        """Write one shard; return the quality of its new samples. The first ``nearest`` of them get no dead zone."""
        (first, stop), start, begins = self.span(shard), shard * self.rows, self.begins
        codes, residual, quality = encode_rows(self.encode, first - begins, stop - begins, None, nearest)
        if start < begins:
            old = open_group(self.before.path)
            there = _read(array_in(old, "codes"), -1, start // self.run, begins // self.run)
            codes = np.concatenate([restored(there) if self.run > 1 else there, codes], axis=1)
            if residual is not None:
                there = _read(array_in(old, "residual"), 0, start, self.ends)
                gap = np.zeros((begins - self.ends, *there.shape[1:]), there.dtype)
                residual = np.concatenate([there, gap, residual])
        write_rows(self.encode.store, start, codes, residual)
        return quality


@dataclass(frozen=True)
class MaskJob:
    """Writes a mask of new samples, in a pass of its own: samples have masks by number, not by position.

    Parameters
    ----------
    append : AppendJob
        Its source has missing values.
    name : str
        `GAPS` or `INFINITIES`.
    """

    append: AppendJob
    name: str

    @property
    def rows(self) -> int:
        """Samples in a shard of masks."""
        return int(self.append.before.stored(self.name).shards[0]) * self.append.old.rows  # type: ignore[index]

    @property
    def shards(self) -> range:
        """Shards that hold masks of new samples."""
        return range(len(self.append.old) // self.rows, math.ceil(self.append.n_samples / self.rows))

    def span(self, shard: int) -> tuple[int, int]:
        """Return the number of the first new sample in a shard, and the one behind the last."""
        return max(shard * self.rows, len(self.append.old)), min((shard + 1) * self.rows, self.append.n_samples)

    def write(self, shard: int) -> dict[str, Array]:
        """Write one shard."""
        old, source, (_, stop) = self.append.old, self.append.encode.source, self.span(shard)
        assert isinstance(source, Filled)
        array, n = open_array(os.path.join(self.append.encode.store, self.name), mode="r+"), len(old)
        kept = array_in(open_group(self.append.before.path), self.name)
        box = tuple((0, length) for length in old.shape[1:])
        read, coded = source.given.reader(), []
        for first in range(shard * self.rows, stop, old.rows):
            last, number = min(first + old.rows, stop), first // old.rows
            if last <= n:
                coded.append(_read(kept, 0, number, number + 1)[0])
                continue
            new = max(first, n)
            read((new - n, last - n), box, samples := np.empty((last - new, *old.shape[1:]), source.dtype))
            mask = mask_of(self.name, samples)
            if first < n:
                mask = np.concatenate([old.mask(self.name, np.arange(first, n), box), mask])
            found = coded_mask(mask)
            coded.append(np.pad(found, (0, array.shape[1] - len(found))))
        write_shard(array, (shard * self.rows // old.rows, 0), np.stack(coded))
        return {}


def what_stays(job: AppendJob) -> Carried:
    """Return the files that the longer store reuses.

    Raises
    ------
    StoreError
        If the earlier store is damaged, as far as this shows without reading its chunks.
    """
    shard = job.begins // job.rows
    tails = [f"codes/c/0{'/0' * job.before.codec.waves}/{shard}", f"residual/c/{shard}{'/0' * (job.before.ndim - 1)}"]
    tails += [f"{name}/c/{MaskJob(job, name).shards.start}/0" for name in masks_of(job.encode.source)]
    rewritten = (*tails, *(f"{name}/{METADATA}" for name in _LONGER))
    return carried_over(
        Path(job.before.path), lambda name: name.partition("/")[0] not in _ANEW and name not in rewritten
    )


def grow(job: AppendJob, carried: Carried, work: Workspace) -> None:
    """Link every reused file to the longer store, and write the new lengths of its arrays."""
    before, target = Path(job.before.path), Path(job.encode.store)
    if not work.is_done(_LINKED):
        inner = (path for name in carried.stores for path in sorted((before / name).rglob("*")) if path.is_file())
        for name in [*carried.paths, *(path.relative_to(before).as_posix() for path in inner)]:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).unlink(missing_ok=True)
            link_or_copy(os.fspath(before / name), os.fspath(target / name))
        work.mark_done(_LINKED)
    for name, axis in _LONGER.items():
        if name in carried.shards:
            metadata = json.loads((before / name / METADATA).read_bytes())
            masks = dict.fromkeys((GAPS, INFINITIES), math.ceil(job.n_samples / job.old.rows))
            lengths = {"codes": math.ceil(job.length / job.run), **masks}
            metadata["shape"][axis] = lengths.get(name, job.length)
            if name == "residual" and job.length > job.n_samples:  # an axis of samples has one length
                metadata["dimension_names"][0] = "place"
            (target / name).mkdir(exist_ok=True)
            atomic_write_bytes(target / name / METADATA, json.dumps(metadata).encode())


def write_appended(
    job: AppendJob, errors: Array | None, work: Workspace, run: Run
) -> tuple[int, list[dict[str, Array]]]:
    """Write the shards that hold new samples; return the peak memory of a process and the quality of these samples.

    If all samples, with the ``errors`` of the earlier ones, miss the goal of the job, some shards get finer codes. Of
    large samples, these are the quality and the errors of tiles.
    """
    source, codec = job.encode.source, job.before.codec
    if source.in_process:
        run = run.here()  # the source is in the memory of this process
    whole = copy(source)
    whole.shape = (job.length, *source.shape[1:])
    promised, values = job.before.facts["residual_step"] is not None, sum(rows.size for rows in codec.components.rows)
    form = StoreForm(whole.shape, whole.dtype.itemsize, tiled=isinstance(source, TiledSource))
    memory = EncodeMemory(whole, form, len(codec.cell), promised, values)
    job = replace(job, encode=replace(job.encode, decoded=memory.decoded_at_once(run.task_bytes())))
    peak, quality = write_until_met(job, job.shards, ShardPass("append", work, run), job.encode.goal, errors)
    for name in masks_of(source):
        masks = MaskJob(job, name)
        stage = "masks" if name == GAPS else f"masks of {name}"
        peak = max(peak, ShardPass(stage, work, run).write(masks, ((shard,) for shard in masks.shards)))
        for part in quality:
            part.pop(name)
    return peak, quality


def _read(array: StoredArray, axis: int, start: int, stop: int) -> Array:
    """Return a part of an array along one axis."""
    parts, lengths = [slice(None)] * array.ndim, list(array.shape)
    parts[axis], lengths[axis] = slice(start, stop), stop - start
    read_into(array, tuple(parts), values := np.empty(lengths, array.dtype))
    return values
