"""Options that several commands share, and the parsers of option values."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from dpca.parameters.declaration import Parameter, declared_in
from dpca.parameters.kinds import LENGTHS, Kind, number, whole

if TYPE_CHECKING:
    from dpca.storage.survey import ReadOptions

T = TypeVar("T")

#: Supported sources.
SOURCES = (
    "images of any format: a folder, .zip and .tar archives, LMDB; an array or several: Zarr, OME-Zarr, .npy, .npz, "
    "IDX, TIFF of several pages, HDF5, netCDF, NIfTI; a video; or a glob of them"
)
RESUMES = (
    "The same command resumes an interrupted run from its checkpoint. It recognizes a finished run and does not repeat "
    "it."
)


def add_source_options(parser: argparse.ArgumentParser, *, whole: bool = True, masked: bool = True) -> None:
    """Add options for reading the source: image conversion, the handling of broken images, and the array's name.

    ``whole`` is whether all samples are read: there is then a choice to stop at broken ones, and a range of the values.
    ``masked`` is whether a region is supported.
    """
    group = parser.add_argument_group("reading the source")
    group.add_argument(
        "--color",
        choices=("auto", "rgb", "gray"),
        default="auto",
        help="auto: the mode of the first image; gray images in a color stack are replicated (default: %(default)s)",
    )
    size = group.add_mutually_exclusive_group()
    size.add_argument("--resize", type=size_pair, metavar="HxW", help="resample every image to this size (Lanczos)")
    size.add_argument("--crop", type=size_pair, metavar="HxW", help="crop every image to this size around its center")
    if whole:
        group.add_argument(
            "--on-error",
            choices=("stop", "skip"),
            default="stop",
            help="if an image is broken, stop the run, or skip it and record it in the store (default: %(default)s)",
        )
        group.add_argument(
            "--keep-jpegs",
            action="store_true",
            help="store JPEG files as they are, and decode them when they are read: a stack of the size of its files",
        )
    group.add_argument("--key", metavar="NAME", help="name of the array in an .npz, netCDF, HDF5 or Zarr source")
    group.add_argument(
        "--axes",
        type=_axes,
        metavar="A,B,...",
        help="names of a sample's axes, for example z,y,x, or of all axes, for example tczyx: then the first of "
        "'sample', t, z and the others counts samples; channels come last (default: from the source or its shape)",
    )
    if masked:
        add_mask(group)
    otherwise = "from the values" if whole else "none, and quality is not measured"
    add_range_option(group, f"0,255 for 8-bit values, otherwise {otherwise}")


def add_mask(parser: argparse._ActionsContainer) -> None:
    """Add the region that is analyzed."""
    parser.add_argument(
        "--mask",
        metavar="MAP",
        help="analyze a region only: the path of an array of 1 inside and 0 outside (Zarr, .npy, NIfTI, ...), or of an "
        "image, white inside and black or transparent outside, with the shape of a sample, or of its first axes",
    )


def _axes(text: str) -> tuple[str, ...]:
    letters = len(set(text)) == len(text) and set(text.lower()) <= set("tczyxs")
    return tuple(text if letters else text.split(","))


def reading_options(options: argparse.Namespace) -> ReadOptions:
    """Return the options of `add_source_options` that say how samples are read."""
    from dpca.storage.survey import ReadOptions  # imported here, because its libraries take a second

    given = ReadOptions(options.color, options.resize, options.crop, options.on_error, options.data_range)
    return replace(given, keep_jpegs=getattr(options, "keep_jpegs", False))


def add_range_option(parser: argparse._ActionsContainer, default: str) -> None:
    """Add the data range, for sources without a stated one."""
    parser.add_argument(
        "--data-range",
        type=number_pair,
        metavar="LOW,HIGH",
        help=f"smallest and largest possible value (default: {default})",
    )


def options_of(cls: type[Any]) -> dict[str, Parameter]:
    """Return the declared parameters of a class that have options."""
    return {name: one for name, one in declared_in(cls).items() if one.option is not None}


def add_parameters(
    group: argparse._ActionsContainer, exclusive: argparse._ActionsContainer, declared: Iterable[Parameter]
) -> None:
    """Add the options of parameters to a group, and those of which at most one may be given to ``exclusive``."""
    for one in declared:
        if (option := one.option) is None:
            continue
        kind = option.kind or one.kind
        how: dict[str, Any] = {"action": "store_const", "const": option.const}
        if option.metavar is not None:
            optional = {} if option.const is None else {"nargs": "?", "const": option.const}
            how = {"metavar": option.metavar, "type": option_type(kind), **optional}
        elif option.const is None:
            how = {"choices": kind.names}
        (exclusive if option.exclusive else group).add_argument(option.flag, help=one.help, **how)


def given_options(options: argparse.Namespace, cls: type[Any]) -> dict[str, Any]:
    """Return the parameters of a class that the options set."""
    values = {name: getattr(options, one.option.name, None) for name, one in options_of(cls).items() if one.option}
    return {name: value for name, value in values.items() if value is not None}


def add_seed(group: argparse._ActionsContainer, text: str) -> None:
    """Add the seed of random choices. ``text`` is the help and names them."""
    group.add_argument("--seed", type=natural, default=0, metavar="N", help=f"{text} (default: %(default)s)")


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add options for the cluster that runs the job."""
    group = parser.add_argument_group("where it runs")
    cluster = group.add_mutually_exclusive_group()
    cluster.add_argument(
        "--scheduler",
        metavar="tcp://HOST:PORT",
        help="address of a running Dask cluster with access to the same files (default: start one on this machine)",
    )
    cluster.add_argument(
        "--cluster",
        metavar="FILE",
        help="start a cluster from this TOML file: a Dask cluster class (Slurm, Kubernetes, ...) and its arguments",
    )
    group.add_argument("--tls-ca-file", metavar="PEM", help="CA certificate, for a scheduler at tls://")
    group.add_argument("--tls-cert", metavar="PEM", help="client certificate")
    group.add_argument("--tls-key", metavar="PEM", help="key of the client certificate (default: in the same file)")
    group.add_argument("--workers", type=positive, metavar="N", help="processes on this machine (default: 1 per core)")
    group.add_argument(
        "--memory", metavar="SIZE", help="memory of each process, for example 2GB (default: an equal share)"
    )


def add_storage_option(parser: argparse.ArgumentParser) -> None:
    """Add options of object stores. The environment and fsspec's configuration are alternatives."""
    parser.add_argument(
        "--storage-option",
        type=storage_option,
        action="append",
        metavar="NAME=VALUE",
        help="option for URLs of object stores, for example endpoint_url=https://host; @FILE reads options from a JSON "
        "object and keeps secrets off the command line (default: the environment)",
    )


def add_budget(parser: argparse.ArgumentParser) -> None:
    """Add options for the progress so far, and for ending a fit early."""
    group = parser.add_argument_group(
        "watching", "Show the progress so far, or end a fit before it has read all samples."
    )
    group.add_argument(
        "--live",
        metavar="PATH",
        help="keep the model of the samples read so far in this store, for other programs; it is always complete",
    )
    group.add_argument(
        "--max-seconds",
        type=positive_number,
        metavar="S",
        help="end after S seconds and keep the model so far at --live; the same command resumes",
    )
    group.add_argument(
        "--max-samples", type=positive, metavar="N", help="end after N more samples, as with --max-seconds"
    )


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Allow replacing an old output."""
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an output of other settings when the new one is complete"
    )


def job_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a program that runs a whole job, with the options for its source and output."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=RESUMES,
    )
    parser.add_argument(
        "--source",
        nargs="+",
        metavar="PATH",
        help=f"{SOURCES} (default: the synthetic portraits)",
    )
    parser.add_argument("--output", metavar="PATH", help="store to write (default: named after the source)")
    return parser


def add_kept_options(parser: argparse.ArgumentParser, default: str, measured: str | None) -> None:
    """Add options for what a job keeps, see `add_job_options`."""
    if measured is not None:
        parser.add_argument(
            "--reconstruct",
            action=argparse.BooleanOptionalAction,
            default=None,
            help=f"keep the reconstructions (default: {default}; {measured})",
        )
    parser.add_argument(
        "--keep-stack",
        action=argparse.BooleanOptionalAction,
        default=None,
        help=f"keep the ingested samples in the output, for later jobs with other settings (default: {default})",
    )


def add_job_options(
    parser: argparse.ArgumentParser,
    *,
    default: str = "for the synthetic portraits only",
    measured: str | None = "quality is always measured",
) -> None:
    """Add the options of a whole job that follow those of the model.

    ``default`` and ``measured`` are parts of the help: when reconstructions and the stack are kept, and which quality
    is measured without reconstructions; None for a job that makes no reconstructions.
    """
    add_kept_options(parser, default, measured)
    add_source_options(parser)
    add_cluster_options(parser)
    add_overwrite(parser)
    parser.add_argument(
        "--plan",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="estimate each stage, as 'dpca plan' does, and report the estimate next to the measurement (default: for "
        "more than 16 GiB of samples)",
    )
    parser.add_argument(
        "--metrics",
        metavar="FILE",
        help="keep metrics of the job in this file, such as /var/lib/node_exporter/dpca.prom, for Prometheus",
    )


def value_parser(form: str, parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a parser of an option's value. Its error names the expected form."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not {form}") from None

    return parsed


def _pair(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        raise ValueError
    return whole(1).parse(match[1]), whole(1).parse(match[2])


def _option(text: str) -> dict[str, Any]:
    if text.startswith("@"):
        try:
            with open(text[1:], encoding="utf-8") as file:
                options = json.load(file)
        except (OSError, RecursionError) as error:
            raise ValueError from error
        if not isinstance(options, dict):
            raise ValueError
        return options
    return _named(text)


def _samples(text: str) -> int | slice:
    parts = [int(part) if part else None for part in text.split(":")]
    if len(parts) > 3 or parts == [None]:
        raise ValueError
    return slice(*parts) if len(parts) > 1 or parts[0] is None else parts[0]


def _named(text: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError
    try:
        return {name: json.loads(value)}
    except (ValueError, RecursionError):
        return {name: value}


def _range(text: str) -> tuple[float, float]:
    low, high = map(float, text.split(","))
    if not low < high:
        raise ValueError
    return low, high


def option_type(kind: Kind) -> Callable[[str], Any]:
    """Return the parser of an option with values of a kind."""
    return value_parser(kind.words, kind.parse)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip("/") for part in text.split(","))
    if not all(names):
        raise ValueError
    return names


variable_names = value_parser("NAME or NAME,NAME,... of variables", _names)
counts = value_parser(
    "a list of integers of at least 1, such as 1,2,8",
    lambda text: tuple(whole(1).parse(part) for part in text.split(",")),
)
positive, natural, positive_number = map(option_type, (whole(1), whole(0), number(above=0)))
sample_lengths = value_parser(
    "100, 128x256 or 256x256x3", lambda text: tuple(whole(1).parse(n) for n in text.split("x"))
)
sample_indices = value_parser("an index or a range of them, such as 7, 0:100 or 0:1000:10", _samples)
named_value = value_parser("NAME=VALUE", _named)
cell_lengths = option_type(LENGTHS)
size_pair = value_parser("HEIGHTxWIDTH, for example 218x178", _pair)
storage_option = value_parser("NAME=VALUE, or @ and a file that holds a JSON object", _option)
number_pair = value_parser("LOW,HIGH with LOW below HIGH, for example 0,1", _range)
