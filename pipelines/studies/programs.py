"""Command lines of the studies: options that follow from settings, and the programs that write reports and pages."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from dpca.cli.arguments import (
    add_cluster_options,
    add_overwrite,
    add_source_options,
    job_parser,
    natural,
    positive,
    reading_options,
)
from dpca.cli.jobs import output_path, tell_result
from dpca.cli.work import run_of, shown_progress
from dpca.pipelines.studies.data import Setting
from dpca.pipelines.studies.runner import ReportFunction, Section, make_page
from dpca.report.record import aligned
from dpca.storage.readers import Reader
from dpca.storage.run import Run
from dpca.storage.stack import Stack


def option(
    default: Any, text: str, metavar: str | None = "N", *, flag: str = "", parse: Any = positive, **how: Any
) -> Any:
    """Return a field of a dataclass of settings, which is also an option of the study's program.

    Parameters
    ----------
    default : object
    text : str
        What it sets. The default is added unless the text states it.
    metavar : str, optional
    flag : str
        Name of the option. Default: the name of the field.
    parse : callable
        Parser of a value.
    **how
        Further arguments of `argparse`, such as ``nargs`` and ``choices``.
    """
    if "default: " not in text:
        text += f" (default: {default})"
    return field(
        default=default, metadata={"flag": flag, "how": {"help": text, "metavar": metavar, "type": parse, **how}}
    )


def seed_option(text: str) -> Any:
    """Return the field of a seed."""
    return option(0, text, parse=natural)


def report_parser(
    program: str, description: str | None, settings: type, *, cluster: bool = True
) -> argparse.ArgumentParser:
    """Return the parser of a program that makes the report of one stack.

    Parameters
    ----------
    program : str
    description : str
    settings : type
        Dataclass of the settings, with fields from `option`.
    cluster : bool
        Whether fits can run on a cluster.
    """
    parser = job_parser(program, description)
    group = parser.add_argument_group("settings of the report")
    for one in fields(settings):
        flag = one.metadata["flag"] or one.name.replace("_", "-")
        group.add_argument(f"--{flag}", dest=one.name, default=one.default, **one.metadata["how"])
    add_source_options(parser)
    if cluster:
        add_cluster_options(parser)
    add_overwrite(parser)
    return parser


def run_report(
    options: argparse.Namespace,
    given: Stack | Reader,
    report: ReportFunction,
    settings: type,
    suffix: str,
    table: Callable[[dict[str, Any]], Any] | None = None,
) -> int:
    """Make the report of one stack with the options of `report_parser`; return the exit code.

    Parameters
    ----------
    given : Stack or Reader
    report : callable
        See `dpca.pipelines.studies.runner.stack_report`.
    suffix : str
        Added to the name of the source for the default output.
    table : callable, optional
        From ``report.json`` to the head and the rows of a table to print.
    """
    output = output_path(options, suffix)
    values = {one.name: getattr(options, one.name) for one in fields(settings)}
    chosen = settings(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
    with run_of(options) as run:
        if "scheduler" not in options:
            run = run.here()
        found, already_done = report(given, output, chosen, reading=reading_options(options), run=run)
    tell_result(found, output, already_done, *([aligned(*table(found))] if table else []))
    return 0


def section_parser(
    program: str,
    description: str | None,
    parts: Mapping[str, Callable[..., Any]],
    *,
    output: str,
    trials: int,
    data: bool = True,
) -> argparse.ArgumentParser:
    """Return the parser of a program that reproduces the parts of a publication.

    Parameters
    ----------
    program : str
    description : str
    parts : mapping of str to callable
        The first line of the docstring of each is part of the help.
    output : str
        Default of the output.
    trials : int
        Default number of trials.
    data : bool
        Whether the parts read data.
    """
    width = max(map(len, parts))
    lines = (f"  {name:<{width}}  {(make.__doc__ or '').partition(chr(10))[0]}" for name, make in parts.items())
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog="parts:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if data:
        parser.add_argument(
            "--data",
            default="../shared/data",
            metavar="FOLDER",
            help="folder of the data; parts without their data are left out, and named (default: %(default)s)",
        )
    parser.add_argument("--output", default=output, metavar="PATH", help="report to write (default: %(default)s)")
    parser.add_argument("--trials", type=positive, default=trials, metavar="N", help=f"trials (default: {trials})")
    parser.add_argument("--only", nargs="+", choices=parts, metavar="PART", help="make only these (default: all)")
    return parser


def setting_of(options: argparse.Namespace, workspace: str | Path | None = None) -> Setting:
    """Return the setting of the options of `section_parser`. The default workspace is the output."""
    run = Run(progress=shown_progress)
    return Setting(Path(*_data(options)), Path(workspace or options.output), options.trials, run)


def run_sections(options: argparse.Namespace, title: str, sections: Mapping[str, Callable[[], Section]]) -> int:
    """Write a page of the sections of the options; return the exit code."""
    make_page(Path(options.output), title, sections, options.only, *_data(options))
    return 0


def _data(options: argparse.Namespace) -> list[str]:
    return [options.data] if "data" in options else []
