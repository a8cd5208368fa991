"""The report of a job: numbers as JSON and as a table, pictures as PNG, and a page of HTML with all of them.

The numbers are a dictionary. `KEYS` lists the known keys. Each may be missing; null means "not defined here".
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpca.plots.html import template
from dpca.plots.png import pieces_of, png
from dpca.report import words
from dpca.report.page import DataTable, ReportPicture, grids_of
from dpca.storage.disk import atomic_write_bytes, exists, read_file, writing_errors
from dpca.storage.errors import StoreError, one_line
from dpca.storage.integrity.manifest import FOLDER_MANIFEST, REPORT, Manifest, read_manifest, write_folder_manifest
from dpca.storage.remote.objects import Place, place_of
from dpca.storage.transaction.outputs import resolved_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The meaning of each number in a report, in the order of the file.
KEYS = {
    "samples": "number of samples",
    "sample_shape": "shape of one sample",
    "attributes": "attributes of a sample, if there are no cells or bands",
    "variables": "names of the variables of a sample, if there are several",
    "cells": "number of cells",
    "cell_shape": "shape of a cell that is not cut off at the edge",
    "overlap": "pixels on each side of a border that overlapping cells share",
    "shared": "whether all cells of a shape share their components",
    "bands": "number of bands",
    "band_size": "attributes of the largest band",
    "mapping": "how attributes are assigned to bands",
    "components": "most components kept in a cell or band; without cells and bands, those of the whole samples",
    "ranks": "{min, mean, max, total} of the components that cells or bands keep, if they differ",
    "method": "update rule of a streaming PCA, or solver of an exact one",
    "landmarks": "number of landmarks of a kernel PCA",
    "passes": "number of passes of the fit over the samples",
    "scalars_ratio": "compression ratio in scalars (Alakkari 2020): attributes to scores of a sample",
    "bytes_ratio": "decoded bytes to bytes of scores and model on disk, or to bytes of the compressed store",
    "bytes_compressed": "bytes of all files of the compressed store, if there is one",
    "bytes_given": "bytes of the input files; null if they are not on this disk, or if an array of a file was chosen",
    "bytes_decoded": "bytes of all samples, decoded",
    "bytes_written": "{stack, scores, model, reconstructions, compressed, total}: bytes of the output",
    "mse": "mean over all samples of the squared error, with values scaled so that data_range is 0..1",
    "psnr": "PSNR of the mean squared error, in dB",
    "data_range": "[low, high]: the data range for MSE, PSNR and SSIM",
    "ssim_mean": "structural similarity, mean over all samples",
    "ssim_min": "lowest SSIM of a sample",
    "ssim_min_name": "name of the sample with the lowest SSIM",
    "error_bound": "promised largest error of a value",
    "max_error": "measured largest error of a value",
    "max_error_name": "name of the sample with the largest error of a value",
    "noise_share": "mean over all samples of the squared error, in units of the variance of the noise",
    "explained_variance_ratio": "share of the variance that the components explain",
    "leading_ratios": "share of the variance that each of the first components explains",
    "captured_bound": "certificate: lower bound of the captured variance as a share of the optimum; null if not known",
    "captured_estimate": "captured variance as a share of the optimum, estimated from randomly drawn samples",
    "captured_estimate_error": "standard error of captured_estimate",
    "noise": "{sigma, rank, removed, gain} of a denoised stack: medians and means of its maps",
    "residual": "{variance, above, correlations} of what was removed from some samples, in units of the noise",
    "rejected": "samples left out: their number, or a list of (name, reason)",
    "goal": "{name, value}: goal of the compressed store; {every_sample}: whether each sample had to meet it",
    "target": "{name, asked, reached, standard_error, left_out, data_range}: target of the fit, and the quality "
    "reached on samples of the fit or on samples left out of it",
    "job": "which job made the store",
    "settings": "settings of the job; model: the estimator before cells were chosen, see cells_chosen",
    "made_with": "versions of this package and of the libraries that it used",
    "notes": "notes and warnings for the reader",
    "cells_chosen": "{cell_shape, overlap, shared} of the cells of the store, if the job chose them",
    "cells_tried": "list of {cell_shape, overlap, shared, bytes} of the cells that were tried on some samples to "
    "choose those of the store; bytes is null if they missed the goal",
    "fitted_by": "how the fit was computed, if not by covariances in one read of the stack",
    "stages": "name -> {seconds, bytes, peak_memory}, and {seconds, bytes, memory} as planned",
}
_STAGE_KEYS = ("seconds", "bytes", "peak_memory", "planned")

_CAPTIONS = {
    "comparison": (
        "Originals and reconstructions",
        "Samples, their reconstructions and the differences. Gray means no difference. The heading of the differences "
        "states their amplification.",
    ),
    "worst": ("The worst samples", "The samples with the lowest quality."),
    "eigenfaces": (
        "Eigenfaces",
        "The first eigenvectors of every cell or band, all on one scale. Each value is drawn at the position of its "
        "attribute. Zero is white, positive is red and negative is blue. In color samples, zero is gray. The sign of "
        "an eigenvector is arbitrary. Here neighboring cells have the same sign where possible.",
    ),
    "eigenimages": (
        "Eigenimages",
        "The first components, all on one scale, with the share of the variance that each explains. Zero is white, "
        "positive is red and negative is blue. In color samples, zero is gray. The sign is arbitrary.",
    ),
    "ranks": ("Components kept", "The number of components of each cell or band, at the positions of its attributes."),
    "explained_variance": (
        "Explained variance",
        "Share of the variance that the first components explain. For cells or bands, the line is the unweighted mean "
        "and the area is the spread.",
    ),
    "scores": (
        "Scores",
        "Every point is a sample, at its first two scores. The first samples of the stack are dark, the last ones "
        "light. A gradient shows a drift or a sorted source.",
    ),
    "ssim_histogram": (
        "Quality of every sample",
        "Histogram of the SSIM of all samples.",
    ),
}


def write_report(
    folder: str | os.PathLike[str],
    report: Mapping[str, Any],
    figures: Mapping[str, Figure | bytes],
    *,
    title: str = "Cell PCA",
    captions: Mapping[str, tuple[str, str]] | None = None,
    tables: Sequence[DataTable] = (),
) -> None:
    """Write ``report.json``, one PNG for each figure, and ``index.html``, a page that loads no other file.

    Parameters
    ----------
    folder : path-like
        Created if it does not exist.
    report : mapping
        Numbers, see the module. NumPy scalars and arrays are converted; values that are not finite become null.
        Unknown keys are written after the known ones.
    figures : mapping of str to Figure or bytes
        In the order of the page; ``name`` becomes ``name.png``. Bytes are the content of a PNG file.
    title : str
        Heading of the page.
    captions : mapping of str to (heading, sentence), optional
        For figures other than those of the main job, or to replace the captions of these.
    tables : sequence of DataTable
        Further tables of the page.

    Raises
    ------
    ValueError
        If the name of a figure is not a valid file name.
    StoreError
        If the disk is full or the folder cannot be written.

    Notes
    -----
    Every file is written under a temporary name and renamed, so that no file is ever incomplete. The page comes last
    but for the manifest. The same report and figures give bit-identical files.
    """
    known = plain_numbers(report)
    texts = {**_CAPTIONS, **(captions or {})}
    pictures = []
    for name, content in drawn(figures).items():
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
            raise ValueError(f"figure {name!r} cannot name a file: use letters, digits, '-' and '_'")
        heading, sentence = texts.get(name, (name.replace("_", " ").replace("-", " ").capitalize(), ""))
        grids = list(grids_of(pieces_of(content, heading)))
        pictures.append(ReportPicture(f"{name}.png", heading, sentence, content, grids))
    page = template(__file__, "page.html").render(
        title=title,
        lead=words.lead(known),
        asked=words.asked(known),
        highlights=words.highlights(known),
        notes=words.notes(known),
        summary=words.summary(known, times="\N{MULTIPLICATION SIGN}"),
        stages=words.stages(known),
        rejected=words.rejected(known),
        pictures=pictures,
        tables=tables,
    )
    files = {picture.file: picture.png for picture in pictures}
    files["report.json"] = (json.dumps(known, indent=2, allow_nan=False) + "\n").encode()
    files["index.html"] = page.encode("utf-8", "replace")  # file names can contain invalid Unicode
    with writing_errors(folder):
        target = place_of(folder)
        target.mkdir(parents=True, exist_ok=True)
        # With its manifest first, an interrupted report is recognized as one with missing files.
        if is_new := not exists(target / FOLDER_MANIFEST):
            write_folder_manifest(target, REPORT, files)
        for name, content in files.items():
            atomic_write_bytes(target / name, content)
        if not is_new:
            write_folder_manifest(target, REPORT, files)


def drawn(figures: Mapping[str, Figure | bytes]) -> dict[str, bytes]:
    """Return the content of a PNG file for each figure."""
    return {name: figure if isinstance(figure, bytes) else png(figure) for name, figure in figures.items()}


def report_folder(output: str | os.PathLike[str]) -> Place:
    """Return the folder of the report of an output: ``out.report`` for ``out.zarr``.

    Raises
    ------
    StoreError
        If the path cannot be an output.
    """
    resolved_output(output)
    path = place_of(output)
    return path.with_name(f"{path.stem if path.suffix == '.zarr' else path.name}.report")


def read_report(folder: Place) -> dict[str, Any] | None:
    """Return the numbers of an earlier report, None if there is none or one of its files is missing.

    Raises
    ------
    StoreError
        If the report is damaged.
    """
    try:
        manifest = _manifest_of(folder)
        if manifest is None or not all(exists(folder / name) for name in manifest.files):
            return None
        content = read_file(folder / "report.json")
        manifest.check("report.json", content, str(folder))
        return dict(json.loads(content))
    except (OSError, ValueError, TypeError, RecursionError, StoreError) as error:
        raise _damaged(folder, error) from error


def read_pictures(folder: Place, *, besides: str) -> dict[str, bytes]:
    """Return the PNG files of the main job's report except one, by name, in the order of the page.

    Raises
    ------
    StoreError
        If one is damaged.
    """
    places = {name: folder / f"{name}.png" for name in _CAPTIONS if name != besides}
    try:
        pictures = {name: read_file(place) for name, place in places.items() if exists(place)}
        if (manifest := _manifest_of(folder)) is not None:
            for name, content in pictures.items():
                manifest.check(f"{name}.png", content, str(folder))
    except (OSError, ValueError, StoreError) as error:
        raise _damaged(folder, error) from error
    return pictures


def _manifest_of(folder: Place) -> Manifest | None:
    """Return the manifest of a report; None if there is no report."""
    if not exists(folder / FOLDER_MANIFEST):
        return None
    if (manifest := read_manifest(read_file(folder / FOLDER_MANIFEST), str(folder))) is None:
        raise ValueError("its manifest cannot be read")
    return manifest


def _damaged(folder: Place, error: Exception) -> StoreError:
    return StoreError(f"the report in '{folder}' is damaged ({one_line(error)}): remove that folder and run again")


def format_table(report: Mapping[str, Any]) -> str:
    """Format the numbers of a report as two aligned tables, which a job prints at its end.

    There is no trailing newline. Control characters in names are escaped.
    """
    known = plain_numbers(report)
    summary = [*words.summary(known), *(("note", note) for note in words.notes(known))]
    width = max((len(label) for label, _ in summary), default=0)
    lines = [f"{label:<{width}}   {value}" for label, value in summary]
    stages = words.stages(known)
    if stages:
        rows = [(stage.name, stage.seconds, stage.rate, stage.memory) for stage in stages]
        lines += ["", aligned(("stage", "seconds", "speed", "peak memory"), rows)]
    return "\n".join(lines)


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format rows of equal length as plain text: the first column left-aligned, the others right-aligned."""
    every = [head, *rows]
    wide = [max(len(row[column]) for row in every) for column in range(len(head))]
    lines = []
    for name, *figures in every:
        cells = (figure.rjust(places) for figure, places in zip(figures, wide[1:], strict=True))
        lines.append("   ".join([name.ljust(wide[0]), *cells]))
    return "\n".join(lines)


# -- numbers as JSON has them


def plain_numbers(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report as JSON values, with its keys in order."""
    plain = _ordered({key: _value(value) for key, value in report.items()}, KEYS)
    stages = plain.get("stages")
    if isinstance(stages, dict):
        plain["stages"] = {name: _ordered(stage, _STAGE_KEYS) for name, stage in stages.items()}
    return plain


def _ordered(values: dict[str, Any], first: Collection[str]) -> dict[str, Any]:
    rest = sorted(values.keys() - set(first))
    return {key: values[key] for key in (*first, *rest) if key in values}


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _value(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _value(value.tolist())
    if isinstance(value, list | tuple):
        return [_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
