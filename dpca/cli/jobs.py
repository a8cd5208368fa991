"""What the programs that run a whole job share: their options, their input, and how they report the result."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Any

from dpca.cli.arguments import add_cluster_options, add_overwrite, add_source_options, reading_options
from dpca.cli.running import run_options, say
from dpca.jobs import CompressionSettings, compress, find_done, open_input
from dpca.report.record import format_table, report_folder
from dpca.storage.readers import Reader
from dpca.storage.stack import Stack


def job_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options for what to read and what to make."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="A run that was stopped goes on where it was when the same command is given again; a finished one is "
        "recognized and not repeated.",
    )
    parser.add_argument(
        "--source",
        nargs="+",
        metavar="PATH",
        help="folder of images, .tar, .tar.gz or .zip archives, a glob of them; a Zarr array or group, .npy, .npz, "
        "IDX, HDF5 or LMDB (default: the embedded portraits)",
    )
    parser.add_argument("--output", metavar="PATH", help="store to make (default: named after the source)")
    return parser


def add_common_options(parser: argparse.ArgumentParser, *, measured: str) -> None:
    """Add the options that follow those of the model; ``measured`` says which quality is measured in any case."""
    parser.add_argument(
        "--reconstruct",
        action=argparse.BooleanOptionalAction,
        default=None,
        help=f"keep the reconstructions (default: for the embedded portraits only; {measured})",
    )
    add_source_options(parser)
    add_cluster_options(parser)
    add_overwrite(parser)


def given_input(options: argparse.Namespace, embedded: Callable[[], Reader]) -> Stack | Reader:
    """Open the source that the options of `job_parser` name, or the embedded one where they name none."""
    return open_input(options.source or embedded(), key=options.key, axes=options.axes, data_range=options.data_range)


def output_path(options: argparse.Namespace, suffix: str) -> str:
    """Return the output, by default the name of the source and a suffix."""
    first = os.path.normpath(options.source[0]) if options.source else "portraits"
    name = os.path.basename(first).split("*")[0].split(".")[0] or "stack"
    return options.output or f"{name}{suffix}.zarr"


def tell_result(report: Mapping[str, Any], output: str, already_done: bool, *more: str) -> None:
    """Print the numbers of a report, further paragraphs, and where the store and the report are."""
    if already_done:
        say(f"nothing to do: '{output}' was made from this source with these settings")
    say("\n\n".join([format_table(report), *more]))
    say(f"store   {output}\nreport  {report_folder(output) / 'index.html'}")


def run_job(options: argparse.Namespace, embedded: Callable[[], Reader], model: Any, *, suffix: str) -> int:
    """Run the main job with a model that is not fitted, as the options of `job_parser` and `add_common_options` say.

    Where no source is given, ``embedded`` makes it; where no output is, its name is that of the source and ``suffix``.
    """
    given, output = given_input(options, embedded), output_path(options, suffix)
    settings = CompressionSettings(
        model,
        reconstruct=not options.source if options.reconstruct is None else options.reconstruct,
        key=options.key,
        axes=options.axes,
        **reading_options(options),
    )
    # Before a cluster is started: neither a mistake nor a finished job should take seconds to be told.
    done = find_done(given, output, settings, overwrite=options.overwrite)
    if done is None:
        with run_options(options) as how:
            done = compress(given, output, settings, say=say, **how)
    tell_result(done.report, output, done.already_done)
    return 0
