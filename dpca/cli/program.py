"""The subcommands of ``dpca`` and their help."""

from __future__ import annotations

import argparse
import sys
from collections import ChainMap
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any

import shtab

from dpca import __version__
from dpca.cli.arguments import (
    RESUMES,
    SOURCES,
    add_cluster_options,
    add_job_options,
    add_kept_options,
    add_overwrite,
    add_parameters,
    add_seed,
    add_source_options,
    add_storage_option,
    cell_lengths,
    counts,
    named_value,
    natural,
    options_of,
    positive,
    positive_number,
    sample_lengths,
)
from dpca.cli.given_texts import repeated_options
from dpca.cli.goals import add_quality
from dpca.cli.model_arguments import add_compression_options, add_model_options
from dpca.cli.model_parsers import add_model_commands
from dpca.cli.running import MEANINGS, run_program
from dpca.engine.folds.stopping import defer_signals, nothing_resumes
from dpca.parameters.streaming import StreamingParameters

_DESCRIPTION = (
    """\
Principal component analysis of image and volume stacks of any size.

  dpca compress faces.zip small.zarr                    images -> a compressed store, which is smaller
  dpca export small.zarr out/                           a store -> files again
  dpca scores faces.zip out.zarr                        images -> model, scores, quality and a report, or step by step:
  dpca ingest faces.zip faces.zarr                      images -> stack store
  dpca synthetic lsun.zarr --samples 3033042              a synthetic stack of any size, for trials
  dpca info faces.zarr                                  metadata of a store
  dpca fit faces.zarr model.zarr --cell 10 --components 20             or --band-size 1875
  dpca transform model.zarr faces.zarr scores.zarr      stack -> scores and their quality
  dpca reconstruct small.zarr again.zarr                a compressed store or scores -> stack store
  dpca encode model.zarr faces.zarr small.zarr --psnr 36    a compressed store that opens as the stack
  dpca denoise movie.zarr clean.zarr --noise poisson    a stack without its noise, and maps of the noise
  dpca fill sst.nc filled.zarr                          a stack without gaps, and a map of standard errors
  dpca plan faces.zarr --workers 1,8                    estimated time and memory of a job
  dpca job run nightly.toml                             run a job file, for schedulers
  dpca append small.zarr more/                          append samples to a compressed store
  dpca explore faces.zarr                               view images or a store on a local page
  dpca watch run.zarr modes.zarr --components 9         fit a stack that is still being written
  dpca verify again.zarr                                check every chunk against its checksum

Every output is atomic: it appears under its name only when it is complete. """
    + RESUMES
)

_EPILOG = "exit codes:\n" + "\n".join(f"  {code:<15}  {meaning}" for code, meaning in MEANINGS.items())
# Commands that keep nothing from which an interrupted run resumes.
_KEEP_NOTHING = (
    *("commands:make_synthetic", "commands:info", "commands:verify_store", "commands:compare"),
    *("jobs:plan", "explore:explore"),
)


def run(argv: Sequence[str] | None = None) -> int:
    """Run ``dpca`` and return its exit code (see `dpca.cli.running`)."""
    return run_program(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    options.argv = sys.argv[1:] if argv is None else list(argv)
    if options.run is None:
        parser.print_help()
        return 2
    if options.run.removeprefix("dpca.cli.") in _KEEP_NOTHING or getattr(options, "dry_run", False):
        nothing_resumes()
    # Libraries are imported here, because help and parser errors need none. An interrupted import may swallow a signal.
    with defer_signals():
        run = resolve_name(options.run)
        if options.storage_option:
            resolve_name("dpca.storage.remote.network:use_storage_options")(
                dict(ChainMap(*reversed(options.storage_option)))
            )
    return int(run(options))


def next_command(name: str, options: argparse.Namespace, *positional: str, without: Sequence[str]) -> list[str]:
    """Return the arguments of a command with positional arguments, and with the options of another command line.

    ``without`` are names of options that are left out.
    """
    command, *argv = options.argv
    commands = _commands(_parser())
    return [name, *positional, *repeated_options(commands[command], argv, commands[name], without)]


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (commands,) = (one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return dict(commands)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpca", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=None)
    parser.add_argument("--version", action="version", version=f"dpca {__version__}")
    shtab.add_argument_to(parser, help="print a script that completes commands, options and paths in a shell")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")

    def command(
        name: str, run: str, text: str, example: str, among: Any = subparsers, **paths: str
    ) -> argparse.ArgumentParser:
        """Add a command that calls ``run``, with one positional argument for each of ``paths``, name to help."""
        sub: argparse.ArgumentParser = among.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=f"example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for path, what in paths.items():
            # A model is optional if it comes before other stores.
            several = {"source": "+", "model": "?" if "store" in paths else None}.get(path)
            argument = sub.add_argument(path, nargs=several, help=what)
            argument.complete = shtab.FILE  # type: ignore[attr-defined]
        add_storage_option(sub)
        sub.set_defaults(run=f"dpca.cli.{run}")
        return sub

    compress = command(
        "compress",
        "jobs:process_source",
        "make images, archives or arrays smaller: a compressed store that opens as the original array",
        "dpca compress photos/ small.zarr\n"
        "         dpca compress faces.zip small.zarr --quality high\n"
        "         dpca compress fields.nc small/ --quality max-error=u:0.001,p:5",
        source=SOURCES,
        output="compressed store to write; the report goes next to it, into OUTPUT.report",
    )
    add_quality(compress, "medium", by_variable=True)
    add_compression_options(compress)
    add_job_options(compress, default="no", measured=None)

    scores = command(
        "scores",
        "jobs:process_source",
        "fit a model to images, archives or arrays, and write scores to work with, and their quality",
        "dpca scores photos/ out.zarr --cell 10 --components 20 --reconstruct\n"
        "         dpca scores faces.zip out.zarr --target-psnr 33",
        source=SOURCES,
        output="store to write; the report goes next to it, into OUTPUT.report",
    )
    scores.set_defaults(quality=None, every_sample=False)
    add_model_options(scores, required=False, without=["gaps"])
    add_job_options(scores, default="no")

    plan = command(
        "plan",
        "jobs:plan",
        "estimate time, memory and bytes of 'dpca scores', or with --quality of 'dpca compress'",
        "dpca plan lfw.zarr --cell 10 --components 20 --workers 1,2,8,64\n"
        "         dpca plan lsun.zarr --method incremental-svd --components 50\n"
        "         dpca plan photos/ --quality medium",
        source=SOURCES,
    )
    add_quality(plan)
    add_model_options(plan, required=False, without=["gaps"])
    add_parameters(plan, plan, [options_of(StreamingParameters)["method"]])
    add_kept_options(plan, "no", "quality is always measured")
    add_source_options(plan)
    plan.add_argument(
        "--workers",
        type=counts,
        metavar="N,...",
        help="numbers of workers to plan for; if there are more than processors on this machine, each is assumed to "
        "have its own processor (default: 1 per processor)",
    )
    plan.add_argument(
        "--memory", metavar="SIZE", help="memory of each worker (default: an equal share of this machine's)"
    )
    plan.add_argument("--json", action="store_true", help="print a line of JSON for each number of workers")

    ingest = command(
        "ingest",
        "commands:ingest_stack",
        "copy images, archives or arrays to a stack store",
        "dpca ingest lfw-*.tar lfw.zarr --cell 10",
        source=SOURCES,
        target="stack store to write",
    )
    ingest.add_argument(
        "--cell", type=cell_lengths, metavar="N[xM[xL]]", help="choose chunks that fit cells of this length"
    )
    ingest.add_argument("--topology", metavar="FILE", help="topology of a trajectory (PSF, PDB, GRO, TPR, ...)")
    ingest.add_argument(
        "--select", metavar="WORDS", help="atoms to read, in MDAnalysis syntax: 'backbone', 'name CA', 'protein'"
    )
    add_source_options(ingest)

    synthetic = command(
        "synthetic",
        "commands:make_synthetic",
        "make a synthetic stack of any size: its samples are computed when they are read",
        "dpca synthetic lsun.zarr --samples 3033042 --shape 256x256x3\n"
        "         dpca synthetic waves.zarr --model moving --samples 5000 --shape 128x256 --parameter period=40",
        path="stack store to write, with a size of one kilobyte",
    )
    synthetic.add_argument(
        "--model", default="portraits", metavar="NAME", help="image model of the samples (default: %(default)s)"
    )
    synthetic.add_argument("--samples", type=positive, required=True, metavar="N", help="number of samples")
    synthetic.add_argument(
        "--shape", type=sample_lengths, default=(256, 256, 3), metavar="HxWxC", help="sample shape (default: 256x256x3)"
    )
    add_seed(synthetic, "seed of the samples")
    synthetic.add_argument(
        "--parameter",
        type=named_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="parameter of the image model; order=sorted makes consecutive samples similar, as in folders of persons",
    )

    info = command(
        "info",
        "commands:info",
        "print the metadata of a store, archive, folder or array",
        "dpca info lfw.zarr",
        path="store of any kind, or a source that could be ingested",
    )
    info.add_argument("--json", action="store_true", help="print JSON, for scripts")

    system = command(
        "system",
        "commands:describe_system",
        "print what the speed of this machine depends on: processors, memory, BLAS and products of integers",
        "dpca system",
    )
    system.add_argument("--json", action="store_true", help="print JSON, for scripts")

    add_model_commands(command)

    verify = command(
        "verify",
        "commands:verify_store",
        "read every chunk of a store and check it",
        "dpca verify scores.zarr\n         dpca verify small.zarr --stack photos/",
        path="store that dpca created",
    )

    compare = command(
        "compare",
        "commands:compare",
        "compare a compressed store with other codecs, on samples of its source",
        "dpca compare small.zarr photos/ --plot rates.png",
        store="compressed store",
        stack=f"what the store was made from: a stack; or {SOURCES}",
    )
    compare.add_argument("--sample", type=positive, metavar="N", help="use N samples (default: 100 images, or 64 MiB)")
    compare.add_argument("--plot", metavar="FILE", help="plot bytes against error to this PNG file")
    compare.add_argument("--json", action="store_true", help="print a line of JSON for each codec and setting")

    explore = command(
        "explore",
        "explore:explore",
        "show images, archives, arrays, models or stores on a local page",
        "dpca explore photos/                           with a fit to it, while it runs\n"
        "         dpca explore lfw.zarr --model model.zarr\n"
        "         dpca explore out.zarr --stack lfw.zarr",
        source=f"a stack, a model, scores or a compressed store; or {SOURCES}",
    )
    explore.add_argument("--stack", metavar="SOURCE", help="samples of the scores, the model or the compressed store")
    explore.add_argument("--model", metavar="MODEL", help="model of the stack or of the scores")
    explore.add_argument(
        "--components",
        type=positive,
        default=20,
        metavar="K",
        help="for a stack without a model, fit this many components (default: %(default)s)",
    )
    explore.add_argument("--host", default="localhost", help="address to serve at (default: this machine only)")
    explore.add_argument("--port", type=natural, default=0, metavar="N", help="port to serve at (default: a free one)")
    add_source_options(explore, whole=False, masked=False)
    explore.set_defaults(on_error="skip")  # a broken image is reported when it is shown

    watch = command(
        "watch",
        "watch:watch",
        "fit components to a stack while it is being written, and report their variance",
        "dpca watch run.zarr modes.zarr --components 9",
        path="stack that a dpca.storage.Appender writes; it may not exist yet",
        model="model to write; the same command resumes from it",
    )
    watch.add_argument(
        "--components", type=positive, default=10, metavar="K", help="number of components (default: %(default)s)"
    )
    watch.add_argument(
        "--every", type=positive_number, default=10.0, metavar="S", help="seconds between two reports (default: 10)"
    )
    watch.add_argument(
        "--patience",
        type=positive_number,
        default=float("inf"),
        metavar="S",
        help="seconds without a new sample after which the writer counts as lost (default: no limit)",
    )

    jobs = subparsers.add_parser("job", help="run a job file, for schedulers: dpca job run JOB.toml")
    job = command(
        "run",
        "job:run_job_file",
        "make the compressed stores of a job file, and log each step as a line of JSON",
        "dpca job run nightly.toml --dry-run",
        among=jobs.add_subparsers(title="commands", metavar="COMMAND", required=True),
        job="TOML file with inputs, output and [target], see docs/guides/operators.md",
    )
    job.add_argument("--dry-run", action="store_true", help="only report the plan: outputs, time, memory and bytes")

    verify.add_argument(
        "--stack",
        metavar="SOURCE",
        help="what a compressed store was made from, a stack, photographs or arrays: measure its stated quality and "
        "error bounds again",
    )
    verify.add_argument("--sample", type=positive, metavar="N", help="with --stack, measure N samples (default: all)")
    for sub in (verify, compare):
        add_source_options(sub, whole=False)
        sub.set_defaults(on_error="skip")  # broken images are in no store

    for sub in (ingest, synthetic):
        add_overwrite(sub)
    for sub in (ingest, verify):
        add_cluster_options(sub)
    return parser
