"""Chapter 6 of Alakkari (2020) on synthetic data instead of those of the thesis, theirs beside ours."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.running import run_program
from dpca.pipelines.studies.programs import run_sections, section_parser
from dpca.pipelines.studies.time.sections import SECTIONS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    parser = section_parser("reproduce_time.py", __doc__, SECTIONS, output="time.report", trials=10, data=False)
    return run_program(lambda: _run(parser.parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    return run_sections(options, "Data over time", {n: partial(f, options.trials) for n, f in SECTIONS.items()})


if __name__ == "__main__":
    sys.exit(main())
