"""Classifiers on scores of cells: chapter 5 of the thesis (Alakkari 2020) computed again, theirs beside ours.

Writes a page with tables, and the numbers as JSON. Photographs become a stack, the stack becomes cells, and the scores
of cells become inputs of 25 x 25 values. A network and a linear model learn from them on the same random splits.
Networks are trained only if torch finds an accelerator.

The output folder keeps the inputs of networks in inputs.npz. With --inputs, another machine trains on them without the
photographs. Each trial is written as soon as it ends, and a later run resumes from there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.arguments import positive
from dpca.cli.running import run_program
from dpca.pipelines.studies.programs import run_sections, section_parser, setting_of
from dpca.pipelines.studies.rednet.sections import SECTIONS, RedNetStudy


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    parser = section_parser("reproduce_rednet.py", __doc__, SECTIONS, output="rednet.report", trials=100)
    parser.add_argument("--inputs", metavar="FILE", help="inputs.npz of an earlier run, instead of photographs")
    parser.add_argument(
        "--network-trials", type=positive, default=20, metavar="N", help="trials of networks (default: 20)"
    )
    parser.add_argument("--minutes", type=positive, default=25, metavar="N", help="most time to train (default: 25)")
    parser.add_argument("--device", help="device of torch to train on (default: the accelerator, if any)")
    return run_program(lambda: _run(parser.parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    study = RedNetStudy(setting_of(options), options)
    sections = {name: partial(make, study) for name, make in SECTIONS.items()}
    return run_sections(options, "Classifiers on scores of cells", sections)


if __name__ == "__main__":
    sys.exit(main())
