"""Eigenimages of a stack of any size by a streaming update rule: components of whole samples, scores and a report.

    python pipelines/lsun_streaming.py --source church_train_lmdb/ --resize 128x128 --components 50 --output church.zarr

Without arguments it works on 2,000 portraits of CelebA's size from photographs inside scikit-image.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.arguments import add_job_options, add_parameters, add_seed, given_options, job_parser, options_of
from dpca.cli.jobs import given_input, output_path, run_job
from dpca.cli.running import run_program
from dpca.models.streaming.streaming_pca import StreamingPCA
from dpca.parameters.streaming import StreamingParameters
from dpca.pipelines.portraits import Portraits


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    parser = job_parser("lsun_streaming.py", __doc__)
    group = parser.add_argument_group("components", "Default: --components 50 --method incremental-svd.")
    add_parameters(group, group, options_of(StreamingParameters).values())
    add_seed(group, "seed of rules with a random start, and of the random order")
    add_job_options(parser, measured="their MSE and PSNR are measured in any case, their SSIM only if they are kept")
    return run_program(lambda: _run(parser.parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    defaults = {"n_components": 50, "method": "incremental-svd", "random_state": options.seed}
    model = StreamingPCA(**(defaults | given_options(options, StreamingParameters)))
    model.check_parameters_for(0)
    return run_job(options, given_input(options, Portraits), output_path(options, "-eigenimages"), model)


if __name__ == "__main__":
    sys.exit(main())
