"""Kernel PCA by Hebbian steps: Günter, Schraudolph & Vishwanathan (2007) computed again, theirs beside ours.

Writes a page with tables and pictures, and the numbers of every run as JSON.
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
from dpca.pipelines.studies.kernel import SECTIONS
from dpca.pipelines.studies.programs import run_sections, section_parser, setting_of


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    parser = section_parser("reproduce_kernel.py", __doc__, SECTIONS, output="kernel.report", trials=5)
    parser.add_argument(
        "--passes", type=positive, metavar="N", help="passes over the data (default: those of the publication)"
    )
    return run_program(lambda: _run(parser.parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    setting, passes = setting_of(options), {"n_passes": options.passes} if options.passes else {}
    sections = {name: partial(make, setting, **passes) for name, make in SECTIONS.items()}
    return run_sections(options, "Kernel PCA by Hebbian steps", sections)


if __name__ == "__main__":
    sys.exit(main())
