"""What all studies share: reports of one stack with a store, and pages of sections."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import zarr
from matplotlib.figure import Figure

from dpca.cli.running import say as print_line
from dpca.jobs.base.input_stack import inherited_of, open_or_ingest
from dpca.jobs.base.stages import StageCost
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.data import MissingData
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

T = TypeVar("T")


class Picture(NamedTuple):
    """A figure, or the content of a PNG file, with its heading and caption."""

    figure: Figure | bytes
    heading: str
    caption: str


Pictures = Mapping[str, Picture]
"""Pictures by the name of their file, in the order of the page."""


@dataclass(frozen=True, eq=False)
class StudyJob:
    """What the function of a `stack_report` receives.

    Attributes
    ----------
    settings : dataclass
    stack : Stack
    work : Workspace
        The unfinished store.
    ingest : StageCost
        Cost of the ingest; zero if there was none.
    create_root : callable
        Creates the root group of the store, with the settings as attributes.
    folder : Place
        Folder of the report.
    run : Run
    """

    settings: Any
    stack: Stack
    work: Workspace
    ingest: StageCost
    create_root: Callable[[], zarr.Group]
    folder: Place
    run: Run

    def write_report(
        self, title: str, numbers: Mapping[str, Any], pictures: Pictures, tables: Sequence[DataTable]
    ) -> None:
        """Write the report: numbers with those of the stack, pictures and tables. ``{}`` in the title is its name."""
        stack = self.stack
        write_page(
            self.folder,
            title.format(stack.source.get("name") or "a stack"),
            {"samples": stack.n_samples, "sample_shape": stack.sample_shape, **numbers, "source": stack.source},
            pictures,
            tables,
        )


ReportFunction = Callable[..., tuple[dict[str, Any], bool]]
"""Makes the report of one stack; see `stack_report`."""


def stack_report(
    kind: str, version: int, check: Callable[[Any, Stack | Reader], Any]
) -> Callable[[Callable[[StudyJob], None]], ReportFunction]:
    """Return a decorator that turns the function of a study into one that ingests, resumes and publishes.

    Parameters
    ----------
    kind, version : str, int
        Kind of the store that the study writes, and version of its format.
    check : callable
        Receives settings and input before anything is written, and raises an error if they are invalid.

    Notes
    -----
    The decorated function receives a `StudyJob`, and writes the store and then the report: a published store always has
    its report. The result is a function with these parameters:

    given : Stack or Reader
        A reader is ingested into the output.
    output : path-like
        Store to write. The report is in ``<output stem>.report``.
    settings : dataclass
        Everything that determines the report, beside the stack.
    reading : ReadOptions, optional
        How the samples of a reader are read.
    run : Run
        How ingest and fits run, and whether an output of other settings may be replaced.

    It returns the content of ``report.json``, and whether an earlier run made it. It raises `DataError`, `PlanError` or
    `StoreError`. An interrupted run resumes.
    """

    def decorate(write: Callable[[StudyJob], None]) -> ReportFunction:
        @functools.wraps(write)
        def report(
            given: Stack | Reader,
            output: str | os.PathLike[str],
            settings: Any,
            *,
            reading: ReadOptions = ReadOptions(),
            run: Run = Run(),
        ) -> tuple[dict[str, Any], bool]:
            check(settings, given)
            folder, facts = report_folder(output), asdict(settings)
            fingerprint = fingerprint_of(kind, version, *_identity(given), facts, vars(reading))
            job = Job(output, kind, fingerprint, (given,), run.overwrite, inherited_of(given, reading), folder)

            def steps(work: Workspace) -> bool:
                if work.state == "resumed":
                    run.say(f"resuming the unfinished run in '{os.fspath(output)}.partial'")
                stack, ingest = open_or_ingest(given, work, reading, run=run)
                stated = {"kind": kind, "fingerprint": work.fingerprint, "version": version, **facts}
                root = functools.partial(create_root, work.store, **stated)
                write(StudyJob(settings, stack, work, ingest, root, folder, run))
                return True

            already_done = job.run(steps) is None
            if (found := read_report(folder)) is None:
                raise StoreError(
                    f"'{os.fspath(output)}' has no report in '{folder}': remove the store and run the command again"
                )
            return found, already_done

        return report

    return decorate


def _identity(given: Stack | Reader) -> tuple[Any, ...]:
    return (given.fingerprint, given.axes, given.data_range) if isinstance(given, Stack) else (given.fingerprint(),)


def write_array(group: zarr.Group, name: str, values: Array, axes: tuple[str, ...]) -> None:
    """Write an array as one shard. A value may be infinite: NaN would count as damage."""
    layout = Layout(values.shape, values.shape)
    infinite = {"may_be_infinite": True}
    write_shard(create_array(group, name, values.shape, values.dtype, layout, axes, attributes=infinite), 0, values)


def rows_of(curves: Iterable[Sequence[float] | Array], length: int) -> Array:
    """Return curves as rows of one array, with infinity after the end of a shorter one."""
    return np.stack([np.pad(np.asarray(c, float), (0, length - len(c)), constant_values=np.inf) for c in curves])


def write_page(
    folder: Place | Path, title: str, numbers: Mapping[str, Any], pictures: Pictures, tables: Sequence[DataTable]
) -> None:
    """Write the folder of a report."""
    write_report(
        folder,
        numbers,
        {name: picture.figure for name, picture in pictures.items()},
        title=title,
        captions={name: (picture.heading, picture.caption) for name, picture in pictures.items()},
        tables=tables,
    )


@dataclass(frozen=True)
class Section:
    """Tables, pictures, and the numbers behind them."""

    tables: Sequence[DataTable]
    pictures: Pictures = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)


def make_each(
    parts: Mapping[str, Callable[[], T]],
    names: Iterable[str] | None,
    show: Callable[[T], None],
    write: Callable[[list[T], dict[str, str]], None],
) -> None:
    """Make the parts of a report with these names, or all, and leave out those without data.

    Parameters
    ----------
    show : callable
        Prints a part.
    write : callable
        Writes the report of the parts so far, and of the missing data by name. It is called after each part, so that an
        interrupted run keeps the finished parts.
    """
    made: list[T] = []
    missing: dict[str, str] = {}
    for name in names or parts:
        print_line(f"{name} ...")
        try:
            made.append(parts[name]())
        except MissingData as error:
            missing[name] = str(error)
            print_line(f"{name}: left out, missing {error}")
            continue
        write(made, missing)
        show(made[-1])
    write(made, missing)


def make_page(
    output: Path, title: str, sections: Mapping[str, Callable[[], Section]], names: Iterable[str] | None, *inputs: Any
) -> None:
    """Write a page of the sections with these names, or all.

    Parameters
    ----------
    output : Path
        Folder of the page.
    title : str
    sections : mapping of str to callable
    names : iterable of str or None
    *inputs : path-like
        Paths that the folder may not overlap.
    """

    def write(made: Sequence[Section], missing: Mapping[str, str]) -> None:
        tables = [table for section in made for table in section.tables]
        if missing:
            tables.append(DataTable("Left out", ("section", "missing"), list(missing.items())))
        numbers = {key: value for section in made for key, value in section.numbers.items()}
        pictures = {name: picture for section in made for name, picture in section.pictures.items()}
        write_page(output, title, numbers, pictures, tables)

    check_report(output, *inputs)
    write([], {})  # the next run recognizes the folder by its report, and stores grow in it from now on
    make_each(sections, names, _print_section, write)
    print_line(f"page {output / 'index.html'}")


def _print_section(section: Section) -> None:
    print_line("\n\n".join(aligned(table.head, table.rows) for table in section.tables))
    if notes := [note for table in section.tables for note in table.notes]:
        print_line("\n".join(notes))
