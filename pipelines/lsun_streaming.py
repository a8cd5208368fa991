"""Eigenimages of a stack of any size by a streaming update rule: components of whole samples, scores and a report.

    python pipelines/lsun_streaming.py --source church_train_lmdb/ --resize 128x128 --components 50 --output church.zarr

Without arguments it works on 2,000 portraits of CelebA's size that are cut from a photograph inside scikit-image.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.arguments import add_streaming_options
from dpca.cli.jobs import add_common_options, job_parser, run_job
from dpca.cli.running import guarded
from dpca.models.streaming_methods import METHODS
from dpca.models.streaming_pca import StreamingPCA
from pipelines.portraits import Portraits


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    parser = job_parser("lsun_streaming.py", __doc__)
    add_streaming_options(parser, METHODS)
    add_common_options(parser, measured="their MSE and PSNR are measured in any case, their SSIM only if they are kept")
    return guarded(lambda: _run(parser.parse_args(argv)))


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
    return run_job(options, lambda: Portraits(), model, suffix="-eigenimages")


if __name__ == "__main__":
    sys.exit(main())
