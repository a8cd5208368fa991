"""Kernel PCA by Hebbian steps: Günter, Schraudolph & Vishwanathan (2007) computed again, theirs beside ours.

Writes a page with tables and pictures, and the numbers of every run as JSON. Sections whose data are not in the data
folder are left out, and named.

  usps-linear   figures 2 and 3, left: USPS digits, dot product
  usps-rbf      figures 2 and 3, right: USPS digits, Gaussian kernel
  usps-steps    figure 4: eigenvalues once a pass, or before every step
  mnist         table 2: all of MNIST, one pass, gains by the tuner (four minutes)
  mnist-methods landmarks beside scikit-learn: the error of all of MNIST's kernel matrix
  patches       figures 6 and 8, left: windows of a noisy photograph
  faces         figures 6, right, and 9: faces at three times the resolution
  digits        noisy USPS digits by linear and by kernel components
  clustering    figure 10: spectral clustering of all USPS digits
  motion        figure 11: motion capture without its noise
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
from dpca.pipelines.studies.kernel import SECTIONS, Setting
from dpca.pipelines.studies.runner import SectionPage


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    return guarded(lambda: _run(_parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    output = Path(options.output)
    setting = Setting(Path(options.data), output, options.trials)
    passes: dict[str, int] = {} if options.passes is None else {"n_passes": options.passes}
    sections = {name: partial(make, setting, **passes) for name, make in SECTIONS.items()}
    return SectionPage(output, "Kernel PCA by Hebbian steps", [options.data]).make(sections, options.only)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reproduce_kernel.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", default="../shared/data", metavar="FOLDER", help="folder of the data (default: %(default)s)"
    )
    parser.add_argument(
        "--output", default="kernel.report", metavar="FOLDER", help="page to write (default: %(default)s)"
    )
    parser.add_argument("--trials", type=positive, default=5, metavar="N", help="runs of each variant (default: 5)")
    parser.add_argument(
        "--passes", type=positive, metavar="N", help="passes over the data (default: those of the source)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, metavar="SECTION", help="make only these sections (default: all)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
