"""More samples for a compressed store, under the components that it has."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr

from dpca.choices import COMPRESSED
from dpca.engine.checkpoint import Checkpoints
from dpca.engine.memory import peak_resident_bytes, task_budget, thread_count
from dpca.engine.plan import Outline
from dpca.engine.source import as_source
from dpca.jobs.encode_write import EncodeJob, encode_rows, plan_codes, write_rows
from dpca.jobs.score_write import write_quality
from dpca.jobs.stages import NOTHING, StageCost
from dpca.kernels.quality import psnr_from_mse
from dpca.kernels.types import Array
from dpca.representation.compressed import COMPRESSED_VERSION, Compressed, open_compressed
from dpca.storage.arrays import create_root, write_strings
from dpca.storage.disk import atomic_write_bytes, remove_tree
from dpca.storage.errors import BusyError, DataError
from dpca.storage.ingest import ingest
from dpca.storage.inherited import link_or_copy
from dpca.storage.manifest import CHECKSUMS, METADATA
from dpca.storage.objects import ObjectPath, place_of
from dpca.storage.outputs import check_output
from dpca.storage.progress import Progress, no_progress
from dpca.storage.readers import Reader
from dpca.storage.reading import StoredArray, array_in, open_group, read_into
from dpca.storage.stack import Stack
from dpca.storage.tasks import map_shards
from dpca.storage.workspace import Workspace, fingerprint_of

Drift = Literal["refuse", "accept"]

# Arrays with an entry for each sample that are written anew.
_QUALITY = ("mse", "ssim", "max_error")
_LINKED = "linked"
# What the store states of its making, which is not that of the longer one.
_OF_BEFORE = ("kind", "version", "fingerprint", "made_with", "manifest", "request")
# Measures of which the mean is promised, and the standard errors of as many of the samples before by which the mean of
# new ones may miss it.
_DRIFTS, _DRIFTED = ("mse", "ssim"), 3


@dataclass(frozen=True)
class Appended:
    """What was appended.

    Attributes
    ----------
    cost : StageCost
        `NOTHING` where the store had these samples already.
    samples : int
        Those that are new.
    measures : dict of str to (float, float)
        PSNR in decibels and, where it is defined, the mean SSIM: of the samples before, and of the new ones.
    drifted : str
        Says by how much the new samples miss the goal of the store; empty where they do not.
    """

    cost: StageCost
    samples: int
    measures: dict[str, tuple[float, float]]
    drifted: str


@dataclass(frozen=True)
class _AppendJob:
    """What the tasks share: shards are those of the longer store, samples of the source are the new ones."""

    encode: EncodeJob
    before: Compressed
    rows: int
    n_samples: int


def append_store(
    store: str | os.PathLike[str],
    given: Stack | Reader,
    *,
    drift: Drift = "refuse",
    reading: Mapping[str, Any] | None = None,
    client: Any | None = None,
    progress: Progress = no_progress,
) -> Appended:
    """Append samples to a compressed store: their scores of the components that it has.

    Nothing of what is there changes: shards of earlier samples are the same files, but for the last one where it was
    not full, whose codes are written again with the new ones behind them. A promise about the largest error holds for
    the new samples as for the others. Other goals are of the mean: where the new samples miss it, they are refused, or
    accepted, as asked.

    Parameters
    ----------
    store : path-like
        On a disk. The longer store replaces it once it is whole; until then it is as before.
    given : Stack or Reader
        Samples of the same shape and type.
    drift : {"refuse", "accept"}
        What becomes of samples that miss the goal of the store.
    reading : mapping, optional
        Options of `dpca.storage.ingest` for a reader.
    client, progress
        As for `encode_store`.

    Raises
    ------
    DataError
        If the samples are of another kind, or miss the goal and are refused; the store is as it was.
    PlanError, StoreError
        As `encode_store`.

    Notes
    -----
    Costs the encoding of the new samples, one shard, and a link for each file that stays.
    """
    place, reading = place_of(store), dict(reading or {})
    if isinstance(place, ObjectPath):
        raise DataError(f"'{store}' lies in an object store, where no store can grow unseen: append on a disk")
    check_output(store, given)
    before = open_compressed(store)
    content = given.fingerprint if isinstance(given, Stack) else given.fingerprint()
    if any(entry["content"] == content for entry in before.facts.get("appended", [])):
        return Appended(NOTHING, 0, {}, "")
    fingerprint = fingerprint_of("append", before.facts["fingerprint"], content, reading)
    with Workspace(store, kind=COMPRESSED, fingerprint=fingerprint, overwrite=True) as work:
        began = time.perf_counter()
        if open_compressed(store).facts["fingerprint"] != before.facts["fingerprint"]:
            raise BusyError(f"'{store}' was replaced by another run just now: run the same command again")
        if before.codec.waves or 0 in before.facts.get("interpolated", ()):
            raise DataError(f"'{store}' keeps runs of samples together, which none can join: encode all samples again")
        _check_columns(before.path)
        if isinstance(given, Reader):
            cells = before.codec.components.grid.cell_shape
            given = ingest(given, work.scratch / "stack", cell_shape=cells, client=client, progress=progress, **reading)
        _check_alike(before, given)
        n, n_new, old = before.shape[0], given.n_samples, open_group(store)
        rows, target, kept = int(old["codes"].shards[1]), Path(str(work.store)), Checkpoints(str(work.scratch))  # type: ignore[union-attr,index]
        if kept.load(_LINKED) is None:
            shard, tail = n // rows, "/0" * (len(before.shape) - 1)
            _link(Path(before.path), target, {f"codes/c/0/{shard}", f"residual/c/{shard}{tail}"})
            kept.save(_LINKED, {}, {})
        _grow(target / "codes", 1, n + n_new)
        if "residual" in old:
            _grow(target / "residual", 0, n + n_new)
        facts = {name: value for name, value in before.facts.items() if name not in _OF_BEFORE}
        facts |= {
            "n_samples": n + n_new,
            "appended": [*facts.get("appended", []), {"content": content, "samples": n_new}],
        }
        group = create_root(work.store, kind=COMPRESSED, version=COMPRESSED_VERSION, fingerprint=fingerprint, **facts)
        n_spatial = before.codec.components.grid.n_spatial
        encode = EncodeJob(as_source(given), str(target), fingerprint, before.facts.get("max_error"), n_spatial, kept)
        job = _AppendJob(encode, before, rows, n + n_new)
        try:
            peak = _write(job, client, progress)
        except OverflowError as error:
            raise DataError(
                f"'{given.path}' has values far beyond the range of '{store}' ({error}): encode all samples again"
            ) from error
        records = [kept.load(encode.unit(s)) for s in range(n // rows, math.ceil(job.n_samples / rows))]
        new = {name: np.concatenate([part[0][name] for part in records if part]) for name in records[0][0]}  # type: ignore[index]
        head = {name: array_in(old, name)[...] for name in _QUALITY if name in old}
        measures, drifted = _drift(before, head, new)
        if drifted and drift == "refuse":
            remove_tree(work.scratch)  # nothing that another run could use
            work.scratch.mkdir()
            raise DataError(
                f"the samples are refused, as they {drifted}: accept them with --drift accept (drift='accept'), or fit "
                f"and encode all samples again"
            )
        dim = _sample_dim(old)
        write_quality(group, [(head, {}), (new, {})], str(work.scratch), dim)
        write_strings(group, "name", [*array_in(old, "name")[...].tolist(), *given.names.tolist()], dim)
        work.publish()
    return Appended(StageCost(time.perf_counter() - began, given.nbytes, peak), n_new, measures, drifted)


def _check_alike(before: Compressed, stack: Stack) -> None:
    kind, other = (before.shape[1:], before.dtype), (tuple(stack.sample_shape), stack.dtype)
    if kind != other:
        raise DataError(
            f"'{stack.path}' holds samples of {other[0]} {other[1]} but '{before.path}' of {kind[0]} {kind[1]}: append "
            f"samples of one kind"
        )


def _sample_dim(group: zarr.Group) -> str:
    """Return the name of the axis of samples."""
    return str((getattr(array_in(group, "mse").metadata, "dimension_names", None) or ("sample",))[0])


def _check_columns(path: str) -> None:
    """Refuse a store with entries for each sample that nobody gives for the new ones, such as times."""
    group = open_group(path)
    known, dim = {"codes", "residual", "name", "psnr", *_QUALITY}, _sample_dim(group)
    for name, node in sorted(group.members(max_depth=None)):
        dims = (isinstance(node, zarr.Array) and getattr(node.metadata, "dimension_names", None)) or ()
        if name not in known and dim in dims:
            raise DataError(f"'{path}' has '{name}' of each sample, which new ones lack: encode all samples again")


def _link(before: Path, target: Path, left_out: set[str]) -> None:
    """Give every file that stays a second name in the longer store; ``left_out`` are paths of shards that do not."""
    for path in sorted(before.rglob("*")):
        inside = path.relative_to(before)
        anew = inside.parts[0] in (METADATA, "name", "psnr", *_QUALITY) or inside.as_posix() in left_out
        if path.is_file() and path.name != CHECKSUMS and not anew:
            (target / inside).parent.mkdir(parents=True, exist_ok=True)
            (target / inside).unlink(missing_ok=True)
            link_or_copy(os.fspath(path), os.fspath(target / inside))


def _grow(array: Path, axis: int, n: int) -> None:
    """State that an array has so many samples, in a new file: the old one is another store's, too."""
    metadata = json.loads((array / METADATA).read_bytes())
    metadata["shape"][axis] = n
    atomic_write_bytes(array / METADATA, json.dumps(metadata, indent=2).encode())


def _write(job: _AppendJob, client: Any | None, progress: Progress) -> int:
    """Write the shards that hold new samples; return the most memory that any one process held."""
    encode, n, rows = job.encode, job.before.shape[0], job.rows
    source, kept = encode.source, encode.checkpoints
    if source.in_process:
        client = None  # its memory is here
    whole = Outline(source.name, (job.n_samples, *source.shape[1:]), source.dtype, source.chunks)
    plan_codes(whole, task_budget(client, thread_count()), len(job.before.codec.cell))
    shards = (
        (s, min((s + 1) * rows, job.n_samples) - max(s * rows, n), None if kept.load(encode.unit(s)) else (job, s))
        for s in range(n // rows, math.ceil(job.n_samples / rows))
    )
    stage = progress("append", source.shape[0], "samples")
    peaks = map_shards(_append_one, shards, stage=stage, client=client, threads=thread_count(), name="append")
    return max([*peaks, peak_resident_bytes() if client is None else 0])


def _append_one(job: _AppendJob, shard: int) -> int:
    """Do one shard, the body of a task; return the most memory that this process ever held."""
    n, encode = job.before.shape[0], job.encode
    start, stop = shard * job.rows, min((shard + 1) * job.rows, job.n_samples)
    first = max(start, n)
    codes, residual, record = encode_rows(encode, first - n, stop - n, None)
    if start < n:
        old = open_group(job.before.path)
        codes = np.concatenate([_read(array_in(old, "codes"), (slice(None), slice(start, n))), codes], axis=1)
        if residual is not None:
            residual = np.concatenate([_read(array_in(old, "residual"), (slice(start, n),)), residual])
    write_rows(encode.store, start, codes, residual)
    encode.checkpoints.save(encode.unit(shard), record, {"n_samples": stop - first})
    return peak_resident_bytes()


def _read(array: StoredArray, selection: tuple[slice, ...]) -> Array:
    taken = [range(length)[part] for part, length in zip(selection, array.shape, strict=False)]
    values = np.empty((*map(len, taken), *array.shape[len(taken) :]), array.dtype)
    read_into(array, (*selection, *(slice(None) for _ in array.shape[len(taken) :])), values)
    return values


def _drift(before: Compressed, old: Mapping[str, Array], new: Mapping[str, Array]) -> tuple[dict[str, Any], str]:
    """Compare the quality of new samples with that of the others; say by how much they miss the goal, if they do."""
    measures = {"psnr": tuple(float(psnr_from_mse(each["mse"].mean())) for each in (old, new))}
    if "ssim" in old and "ssim" in new:
        measures["ssim"] = (float(old["ssim"].mean()), float(new["ssim"].mean()))
    goal, asked = before.facts["goal"]["name"], float(before.facts["goal"]["value"])
    name = "mse" if goal == "psnr" else goal
    if name not in _DRIFTS or name not in old or name not in new:
        return measures, ""
    wanted, worse = 10 ** (-asked / 10) if goal == "psnr" else asked, 1 if name == "mse" else -1
    spread = _DRIFTED * float(old[name].std()) / math.sqrt(len(new[name]))
    bound = max(worse * wanted, worse * float(old[name].mean())) + spread
    if worse * float(new[name].mean()) <= bound:
        return measures, ""
    was, now = measures.get(goal, (float(old["mse"].mean()), float(new["mse"].mean())))
    return measures, f"come to {goal} {now:.4g}, and {asked:.4g} was asked for; those before come to {was:.4g}"
