"""Cells, bands, whole samples and the cosine transform side by side: chapter 4 of Alakkari 2020 from any stack.

    python pipelines/partition_report.py --source lfw.zarr --compare lfw --train-fraction 0.8 --output lfw-parts.zarr

Tables 4.1 to 4.4 and figures 4.3 to 4.9. Held-out samples, which no fit has seen, have columns of their own. Without
arguments it works on the 2,000 synthetic portraits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.jobs import given_input
from dpca.cli.running import run_program
from dpca.pipelines.portraits import Portraits
from dpca.pipelines.studies.partitions import PartitionSettings, report_partitions
from dpca.pipelines.studies.programs import report_parser, run_report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    parser = report_parser("partition_report.py", __doc__, PartitionSettings)
    return run_program(lambda: _run(parser.parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    given = given_input(options, Portraits)
    return run_report(options, given, report_partitions, PartitionSettings, "-partitions")


if __name__ == "__main__":
    sys.exit(main())
