"""What programs that run a whole job have in common: their options, and how they tell what came of it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from dpca.cli.arguments import add_cluster_options, add_overwrite, add_source_options
from dpca.cli.running import cluster, say
from dpca.jobs import compress, find_done, open_input
from dpca.jobs.compression import Settings
from dpca.report.record import format_table
from storage.progress import bar_progress
from storage.readers import Reader


def job_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser that knows what to read, what to make and whether to keep reconstructions."""
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
    """Add what comes after the options of the model; ``measured`` says what is without reconstructions."""
    parser.add_argument(
        "--reconstruct",
        action=argparse.BooleanOptionalAction,
        default=None,
        help=f"keep the reconstructions (default: for the embedded portraits only; {measured})",
    )
    add_source_options(parser)
    add_cluster_options(parser)
    add_overwrite(parser)


def run_job(
    options: argparse.Namespace,
    embedded: Callable[[], Reader],
    settings: type[Settings],
    *,
    suffix: str,
    **model: Any,
) -> int:
    """Run a job as its options say.

    Parameters
    ----------
    options : argparse.Namespace
        Of a parser made by `job_parser` and `add_common_options`.
    embedded : callable
        Makes the source where none is given.
    settings : type
        Kind of settings; ``model`` holds those of the model.
    suffix : str
        What the output is called after its source, where no other name is given.
    """
    own = not options.source
    source = embedded() if own else options.source
    output = options.output or f"{'portraits' if own else _name_of(options.source[0])}{suffix}.zarr"
    wanted = settings(
        reconstruct=own if options.reconstruct is None else options.reconstruct,
        color=options.color,
        resize=options.resize,
        crop=options.crop,
        on_error=options.on_error,
        key=options.key,
        axes=options.axes,
        data_range=options.data_range,
        **model,
    )
    # Before a cluster is started: neither a mistake nor a finished job should take seconds to be told.
    given = open_input(source, wanted)
    outcome = find_done(given, output, wanted, overwrite=options.overwrite)
    if outcome is None:
        with cluster(options.scheduler, options.workers, options.memory) as client:
            outcome = compress(
                given, output, wanted, client=client, overwrite=options.overwrite, progress=bar_progress, say=say
            )
    if outcome.already_done:
        say(f"nothing to do: '{output}' was made from this source with these settings")
    say(format_table(outcome.report))
    say(f"store   {output}\nreport  {outcome.folder / 'index.html'}")
    return 0


def _name_of(source: str) -> str:
    return os.path.basename(os.path.normpath(source)).split("*")[0].split(".")[0] or "stack"
