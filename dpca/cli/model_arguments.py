"""Options of the models: cells, bands or a kernel, and the components that are kept."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dpca.choices import KERNELS, MAPPINGS
from dpca.cli.arguments import (
    add_seed,
    at_least_one,
    cell_lengths,
    component_count,
    natural,
    positive,
    positive_number,
    share,
    up_to_half,
    up_to_one,
)

#: Options that only cells have, which are parameters of `CellPCA`.
_OF_CELLS = {"overlap": "overlap", "shared": "shared"}
#: Options that only bands have, and the parameters of `BandPCA` that they set.
_OF_BANDS = {
    "mapping": "mapping",
    "intervals": "n_intervals",
    "estimating": "n_estimating",
    "split_channels": "keep_channels",
}
#: Options that only kernels have, and the parameters of `KernelPCA` that they set.
_OF_KERNELS = {"gamma": "gamma", "landmarks": "n_landmarks"}


# Cells that take the fewest bytes of photographs, and the components of which those that pay for their bits are chosen.
_FOR_FEW_BYTES, _CHOSEN_FROM = {"cell": 16, "overlap": 8, "shared": True}, {"ratio": 3.0}


class _Flag(NamedTuple):
    """An option that sets the estimators' parameter of its name."""

    name: str
    parse: Callable[[str], Any]
    metavar: str
    help: str


#: Ways to ask for components: one of them at a time.
_CHOICES = (
    _Flag(
        "--components",
        component_count,
        "K",
        "keep K components of each cell or band; 'all'; or 'marchenko-pastur': those whose variance noise of one level "
        "does not explain",
    ),
    _Flag("--ratio", at_least_one, "R", "keep one score for every R attributes, where they explain most"),
    _Flag("--total-components", positive, "N", "keep N components in all, where they explain most"),
    _Flag("--target-psnr", positive_number, "DB", "keep the fewest components that reach this PSNR, for example 32"),
    _Flag("--target-mse", positive_number, "MSE", "keep the fewest that leave at most this MSE (values in 0..1)"),
    _Flag("--target-ssim", up_to_one, "SSIM", "keep the fewest that reach this mean SSIM, for example 0.95"),
    _Flag("--threshold", share, "SHARE", "keep the fewest in each that explain more than this share of its variance"),
)
#: What goes with them.
_BOUNDS = (
    _Flag(
        "--max-components",
        positive,
        "K",
        "keep at most K in one cell or band, where numbers differ (default: four times the mean, or a third of its "
        "attributes, and more where a target is not met with these: the fit then reads the samples again)",
    ),
    _Flag(
        "--validation-fraction",
        up_to_half,
        "SHARE",
        "leave this share of the samples out of the fit, and meet the target on them (default: meet it on the fitted "
        "samples)",
    ),
)


def add_model_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add which cells or bands there are, and how many components each of them keeps."""
    group = parser.add_argument_group(
        "cells, bands or a kernel",
        "Cells are blocks of neighboring pixels, voxels or entries of a vector;\n"
        "bands are attributes with like values, wherever they lie;\n"
        "a kernel compares whole samples with some of them, the landmarks.",
    )
    parts = group.add_mutually_exclusive_group(required=required)
    parts.add_argument(
        "--cell",
        type=cell_lengths,
        metavar="N[xM[xL]]",
        help="cell length in pixels, one number or one for each spatial axis" + ("" if required else " (default: 10)"),
    )
    group.add_argument(
        "--overlap",
        type=natural,
        metavar="N",
        help="let neighboring cells overlap by N pixels on each side of their border, which hides its edge; at most "
        "half a cell (default: 0)",
    )
    group.add_argument(
        "--shared",
        action="store_const",
        const=True,
        help="use the same components for all cells of a shape: the model is smaller, but takes more components for "
        "the same error",
    )
    parts.add_argument("--band-size", type=positive, metavar="N", help="use bands of at most N attributes")
    group.add_argument(
        "--mapping",
        choices=MAPPINGS,
        help="how attributes are put into bands: mean-variance or mean cut the range of the means into intervals and "
        "sort each by variance or mean; random; raster takes them as they come (default: mean-variance)",
    )
    group.add_argument("--intervals", type=positive, metavar="N", help="number of intervals of the mean (default: 50)")
    group.add_argument(
        "--estimating",
        type=positive,
        metavar="N",
        help="estimate means and variances from N samples from all over the stack (default: from all, in a pass of "
        "their own)",
    )
    group.add_argument(
        "--split-channels",
        action="store_const",
        const=False,
        help="let the channels of a pixel go into different bands (default: together)",
    )
    parts.add_argument("--kernel", choices=KERNELS[:-1], help="use components of the feature space of this kernel")
    group.add_argument(
        "--gamma",
        type=positive_number,
        metavar="G",
        help="of the kernel; rbf is exp(-G |x - y|^2) (default: 1 / (2 s^2), s being the root mean square distance)",
    )
    group.add_argument("--landmarks", type=positive, metavar="N", help="number of landmarks (default: 500 or more)")
    group = parser.add_argument_group(
        "components",
        "--components K keeps the same number in every cell or band; every other choice\n"
        "adapts the number to each cell or band. " + ("Give one of them." if required else "Default: --components 20."),
    )
    choices = group.add_mutually_exclusive_group(required=required)
    for place, flags in ((choices, _CHOICES), (group, _BOUNDS)):
        for flag in flags:
            place.add_argument(flag.name, type=flag.parse, metavar=flag.metavar, help=flag.help)
    add_seed(group, "seed of the random mapping, of --estimating and of --validation-fraction")


def partitioned_model(options: argparse.Namespace) -> Any:
    """Return the estimator that the options ask for, a `BandPCA`, `CellPCA` or `KernelPCA` that is not fitted.

    Raises
    ------
    DataError
        If options of bands, cells or kernels are given to others, or components are asked for in two ways.
    """
    from dpca.models import BandPCA, CellPCA, KernelPCA  # which takes seconds, and the parser has no use for them
    from dpca.storage.errors import DataError

    parameters: dict[str, Any] = {"random_state": options.seed, **_components(options)}
    if getattr(options, "compress", None) is not None and not any((options.cell, options.band_size, options.kernel)):
        options = argparse.Namespace(**vars(options) | {**_FOR_FEW_BYTES, **_given(options, _OF_CELLS)})
    model: BandPCA | CellPCA | KernelPCA
    if options.kernel is None:
        _refuse(options, _OF_KERNELS, "kernels and there is none: give --kernel")
    if options.kernel is not None:
        _refuse(options, _OF_CELLS | _OF_BANDS, "cells or bands and there is a kernel: give --cell or --band-size")
        if parameters.keys() != {"random_state", "n_components"}:
            raise DataError("the components of a kernel are counted: give --components, and no other choice")
        model = KernelPCA(kernel=options.kernel, **_given(options, _OF_KERNELS), **parameters)
    elif options.band_size is not None:
        _refuse(options, _OF_CELLS, "cells and there are bands: give --cell")
        model = BandPCA(band_size=options.band_size, **_given(options, _OF_BANDS), **parameters)
    else:
        _refuse(options, _OF_BANDS, "bands and there are none: give --band-size")
        cell_shape = 10 if options.cell is None else options.cell
        model = CellPCA(cell_shape=cell_shape, **_given(options, _OF_CELLS), **parameters)
    model.check_before(0)
    return model


def names_no_model(options: argparse.Namespace) -> bool:
    """Say whether the options leave all cells and components to us."""
    flags = [flag.name[2:].replace("-", "_") for flag in (*_CHOICES, *_BOUNDS)]
    return not _given(options, dict.fromkeys(("cell", "band_size", *_OF_CELLS, *_OF_BANDS, *flags), ""))


def _given(options: argparse.Namespace, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters whose options were given."""
    return {name: value for flag, name in parameters.items() if (value := getattr(options, flag)) is not None}


def _refuse(options: argparse.Namespace, flags: Mapping[str, str], why: str) -> None:
    from dpca.storage.errors import DataError

    for flag in flags:
        if getattr(options, flag) is not None:
            raise DataError(f"--{flag.replace('_', '-')} is an option of {why}, or leave it out")


def _components(options: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters that say how many components are kept; 20 of each where nothing was asked for."""
    names = [flag.name[2:].replace("-", "_") for flag in (*_CHOICES, *_BOUNDS)]
    given = _given(options, dict(zip(names, names, strict=True)))
    if (count := given.pop("components", None)) is not None:
        given["n_components"] = None if count == "all" else count
    elif not given:
        given |= {"n_components": 20} if getattr(options, "compress", None) is None else _CHOSEN_FROM
    return given
