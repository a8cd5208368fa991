"""Chapter 6 of Alakkari (2020) on data that stand for the thesis's, all of them made here: theirs beside ours.

simulations  table 6.4: five modes of ocean waves and of a vortex, ten rules in the order of time and shuffled
partitions   figure 6.12: cells, bands and whole samples of both
weather      table 6.2 and figure 6.8: stations with gaps that are filled
molecule     table 6.1 and figure 6.4: thirty components of a trajectory
elastic      equation 6.13: variances and spectra of an elastic network whose modes are known
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.arguments import positive
from dpca.cli.running import guarded
from dpca.pipelines.studies.runner import SectionPage
from dpca.pipelines.studies.time.sections import SECTIONS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    return guarded(lambda: _run(_parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    sections = {name: partial(make, options.trials) for name, make in SECTIONS.items()}
    return SectionPage(Path(options.output), "Data over time").make(sections, options.only)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reproduce_time.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", default="time.report", metavar="FOLDER", help="page to write (default: %(default)s)"
    )
    parser.add_argument("--trials", type=positive, default=10, metavar="N", help="runs of each rule (default: 10)")
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, metavar="SECTION", help="make only these sections (default: all)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
