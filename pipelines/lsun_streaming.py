"""Eigenimages of a stack of any size by a streaming update rule: components of whole samples, scores and a report.

    python pipelines/lsun_streaming.py --source church_train_lmdb/ --resize 128x128 --components 50 --output church.zarr

Without arguments it works on 2,000 portraits of CelebA's size from a photograph inside scikit-image.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.arguments import add_job_options, add_seed, job_parser, natural, positive
from dpca.cli.jobs import given_input, output_path, run_job
from dpca.cli.running import guarded
from dpca.models.streaming.streaming_methods import METHODS
from dpca.models.streaming.streaming_pca import StreamingPCA
from dpca.pipelines.portraits import Portraits


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    parser = job_parser("lsun_streaming.py", __doc__)
    _add_streaming_options(parser)
    add_job_options(parser, measured="their MSE and PSNR are measured in any case, their SSIM only if they are kept")
    return guarded(lambda: _run(parser.parse_args(argv)))


def _add_streaming_options(parser: argparse.ArgumentParser) -> None:
    """Add the number of components of whole samples, and the method."""
    group = parser.add_argument_group("components")
    group.add_argument("--components", type=positive, default=50, metavar="K", help="number (default: %(default)s)")
    group.add_argument(
        "--method",
        choices=tuple(METHODS),
        default="incremental-svd",
        metavar="NAME",
        help="update rule: %(choices)s (default: %(default)s, close to exact in one pass over samples in any order)",
    )
    group.add_argument(
        "--passes",
        type=positive,
        default=1,
        metavar="N",
        help="number of passes; each after the first refines the components and measures the variance that they "
        "explain (default: %(default)s)",
    )
    group.add_argument("--batch", type=positive, metavar="N", help="samples of one update (default: the rule's own)")
    group.add_argument(
        "--oversampling", type=natural, metavar="N", help="extra components that incremental-svd tracks (default: 60)"
    )
    group.add_argument(
        "--shuffle",
        action="store_true",
        help="read the samples in a random order; all rules except incremental-svd need it if images are sorted",
    )
    add_seed(group, "seed of rules with a random start, and of the random order")


def _run(options: argparse.Namespace) -> int:
    model = StreamingPCA(
        options.components,
        method=options.method,
        n_passes=options.passes,
        batch_size=options.batch,
        oversampling=options.oversampling,
        shuffle=options.shuffle,
        random_state=options.seed,
    )
    return run_job(options, given_input(options, Portraits), output_path(options, "-eigenimages"), model)


if __name__ == "__main__":
    sys.exit(main())
