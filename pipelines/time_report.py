"""Modes of data over time, their time series and spectra, cells and bands beside them (Alakkari 2020, chapter 6).

    python pipelines/time_report.py --source vortex.nc --dim time --modes 9

Works on any stack of images, volumes or readings in the order of time. Without arguments it works on synthetic ocean
waves.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.jobs import given_input
from dpca.cli.running import run_program
from dpca.pipelines.studies.programs import report_parser, run_report
from dpca.pipelines.studies.time.ocean import Ocean
from dpca.pipelines.studies.time.report import TimeSettings, report_time
from dpca.storage.arrays.layout import SAMPLE
from dpca.storage.errors import DataError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    parser = report_parser("time_report.py", __doc__, TimeSettings)
    parser.add_argument("--dim", metavar="NAME", help="the dim that counts samples (default: the first)")
    return run_program(lambda: _run(parser.parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    return run_report(options, _given(options), report_time, TimeSettings, "-modes")


def _given(options: argparse.Namespace) -> Any:
    """Open the source. The dim that the options name counts its samples."""
    given = given_input(options, Ocean)
    found = given.coordinates
    if options.dim is None or found is None or options.dim == found.dims[0]:
        return given
    if options.dim not in found.dims:
        raise DataError(f"--dim is {options.dim!r}, but the dims are {', '.join(found.dims)}: name one of them")
    options.axes = tuple(SAMPLE if dim == options.dim else dim for dim in found.dims)
    return given_input(options, Ocean)


if __name__ == "__main__":
    sys.exit(main())
