"""The frame of a whole job: a source in; a model, scores, a quality record and its pictures out.

What kind of model, its settings say: see `dpca.jobs.cell_compression` and `dpca.jobs.stream_compression`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dpca.engine.checkpoint import Checkpoints
from dpca.jobs.fit import fit_store
from dpca.jobs.own_stack import inherited_of, own_stack
from dpca.jobs.planning import plan_compression
from dpca.jobs.report_parts import read_report, report_folder
from dpca.jobs.stages import NOTHING, StageCost
from dpca.jobs.transform import fill_scores
from dpca.models.band_pca import BandPCA
from dpca.models.cell_pca import CellPCA
from dpca.models.scores import SCORES_VERSION
from dpca.models.streaming_pca import StreamingPCA
from storage.errors import DataError
from storage.outputs import check_output
from storage.progress import Progress, no_progress
from storage.readers import Reader, open_reader
from storage.readers.zarr_array import ZarrReader
from storage.stack import Stack, open_stack
from storage.workspace import Workspace, fingerprint_of

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings(ABC):
    """What determines the output, beside the source; the kind of model is a subclass.

    Parameters
    ----------
    reconstruct : bool
        Whether to keep the reconstructions.
    color, resize, crop, on_error, key, axes, data_range
        As for `storage.ingest`.
    """

    reconstruct: bool = False
    color: Literal["auto", "rgb", "grey"] = "auto"
    resize: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    on_error: Literal["stop", "skip"] = "stop"
    key: str | None = None
    axes: tuple[str, ...] | None = None
    data_range: tuple[float, float] | None = None

    @property
    def reading(self) -> dict[str, Any]:
        """Options of `storage.ingest` for a reader."""
        return {name: getattr(self, name) for name in ("color", "resize", "crop", "on_error", "data_range")}

    @property
    @abstractmethod
    def scores_kind(self) -> str:
        """What the store of scores calls itself."""

    @property
    @abstractmethod
    def ssim(self) -> bool:
        """Whether the SSIM of every sample is measured."""

    @abstractmethod
    def cells(self, axes: Sequence[str]) -> tuple[int, ...] | None:
        """Return the cells that the chunks of an ingested stack should fit, given the names of a sample's axes."""

    @abstractmethod
    def check(self, n_samples: int) -> None:
        """Refuse what cannot be fitted to so many samples, before anything is read."""

    @abstractmethod
    def announce(self, stack: Stack) -> str:
        """Say in a line what will be fitted."""

    @abstractmethod
    def estimator(self) -> CellPCA | BandPCA | StreamingPCA:
        """Return the model, not fitted."""

    def fit(self, stack: Stack, target: Path, client: Any, progress: Progress) -> tuple[StageCost, list[str]]:
        """Fit the model and store it; return what that cost and what there is to note."""
        fitted = fit_store(stack, target, self.estimator(), client=client, progress=progress)
        return fitted.cost, fitted.notes

    @abstractmethod
    def report(
        self, stack: Stack, store: Path, folder: Path, stages: Mapping[str, Mapping[str, Any]], notes: Sequence[str]
    ) -> dict[str, Any]:
        """Write the report of a scores store and return its numbers."""


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
    settings: Settings,
    *,
    client: Any | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    say: Say = lambda text: None,
) -> Outcome:
    """Ingest a source, fit a model, write scores and quality, and report.

    Parameters
    ----------
    source : path-like, sequence of these, storage.Stack, or storage.readers.Reader
        Images, archives or arrays, see `storage.ingest`. A Zarr array or stack store is read where it is, without a
        copy.
    output : path-like
        Store of the scores. It holds the model as ``model``, and the ingested stack as ``stack``. The report goes to
        ``<output stem>.report``.
    settings : CompressionSettings or StreamingSettings
    client : distributed.Client, optional
        Cluster to run on; without one, threads of this process.
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
    The memory of every stage is planned before the first one begins. Everything grows in ``<output>.partial`` and
    appears under ``output`` by one rename at the end. A stopped run goes on where it was; a finished one is recognized
    by the fingerprint of source and settings.
    """
    given = open_input(source, settings)
    if (done := find_done(given, output, settings, overwrite=overwrite)) is not None:
        return done
    plan_compression(
        given,
        settings.reading,
        settings.cells,
        settings.estimator(),
        reconstruct=settings.reconstruct,
        ssim=settings.ssim,
        client=client,
    )
    folder = report_folder(output)
    with _workspace(given, output, settings, overwrite) as work:
        if work.state == "resumed":
            say(f"going on with the unfinished run in '{os.fspath(output)}.partial'")
        record = _Record(work)
        if isinstance(given, Stack):
            stack = given
        else:
            stack, cost = own_stack(
                given, work, settings.reading, cells=settings.cells, client=client, progress=progress, say=say
            )
            record.note("ingest", cost)
        say(settings.announce(stack))
        cost, notes = settings.fit(stack, work.store / "model", client, progress)
        record.note("fit", cost, notes)
        for note in record.notes():
            say(f"note: {note}")
        reconstruct = settings.reconstruct
        say("write scores, reconstructions and their quality" if reconstruct else "write scores and quality")
        cost = fill_scores(
            stack,
            work.store / "model",
            work.store,
            work.fingerprint,
            Checkpoints(str(work.scratch / "records")),
            reconstruct,
            client,
            progress,
            ssim=settings.ssim,
        )
        record.note("scores", cost)
        # Before the store: a store under its final name always has its report.
        report = settings.report(stack, work.store, folder, record.costs(), record.notes())
        work.publish()
    return Outcome(report, folder, False)


def find_done(
    given: Stack | Reader,
    output: str | os.PathLike[str],
    settings: Settings,
    *,
    overwrite: bool = False,
) -> Outcome | None:
    """Return what an earlier run came to if it did this very job, None if there is something to do.

    Needs no cluster, and so tells before one is started, also what is wrong with the settings and what stands in the
    way of an output.

    Raises
    ------
    DataError, StoreError
        As `compress`.
    """
    folder = report_folder(output)
    check_output(output, given, report=folder)
    settings.check(given.n_samples if isinstance(given, Stack) else len(given))
    with _workspace(given, output, settings, overwrite) as work:
        if work.state != "complete":
            return None
    stack = given if isinstance(given, Stack) else open_stack(Path(output) / "stack")
    return Outcome(read_report(folder) or settings.report(stack, Path(output), folder, {}, ()), folder, True)


def open_input(source: Source | Stack | Reader, settings: Settings) -> Stack | Reader:
    """Open plain Zarr sources as stacks, to be read where they are, and anything else as a reader, to be ingested."""
    if isinstance(source, Reader | Stack):
        return source
    if not isinstance(source, str | os.PathLike) and len(source) == 1:
        source = source[0]
    reader = open_reader(source, key=settings.key, axes=settings.axes)
    if not isinstance(reader, ZarrReader) or reader.decodes:
        return reader
    if not isinstance(source, str | os.PathLike):
        raise DataError(f"{len(source)} sources were given and one is a Zarr array: give that one alone")
    path = os.path.join(source, settings.key) if settings.key else source
    return open_stack(path, data_range=settings.data_range, axes=settings.axes)


def describe(stack: Stack) -> str:
    """Say in a few words what a stack holds."""
    return f"{stack.n_samples:,} samples of {times(stack.sample_shape)} {stack.dtype}"


def times(shape: Sequence[int]) -> str:
    """Write a shape as people do."""
    return " x ".join(map(str, shape))


def _fingerprint(given: Stack | Reader, settings: Settings) -> str:
    content = given.fingerprint if isinstance(given, Stack) else given.fingerprint()
    return fingerprint_of(settings.scores_kind, SCORES_VERSION, content, asdict(settings))


def _workspace(given: Stack | Reader, output: str | os.PathLike[str], settings: Settings, overwrite: bool) -> Workspace:
    return Workspace(
        output,
        kind=settings.scores_kind,
        fingerprint=_fingerprint(given, settings),
        overwrite=overwrite,
        inherited=inherited_of(given, settings.reading),
    )


class _Record:
    """Costs of the stages and notes, kept in the workspace: a run that goes on reports those of the run before."""

    _STAGES = ("ingest", "fit", "scores")

    def __init__(self, work: Workspace) -> None:
        self._work = work

    def note(self, stage: str, cost: StageCost, notes: Sequence[str] = ()) -> None:
        """Keep a cost, unless the stage was done by an earlier run, which kept its own."""
        if cost is not NOTHING:
            self._work.mark_done(f"stage {stage}", record={"cost": cost.as_dict(), "notes": list(notes)})

    def costs(self) -> dict[str, dict[str, Any]]:
        """Return what is known, in the order of the stages."""
        return {name: kept["cost"] for name, kept in self._kept()}

    def notes(self) -> list[str]:
        """Return what there was to note in any stage."""
        return [note for _, kept in self._kept() for note in kept["notes"]]

    def _kept(self) -> list[tuple[str, dict[str, Any]]]:
        units = [(name, f"stage {name}") for name in self._STAGES]
        return [(name, self._work.record(unit)) for name, unit in units if self._work.is_done(unit)]
