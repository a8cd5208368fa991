"""Append samples to a compressed store: encode them with its components, or refit all samples."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import zarr

from dpca.choices import COMPRESSED
from dpca.codec.goal import Goal
from dpca.engine.folds.plan import Outline
from dpca.engine.sources.source import Source, as_source
from dpca.engine.sources.tiled import TiledStack
from dpca.jobs.base.filled_samples import FilledSamples, FilledTiledStack, Filler, KeptFilling, tiled_source
from dpca.jobs.base.stages import NOTHING, StageCost, stopwatch
from dpca.jobs.compressed.append_write import QUALITY, AppendJob, grow, what_stays, write_appended
from dpca.jobs.compressed.encode_tiles import check_encoding, divided_as, measure_tiles
from dpca.jobs.compressed.encode_write import EncodeJob
from dpca.jobs.compressed.refit import check_original, refit
from dpca.jobs.scores.score_write import joined_quality, write_quality
from dpca.kernels.algebra.types import Array
from dpca.kernels.quality import psnr_from_mse
from dpca.report.record import read_report, report_folder
from dpca.representation.compressed.compressed import Compressed, TiledCompressed, open_compressed
from dpca.representation.compressed.gap_filling import CellFilling
from dpca.representation.compressed.lazy_views import ALONG
from dpca.storage.arrays.arrays import create_root, write_strings
from dpca.storage.arrays.coordinates import Coordinates, joined, write_coordinates
from dpca.storage.arrays.reading import array_in, open_group
from dpca.storage.disk import folder_bytes
from dpca.storage.errors import BusyError, DataError
from dpca.storage.ingest import ingest
from dpca.storage.input import fingerprint_of_input, paths_of_input
from dpca.storage.integrity.manifest import Carried, finished_bytes
from dpca.storage.readers import Reader
from dpca.storage.remote.objects import ObjectPath, place_of
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.workspace import Workspace, fingerprint_of

Drift = Literal["refuse", "accept", "refit"]

# Facts about how the earlier store was made. The longer store has its own.
_OWN_FACTS = ("kind", "version", "fingerprint", "made_with", "manifest", "request")
# A goal is missed if the mean error of the new samples exceeds it by more than this many standard errors, estimated
# from the earlier samples, or if their ratio of bytes is below this share of the goal.
_STANDARD_ERRORS, _RATIO_SHARE = 3, 0.95
# Names of done-markers.
_REPORT, _REFIT = "report", "refit"


@dataclass(frozen=True)
class Appended:
    """The result of `append_store`.

    Attributes
    ----------
    cost : StageCost
        `NOTHING` if the store already had these samples.
    samples : int
        Number of new samples.
    measures : dict of str to (float, float)
        PSNR in decibels, the ratio of bytes and, if it is defined, the mean SSIM: of the earlier samples and of the
        new ones, both encoded with the components of the store.
    drifted : str
        By how much the new samples miss the goal of the store; empty if they meet it.
    refitted : bool
        Whether all samples were fitted and encoded again.
    missed : str
        By how much all samples together miss the goal, if the new ones are slightly worse; empty if they meet it.
    """

    cost: StageCost
    samples: int
    measures: dict[str, tuple[float, float]]
    drifted: str
    refitted: bool
    missed: str = ""


_NONE_APPENDED = Appended(NOTHING, 0, {}, "", False)


def append_store(
    store: str | os.PathLike[str],
    given: Stack | Reader,
    *,
    drift: Drift = "refuse",
    original: Stack | None = None,
    reading: ReadOptions | None = None,
    run: Run = Run(),
) -> Appended:
    """Append samples to a compressed store: encode them with the components of the store.

    Stored samples do not change. Files of full shards are reused. The last shard, if it is not full, is written again
    with the same codes and the new ones. An error bound holds for the new samples as for the others. Other goals refer
    to a mean or to the number of bytes. If the new samples miss such a goal, ``drift`` decides: they are refused, or
    accepted, or all samples are fitted and encoded again. If the store has the report of a job, it is updated.

    Parameters
    ----------
    store : path-like
        On a disk. The longer store replaces it when it is complete; until then the store is unchanged.
    given : Stack or Reader
        Samples of the same shape and type, with the same coordinates along the samples, if the store has any.
    drift : {"refuse", "accept", "refit"}
        What to do if the new samples miss the goal of the store.
    original : Stack, optional
        With "refit": the samples that the store was made from.
    reading : ReadOptions, optional
        How the samples of a reader are read.
    run : Run
        Where the tasks run, and with how much memory.

    Raises
    ------
    DataError
        If the samples have another shape or type, or miss the goal and are refused, or if ``original`` is another
        stack. The store is unchanged.
    StoreError
        As `encode_store`, and if the store is damaged. Damaged chunks of earlier samples are not detected, since they
        are not decoded.
    PlanError
        As `encode_store`.

    Notes
    -----
    Costs the encoding of the new samples, one shard, and a hard link for each file that is reused. A refit costs as
    much as ``dpca fit`` and ``dpca encode`` in addition.
    """
    if isinstance(place_of(store), ObjectPath):
        raise DataError(
            f"'{store}' is in an object store, but append requires a disk: append on a disk and copy the result"
        )
    if (drift == "refit") != (original is not None):
        raise DataError(
            "drift='refit' and original (--drift refit and --stack) require each other: give both, with the stack "
            "that the store was made from, or neither"
        )
    before = open_compressed(store)
    if 0 in before.facts.get("interpolated", ()):
        raise DataError(
            f"'{store}' interpolates between samples, so nothing can be appended to it: encode all samples again"
        )
    content, paths = fingerprint_of_input(given), paths_of_input(given)
    if any(entry["content"] == content for entry in before.facts.get("appended", [])):
        with suppress(BusyError), Workspace(store, kind=COMPRESSED, fingerprint=before.facts["fingerprint"]):
            pass  # removes what is left of a run that ended between publishing and cleaning up
        return _NONE_APPENDED
    # Before the new samples are ingested, or read whole.
    whole: Source = Outline(before.path, before.shape, before.dtype, (1,) * before.ndim)
    if isinstance(before, TiledCompressed):
        whole = tiled_source(whole, before.tiles, before.axes, gaps=before.has_gaps)
    elif before.has_gaps:
        whole = FilledSamples(
            whole, Filler(before.codec.components.grid.n_spatial, (0.0, 0.0)), infinite=before.has_infinities
        )
    if before.has_gaps:
        reading = replace(reading or ReadOptions(), gaps=True, infinite=before.has_infinities)
    check_encoding(whole, before.axes, run.task_bytes(), promised=before.facts["residual_step"] is not None)
    asked = {} if reading is None else reading.as_dict()
    fingerprint = fingerprint_of(
        "append", before.facts["fingerprint"], content, asked, original.fingerprint if original else None
    )
    job = Job(store, COMPRESSED, fingerprint, (given, original), overwrite=True)
    if original is not None:
        check_original(before, original)
    run = replace(run, overwrite=False)  # only the store itself is replaced

    def steps(work: Workspace) -> tuple[Appended, Carried]:
        cost = stopwatch()
        if open_compressed(store).facts["fingerprint"] != before.facts["fingerprint"]:
            raise BusyError(f"'{store}' was replaced by another run: run the same command again")
        new = given
        if isinstance(new, Reader):
            cells = before.codec.components.grid.cell_shape
            new = ingest(new, work.scratch / "stack", cell_shape=cells, reading=reading or ReadOptions(), run=run)
        _check_alike(before, new)
        along, report = _all_coordinates(before, new), _report_of(before, work)
        append = _append_job(before, new, work)
        carried = what_stays(append)
        facts = {"appended": [*before.facts.get("appended", []), {"content": content, "samples": new.n_samples}]}
        if work.is_done(_REFIT):
            found = work.record(_REFIT)
        else:
            found = _write_store(append, new, along, work, carried, facts, run)
            if found["drifted"] and drift == "refuse":
                work.forget()  # another run cannot resume from it
                raise DataError(
                    f"refused to append, as the new samples {found['drifted']}: accept them with --drift accept "
                    f"(drift='accept'), or fit and encode all samples again with --drift refit (drift='refit')"
                )
        refitted = bool(found["drifted"]) and original is not None
        note = f"{new.n_samples:,} samples were appended, and they {found['drifted']}" if found["drifted"] else ""
        missed = "" if refitted else found["missed"]
        new_report = report | {"notes": [*report.get("notes", []), *filter(None, (note, missed))]} if report else {}
        peak = found["peak"]
        if original is not None and refitted:
            work.mark_done(_REFIT, record=found)
            carried = Carried(stores=carried.stores)
            peak = refit(before, original, new, work, facts, new_report, paths, run).peak_memory
        spent = cost(new.nbytes, peak)
        if new_report and not refitted:
            from dpca.jobs.compressed.append_report import renew_report  # matplotlib takes a second to import

            renew_report(new_report, before, new, paths, work.store, carried, spent)
        done = Appended(spent, new.n_samples, found["measures"], found["drifted"], refitted, missed)
        return done, carried

    with zarr.config.set({"json_indent": None}):
        done = job.run(steps, lambda work, found: work.publish(found[1]))
    return _NONE_APPENDED if done is None else done[0]


def _append_job(before: Compressed, new: Stack, work: Workspace) -> AppendJob:
    promised, n_spatial = before.facts.get("max_error"), before.codec.components.grid.n_spatial
    attempt, goal = Checkpoints(str(work.scratch), str(work.scratch)), Goal(**before.facts["goal"])
    divided = divided_as(before, new)
    source = as_source(divided)
    if before.has_gaps:
        known, by = tuple(before.facts["data_range"]), _filling_of(before, work)
        if isinstance(divided, FilledTiledStack):
            source = as_source(replace(divided, data_range=known, filling=by))
        else:
            source = FilledSamples(source, Filler(n_spatial, known, by), infinite=before.has_infinities)
    encode = EncodeJob(source, str(work.store), work.fingerprint, promised, n_spatial, attempt, goal=goal)
    return AppendJob(encode, before)


def _filling_of(before: Compressed, work: Workspace) -> KeptFilling | None:
    """Return what fills gaps by the components of a store; None if it has none."""
    components, group = before.codec.components, open_group(before.path)
    if not len(before.codec.cell):
        return None
    step, members = before.codec.step, np.bincount(components.group)
    power = np.ldexp(1.0, 2 * array_in(group, "exponent")[...].astype(int)) * step**2 / len(before.entries)
    ends = np.cumsum([len(rows) for rows in components.rows])[:-1]
    explained = [values / n for values, n in zip(np.split(power, ends), members, strict=True)]
    # What a step rounds is the least noise.
    sizes = [rows.shape[1] * step**2 / 12 for rows in components.rows]
    totals = [float(values.sum()) + noise for values, noise in zip(explained, sizes, strict=True)]
    kept = KeptFilling(Checkpoints(str(work.scratch / "filling"), str(work.scratch)), before.facts["fingerprint"][:12])
    kept.save(CellFilling.of(components, explained, totals))
    return kept


def _report_of(before: Compressed, work: Workspace) -> dict[str, Any]:
    """Return the report of the job that made a store, before any change by this run; empty if there is none."""
    if "job" not in before.facts:
        return {}
    if not work.is_done(_REPORT):
        work.mark_done(_REPORT, record=read_report(report_folder(before.path)))
    return work.record(_REPORT)


def _write_store(
    job: AppendJob,
    given: Stack,
    along: Coordinates,
    work: Workspace,
    carried: Carried,
    more: Mapping[str, Any],
    run: Run,
) -> dict[str, Any]:
    """Write the longer store; return the peak memory of a process, the measures, and by how much a goal is missed."""
    before, goal = job.before, Goal(**job.before.facts["goal"])
    grow(job, carried, work)
    facts = {name: value for name, value in before.facts.items() if name not in _OWN_FACTS}
    facts |= {"n_samples": len(before) + given.n_samples, **more}
    if job.begins > job.ends or isinstance(before, TiledCompressed):
        facts["breaks"] = [*facts.get("breaks", []), len(before)]
    version = before.facts["version"]
    group = create_root(work.store, kind=COMPRESSED, version=version, fingerprint=work.fingerprint, **facts)
    try:
        old = {name: values for name, values in before.quality.items() if name in QUALITY}
        errors = np.repeat(goal.errors(old), len(before.entries) // len(before)) if goal.is_of_samples else None
        peak, quality = write_appended(job, errors, work, run)
    except OverflowError as error:
        raise DataError(
            f"'{given.path}' has values far outside the range of '{before.path}' ({error}): encode all samples again"
        ) from error
    divided = divided_as(before, given)
    if isinstance(divided, TiledStack):
        held, quality = measure_tiles(divided, quality, work, job.encode.attempt, run, len(before))
        peak = max(peak, held)
    new, dim = joined_quality(quality), along.dims[0]
    write_quality(group, [old, new], dim)
    write_strings(group, "name", [*before.names.tolist(), *given.names.tolist()], dim)
    if "dims" in facts:
        write_coordinates(group.require_group(ALONG), along)
    size = folder_bytes(before.path)
    added = max(1, finished_bytes(work.store, carried=carried) - size)
    measures, drifted = _drift(goal, old, new, (before.nbytes / size, given.nbytes / added))
    share = (size + added) / (before.nbytes + given.nbytes)
    return {"peak": peak, "measures": measures, "drifted": drifted, "missed": _missed(goal, old, new, share)}


def _check_alike(before: Compressed, stack: Stack) -> None:
    kind, other = (before.shape[1:], before.dtype), (tuple(stack.sample_shape), stack.dtype)
    if kind != other:
        raise DataError(
            f"'{stack.path}' has samples of {other[0]} {other[1]} but '{before.path}' has samples of {kind[0]} "
            f"{kind[1]}: append samples of the same shape and type"
        )


def _all_coordinates(before: Compressed, stack: Stack) -> Coordinates:
    """Return the coordinates of all samples.

    Raises
    ------
    DataError
        If the new samples have no coordinates along the samples, such as times, or other coordinates of space.
    """
    known, new = before.coordinates, stack.coordinates
    both = joined([known, new])
    arrays = {} if both is None else dict(both.arrays)
    for name, found in known.arrays.items():
        each = known.dims[0] in found.dims
        if name not in arrays and (each or (both is not None and new is not None and name in new.arrays)):
            raise DataError(
                f"'{before.path}' has the coordinate {name!r} {'of each sample' if each else 'along the axes'} but "
                f"'{stack.path}' has {'none to continue it' if each else 'another'}: give samples with the same "
                f"coordinates"
            )
        arrays.setdefault(name, found)
    return replace(known, arrays={name: arrays[name] for name in known.arrays})


def _missed(goal: Goal, old: Mapping[str, Array], new: Mapping[str, Array], share: float) -> str:
    """Return by how much all samples miss the goal, or nothing; ``share`` is compressed bytes by decoded bytes."""
    if goal.is_error_bound:
        return ""
    errors = [goal.errors(each) for each in (old, new)] if goal.is_of_samples else []
    error = goal.error(np.concatenate(errors)) if errors else share
    if error <= goal.allowed:
        return ""
    return f"all samples together have {goal.name} {goal.value_of(error):.6g} but the goal is {goal.value:g}"


def _drift(
    goal: Goal, old: Mapping[str, Array], new: Mapping[str, Array], ratio: tuple[float, float]
) -> tuple[dict[str, Any], str]:
    """Compare the quality of new and earlier samples; return the measures and by how much the new ones miss a goal."""
    measures = {"psnr": tuple(float(psnr_from_mse(each["mse"].mean())) for each in (old, new)), "ratio": ratio}
    if "ssim" in old and "ssim" in new:
        measures["ssim"] = (float(old["ssim"].mean()), float(new["ssim"].mean()))
    if goal.is_of_samples:
        before, after = goal.errors(old), goal.errors(new)
        # The mean of a few samples differs from that of many by chance.
        spread = 0.0 if goal.every_sample else _STANDARD_ERRORS * float(before.std()) / math.sqrt(len(after))
        kept = goal.error(after) <= max(goal.allowed, goal.error(before)) + spread
        was, now = goal.value_of(goal.error(before)), goal.value_of(goal.error(after))
    else:
        was, now = ratio
        kept = goal.is_error_bound or now >= _RATIO_SHARE * min(goal.value, was)
    if kept:
        return measures, ""
    return (
        measures,
        f"have {goal.name} {now:.4g} but the goal is {goal.value:.4g}; the earlier samples have {was:.4g}",
    )
