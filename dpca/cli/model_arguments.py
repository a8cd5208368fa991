"""Options of the models with parts: cells or bands, and the components that each of them keeps."""

from __future__ import annotations

import argparse
from typing import Any

from dpca.cli.arguments import cell_lengths, component_count, natural, positive
from dpca.models.band_pca import MAPPINGS
from storage.errors import DataError

#: Options that only bands have, and the parameters of `BandPCA` that they set.
_OF_BANDS = {
    "mapping": "mapping",
    "intervals": "n_intervals",
    "estimating": "n_estimating",
    "split_channels": "keep_channels",
    "seed": "random_state",
}


def add_model_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Say how many components of which cells or bands."""
    group = parser.add_argument_group(
        "cells or bands",
        "Cells are blocks of neighboring pixels, voxels or entries of a vector; bands are attributes with like values, "
        "wherever they lie.",
    )
    parts = group.add_mutually_exclusive_group(required=required)
    parts.add_argument(
        "--cell",
        type=cell_lengths,
        metavar="N[xM[xL]]",
        help="cell length in pixels, one number or one for each spatial axis" + ("" if required else " (default: 10)"),
    )
    parts.add_argument("--band-size", type=positive, metavar="N", help="instead of cells: most attributes of a band")
    group.add_argument(
        "--mapping",
        choices=MAPPINGS,
        help="what puts attributes into one band: mean-variance or mean cut the range of the means into intervals and "
        "sort each by variance or mean; random; raster takes them as they come (default: mean-variance)",
    )
    group.add_argument("--intervals", type=positive, metavar="N", help="intervals of the mean (default: 50)")
    group.add_argument(
        "--estimating",
        type=positive,
        metavar="N",
        help="samples, from all over the stack, that means and variances are estimated from (default: all, in a pass "
        "of their own)",
    )
    group.add_argument(
        "--split-channels",
        action="store_const",
        const=False,
        help="let the channels of a pixel go into different bands (default: together)",
    )
    group.add_argument(
        "--seed", type=natural, metavar="N", help="of the random mapping and of --estimating (default: 0)"
    )
    group = parser.add_argument_group("components")
    group.add_argument(
        "--components",
        type=component_count,
        required=required,
        metavar="K",
        help="components of each cell or band, or 'all'" + ("" if required else " (default: 20)"),
    )


def model_parameters(options: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of the `CellPCA`, or with ``band_size`` of the `BandPCA`, that the options ask for.

    Raises
    ------
    DataError
        If options of bands are given to cells.
    """
    given = {name: getattr(options, name) for name in _OF_BANDS if getattr(options, name) is not None}
    components = 20 if options.components is None else options.components
    asked = {"n_components": None if components == "all" else components}
    if options.band_size is not None:
        of_bands = {_OF_BANDS[name]: value for name, value in given.items()}
        return {"band_size": options.band_size, "random_state": 0, **of_bands, **asked}
    if given:
        flag = f"--{next(iter(given)).replace('_', '-')}"
        raise DataError(f"{flag} is an option of bands and there are none: give --band-size, or leave it out")
    return {"cell_shape": 10 if options.cell is None else options.cell, **asked}
