"""The job that exports samples of a store: to a folder of files, to one file, or to OME-Zarr."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpca.engine.folds.plan import TASK_OVERHEAD, PlanError
from dpca.jobs.base.shards import ShardPass
from dpca.jobs.base.stages import StageCost, stopwatch
from dpca.jobs.base.stored_samples import StoredSamples, stored_samples
from dpca.jobs.export.boxes import ExportBoxes, choose_export_boxes
from dpca.jobs.export.file_names import file_names
from dpca.jobs.export.formats import FORMATS, ExportFormat, format_of, is_unknown, usual_format
from dpca.jobs.export.nifti_files import b_values_file, compress_file, write_beside
from dpca.jobs.export.passes import BoxesExport, ExportPass, FilesExport, ValuesExport
from dpca.jobs.export.pyramid import (
    PyramidBoxes,
    PyramidExport,
    choose_pyramid_boxes,
    create_pyramid,
    level_layout,
    ome_facts,
    pyramid_bytes,
    pyramid_levels,
    rows_of_a_shard,
)
from dpca.jobs.export.sample_files import SampleKind
from dpca.jobs.export.value_files import create_file
from dpca.jobs.scores.boxes import BOXES, decoded_bytes
from dpca.jobs.scores.score_write import SHARD_COPIES, require_memory
from dpca.kernels.algebra.types import Region
from dpca.representation.by_blocks import LARGE_SAMPLE
from dpca.storage.arrays.arrays import create_root, write_strings
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.layout import CHANNEL
from dpca.storage.disk import require_free_space
from dpca.storage.errors import DataError
from dpca.storage.integrity.manifest import EXPORT
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.run import Run
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.outputs import check_output
from dpca.storage.transaction.plain import PlainWorkspace
from dpca.storage.transaction.workspace import Workspace, fingerprint_of

PathLike = str | os.PathLike[str]
_VERSION = 1
# Decoded bytes of a task, unless the samples that are decoded together have more.
_TASK_BYTES = 2**24
# Length along each axis of the part of a large sample that codecs are tried on.
_TRIED = 128


@dataclass(frozen=True)
class ExportResult:
    """What was exported: the format, the number of samples, and the cost, which is None if it was there already."""

    format: str
    n_samples: int
    cost: StageCost | None


def export_store(
    path: PathLike,
    target: PathLike,
    *,
    format: str | None = None,
    samples: int | slice | None = None,
    n_components: int | None = None,
    model: PathLike | None = None,
    quality: int = 95,
    run: Run = Run(),
) -> ExportResult:
    """Write samples of a store as files that other programs read.

    Parameters
    ----------
    path : path-like
        A compressed store, scores, or a stack: a store of dpca or any Zarr array.
    target : path-like
        A name with the suffix of a format (.tif, .npy, .nii, .nii.gz, .nc, .zarr) is one file or OME-Zarr image with
        all samples. A name without a suffix, or with a slash at its end, is a folder with a file for each sample, named
        after the sample. Folders in names are kept. b-values of samples are written beside a NIfTI file, as ``.bval``.
    format : str, optional
        One of `dpca.choices.EXPORT_FORMATS`. The default is that of the suffix of ``target``; for a folder that of the
        names of the samples, or a lossless one: png, tiff or npy.
    samples : int or slice, optional
        Indices of the samples; the default is all. With an integer, one file has no axis of samples.
    n_components : int, optional
        Use only this many of the first components. The default is all.
    model : path-like, optional
        The model of scores; the default is the model inside their store.
    quality : int
        Quality of JPEG files, 1 to 100.
    run : Run
        Its threads export the samples, without its cluster: the files are on this machine. ``overwrite`` replaces an
        earlier export of other samples or settings. A single file is never replaced.

    Returns
    -------
    ExportResult

    Raises
    ------
    DataError
        If the format cannot hold the samples, or an argument is invalid.
    PlanError
        If one sample does not fit the memory of a task; nothing is written.
    StoreError
        If the store cannot be read, or the target cannot be written or has other files.

    Notes
    -----
    Nothing appears under ``target`` before it is complete. An interrupted export resumes. A task decodes 16 MiB of
    samples at a time, or the samples that the store decodes together. Samples of more than 64 MiB in floating point of
    stacks and compressed stores are read and written in boxes of some samples, except to JPEG and PNG.
    """
    run = run.here()
    check_output(target, path, model)
    given = stored_samples(path, n_components, model)
    wanted, alone = _chosen(samples, given.shape[0])
    kind = _kind_of(given, quality)
    form, many = _form(format, target, kind, given, wanted, alone)
    form.check(kind, given.path, _alike(form, many))
    settings = [form.name, wanted.start, wanted.stop, wanted.step, alone, quality if form.name == "jpeg" else None]
    fingerprint = fingerprint_of(EXPORT, _VERSION, given.fingerprint, settings)
    cost, size = stopwatch(), len(wanted) * given.sample_bytes
    done = _Export(given, wanted, kind, form, run)
    if form.name == "ome-zarr":
        job = Job(target, EXPORT, fingerprint, (path, model), run.overwrite)
        peak = job.run(lambda work: done.pyramid(work, target))
    else:
        with PlainWorkspace(target, kind=EXPORT, fingerprint=fingerprint, overwrite=run.overwrite) as work:
            if work.state == "complete":
                peak = None
            elif many:
                peak = done.folder(work, target)
            else:
                peak = done.file(work, target, alone)
    return ExportResult(form.name, len(wanted), None if peak is None else cost(size, peak))


@dataclass(frozen=True, eq=False)
class _Export:
    """Writes samples into a workspace in each of three ways; each returns the peak memory and publishes."""

    given: StoredSamples
    wanted: range
    kind: SampleKind
    form: ExportFormat
    run: Run

    def folder(self, work: PlainWorkspace, target: PathLike) -> int:
        """Write a file for each sample."""
        assert self.form.encode is not None
        names = [self.given.names[i] for i in self.wanted]
        files = file_names(names, self.form.suffixes[0], self.wanted)
        if self.form.begin is not None and (boxes := self._boxes(4)) is not None:
            peak = self._write_boxes(work, target, boxes, [((), Path(work.store / file)) for file in files])
        else:
            step = self._step(4)
            job = FilesExport(self.given, self.wanted, self.kind, step, self.form.encode, str(work.store), files)
            peak = self._write(work, job)
        work.publish_folder(
            len(files), format=self.form.name, source=self.given.source, data_range=self.given.data_range
        )
        return peak

    def file(self, work: PlainWorkspace, target: PathLike, alone: bool) -> int:
        """Write one file with all samples, or with the only one."""
        name, along = f"values{self.form.suffixes[0]}", self._along()
        b_values = b_values_file(target, along) if self.form is FORMATS["nifti"] else None
        peak = self._file(work, target, alone, name)
        if os.fspath(target).lower().endswith(".gz"):
            name = compress_file(Path(work.store / name)).name
        write_beside(b_values)
        work.publish_file(name)
        return peak

    def _file(self, work: PlainWorkspace, target: PathLike, alone: bool, name: str) -> int:
        path = Path(work.store / name)
        lead = () if self.form.encode is not None and alone else (len(self.wanted),)
        if self.form.begin is not None and (boxes := self._boxes(4 if alone else 2)) is not None:
            return self._write_boxes(work, target, boxes, [(lead, path)])
        if self.form.encode is not None and (alone or self.form.begin is None):
            self._step(4)
            single = FilesExport(self.given, self.wanted, self.kind, 1, self.form.encode, str(work.store), [name])
            single.write(0)
            return peak_resident_bytes()
        assert self.form.begin is not None
        step = self._step(2)
        ((_, first),) = self._begun(work, target, [(lead, path)])
        return self._write(work, ValuesExport(self.given, self.wanted, self.kind, step, str(path), first))

    def _along(self) -> Coordinates | None:
        """Return the coordinates of the samples that are exported."""
        along = self.kind.along
        return None if along is None else along.of_samples(np.asarray(self.wanted))

    def _begun(
        self, work: PlainWorkspace, target: PathLike, files: Sequence[tuple[tuple[int, ...], Path]]
    ) -> list[tuple[str, int]]:
        """Write the headers of files, each with its axis of samples if any; return their first values' places."""
        assert self.form.begin is not None
        if not work.is_done("header"):
            require_free_space(target, len(self.wanted) * self.given.sample_bytes, "the file")
            names, along = [self.given.names[i] for i in self.wanted], self._along()
            firsts = [create_file(self.form.begin, *file, self.kind, names, along) for file in files]
            work.mark_done("header", record={"first": firsts})
        paths = (str(path) for _, path in files)
        return list(zip(paths, work.record("header")["first"], strict=True))

    def _write_boxes(
        self,
        work: PlainWorkspace,
        target: PathLike,
        boxes: ExportBoxes,
        files: Sequence[tuple[tuple[int, ...], Path]],
    ) -> int:
        """Write the values of files in boxes of samples; return the peak memory."""
        places = self._begun(work, target, files)
        if len(places) < len(self.wanted):
            (path, first), size = places[0], self.given.sample_bytes
            places = [(path, first + i * size) for i in range(len(self.wanted))]
        job = BoxesExport(self.given, self.wanted, self.kind, boxes.rows, boxes.regions, places)
        return self._write(work, job, boxes.regions)

    def _boxes(self, copies: int) -> ExportBoxes | None:
        """Return the boxes of large samples, or None if samples are written whole, with so many copies of them."""
        if not self._divides(lambda: self._step(copies)):
            return None
        return choose_export_boxes(self.given, self.kind, len(self.wanted), self.run.task_bytes())

    def _divides(self, plan_whole: Callable[[], object]) -> bool:
        """Return whether samples are written in boxes, because they are large or the plan for whole ones fails."""
        if self.given.part is None:
            return False
        if decoded_bytes(self.given.shape, self.given.dtype) > LARGE_SAMPLE:
            return True
        try:
            plan_whole()
        except PlanError:
            return True
        return False

    def pyramid(self, work: Workspace, target: PathLike) -> int:
        """Write an OME-Zarr image."""
        # An interrupted run may have had another limit of memory.
        if not work.is_done("shards"):
            work.mark_done("shards", record={"chosen": self._pyramid_shards()})
        rows, part = work.record("shards")["chosen"]
        levels = pyramid_levels(self.kind)
        layouts = [level_layout(level, self.kind, rows if part is None else 1, part) for level in levels]
        if work.state == "new":
            require_free_space(target, 2 * len(self.wanted) * self.given.sample_bytes, "the image")
        root = create_root(
            work.store,
            kind=EXPORT,
            version=_VERSION,
            fingerprint=work.fingerprint,
            source=self.given.source,
            data_range=self.given.data_range,
        )
        name = os.path.basename(os.path.normpath(self.given.path)).removesuffix(".zarr")
        root.attrs["ome"] = ome_facts(self.kind, name, self.given.data_range)
        tried = self.given.whole if part is None else tuple((0, min(n, _TRIED)) for n in self.given.shape[1:])
        create_pyramid(root, len(self.wanted), self.kind, layouts, self.given.rows(self.wanted[:1], tried))
        common = self.given, self.wanted, self.kind, rows, str(work.store)
        if part is None:
            peak = self._write(work, PyramidExport(*common))
        else:
            passes = [PyramidBoxes(*common, number, layout) for number, layout in enumerate(layouts)]
            peak = max(self._write(work, one, one.boxes, f"resolution {one.number}") for one in passes)
        write_strings(root, "name", [self.given.names[i] for i in self.wanted], "t")
        return peak

    def _pyramid_shards(self) -> tuple[int, int | None]:
        """Return the samples of a task, and the bytes of a box if shards are boxes of samples."""
        extra = 3 * SHARD_COPIES * self.given.sample_bytes
        rows = rows_of_a_shard(self.given, len(self.wanted))
        if not self._divides(lambda: self._fitting(rows, extra, pyramid_bytes(self.kind))):
            return self._fitting(rows, extra, pyramid_bytes(self.kind)), None
        return choose_pyramid_boxes(self.given, self.kind, len(self.wanted), self.run.task_bytes())

    def _write(
        self, work: Workspace, job: ExportPass, regions: Sequence[Region] | None = None, name: str = "export"
    ) -> int:
        shards = range(math.ceil(len(self.wanted) / job.step))
        if regions is None:
            writing = ShardPass(name, work, self.run, f"{job.step} samples")
            return writing.write(job, ((shard,) for shard in shards))
        writing = ShardPass(name, work, self.run, str((job.step, regions[0])), BOXES)
        return writing.write(job, itertools.product(shards, range(len(regions))))

    def _step(self, copies: int) -> int:
        """Return the samples of a task, which has so many copies of them in addition to the decoded ones."""
        unit, some = self.given.unit, max(1, _TASK_BYTES // self.given.sample_bytes)
        return self._fitting(max(some // unit, 1) * unit if some >= unit else some, copies * self.given.sample_bytes)

    def _fitting(self, rows: int, each: int, once: int = 0) -> int:
        budget, rows = self.run.task_bytes(), min(rows, len(self.wanted))

        def need(n: int) -> int:
            return TASK_OVERHEAD + self.given.work_bytes(n) + n * each + once

        while rows > 1 and need(rows) > budget:
            rows //= 2
        require_memory(f"{rows:,} samples", need(rows), budget)
        return rows


def _chosen(samples: int | slice | None, n: int) -> tuple[range, bool]:
    """Return the indices of the samples, and whether one was named by its index.

    Raises
    ------
    DataError
        If there is no such sample.
    """
    if samples is None:
        return range(n), False
    if isinstance(samples, slice):
        found = range(n)[samples]
        if not found or found.step < 1:
            raise DataError(f"samples {samples.start}:{samples.stop} are none of 0 to {n - 1}: give ascending indices")
        return found, False
    if not -n <= samples < n:
        raise DataError(f"sample {samples} is none of 0 to {n - 1}: give one of these")
    return range(samples % n, samples % n + 1), True


def _kind_of(given: StoredSamples, quality: int) -> SampleKind:
    if not 1 <= quality <= 100:
        raise DataError(f"quality is {quality}: give 1 to 100")
    along = given.coordinates
    axes, shape = list(given.axes[1:]), list(given.shape[1:])
    if CHANNEL in axes:
        shape.append(shape.pop(axes.index(CHANNEL)))
        axes.append(axes.pop(axes.index(CHANNEL)))
        at = given.axes.index(CHANNEL)
        along = along and replace(along, dims=(*along.dims[:at], *along.dims[at + 1 :], along.dims[at]))
    # Readers of variables state their names as "file.nc/variable".
    _, named, variable = str(given.source.get("name", "")).rpartition("/")
    known = {"variable": variable} if named and variable and given.source.get("kind") in ("hdf5", "netcdf3") else {}
    return SampleKind(tuple(shape), given.dtype, tuple(axes), along, quality, **known)


def _form(
    format: str | None, target: PathLike, kind: SampleKind, given: StoredSamples, wanted: range, alone: bool
) -> tuple[ExportFormat, bool]:
    """Return the format, and whether each sample has a file of its own."""
    if format is not None and format not in FORMATS:
        raise DataError(f"format is {format!r}: give one of {', '.join(FORMATS)}")
    of_target = None if os.fspath(target).endswith("/") else format_of(target)
    if format == "ome-zarr" or (format is None and of_target is FORMATS["ome-zarr"]):
        return FORMATS["ome-zarr"], False
    found = FORMATS[format] if format is not None else of_target or usual_format(kind, given.names)
    if of_target is None:
        if is_unknown(target):
            known = ", ".join(suffix for one in FORMATS.values() for suffix in one.suffixes)
            raise DataError(f"'{target}' has the suffix of no format: give one of {known}, or '{target}/' for a folder")
        if found.encode is None:
            raise DataError(f"{found.name} is one file with all samples: name it, such as {target}{found.suffixes[0]}")
        return found, True
    if found is not of_target:
        raise DataError(f"format is {found.name} but '{target}' has the suffix of {of_target.name}: leave one out")
    if found.begin is None and len(wanted) > 1:
        raise DataError(
            f"a {found.name} file holds one sample, but {len(wanted):,} of '{given.path}' are exported: give a folder, "
            f"or one sample with --samples"
        )
    return found, False


def _alike(form: ExportFormat, many: bool) -> list[ExportFormat]:
    """Return the formats that could be written instead of one."""
    return [other for other in FORMATS.values() if other is not form and (not many or other.encode is not None)]
