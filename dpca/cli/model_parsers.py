"""The subcommands that fit or use a model, or write the samples of a store, and their help."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from dpca.choices import EXPORT_FORMATS, INFINITE
from dpca.cli.arguments import (
    SOURCES,
    add_budget,
    add_cluster_options,
    add_mask,
    add_overwrite,
    add_parameters,
    add_range_option,
    add_source_options,
    cell_lengths,
    option_type,
    options_of,
    positive,
    sample_indices,
)
from dpca.cli.goals import add_goals
from dpca.cli.model_arguments import add_model_options
from dpca.parameters.denoising import DenoisingParameters
from dpca.parameters.kinds import choice, number, whole

_STACK = "stack store, or a Zarr array with samples on its first axis"


def add_model_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommands with the function that `dpca.cli.program` adds each with."""
    fit = command(
        "fit",
        "model_commands:fit",
        "fit principal components to a stack: of its cells or bands, or of a kernel; or to variables of a file",
        "dpca fit lfw.zarr model.zarr --cell 10 --components 20\n"
        "         dpca fit lfw.zarr model.zarr --cell 10 --target-psnr 32\n"
        "         dpca fit lfw.zarr model.zarr --band-size 1875 --mapping mean-variance --ratio 15\n"
        "         dpca fit lfw.zarr model.zarr --kernel rbf --components 50\n"
        "         dpca fit fields.nc model.zarr --key u,t2m --standardize --components 10",
        stack=f"{_STACK}; with --key, a file of variables",
        model="model to write",
    )
    add_model_options(fit, required=True)
    add_mask(fit)
    add_budget(fit)

    transform = command(
        "transform",
        "model_commands:transform",
        "write the scores of a stack and the quality of the reconstructions",
        "dpca transform model.zarr lfw.zarr scores.zarr",
        model="model that 'dpca fit', a pipeline or save() wrote",
        stack=f"{_STACK}; for a model of variables, a file with these",
        scores="scores store to write",
    )
    transform.add_argument("--reconstruct", action="store_true", help="also store the reconstructions")
    add_mask(transform)

    encode = command(
        "encode",
        "model_commands:encode",
        "write a compressed store: quantized scores of the cells of a stack",
        "dpca encode model.zarr lfw.zarr small.zarr --psnr 36\n"
        "         dpca encode model.zarr volumes.zarr small.zarr --max-relative-error 0.001",
        model="CellPCA model, with more components per cell than the store needs; it keeps the useful ones",
        stack=_STACK,
        target="compressed store to write",
    )
    add_mask(encode)
    add_goals(encode)

    append = command(
        "append",
        "model_commands:append",
        "append samples to a compressed store, with its components",
        "dpca append small.zarr new-photos/",
        store="compressed store on a local disk",
        source=SOURCES,
    )
    append.add_argument(
        "--drift",
        choices=("refuse", "accept", "refit"),
        default="refuse",
        help="what to do with samples that miss the goal of the store; refit: fit and encode all samples again, the "
        "earlier ones from --stack (default: %(default)s)",
    )
    append.add_argument("--stack", metavar="STACK", help="with --drift refit, the stack that the store was made from")
    add_source_options(append, masked=False)

    export = command(
        "export",
        "model_commands:export",
        "write samples of a store as files: JPEG, PNG, TIFF, NumPy, netCDF, NIfTI, OME-Zarr",
        "dpca export small.zarr out/                    a file for each sample, with its name\n"
        "         dpca export small.zarr movie.tif --samples 0:100\n"
        "         dpca export fields.zarr fields.nc\n"
        "         dpca export cells.zarr cells.ome.zarr          for napari and neuroglancer",
        store="compressed store, scores, or a stack",
        target="folder; or one file with all samples: .tif, .npy, .nii, .nii.gz, .nc, .zarr (OME-Zarr)",
    )
    export.add_argument(
        "--format",
        choices=EXPORT_FORMATS,
        help="format of the files (default: from the names of the target or of the samples, otherwise a lossless one)",
    )
    export.add_argument(
        "--samples",
        type=sample_indices,
        metavar="A:B",
        help="indices of samples, such as 7 or 0:100 (default: all)",
    )
    export.add_argument(
        "--jpeg-quality",
        type=option_type(whole(1, 100)),
        default=95,
        metavar="N",
        help="quality of JPEG files, up to 100 (default: %(default)s)",
    )
    export.add_argument("--model", metavar="MODEL", help="model of scores (default: the one inside their store)")

    reconstruct = command(
        "reconstruct",
        "model_commands:reconstruct",
        "reconstruct a stack from a compressed store or from scores",
        "dpca reconstruct small.zarr again.zarr\n         dpca reconstruct model.zarr scores.zarr again.zarr",
        model="model of the scores, if it is not inside their store",
        store="compressed store, or scores",
        target="stack store to write",
    )
    for sub in (export, reconstruct):
        sub.add_argument(
            "--components",
            type=positive,
            metavar="K",
            help="read and use only the first K components of each cell, band or sample (default: all)",
        )

    denoise = command(
        "denoise",
        "model_commands:denoise",
        "remove noise from a stack of images or volumes by local PCA, with maps of the noise",
        "dpca denoise volumes.nii.gz clean.zarr --noise rician\n"
        "         dpca denoise movie.tif clean.zarr --noise poisson\n"
        "         dpca denoise movie.tif clean.zarr --noise poisson --gain 2.3 --offset 100 --read-noise 1.6",
        source=SOURCES,
        target="stack store to write",
    )
    add_parameters(denoise, denoise, options_of(DenoisingParameters).values())
    add_source_options(denoise)
    denoise.add_argument("--dry-run", action="store_true", help="only report the plan: time, memory and reads")

    fill = command(
        "fill",
        "model_commands:fill",
        "fill missing values of a stack by low-rank models, with a map of their standard errors",
        "dpca fill sst.nc filled.zarr --key sst --components 20\n"
        "         dpca fill masked.zarr filled.zarr --missing-value -999 --cell 16 --components 5",
        source=SOURCES,
        target="stack store to write",
    )
    fill.add_argument(
        "--components",
        type=positive,
        default=10,
        metavar="K",
        help="components of a sample, or of each cell (default: %(default)s)",
    )
    fill.add_argument(
        "--cell", type=cell_lengths, metavar="N[xM[xL]]", help="fit cells of this shape (default: whole samples)"
    )
    fill.add_argument(
        "--missing-value",
        type=option_type(number() | choice(INFINITE)),
        metavar="X",
        help="a number that marks missing values, in addition to NaN and the missing values that a file states, or "
        f'"{INFINITE}" for both infinities',
    )
    add_source_options(fill)
    fill.add_argument("--dry-run", action="store_true", help="only check the options and the memory")

    for sub in (fit, transform, encode):
        add_range_option(sub, "from the stack, otherwise from its values")
    for sub in (fit, transform, encode, export, reconstruct, denoise, fill):
        add_overwrite(sub)
    for sub in (fit, transform, encode, append, reconstruct, denoise, fill):
        add_cluster_options(sub)
