"""Cells, bands, whole samples and the cosine transform side by side: chapter 4 of Alakkari 2020 from any stack.

    python pipelines/partition_report.py --source lfw.zarr --compare lfw --train-fraction 0.8 --output lfw-parts.zarr

Tables 4.1 to 4.4 and figures 4.3 to 4.9, with the samples that no fit saw in columns of their own where some are held
out. Without arguments it works on the 2,000 embedded portraits.
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

from dpca.cli.arguments import add_cluster_options, add_overwrite, add_source_options, cell_lengths, natural, positive
from dpca.cli.running import cluster, guarded, say
from dpca.jobs import CompressionSettings, open_input
from dpca.jobs.report_parts import report_folder
from dpca.report.record import format_table
from pipelines.portraits import Portraits
from pipelines.studies.partitions import PartitionSettings, known_report, report_partitions
from pipelines.studies.partitions.published import DATA_SETS
from storage.progress import bar_progress


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    return guarded(lambda: _run(_parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    output = options.output or _output_for(options.source)
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
    given = _given(options)
    reading = {name: getattr(options, name) for name in ("color", "resize", "crop", "on_error", "data_range")}
    # Before a cluster is started: neither a mistake nor a finished job should take seconds to be told.
    report = known_report(given, output, settings, reading=reading, overwrite=options.overwrite)
    if report is not None:
        say(f"nothing to do: '{output}' was made from this source with these settings")
    else:
        with cluster(options.scheduler, options.workers, options.memory) as client:
            report = report_partitions(
                given,
                output,
                settings,
                reading=reading,
                client=client,
                overwrite=options.overwrite,
                progress=bar_progress,
                say=say,
            )
    say(format_table(report))
    say(f"store   {output}\nreport  {report_folder(output) / 'index.html'}")
    return 0


def _given(options: argparse.Namespace) -> Any:
    if not options.source:
        return Portraits()
    reading = CompressionSettings(key=options.key, axes=options.axes, data_range=options.data_range)
    return open_input(options.source, reading)


def _output_for(source: Sequence[str] | None) -> str:
    name = os.path.basename(os.path.normpath(source[0])).split("*")[0].split(".")[0] if source else "portraits"
    return f"{name or 'stack'}-partitions.zarr"


def _all_or_positive(text: str) -> int | None:
    return None if text == "all" else positive(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="partition_report.py",
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
    group = parser.add_argument_group("partitions")
    group.add_argument(
        "--cells",
        nargs="+",
        type=cell_lengths,
        metavar="N[xM[xL]]",
        help="cell lengths in pixels, one of each size (default: 5 10 25 for images; as many pixels, 25, 100 and 625, "
        "for volumes and vectors)",
    )
    group.add_argument(
        "--ratio", type=float, default=15.0, metavar="R", help="attributes to one score (default: %(default)g)"
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
    group.add_argument("--band-components", type=positive, metavar="K", help="of each band (default: by the ratio)")
    group.add_argument(
        "--intervals", type=positive, default=50, metavar="S", help="of the means of bands (default: %(default)s)"
    )
    group.add_argument(
        "--estimating",
        type=positive,
        nargs="*",
        default=[100, 1000],
        metavar="N",
        help="samples that means and variances are estimated from, beside all (default: 100 1000)",
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
        help="samples to reconstruct and compare, spread over all, or 'all' (default: %(default)s)",
    )
    group.add_argument(
        "--compare", choices=DATA_SETS, default="none", help="the thesis's numbers of this data set beside ours"
    )
    group.add_argument("--seed", type=natural, default=0, help="of all that is random (default: %(default)s)")
    add_source_options(parser)
    add_cluster_options(parser)
    add_overwrite(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
