"""Options for the goal of a compressed store."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence

from dpca.choices import GOALS, MEAN_GOALS, QUALITIES
from dpca.cli.arguments import add_parameters, options_of, positive_number, value_parser
from dpca.parameters.denoising import DenoisingParameters
from dpca.parameters.kinds import number

_GOALS = ", ".join(name.replace("_", "-") for name in GOALS)
_BY_VARIABLE = (
    "; max-error=u:0.001,p:5 compresses the variables u and p, each with its own bound, to OUTPUT/u.zarr and "
    "OUTPUT/p.zarr"
)
#: Parameters of `Denoiser` that describe the noise of a goal.
NOISE_OPTIONS = ("noise", "gain", "offset", "read_noise")


def add_goals(parser: argparse.ArgumentParser) -> None:
    """Add the goals of a compressed store: exactly one is required."""
    group = parser.add_argument_group("goal, exactly one").add_mutually_exclusive_group(required=True)
    texts = (
        "least compression ratio: decoded size by compressed size",
        "peak signal-to-noise ratio in decibels, of the mean error of all samples",
        "mean squared error, in units of the data range squared",
        "mean structural similarity, below 1",
        "error bound for every value, in units of the values; 0.5 is lossless for integers",
        "error bound for every value, in units of the data range",
        "mean squared error in units of the noise variance, such as 0.01",
    )
    for name, what in zip(GOALS, texts, strict=True):
        group.add_argument(f"--{name.replace('_', '-')}", type=positive_number, metavar="X", help=what)
    _add_every_sample(parser)
    _add_noise(parser, (*NOISE_OPTIONS, "sigma"))


def add_quality(parser: argparse.ArgumentParser, default: str | None = None, *, by_variable: bool = False) -> None:
    """Add the quality of a compressed store. Without a ``default``, it makes a job write one instead of scores.

    ``by_variable`` is whether each variable may have its own value; the parsed value of the goal is then a dictionary.
    """
    words = ", ".join(f"{word} ({psnr:g} dB)" for word, psnr in QUALITIES.items())
    kind = f"default: {default}" if default else "write a compressed store instead of scores"
    parser.add_argument(
        "--quality",
        type=goal_by_variable if by_variable else goal,
        default=default,
        metavar="WORD|GOAL=X",
        help=f"{words}: PSNR of the mean error; or a goal of {_GOALS}, such as psnr=38 or max-error=2"
        f"{_BY_VARIABLE if by_variable else ''} ({kind}; default cells: those with the smallest compressed size)",
    )
    _add_every_sample(parser)
    _add_noise(parser, NOISE_OPTIONS)


def check_masked_goal(mask: str | None, goals: Iterable[str]) -> None:
    """Reject a goal of mean errors for samples in a region.

    Raises
    ------
    DataError
    """
    from dpca.storage.errors import DataError

    if mask is not None and (means := [name for name in goals if name in MEAN_GOALS]):
        raise DataError(
            f"the goal {means[0]} counts values outside of the mask, which have no error: give an error bound, such "
            f"as max-relative-error 0.01"
        )


def options_by_variable(options: argparse.Namespace, folder: str) -> dict[str, argparse.Namespace]:
    """Return the stores of variables with goals of their own, and the options of each one; empty without such goals.

    Raises
    ------
    DataError
        If an option of one variable is given for all.
    """
    from dpca.storage.errors import DataError

    ((goal, values),) = (getattr(options, "quality", None) or {"": None}).items()
    if not isinstance(values, dict):
        return {}
    for name in ("key", "data_range"):
        if (value := getattr(options, name)) is not None:
            raise DataError(
                f"--{name.replace('_', '-')} is {value!r} for all variables: leave it out, or compress each variable "
                f"by its own command"
            )
    own = {key: argparse.Namespace(**{**vars(options), "key": key, "quality": {goal: x}}) for key, x in values.items()}
    return {os.path.join(folder, f"{key}.zarr"): one for key, one in own.items()}


def _add_every_sample(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--every-sample",
        action="store_true",
        help="each sample must meet the goal, not only the mean; for psnr, mse and ssim",
    )


def _add_noise(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    group = parser.add_argument_group("noise", "For noise-share. Default: Gaussian noise, estimated in each cell.")
    declared = options_of(DenoisingParameters)
    add_parameters(group, group, (declared[name] for name in names))


def _goal(text: str) -> dict[str, float]:
    if text in QUALITIES:
        return {"psnr": QUALITIES[text]}
    name, _, value = text.partition("=")
    name = name.replace("-", "_")
    if name not in GOALS:
        raise ValueError
    return {name: number(above=0).parse(value)}


def _goal_by_variable(text: str) -> dict[str, float] | dict[str, dict[str, float]]:
    name, _, values = text.partition("=")
    if ":" not in values:
        return _goal(text)
    found: dict[str, float] = {}
    for part in values.split(","):
        variable, _, value = part.rpartition(":")
        ((of_all, found[variable.strip("/")]),) = _goal(f"{name}={value}").items()
    if "" in found or len(found) <= values.count(","):
        raise ValueError
    return {of_all: found}


_quality = f"{', '.join(QUALITIES)}, or GOAL=X with a number above 0 and a goal of {_GOALS}"
goal = value_parser(_quality, _goal)
goal_by_variable = value_parser(f"{_quality}; or GOAL=NAME:X,... with each variable once", _goal_by_variable)
