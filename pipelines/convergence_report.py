"""How fast streaming rules converge on a stack: against samples seen and against time, beside the exact components.

Every rule gets the samples once, in their order. Without arguments it works on the 2,000 embedded portraits.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.arguments import add_overwrite, add_source_options, positive
from dpca.cli.running import guarded, say
from dpca.jobs import CompressionSettings, open_input
from dpca.jobs.report_parts import report_folder
from dpca.models.streaming_methods import METHODS
from dpca.report.record import aligned, format_table
from pipelines.portraits import Portraits
from pipelines.studies.convergence.study import ConvergenceSettings, convergence_table, report_convergence
from storage.progress import bar_progress
from storage.readers import open_reader
from storage.readers.permuted import Permuted


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    return guarded(lambda: _run(_parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    output = options.output or _output_for(options.source)
    settings = ConvergenceSettings(
        methods=tuple(options.methods),
        n_components=options.components,
        batch_size=options.batch,
        points=options.points,
        seed=options.seed,
    )
    report, already_done = report_convergence(
        _given(options),
        output,
        settings,
        reading={name: getattr(options, name) for name in ("color", "resize", "crop", "on_error", "data_range")},
        overwrite=options.overwrite,
        progress=bar_progress,
        say=say,
    )
    if already_done:
        say(f"nothing to do: '{output}' was made from this source with these settings")
    say(f"{format_table(report)}\n\n{aligned(*convergence_table(report))}")
    say(f"store   {output}\nreport  {report_folder(output) / 'index.html'}")
    return 0


def _given(options: argparse.Namespace) -> Any:
    if not options.source:
        return Portraits()
    if options.shuffle is not None:
        source = options.source[0] if len(options.source) == 1 else options.source
        return Permuted(open_reader(source, key=options.key, axes=options.axes), options.shuffle)
    reading = CompressionSettings(key=options.key, axes=options.axes, data_range=options.data_range)
    return open_input(options.source, reading)


def _output_for(source: Sequence[str] | None) -> str:
    name = os.path.basename(os.path.normpath(source[0])).split("*")[0].split(".")[0] if source else "portraits"
    return f"{name or 'stack'}-convergence.zarr"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="convergence_report.py",
        description=__doc__,
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
    group = parser.add_argument_group("rules")
    group.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="RULE", help=", ".join(METHODS)
    )
    group.add_argument("--components", type=positive, default=10, metavar="K", help="default: %(default)s")
    group.add_argument(
        "--batch", type=positive, default=100, metavar="N", help="samples of one update (default: %(default)s)"
    )
    group.add_argument(
        "--points", type=positive, default=12, metavar="N", help="measurements of each rule (default: %(default)s)"
    )
    group.add_argument("--seed", type=int, default=0, help="of random starts (default: %(default)s)")
    parser.add_argument(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="read the samples in a random order into a store of their own (default: in the order they have)",
    )
    add_source_options(parser)
    add_overwrite(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
