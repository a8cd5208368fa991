"""Modes of data over time, their time series and spectra, cells and bands beside them (Alakkari 2020, chapter 6).

    python pipelines/time_report.py --source vortex.nc --dim time --modes 9

Works on any stack of images, volumes or readings in the order of time. Without arguments it works on ocean waves that
it makes itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.arguments import (
    add_cluster_options,
    add_overwrite,
    add_source_options,
    job_parser,
    natural,
    positive,
    reading_options,
)
from dpca.cli.jobs import given_input, output_path, tell_result
from dpca.cli.running import guarded
from dpca.cli.work import run_of
from dpca.pipelines.studies.time.ocean import Ocean
from dpca.pipelines.studies.time.report import TimeSettings, report_time
from dpca.storage.arrays.layout import SAMPLE
from dpca.storage.errors import DataError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    return guarded(lambda: _run(_parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    output = output_path(options, "-modes")
    settings = TimeSettings(
        modes=options.modes,
        n_passes=options.passes,
        segment=options.segment,
        cell=options.cell,
        band_size=options.band_size,
        seed=options.seed,
    )
    given = _given(options)
    with run_of(options) as run:
        report, already_done = report_time(given, output, settings, reading=reading_options(options), run=run)
    tell_result(report, output, already_done)
    return 0


def _given(options: argparse.Namespace) -> Any:
    """Open the source, whose samples the dim counts that the options name."""
    given = given_input(options, Ocean)
    found = given.coordinates
    if options.dim is None or found is None or options.dim == found.dims[0]:
        return given
    if options.dim not in found.dims:
        raise DataError(f"--dim {options.dim!r} is none of the dims {', '.join(found.dims)}: name one of them")
    options.axes = tuple(SAMPLE if dim == options.dim else dim for dim in found.dims)
    return given_input(options, Ocean)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("time_report.py", __doc__)
    parser.add_argument("--dim", metavar="NAME", help="the dim that counts samples (default: the first)")
    group = parser.add_argument_group("modes")
    group.add_argument("--modes", type=positive, default=9, metavar="K", help="number (default: %(default)s)")
    group.add_argument(
        "--passes", type=positive, default=1, metavar="N", help="passes over the source for them (default: %(default)s)"
    )
    group.add_argument(
        "--segment", type=positive, metavar="N", help="samples of a segment of the spectra (default: all)"
    )
    group = parser.add_argument_group("parts beside whole samples")
    group.add_argument("--cell", type=positive, metavar="N", help="length of a cell along each axis (default: 10)")
    group.add_argument(
        "--band-size",
        type=positive,
        metavar="L",
        help="attributes of a band (default: 100, and 1000 of samples with more than 100,000)",
    )
    group.add_argument("--seed", type=natural, default=0, help="seed of everything random (default: %(default)s)")
    add_source_options(parser)
    add_cluster_options(parser)
    add_overwrite(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
