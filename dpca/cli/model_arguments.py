"""Options of the models: cells, bands or a kernel, and the number of components."""

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

#: Options for cells only, and the parameters of `CellPCA` that they set.
_OF_CELLS = {"overlap": "overlap", "shared": "shared"}
#: Options for bands only, and the parameters of `BandPCA` that they set.
_OF_BANDS = {
    "mapping": "mapping",
    "intervals": "n_intervals",
    "estimating": "n_estimating",
    "split_channels": "keep_channels",
}
#: Options for kernels only, and the parameters of `KernelPCA` that they set.
_OF_KERNELS = {"gamma": "gamma", "landmarks": "n_landmarks"}


# Cells with the smallest compressed size for photographs. `encode` chooses among this many components.
_COMPRESSION_DEFAULTS, _CHOSEN_FROM = {"cell": 16, "overlap": 8, "shared": True}, {"ratio": 3.0}


class _Flag(NamedTuple):
    """An option that sets the estimator parameter of the same name."""

    name: str
    parse: Callable[[str], Any]
    metavar: str
    help: str


#: Ways to choose the number of components. They are mutually exclusive.
_CHOICES = (
    _Flag(
        "--components",
        component_count,
        "K",
        "keep K components of each cell or band; 'all'; or 'marchenko-pastur': components above the noise floor "
        "(assumes the same noise everywhere)",
    ),
    _Flag("--ratio", at_least_one, "R", "keep one score per R attributes: the components with the largest variance"),
    _Flag("--total-components", positive, "N", "keep N components in all: those with the largest variance"),
    _Flag("--target-psnr", positive_number, "DB", "keep the fewest components that reach this PSNR, for example 32"),
    _Flag("--target-mse", positive_number, "MSE", "keep the fewest components for at most this MSE (values in 0..1)"),
    _Flag("--target-ssim", up_to_one, "SSIM", "keep the fewest components that reach this mean SSIM, for example 0.95"),
    _Flag("--threshold", share, "SHARE", "keep the fewest in each part that explain more than this share of variance"),
)
#: Further options for the number of components.
_BOUNDS = (
    _Flag(
        "--max-components",
        positive,
        "K",
        "if numbers differ, keep at most K in one cell or band (default: four times the mean, or a third of the "
        "attributes; more if a target needs more, and the fit then reads the samples again)",
    ),
    _Flag(
        "--validation-fraction",
        up_to_half,
        "SHARE",
        "exclude this share of the samples from the fit and meet the target on them (default: meet it on the fitted "
        "samples)",
    ),
)


def add_model_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add options for the partition or the kernel, and for the number of components."""
    group = parser.add_argument_group(
        "cells, bands or a kernel",
        "Cells are blocks of neighboring pixels, voxels or entries of a vector;\n"
        "bands are groups of attributes with similar statistics;\n"
        "a kernel compares whole samples with representative ones, the landmarks.",
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
        help="let neighboring cells overlap by N pixels on each side of their border, to avoid visible edges; at most "
        "half a cell (default: 0)",
    )
    group.add_argument(
        "--shared",
        action="store_const",
        const=True,
        help="use the same components for all cells of a shape: the model is smaller, but needs more components for "
        "the same error",
    )
    parts.add_argument("--band-size", type=positive, metavar="N", help="use bands of at most N attributes")
    group.add_argument(
        "--mapping",
        choices=MAPPINGS,
        help="assignment of attributes to bands: mean-variance and mean divide the range of the means into intervals "
        "and sort each interval by variance or by mean; random; raster keeps their order (default: mean-variance)",
    )
    group.add_argument("--intervals", type=positive, metavar="N", help="number of intervals of the mean (default: 50)")
    group.add_argument(
        "--estimating",
        type=positive,
        metavar="N",
        help="estimate means and variances from N samples, spread over the stack (default: from all, in an additional "
        "pass)",
    )
    group.add_argument(
        "--split-channels",
        action="store_const",
        const=False,
        help="let the channels of a pixel go into different bands (default: together)",
    )
    parts.add_argument("--kernel", choices=KERNELS[:-1], help="use components in the feature space of this kernel")
    group.add_argument(
        "--gamma",
        type=positive_number,
        metavar="G",
        help="kernel width; rbf is exp(-G |x - y|^2) (default: 1 / (2 s^2) with s the root mean square distance)",
    )
    group.add_argument("--landmarks", type=positive, metavar="N", help="number of landmarks (default: 500 or more)")
    group = parser.add_argument_group(
        "components",
        "--components K keeps the same number in every cell or band. Every other choice\n"
        "adapts the number to each cell or band. " + ("Give one of them." if required else "Default: --components 20."),
    )
    choices = group.add_mutually_exclusive_group(required=required)
    for place, flags in ((choices, _CHOICES), (group, _BOUNDS)):
        for flag in flags:
            place.add_argument(flag.name, type=flag.parse, metavar=flag.metavar, help=flag.help)
    add_seed(group, "seed of the random mapping, of --estimating and of --validation-fraction")


def partitioned_model(options: argparse.Namespace) -> Any:
    """Return the unfitted estimator of the options, a `BandPCA`, `CellPCA` or `KernelPCA`.

    Raises
    ------
    DataError
        If options of bands, cells and kernels are mixed, or the number of components is given in two ways.
    """
    from dpca.models import BandPCA, CellPCA, KernelPCA  # imported here, because it takes seconds
    from dpca.storage.errors import DataError

    parameters: dict[str, Any] = {"random_state": options.seed, **_components(options)}
    if getattr(options, "compress", None) is not None and not any((options.cell, options.band_size, options.kernel)):
        options = argparse.Namespace(**vars(options) | {**_COMPRESSION_DEFAULTS, **_given(options, _OF_CELLS)})
    model: BandPCA | CellPCA | KernelPCA
    if options.kernel is None:
        _refuse(options, _OF_KERNELS, "requires a kernel: give --kernel")
    if options.kernel is not None:
        _refuse(
            options, _OF_CELLS | _OF_BANDS, "requires cells or bands instead of a kernel: give --cell or --band-size"
        )
        if parameters.keys() != {"random_state", "n_components"}:
            raise DataError("--kernel requires a number of components: give --components, and no other choice")
        model = KernelPCA(kernel=options.kernel, **_given(options, _OF_KERNELS), **parameters)
    elif options.band_size is not None:
        _refuse(options, _OF_CELLS, "requires cells instead of bands: give --cell")
        model = BandPCA(band_size=options.band_size, **_given(options, _OF_BANDS), **parameters)
    else:
        _refuse(options, _OF_BANDS, "requires bands: give --band-size")
        cell_shape = 10 if options.cell is None else options.cell
        model = CellPCA(cell_shape=cell_shape, **_given(options, _OF_CELLS), **parameters)
    model.check_parameters_for(0)
    return model


def names_no_model(options: argparse.Namespace) -> bool:
    """Return whether the options choose neither a partition nor components."""
    flags = [flag.name[2:].replace("-", "_") for flag in (*_CHOICES, *_BOUNDS)]
    return not _given(options, dict.fromkeys(("cell", "band_size", *_OF_CELLS, *_OF_BANDS, *flags), ""))


def _given(options: argparse.Namespace, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of the given options."""
    return {name: value for flag, name in parameters.items() if (value := getattr(options, flag)) is not None}


def _refuse(options: argparse.Namespace, flags: Mapping[str, str], why: str) -> None:
    from dpca.storage.errors import DataError

    for flag in flags:
        if getattr(options, flag) is not None:
            raise DataError(f"--{flag.replace('_', '-')} {why}, or leave it out")


def _components(options: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters for the number of components; the default is 20 in each cell or band."""
    names = [flag.name[2:].replace("-", "_") for flag in (*_CHOICES, *_BOUNDS)]
    given = _given(options, dict(zip(names, names, strict=True)))
    if (count := given.pop("components", None)) is not None:
        given["n_components"] = None if count == "all" else count
    elif not given:
        given |= {"n_components": 20} if getattr(options, "compress", None) is None else _CHOSEN_FROM
    return given
