"""The main job: photographs in; cell-PCA scores, reconstructions, a quality record and its pictures out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dpca.engine.checkpoint import Checkpoints
from dpca.engine.memory import peak_resident_bytes
from dpca.jobs.cell_report import read_report, report_folder, write_job_report
from dpca.jobs.fit import fit_store
from dpca.jobs.stages import NOTHING, StageCost
from dpca.jobs.transform import SCORES_KIND, SCORES_VERSION, fill_scores
from dpca.models.cell_pca import spatial_cell
from storage.errors import DataError
from storage.ingest import ingest
from storage.layout import axes_for
from storage.progress import Progress, no_progress
from storage.readers import Reader, open_reader
from storage.readers.zarr_array import ZarrReader
from storage.stack import Stack, open_stack
from storage.workspace import Workspace, fingerprint_of

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class CompressionSettings:
    """What determines the output, beside the source.

    Parameters
    ----------
    n_components : int or None
        Components of each cell; None keeps all.
    cell_shape : int or tuple of int
        Cell length along each spatial axis.
    reconstruct : bool
        Whether to keep the reconstructions.
    color, resize, crop, on_error, key, axes, data_range
        As for `storage.ingest`.
    """

    n_components: int | None = 20
    cell_shape: int | tuple[int, ...] = 10
    reconstruct: bool = False
    color: Literal["auto", "rgb", "grey"] = "auto"
    resize: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    on_error: Literal["stop", "skip"] = "stop"
    key: str | None = None
    axes: tuple[str, ...] | None = None
    data_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Outcome:
    """What a job came to.

    Attributes
    ----------
    report : mapping
        Content of ``report.json``.
    folder : Path
        Where the report is.
    already_done : bool
        Whether an earlier run had done everything.
    """

    report: Mapping[str, Any]
    folder: Path
    already_done: bool


def compress(
    source: Source | Stack | Reader,
    output: str | os.PathLike[str],
    settings: CompressionSettings,
    *,
    client: Any,
    overwrite: bool = False,
    progress: Progress = no_progress,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Ingest a source, fit a `CellPCA`, write scores and quality, and report.

    Parameters
    ----------
    source : path-like, sequence of these, storage.Stack, or storage.readers.Reader
        Images, archives or arrays, see `storage.ingest`. A Zarr array or stack store is read where it is, without a
        copy.
    output : path-like
        Store of the scores. It holds the model as ``model``, and the ingested stack as ``stack``. The report goes to
        ``<output stem>.report``.
    settings : CompressionSettings
    client : distributed.Client
        Cluster to run on.
    overwrite : bool
        Whether an output of other settings may be replaced.
    progress : Progress
    say : callable
        Told in a line what happens.

    Raises
    ------
    DataError, PlanError, StoreError
        One sentence each; nothing appears under ``output``, and what was finished serves the next run.

    Notes
    -----
    Everything grows in ``<output>.partial`` and appears under ``output`` by one rename at the end. A stopped run goes
    on where it was; a finished one is recognized by the fingerprint of source and settings.
    """
    given = open_input(source, settings)
    if (done := find_done(given, output, settings, overwrite=overwrite)) is not None:
        return done
    fingerprint = _fingerprint(given, settings)
    folder = report_folder(output)
    with Workspace(output, kind=SCORES_KIND, fingerprint=fingerprint, overwrite=overwrite) as work:
        if work.state == "resumed":
            say(f"going on with the unfinished run in '{os.fspath(output)}.partial'")
        costs = _Costs(work)
        stack = given if isinstance(given, Stack) else _ingest(given, work, settings, client, progress, say, costs)
        say(f"fit {_times(spatial_cell(settings.cell_shape, stack.axes[1:]))} cells to {_describe(stack)}")
        _, cost = fit_store(
            stack,
            work.store / "model",
            n_components=settings.n_components,
            cell_shape=settings.cell_shape,
            client=client,
            progress=progress,
        )
        costs.note("fit", cost)
        say("write scores, reconstructions and their quality" if settings.reconstruct else "write scores and quality")
        records = Checkpoints(str(work.scratch / "records"))
        cost = fill_scores(
            stack, work.store / "model", work.store, fingerprint, records, settings.reconstruct, client, progress
        )
        costs.note("scores", cost)
        # Before the store: a store under its final name always has its report.
        report = write_job_report(stack, work.store, folder, costs.all())
        work.publish()
    return Outcome(report, folder, False)


def find_done(
    given: Stack | Reader,
    output: str | os.PathLike[str],
    settings: CompressionSettings,
    *,
    overwrite: bool = False,
) -> Outcome | None:
    """Return what an earlier run came to if it did this very job, None if there is something to do.

    Needs no cluster, and so tells before one is started, also what stands in the way of an output.

    Raises
    ------
    StoreError
        As `compress`.
    """
    kind, fingerprint = SCORES_KIND, _fingerprint(given, settings)
    with Workspace(output, kind=kind, fingerprint=fingerprint, overwrite=overwrite) as work:
        if work.state != "complete":
            return None
    folder = report_folder(output)
    stack = given if isinstance(given, Stack) else open_stack(Path(output) / "stack")
    return Outcome(read_report(folder) or write_job_report(stack, Path(output), folder, {}), folder, True)


def _fingerprint(given: Stack | Reader, settings: CompressionSettings) -> str:
    content = given.fingerprint if isinstance(given, Stack) else given.fingerprint()
    return fingerprint_of(SCORES_KIND, SCORES_VERSION, content, asdict(settings))


def open_input(source: Source | Stack | Reader, settings: CompressionSettings) -> Stack | Reader:
    """Open a Zarr source as a stack, to be read where it is, and anything else as a reader, to be ingested."""
    if isinstance(source, Reader | Stack):
        return source
    if not isinstance(source, str | os.PathLike) and len(source) == 1:
        source = source[0]
    reader = open_reader(source, key=settings.key, axes=settings.axes)
    if not isinstance(reader, ZarrReader):
        return reader
    if not isinstance(source, str | os.PathLike):
        raise DataError(f"{len(source)} sources were given and one is a Zarr array: give that one alone")
    path = os.path.join(source, settings.key) if settings.key else source
    return open_stack(path, data_range=settings.data_range, axes=settings.axes)


def _ingest(
    reader: Reader,
    work: Workspace,
    settings: CompressionSettings,
    client: Any,
    progress: Progress,
    say: Callable[[str], None],
    costs: _Costs,
) -> Stack:
    """Make the stack inside the output, with chunks that fit the cells."""
    target = work.store / "stack"
    known = target.exists()
    sample_axes = ("y", "x") if reader.encoded else reader.axes or axes_for(reader.sample_shape)
    began = time.perf_counter()
    if not known:
        say(f"ingest {len(reader):,} samples from {reader.name}")
    try:
        stack = ingest(
            reader,
            target,
            cell_shape=spatial_cell(settings.cell_shape, sample_axes),
            color=settings.color,
            resize=settings.resize,
            crop=settings.crop,
            on_error=settings.on_error,
            data_range=settings.data_range,
            client=client,
            progress=progress,
        )
    finally:
        # Its own workspace keeps what it finished; this one must then stay around it.
        if target.exists() or target.with_name("stack.partial").exists():
            work.mark_done("begun")
    held = max(client.run(peak_resident_bytes, on_error="ignore").values(), default=0)
    costs.note("ingest", NOTHING if known else StageCost(time.perf_counter() - began, stack.nbytes, held))
    return stack


class _Costs:
    """Costs of the stages, kept in the workspace, so that a run that goes on reports those of the run before."""

    _STAGES = ("ingest", "fit", "scores")

    def __init__(self, work: Workspace) -> None:
        self._work = work

    def note(self, stage: str, cost: StageCost) -> None:
        """Keep a cost, unless the stage was done by an earlier run, which kept its own."""
        if cost is not NOTHING:
            self._work.mark_done(f"stage {stage}", record=cost.as_dict())

    def all(self) -> dict[str, dict[str, Any]]:
        """Return what is known, in the order of the stages."""
        return {
            name: self._work.record(f"stage {name}") for name in self._STAGES if self._work.is_done(f"stage {name}")
        }


def _describe(stack: Stack) -> str:
    return f"{stack.n_samples:,} samples of {_times(stack.sample_shape)} {stack.dtype}"


def _times(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
