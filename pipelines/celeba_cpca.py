"""Cell-based PCA of a stack of photographs: the main job, from images to scores, reconstructions and a report.

The scores are an array to work with, and the report compares originals and reconstructions. `dpca compress` makes data
smaller instead. It also reads volumes and vectors, and supports bands (--band-size) instead of cells. Without
arguments it works on 2,000 synthetic portraits of CelebA's size, made from photographs in scikit-image.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.arguments import add_job_options, job_parser
from dpca.cli.goals import add_quality
from dpca.cli.jobs import process_source
from dpca.cli.model_arguments import add_model_options
from dpca.cli.running import run_program
from dpca.pipelines.portraits import Portraits


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    parser = job_parser("celeba_cpca.py", __doc__)
    add_quality(parser)
    add_model_options(parser, required=False)
    add_job_options(parser)
    return run_program(lambda: _run(parser.parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    return process_source(options, Portraits)


if __name__ == "__main__":
    sys.exit(main())
