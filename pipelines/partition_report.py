"""Cells, bands, whole samples and the cosine transform side by side: chapter 4 of Alakkari 2020 from any stack.

    python pipelines/partition_report.py --source lfw.zarr --compare lfw --train-fraction 0.8 --output lfw-parts.zarr

Tables 4.1 to 4.4 and figures 4.3 to 4.9, with the samples that no fit saw in columns of their own where some are held
out. Without arguments it works on the 2,000 embedded portraits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.arguments import (
    add_cluster_options,
    add_overwrite,
    add_source_options,
    cell_lengths,
    job_parser,
    natural,
    positive,
    reading_options,
)
from dpca.cli.jobs import given_input, output_path, tell_result
from dpca.cli.running import guarded
from dpca.cli.work import run_of
from dpca.pipelines.portraits import Portraits
from dpca.pipelines.studies.partitions import PartitionSettings, known_report, report_partitions
from dpca.pipelines.studies.partitions.published import DATA_SETS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    return guarded(lambda: _run(_parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    output = output_path(options, "-partitions")
    settings = PartitionSettings(
        cells=None if options.cells is None else tuple(options.cells),
        ratio=options.ratio,
        holistic=options.holistic,
        band_size=options.band_size,
        band_components=options.band_components,
        n_intervals=options.intervals,
        estimating=tuple(options.estimating),
        train_fraction=options.train_fraction,
        evaluate=options.evaluate,
        seed=options.seed,
        compare=options.compare,
    )
    given, reading = given_input(options, Portraits), reading_options(options)
    # Before a cluster is started: neither a mistake nor a finished job should take seconds to be told.
    report = known_report(given, output, settings, reading=reading, overwrite=options.overwrite)
    already_done = report is not None
    if report is None:
        with run_of(options) as run:
            report = report_partitions(given, output, settings, reading=reading, run=run)
    tell_result(report, output, already_done)
    return 0


def _all_or_positive(text: str) -> int | None:
    return None if text == "all" else positive(text)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("partition_report.py", __doc__)
    group = parser.add_argument_group("partitions")
    group.add_argument(
        "--cells",
        nargs="+",
        type=cell_lengths,
        metavar="N[xM[xL]]",
        help="cell lengths in pixels to compare (default: 5 10 25 for images; cells of about 25, 100 and 625 entries "
        "for volumes and vectors)",
    )
    group.add_argument(
        "--ratio", type=float, default=15.0, metavar="R", help="attributes for each score (default: %(default)g)"
    )
    group.add_argument(
        "--holistic",
        type=positive,
        metavar="K",
        help="components of whole samples (the thesis: 1000; default: 200, or what the samples and the memory allow)",
    )
    group.add_argument(
        "--band-size",
        type=positive,
        metavar="L",
        help="most attributes of a band (default: 1875, or a quarter of a sample where that is less)",
    )
    group.add_argument(
        "--band-components", type=positive, metavar="K", help="components of a band (default: by the ratio)"
    )
    group.add_argument(
        "--intervals",
        type=positive,
        default=50,
        metavar="S",
        help="number of intervals of the mean (default: %(default)s)",
    )
    group.add_argument(
        "--estimating",
        type=positive,
        nargs="*",
        default=[100, 1000],
        metavar="N",
        help="numbers of samples to estimate means and variances from, beside all of them (default: 100 1000)",
    )
    group = parser.add_argument_group("measuring")
    group.add_argument(
        "--train-fraction",
        type=float,
        metavar="F",
        help="fit this share of the samples, spread over all, and measure the others, too (default: fit all)",
    )
    group.add_argument(
        "--evaluate",
        type=_all_or_positive,
        default=1000,
        metavar="N",
        help="number of samples to reconstruct and compare, spread over the stack, or 'all' (default: %(default)s)",
    )
    group.add_argument(
        "--compare", choices=DATA_SETS, default="none", help="show the thesis's numbers of this data set beside ours"
    )
    group.add_argument("--seed", type=natural, default=0, help="seed of everything random (default: %(default)s)")
    add_source_options(parser)
    add_cluster_options(parser)
    add_overwrite(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
