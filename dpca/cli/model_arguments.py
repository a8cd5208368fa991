"""Options of the models: cells, bands or a kernel, and the number of components."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import Any

from dpca.choices import NOISE, NOISE_SHARE
from dpca.cli.arguments import add_parameters, add_seed, given_options, options_of, variable_names
from dpca.cli.goals import NOISE_OPTIONS
from dpca.parameters.cells import BandParameters, CellParameters, PartitionParameters
from dpca.parameters.common import COSLAT
from dpca.parameters.denoising import DenoisingParameters
from dpca.parameters.kernel import KernelParameters
from dpca.parameters.linear import PCAParameters

_VARIABLES = "PCA"
#: The estimators of the command line: their parameters, the parameter that selects them, and what it stands for.
_ESTIMATORS: dict[str, tuple[type[Any], str, str]] = {
    "CellPCA": (CellParameters, "cell_shape", "cells: give --cell"),
    "BandPCA": (BandParameters, "band_size", "bands: give --band-size"),
    "KernelPCA": (KernelParameters, "kernel", "a kernel: give --kernel"),
    _VARIABLES: (PCAParameters, "variables", "variables of a file: give --key"),
}
_DEFAULTS, _COMPONENTS = {"cell_shape": 10}, 20
_CELLS = f"--cell {_DEFAULTS['cell_shape']}"
# Cells with the smallest compressed size for photographs. `encode` chooses among this many components.
_COMPRESSION_DEFAULTS, _CHOSEN_FROM = {"cell_shape": 16, "overlap": 8, "shared": True}, {"ratio": 3.0}


def add_model_options(parser: argparse.ArgumentParser, *, required: bool, without: Collection[str] = ()) -> None:
    """Add options for the partition or the kernel, and for the number of components.

    If they are ``required``, variables of a file are another choice. ``without`` are parameters that the command does
    not support.
    """
    parts = parser.add_argument_group(
        "cells, bands, a kernel or variables" if required else "cells, bands or a kernel",
        "Cells are blocks of neighboring pixels, voxels or entries of a vector;\n"
        "bands are groups of attributes with similar statistics;\n"
        "a kernel compares whole samples with representative ones, the landmarks"
        + (";\nvariables of a file are analyzed together, as whole samples." if required else f".\nDefault: {_CELLS}."),
    )
    components = parser.add_argument_group(
        "components",
        "--components K keeps the same number in every cell or band. Every other choice\n"
        "adapts the number to each cell or band. "
        + ("Give one of them." if required else f"Default: --components {_COMPONENTS}."),
    )
    estimators = [cls for name, (cls, _, _) in _ESTIMATORS.items() if required or name != _VARIABLES]
    exclusive = _add_options(parts, components, estimators, required=required, without=without)
    if required:
        exclusive.add_argument(
            "--key",
            dest="variables",
            type=variable_names,
            metavar="NAME,...",
            help="analyze these variables of a file (netCDF, HDF5, .npz) or a Zarr group together, read in place; they "
            "have the same samples, and any shapes",
        )
    add_seed(components, "seed of the random mapping, of --estimating and of --validation-fraction")


def add_compression_options(parser: argparse.ArgumentParser) -> None:
    """Add options for the cells and the components of a compressed store, which has neither bands nor a kernel."""
    cell, overlap = _COMPRESSION_DEFAULTS["cell_shape"], _COMPRESSION_DEFAULTS["overlap"]
    parts = parser.add_argument_group(
        "cells",
        "Cells are blocks of neighboring pixels, voxels or entries of a vector.\n"
        "Default: those with the smallest compressed size. If another option of this group or of\n"
        f"the next one is given: --cell {cell} --overlap {overlap} --shared, or with --gaps iterate {_CELLS}.",
    )
    components = parser.add_argument_group(
        "components",
        "How many components are fitted first. The store keeps those that the quality takes,\n"
        f"and more are fitted if it takes more. Default: --ratio {_CHOSEN_FROM['ratio']:g}, or with --gaps iterate\n"
        f"--components {_COMPONENTS}.",
    )
    _add_options(parts, components, [_ESTIMATORS["CellPCA"][0]], required=False, without=["weights"])
    add_seed(components, "seed of --validation-fraction")


def _add_options(
    parts: argparse._ArgumentGroup,
    components: argparse._ArgumentGroup,
    estimators: Sequence[type[Any]],
    *,
    required: bool,
    without: Collection[str],
) -> argparse._MutuallyExclusiveGroup:
    """Add the options of estimators to the groups of the partition and of the number of components.

    Return the group of the options that select an estimator.
    """
    exclusive, shared = parts.add_mutually_exclusive_group(required=required), options_of(PartitionParameters)
    elsewhere = {*shared, *without}
    for cls in estimators:
        own = options_of(cls)
        add_parameters(parts, exclusive, (one for name, one in own.items() if name not in elsewhere))
        elsewhere |= own.keys()
    supported = (one for name, one in shared.items() if name not in without)
    add_parameters(components, components.add_mutually_exclusive_group(required=required), supported)
    return exclusive


def partitioned_model(options: argparse.Namespace, n_samples: int | None = None) -> Any:
    """Return the unfitted estimator of the options, a `BandPCA`, `CellPCA`, `KernelPCA`, or `PCA` of variables.

    The default number of components is at most that of samples, if it is given.

    Raises
    ------
    DataError
        If options of bands, cells and kernels are mixed, or the number of components is given in two ways.
    """
    from dpca import models  # imported here, because it takes seconds
    from dpca.storage.errors import DataError

    given = _given(options)
    kind = next((name for name, (_, selects, _) in _ESTIMATORS.items() if selects in given[name]), None)
    given[_VARIABLES].pop("variables", None)
    compresses, parameters = getattr(options, "quality", None) is not None, given[kind or "CellPCA"]
    for name, (cls, _, words) in _ESTIMATORS.items():
        for one in given[name].keys() - parameters.keys():
            if (option := options_of(cls)[one].option) is not None:
                raise DataError(f"{option.flag} requires {words}, or leave it out")
    if compresses and "weights" in parameters:
        raise DataError("weights is given, which compressed stores do not support: leave it out, or write scores")
    parameters = _with_map(parameters, "weights")
    if getattr(parameters.get("weights"), "ndim", 0) > 1 and len(parameters["weights"]) == 1:
        parameters["weights"] = parameters["weights"][0]  # a file with one sample
    with_gaps = parameters.get("gaps") == "iterate"
    if not _chooses_components(parameters):
        few = {"n_components": min(_COMPONENTS, n_samples or _COMPONENTS)}
        parameters |= _CHOSEN_FROM if compresses and kind != "KernelPCA" and not with_gaps else few
    elif parameters.get("n_components") == "all":
        parameters["n_components"] = None
    if kind == _VARIABLES and "threshold" in parameters:
        parameters["n_components"] = parameters.pop("threshold")
    if kind is None:
        parameters = (_COMPRESSION_DEFAULTS if compresses and not with_gaps else _DEFAULTS) | parameters
    model = getattr(models, kind or "CellPCA")(random_state=options.seed, **parameters)
    model.check_parameters_for(0)
    return model


def names_no_model(options: argparse.Namespace) -> bool:
    """Return whether the options choose neither a partition nor components."""
    return not any(_given(options).values())


def names_no_components(options: argparse.Namespace) -> bool:
    """Return whether the options do not choose the number of components, so that it is the default."""
    return not any(map(_chooses_components, _given(options).values()))


def _chooses_components(parameters: dict[str, Any]) -> bool:
    return bool({*options_of(PartitionParameters)} & {*parameters} - {"weights"})


def _given(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the parameters of each estimator that the options set."""
    given = {name: given_options(options, cls) for name, (cls, _, _) in _ESTIMATORS.items()}
    for name in ("variables", "threshold"):  # a share of the variance is a number of components of PCA
        if (value := getattr(options, name, None)) is not None:
            given[_VARIABLES][name] = value
    if NOISE_SHARE in (getattr(options, "quality", None) or {}):
        for parameters in given.values():  # the noise of the goal, and of ranks that depend on it
            if parameters.get("n_components") != NOISE:
                parameters.pop("sigma", None)
    return given


def noise_model(options: argparse.Namespace) -> Any:
    """Return the `Denoiser` of the options of noise for a goal, None if there are none."""
    # `dpca encode` has no model, whose noise --sigma could be instead.
    names = (
        (*NOISE_OPTIONS, "sigma")
        if NOISE_SHARE in (getattr(options, "quality", [NOISE_SHARE]) or [])
        else NOISE_OPTIONS
    )
    every = given_options(options, DenoisingParameters)
    if not (given := {name: value for name, value in every.items() if name in names}):
        return None
    from dpca import Denoiser  # imported here, because it takes seconds

    return Denoiser(**given_noise_map(given))


def given_noise_map(given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a `Denoiser`, with the map that their ``sigma`` names."""
    if isinstance(path := given.get("sigma"), str):
        try:
            number = float(path)
        except ValueError:
            pass
        else:
            from dpca.storage.errors import DataError  # imported here, because it takes seconds

            raise DataError(f"--sigma is {number:g}: give a positive number, or the path of a map of positive numbers")
    found = _with_map(given, "sigma")
    return found if found is given else found | {"sigma": found["sigma"].astype("f4")}


def _with_map(given: dict[str, Any], name: str) -> dict[str, Any]:
    """Return parameters, with the map that one of them names, if it does."""
    if not isinstance(path := given.get(name), str) or path == COSLAT:
        return given
    from dpca.storage.readers.maps import read_map  # imported here, because it takes seconds

    return given | {name: read_map(path)}
