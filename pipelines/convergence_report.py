"""How fast streaming rules converge on a stack: against samples seen and against time, beside the exact components.

Every rule gets the samples once, in their order. Without arguments it works on the 2,000 embedded portraits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.arguments import add_overwrite, add_source_options, job_parser, positive, reading_options
from dpca.cli.jobs import given_input, output_path, tell_result
from dpca.cli.running import guarded, say
from dpca.cli.work import shown_progress
from dpca.parameters.streaming import METHODS
from dpca.pipelines.portraits import Portraits
from dpca.pipelines.studies.convergence.study import ConvergenceSettings, convergence_table, report_convergence
from dpca.report.record import aligned
from dpca.storage.readers import open_reader
from dpca.storage.readers.permuted import Permuted
from dpca.storage.run import Run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    return guarded(lambda: _run(_parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    output = output_path(options, "-convergence")
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
        reading=reading_options(options),
        run=Run(overwrite=options.overwrite, progress=shown_progress, say=say),
    )
    tell_result(report, output, already_done, aligned(*convergence_table(report)))
    return 0


def _given(options: argparse.Namespace) -> Any:
    if options.source and options.shuffle is not None:
        source = options.source[0] if len(options.source) == 1 else options.source
        return Permuted(open_reader(source, key=options.key, axes=options.axes), options.shuffle)
    return given_input(options, Portraits)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("convergence_report.py", __doc__)
    group = parser.add_argument_group("rules")
    group.add_argument(
        "--methods",
        nargs="+",
        choices=METHODS,
        default=list(METHODS),
        metavar="RULE",
        help="rules to compare (default: all): " + ", ".join(METHODS),
    )
    group.add_argument("--components", type=positive, default=10, metavar="K", help="number (default: %(default)s)")
    group.add_argument(
        "--batch", type=positive, default=100, metavar="N", help="samples of one update (default: %(default)s)"
    )
    group.add_argument(
        "--points",
        type=positive,
        default=12,
        metavar="N",
        help="number of measurements of each rule (default: %(default)s)",
    )
    group.add_argument("--seed", type=int, default=0, help="seed of random starts (default: %(default)s)")
    parser.add_argument(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="copy the samples in a random order to a store of its own first (default: keep their order)",
    )
    add_source_options(parser)
    add_overwrite(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
