"""How fast streaming rules converge on a stack: against samples seen and against time, beside the exact components.

Every rule gets the samples once, in their order. Without arguments it works on the 2,000 synthetic portraits.
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
from dpca.pipelines.portraits import Portraits
from dpca.pipelines.studies.convergence.study import ConvergenceSettings, convergence_table, report_convergence
from dpca.pipelines.studies.programs import report_parser, run_report
from dpca.storage.readers import open_reader
from dpca.storage.readers.permuted import Permuted


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    parser = report_parser("convergence_report.py", __doc__, ConvergenceSettings, cluster=False)
    parser.add_argument(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="first copy the samples in a random order to a store of their own (default: keep their order)",
    )
    return run_program(lambda: _run(parser.parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    settings, suffix = ConvergenceSettings, "-convergence"
    return run_report(options, _given(options), report_convergence, settings, suffix, convergence_table)


def _given(options: argparse.Namespace) -> Any:
    if options.source and options.shuffle is not None:
        source = options.source[0] if len(options.source) == 1 else options.source
        return Permuted(open_reader(source, key=options.key, axes=options.axes), options.shuffle)
    return given_input(options, Portraits)


if __name__ == "__main__":
    sys.exit(main())
