"""What all studies share: reports of one stack beside a store, and pages that consist of sections."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import zarr
from matplotlib.figure import Figure

from dpca.cli.running import say as print_line
from dpca.jobs.base.input_stack import inherited_of, open_or_ingest
from dpca.jobs.base.stages import StageCost
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.reproduction.data import MissingData
from dpca.report.page import DataTable
from dpca.report.record import aligned, read_report, report_folder, write_report
from dpca.storage.arrays.arrays import create_array, create_root, write_shard
from dpca.storage.arrays.layout import Layout
from dpca.storage.errors import StoreError
from dpca.storage.readers import Reader
from dpca.storage.remote.objects import Place
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.outputs import check_report
from dpca.storage.transaction.workspace import Workspace, fingerprint_of


@dataclass(frozen=True, eq=False)
class StackReport:
    """A report of one stack, with a store of its numbers.

    Parameters
    ----------
    kind : str
        Kind of the store.
    version : int
        Version of the store's format.
    given : Stack or Reader
        A reader is ingested into the output.
    output : path-like
        The store. The report goes to ``<output stem>.report``.
    settings : dataclass
        Everything that determines the report, beside the stack.
    reading : ReadOptions, optional
        How the samples of a reader are read.
    overwrite : bool
        Whether the output of other settings may be replaced.
    """

    kind: str
    version: int
    given: Stack | Reader
    output: str | os.PathLike[str]
    settings: Any
    reading: ReadOptions | None = None
    overwrite: bool = False

    @property
    def folder(self) -> Place:
        """The folder of the report."""
        return report_folder(self.output)

    def known(self) -> dict[str, Any] | None:
        """Return the report of an earlier run with the same settings, or None.

        Raises
        ------
        DataError, StoreError
            If the output may not be written, or if its report is missing.
        """
        return self._read() if self._job().is_done() else None

    def make(
        self,
        write: Callable[[Workspace, Stack, StageCost], None],
        run: Run = Run(),
    ) -> tuple[dict[str, Any], bool]:
        """Make store and report, unless an earlier run made them.

        Parameters
        ----------
        write : callable
            Receives the unfinished store, the stack, and the cost of the ingest. Writes the store and then the report:
            a published store always has its report.
        run : Run
            How the ingest runs.

        Returns
        -------
        report : dict
            Content of ``report.json``.
        already_done : bool
        """

        def steps(work: Workspace) -> bool:
            if work.state == "resumed":
                run.say(f"resuming the unfinished run in '{os.fspath(self.output)}.partial'")
            stack, ingest = open_or_ingest(self.given, work, self.reading or ReadOptions(), run=run)
            write(work, stack, ingest)
            return True

        made = self._job().run(steps)
        return self._read(), made is None

    def create_root(self, work: Workspace) -> zarr.Group:
        """Create the root group of the store, with the settings as attributes."""
        facts = asdict(self.settings)
        return create_root(work.store, kind=self.kind, fingerprint=work.fingerprint, version=self.version, **facts)

    def _job(self) -> Job:
        reading, given = {} if self.reading is None else vars(self.reading), self.given
        of = (given.fingerprint, given.axes, given.data_range) if isinstance(given, Stack) else (given.fingerprint(),)
        fingerprint = fingerprint_of(self.kind, self.version, *of, asdict(self.settings), reading)
        inherited = inherited_of(given, self.reading or ReadOptions())
        return Job(self.output, self.kind, fingerprint, (given,), self.overwrite, inherited, self.folder)

    def _read(self) -> dict[str, Any]:
        if (report := read_report(self.folder)) is not None:
            return report
        raise StoreError(
            f"'{os.fspath(self.output)}' has no report in '{self.folder}': remove the store and run the command again"
        )


def write_array(group: zarr.Group, name: str, values: Array, axes: tuple[str, ...]) -> None:
    """Write an array as one shard. A value may be infinite: NaN would count as damage."""
    layout = Layout(values.shape, values.shape)
    infinite = {"may_be_infinite": True}
    write_shard(create_array(group, name, values.shape, values.dtype, layout, axes, attributes=infinite), 0, values)


class Section(NamedTuple):
    """Tables, figures with their captions (heading, sentence), and the numbers behind them."""

    tables: Sequence[DataTable]
    figures: Mapping[str, Figure] = {}
    captions: Mapping[str, tuple[str, str]] = {}
    numbers: Mapping[str, Any] = {}


@dataclass(eq=False)
class SectionPage:
    """A page of sections, written again after each one, so that an interrupted run keeps what it finished.

    Parameters
    ----------
    output : Path
        Folder of the page.
    title : str
    inputs : sequence of path-like
        What the folder may not overlap.
    """

    output: Path
    title: str
    inputs: Sequence[Any] = ()
    sections: list[Section] = field(default_factory=list, init=False)
    skipped: list[tuple[str, str]] = field(default_factory=list, init=False)

    def make(self, sections: Mapping[str, Callable[[], Section]], names: Iterable[str] | None) -> int:
        """Make the sections of these names, or all; return the exit code. A section without its data is left out."""
        check_report(self.output, *self.inputs)
        self._write()  # the next run recognizes the folder by its report, and stores grow in it from now on
        for name in names or sections:
            print_line(f"{name} ...")
            try:
                self.sections.append(sections[name]())
            except MissingData as missing:
                self.skipped.append((name, str(missing)))
                print_line(f"{name}: left out, {missing}")
                continue
            self._write()
            tables = self.sections[-1].tables
            print_line("\n\n".join(aligned(table.head, table.rows) for table in tables))
            if notes := [note for table in tables for note in table.notes]:
                print_line("\n".join(notes))
        self._write()
        print_line(f"page {self.output / 'index.html'}")
        return 0

    def _write(self) -> None:
        left_out = [DataTable("Left out", ("section", "missing"), self.skipped)] if self.skipped else []
        write_report(
            self.output,
            {key: value for section in self.sections for key, value in section.numbers.items()},
            {name: figure for section in self.sections for name, figure in section.figures.items()},
            title=self.title,
            captions={name: caption for section in self.sections for name, caption in section.captions.items()},
            tables=[*(table for section in self.sections for table in section.tables), *left_out],
        )
