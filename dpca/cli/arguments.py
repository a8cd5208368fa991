"""Options that several commands share, and how the values of options are parsed."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

from dpca.choices import GOALS, NOISE

T = TypeVar("T")

_GOALS = ", ".join(name.replace("_", "-") for name in GOALS)

#: What a source can be.
SOURCES = (
    "images of any format: a folder, .zip and .tar archives, LMDB; an array or several: Zarr, OME-Zarr, .npy, .npz, "
    "IDX, TIFF of several pages, HDF5, netCDF, NIfTI; a video; or a glob of them"
)
GOES_ON = (
    "A run that was stopped goes on where it was when the same command is given again; a finished one is recognized "
    "and not repeated."
)


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add how the source is read: conversion of images, what to do with broken ones, which array of several."""
    group = parser.add_argument_group("reading the source")
    group.add_argument(
        "--color",
        choices=("auto", "rgb", "grey"),
        default="auto",
        help="auto: the first image decides; grey images in a color stack are replicated (default: %(default)s)",
    )
    size = group.add_mutually_exclusive_group()
    size.add_argument("--resize", type=size_pair, metavar="HxW", help="resample every image to this size (Lanczos)")
    size.add_argument("--crop", type=size_pair, metavar="HxW", help="cut this size out of the center of every image")
    group.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="a broken image stops the run, or is left out and recorded in the store (default: %(default)s)",
    )
    group.add_argument("--key", metavar="NAME", help="name of the array in an .npz, netCDF, HDF5 or Zarr source")
    group.add_argument(
        "--axes",
        type=lambda text: tuple(text.split(",")),
        metavar="A,B,...",
        help="names of a sample's axes, for example z,y,x, or of all axes with 'sample' among them; one called channel "
        "comes last (default: from the source or its shape)",
    )
    add_range_option(group, "0,255 for 8-bit values; for others, as found")


def reading_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `add_source_options` that `dpca.storage.ingest` takes for a reader."""
    return {name: getattr(options, name) for name in ("color", "resize", "crop", "on_error", "data_range")}


def add_range_option(parser: argparse._ActionsContainer, default: str) -> None:
    """Add the data range, for sources that do not state it."""
    parser.add_argument(
        "--data-range",
        type=number_pair,
        metavar="LOW,HIGH",
        help=f"smallest and largest possible value (default: {default})",
    )


def add_seed(group: argparse._ActionsContainer, text: str) -> None:
    """Add the seed of whatever is drawn at random, which ``text`` names."""
    group.add_argument("--seed", type=natural, default=0, metavar="N", help=f"{text} (default: %(default)s)")


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add where the work runs."""
    group = parser.add_argument_group("where it runs")
    cluster = group.add_mutually_exclusive_group()
    cluster.add_argument(
        "--scheduler",
        metavar="tcp://HOST:PORT",
        help="address of a running Dask cluster that sees the same files (default: start one on this machine)",
    )
    cluster.add_argument(
        "--cluster",
        metavar="FILE",
        help="TOML file that names a class of Dask clusters (Slurm, Kubernetes, ...) and its arguments, to start one",
    )
    group.add_argument("--tls-ca-file", metavar="PEM", help="for a scheduler at tls://, its authority's certificate")
    group.add_argument("--tls-cert", metavar="PEM", help="certificate that this program shows it")
    group.add_argument("--tls-key", metavar="PEM", help="key of that certificate (default: in the same file)")
    group.add_argument("--workers", type=positive, metavar="N", help="processes on this machine (default: 1 a core)")
    group.add_argument(
        "--memory", metavar="SIZE", help="memory of each process, for example 2GB (default: an equal share)"
    )


def add_storage_option(parser: argparse.ArgumentParser) -> None:
    """Add how object stores are reached; the environment and fsspec's configuration do without."""
    parser.add_argument(
        "--storage-option",
        type=storage_option,
        action="append",
        metavar="NAME=VALUE",
        help="how URLs of object stores are reached, for example endpoint_url=https://host; @FILE reads a JSON object "
        "of options, which keeps secrets off the command line (default: the environment)",
    )


def add_goals(parser: argparse.ArgumentParser) -> None:
    """Add what a compressed store is to reach: exactly one of its goals."""
    group = parser.add_argument_group("goal, exactly one").add_mutually_exclusive_group(required=True)
    texts = (
        "bytes of the stack by bytes of the store, at least",
        "peak signal-to-noise ratio in decibels, of the mean error of all samples",
        "mean squared error, in units of the data range squared",
        "mean structural similarity, below 1",
        "a promise for every value, in units of the values; 0.5 loses nothing of integers",
        "a promise for every value, in units of the data range",
    )
    for name, what in zip(GOALS, texts, strict=True):
        group.add_argument(f"--{name.replace('_', '-')}", type=positive_number, metavar="X", help=what)
    _add_every_sample(parser)


def add_compress(parser: argparse.ArgumentParser) -> None:
    """Add what turns the main job into one that makes a compressed store."""
    parser.add_argument(
        "--compress",
        type=goal,
        metavar="GOAL=X",
        help="make a compressed store, few bytes that read as the samples, in the place of scores: for example psnr=36 "
        f"or max-error=2; goals are {_GOALS} (which cells, where none are asked for: those that take the fewest bytes)",
    )
    _add_every_sample(parser)


def _add_every_sample(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--every-sample",
        action="store_true",
        help="each sample is to meet the goal, not their mean: of psnr, mse and ssim",
    )


def add_budget(parser: argparse.ArgumentParser) -> None:
    """Add how a fit is watched, and when it ends before it is done."""
    group = parser.add_argument_group("watching", "A fit can be looked at, and ended, before it has seen all samples.")
    group.add_argument(
        "--live",
        metavar="PATH",
        help="keep the model so far in this store, whole at any moment, for pages and programs that look at it",
    )
    group.add_argument(
        "--max-seconds",
        type=positive_number,
        metavar="S",
        help="end after S seconds with the model so far, at --live; the same command goes on from there",
    )
    group.add_argument("--max-samples", type=positive, metavar="N", help="end after N samples more, likewise")


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Allow replacing an old output."""
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an output of other settings, once the new one is whole"
    )


def job_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a program that runs a whole job, with the options for what to read and what to make."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=GOES_ON,
    )
    parser.add_argument(
        "--source",
        nargs="+",
        metavar="PATH",
        help=f"{SOURCES} (default: the embedded portraits)",
    )
    parser.add_argument("--output", metavar="PATH", help="store to make (default: named after the source)")
    return parser


def add_kept_options(parser: argparse.ArgumentParser, default: str, measured: str) -> None:
    """Add what a job keeps, as `add_job_options` explains."""
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
        help=f"keep the ingested samples in the output, for jobs of other settings in its place (default: {default})",
    )


def add_job_options(
    parser: argparse.ArgumentParser,
    *,
    default: str = "for the embedded portraits only",
    measured: str = "quality is measured in any case",
) -> None:
    """Add the options of a whole job that follow those of the model.

    ``default`` says when reconstructions and the stack are kept, and ``measured`` which quality is measured without
    reconstructions.
    """
    add_kept_options(parser, default, measured)
    add_source_options(parser)
    add_cluster_options(parser)
    add_overwrite(parser)
    parser.add_argument(
        "--plan",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="foretell what each stage takes, as 'dpca plan' does, and report it beside what it took (default: for "
        "more than 16 GiB of samples)",
    )


def _parser(form: str, parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a parser of an option's value whose error names the expected form."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not {form}") from None

    return parsed


def _at_least(least: int, text: str) -> int:
    if (value := int(text)) < least:
        raise ValueError
    return value


def _number(text: str, fits: Callable[[float], bool]) -> float:
    value = float(text)
    if not (math.isfinite(value) and fits(value)):
        raise ValueError
    return value


def _lengths(text: str) -> int | tuple[int, ...]:
    lengths = tuple(_at_least(1, part) for part in text.split("x"))
    return lengths[0] if len(lengths) == 1 else lengths


def _pair(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        raise ValueError
    return _at_least(1, match[1]), _at_least(1, match[2])


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


def _named(text: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError
    try:
        return {name: json.loads(value)}
    except (ValueError, RecursionError):
        return {name: value}


def _goal(text: str) -> dict[str, float]:
    name, _, value = text.partition("=")
    name = name.replace("-", "_")
    if name not in GOALS:
        raise ValueError
    return {name: _number(value, lambda x: x > 0)}


def _range(text: str) -> tuple[float, float]:
    low, high = map(float, text.split(","))
    if not low < high:
        raise ValueError
    return low, high


counts = _parser(
    "a list of whole numbers of at least 1, such as 1,2,8",
    lambda text: tuple(_at_least(1, part) for part in text.split(",")),
)
positive = _parser("a whole number of at least 1", lambda text: _at_least(1, text))
natural = _parser("a whole number of at least 0", lambda text: _at_least(0, text))
positive_number = _parser("a number above 0", lambda text: _number(text, lambda x: x > 0))
at_least_one = _parser("a number of at least 1", lambda text: _number(text, lambda x: x >= 1))
up_to_one = _parser("a number above 0 and at most 1", lambda text: _number(text, lambda x: 0 < x <= 1))
up_to_half = _parser("a share above 0 and at most 0.5", lambda text: _number(text, lambda x: 0 < x <= 0.5))
share = _parser("a share, at least 0 and below 1", lambda text: _number(text, lambda x: 0 <= x < 1))
component_count: Callable[[str], int | str] = _parser(
    f"a whole number of at least 1, 'all' or '{NOISE}'",
    lambda text: text if text in ("all", NOISE) else _at_least(1, text),
)
sample_lengths = _parser("100, 128x256 or 256x256x3", lambda text: tuple(_at_least(1, n) for n in text.split("x")))
named_value = _parser("NAME=VALUE", _named)
cell_lengths = _parser("10, 10x12 or 8x8x8", _lengths)
size_pair = _parser("HEIGHTxWIDTH, for example 218x178", _pair)
storage_option = _parser("NAME=VALUE, or @ and a file that holds a JSON object", _option)
goal = _parser(f"GOAL=X with a number above 0 and a goal of {_GOALS}", _goal)
number_pair = _parser("LOW,HIGH with LOW below HIGH, for example 0,1", _range)
