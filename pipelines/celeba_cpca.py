"""Cell-based PCA of a stack of photographs: the main job, from images to scores, reconstructions and a report.

Without arguments it works on 2,000 portraits of CelebA's size that are cut from a photograph inside scikit-image.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from dpca.cli.arguments import add_cluster_options, add_model_options, add_overwrite, add_source_options
from dpca.cli.running import cluster, guarded, say
from dpca.jobs import CompressionSettings, compress, find_done, open_input
from dpca.report import format_table
from pipelines.portraits import Portraits
from storage.progress import bar_progress


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    options = _parser().parse_args(argv)
    return guarded(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    embedded = not options.source
    source = Portraits() if embedded else options.source
    output = options.output or ("portraits.zarr" if embedded else _output_for(options.source[0]))
    settings = CompressionSettings(
        n_components=options.components,
        cell_shape=options.cell,
        reconstruct=embedded if options.reconstruct is None else options.reconstruct,
        color=options.color,
        resize=options.resize,
        crop=options.crop,
        on_error=options.on_error,
        key=options.key,
        axes=options.axes,
        data_range=options.data_range,
    )
    # Before a cluster is started: neither a mistake nor a finished job should take seconds to be told.
    given = open_input(source, settings)
    outcome = find_done(given, output, settings, overwrite=options.overwrite)
    if outcome is None:
        with cluster(options.scheduler, options.workers, options.memory) as client:
            outcome = compress(
                given, output, settings, client=client, overwrite=options.overwrite, progress=bar_progress, say=say
            )
    if outcome.already_done:
        say(f"nothing to do: '{output}' was made from this source with these settings")
    say(format_table(outcome.report))
    say(f"store   {output}\nreport  {outcome.folder / 'index.html'}")
    return 0


def _output_for(source: str) -> str:
    name = os.path.basename(os.path.normpath(source)).split("*")[0].split(".")[0]
    return f"{name or 'stack'}-cpca.zarr"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="celeba_cpca.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="A run that was stopped goes on where it was when the same command is given again; a finished one is "
        "recognized and not repeated.",
    )
    parser.add_argument(
        "--source",
        nargs="+",
        metavar="PATH",
        help="folder of images, .tar, .tar.gz or .zip archives, a glob of them; a Zarr array or group, .npy, .npz, "
        "IDX, HDF5 or LMDB (default: the embedded portraits)",
    )
    parser.add_argument("--output", metavar="PATH", help="store to make (default: named after the source)")
    add_model_options(parser, required=False)
    parser.add_argument(
        "--reconstruct",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep the reconstructions (default: for the embedded portraits only; quality is measured in any case)",
    )
    add_source_options(parser)
    add_cluster_options(parser)
    add_overwrite(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
