"""The record of a job: numbers as JSON and as a table, pictures as PNG, all of it on one page of HTML.

The numbers are a plain dictionary. `KEYS` lists the known ones; all may be absent, and null means "not defined here".
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpca.plots.png import png
from dpca.report import words
from dpca.report.page import DataTable, Picture, html_page
from dpca.storage.disk import atomic_write_bytes, read_file, there_is, writing_errors
from dpca.storage.errors import StoreError, one_line
from dpca.storage.manifest import FOLDER_MANIFEST, REPORT, Manifest, read_manifest, write_folder_manifest
from dpca.storage.objects import Place, place_of
from dpca.storage.outputs import resolved_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What the numbers of a report mean, in the order in which they are written.
KEYS = {
    "samples": "number of samples",
    "sample_shape": "shape of one sample",
    "attributes": "attributes of a sample that is taken whole",
    "cells": "number of cells",
    "cell_shape": "shape of a whole cell",
    "overlap": "pixels on each side of a border that are mapped across it",
    "shared": "whether all cells of a shape share their components",
    "bands": "number of bands",
    "band_size": "attributes of the largest band",
    "mapping": "how attributes are put into bands",
    "components": "most components kept in a cell or band; those of whole samples where there are neither",
    "ranks": "{min, mean, max, total} of the components that cells or bands keep, where they differ",
    "method": "update rule of a streaming PCA, or solver of an exact one",
    "landmarks": "samples whose kernels stand for those of all",
    "passes": "how often the fit read the samples",
    "scalars_ratio": "compression as the thesis counts it: attributes to kept scalars of a sample",
    "bytes_ratio": "bytes of the decoded samples to bytes of scores and model on disk, or of the compressed store",
    "bytes_compressed": "bytes of all files of the compressed store, where one was made",
    "bytes_given": "bytes of the files that were given; null where they are not on this disk",
    "bytes_decoded": "bytes of all samples, decoded",
    "bytes_written": "{stack, scores, model, reconstructions, compressed, total}: bytes of what is kept",
    "mse": "mean over all samples of the squared error of intensities, scaled so that data_range is 0..1",
    "psnr": "of that, in dB",
    "data_range": "[low, high]: the values that are 0 and 1 there, and that PSNR and SSIM refer to",
    "ssim_mean": "structural similarity, mean over all samples",
    "ssim_min": "the lowest one",
    "ssim_min_name": "the name of that sample",
    "explained_variance_ratio": "share of the variance that is kept",
    "leading_ratios": "that of each of the first components",
    "captured_bound": "lower bound of the kept share of what the best components would keep; null if not known",
    "captured_estimate": "that share as it is estimated from samples drawn at random, where the fit keeps some",
    "captured_estimate_error": "the standard error of that",
    "rejected": "samples left out: their number, or a list of (name, reason)",
    "goal": "{name, value}: what the compressed store was to reach; {every_sample}: whether each sample was",
    "target": "{name, asked, reached, standard_error, left_out, data_range}: what was asked for, and is reached on "
    "samples of the fit or on those left out of it",
    "job": "which job made the store",
    "settings": "what was asked for",
    "made_with": "versions of this package and of the libraries that it computed with",
    "notes": "sentences that a reader should know of",
    "stages": "name -> {seconds, bytes, peak_memory}, and {seconds, bytes, memory} that were planned",
}
_STAGE_KEYS = ("seconds", "bytes", "peak_memory", "planned")

_CAPTIONS = {
    "comparison": (
        "Originals and reconstructions",
        "Samples beside their reconstructions, and the difference around grey, amplified as its heading says.",
    ),
    "worst": ("The worst", "The samples with the lowest quality of all, where the model fails first."),
    "eigenfaces": (
        "Eigenfaces",
        "First eigenvectors of every cell or band, each entry in the place of its attribute, all on "
        "one scale. Zero is white, above it red, below it blue; of colored samples zero is grey. The sign of an "
        "eigenvector is free: neighboring cells are given signs that agree.",
    ),
    "eigenimages": (
        "Eigenimages",
        "The first components, all on one scale, and the share of the variance that each explains. Zero is white, "
        "above it red, below it blue; of colored samples zero is grey. The sign is free.",
    ),
    "ranks": ("Components kept", "How many components each cell or band keeps, in the places of its attributes."),
    "explained_variance": (
        "Explained variance",
        "Share of the variance that the first components explain. Of cells or bands: the mean, all counting alike, and "
        "how much they differ.",
    ),
    "scores": (
        "Scores",
        "Every point is a sample, placed by its first two scores. Dark points come early in the stack, light ones "
        "late: a drift or a sorted source shows.",
    ),
    "ssim_histogram": (
        "Quality of every sample",
        "How many samples reach which SSIM. No sample is left out.",
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
    """Write ``report.json``, one PNG a figure, and ``index.html`` that holds everything in itself.

    Parameters
    ----------
    folder : path-like
        Made if it is not there.
    report : mapping
        Numbers, see the module. NumPy scalars and arrays are welcome; values that are not finite become null.
        Further keys are written after the known ones.
    figures : mapping of str to Figure or bytes
        In the order of the page; ``name`` becomes ``name.png``. Bytes are those of a PNG file.
    title : str
        Heading of the page.
    captions : mapping of str to (heading, sentence), optional
        For figures other than those of the main job, or to say something else about these.
    tables : sequence of DataTable
        Further tables of the page.

    Raises
    ------
    ValueError
        If the name of a figure is no plain file name.
    StoreError
        If the disk is full or the folder cannot be written.

    Notes
    -----
    Every file is written beside its name and renamed, the page last but for a manifest of all of them: a reader never
    sees half of one. The same report and figures give the same bytes.
    """
    known = _plain(report)
    texts = {**_CAPTIONS, **(captions or {})}
    pictures = []
    for name, figure in figures.items():
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
            raise ValueError(f"figure {name!r} cannot name a file: use letters, digits, '-' and '_'")
        heading, sentence = texts.get(name, (name.replace("_", " ").replace("-", " ").capitalize(), ""))
        drawn = figure if isinstance(figure, bytes) else png(figure)
        pictures.append(Picture(f"{name}.png", heading, sentence, drawn))
    page = html_page(
        title=title,
        lead=words.lead(known),
        highlights=words.highlights(known),
        summary=words.summary(known, times="\N{MULTIPLICATION SIGN}"),
        stages=words.stages(known),
        rejected=words.rejected(known),
        pictures=pictures,
        tables=tables,
    )
    files = {picture.file: picture.png for picture in pictures}
    files["report.json"] = (json.dumps(known, indent=2, allow_nan=False) + "\n").encode()
    files["index.html"] = page.encode("utf-8", "replace")  # a name that is no valid Unicode must not cost the page
    with writing_errors(folder):
        target = place_of(folder)
        target.mkdir(parents=True, exist_ok=True)
        # One that is killed leaves what is recognized as a report, which lacks files.
        if is_new := not there_is(target / FOLDER_MANIFEST):
            write_folder_manifest(target, REPORT, files)
        for name, content in files.items():
            atomic_write_bytes(target / name, content)
        if not is_new:
            write_folder_manifest(target, REPORT, files)


def report_folder(output: str | os.PathLike[str]) -> Place:
    """Return where the report of an output goes: ``out.report`` for ``out.zarr``.

    Raises
    ------
    StoreError
        If no output can be there.
    """
    resolved_output(output)
    path = place_of(output)
    return path.with_name(f"{path.stem if path.suffix == '.zarr' else path.name}.report")


def read_report(folder: Place) -> dict[str, Any] | None:
    """Return the numbers of an earlier report, None if there is none, or a file of it is gone.

    Raises
    ------
    StoreError
        If they are not those that were written.
    """
    try:
        if (manifest := _manifest_of(folder)) is not None:
            if not all(there_is(folder / name) for name in manifest.files):
                return None
            manifest.check("report.json", read_file(folder / "report.json"), str(folder))
        # Reports of earlier versions have no manifest.
        elif not all(there_is(folder / name) for name in ("report.json", "index.html")):
            return None
        return dict(json.loads(read_file(folder / "report.json")))
    except (OSError, ValueError, TypeError, RecursionError, StoreError) as error:
        raise _damaged(folder, error) from error


def read_pictures(folder: Place, *, besides: str) -> dict[str, bytes]:
    """Return the PNG files of the main job's report but for one, by their names in the order of its page.

    Raises
    ------
    StoreError
        If one is not the file that was written.
    """
    places = {name: folder / f"{name}.png" for name in _CAPTIONS if name != besides}
    try:
        pictures = {name: read_file(place) for name, place in places.items() if there_is(place)}
        if (manifest := _manifest_of(folder)) is not None:
            for name, content in pictures.items():
                manifest.check(f"{name}.png", content, str(folder))
    except (OSError, ValueError, StoreError) as error:
        raise _damaged(folder, error) from error
    return pictures


def _manifest_of(folder: Place) -> Manifest | None:
    """Return the manifest of a report; None where it was written by a version without any."""
    if not there_is(folder / FOLDER_MANIFEST):
        return None
    if (manifest := read_manifest(read_file(folder / FOLDER_MANIFEST), str(folder))) is None:
        raise ValueError("its manifest is none")
    return manifest


def _damaged(folder: Place, error: Exception) -> StoreError:
    return StoreError(f"the report in '{folder}' is damaged ({one_line(error)}): remove that folder and run again")


def format_table(report: Mapping[str, Any]) -> str:
    """Format the numbers of a report as the two aligned tables that a job prints at its end.

    Without a trailing newline; control characters in names are escaped.
    """
    known = _plain(report)
    summary = words.summary(known)
    width = max((len(label) for label, _ in summary), default=0)
    lines = [f"{label:<{width}}   {value}" for label, value in summary]
    stages = words.stages(known)
    if stages:
        rows = [(stage.name, stage.seconds, stage.rate, stage.memory) for stage in stages]
        lines += ["", aligned(("stage", "seconds", "GB/s", "peak memory"), rows)]
    return "\n".join(lines)


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Set rows of equal length as plain text: the first column to the left, the others to the right."""
    every = [head, *rows]
    wide = [max(len(row[column]) for row in every) for column in range(len(head))]
    lines = []
    for name, *figures in every:
        cells = (figure.rjust(places) for figure, places in zip(figures, wide[1:], strict=True))
        lines.append("   ".join([name.ljust(wide[0]), *cells]))
    return "\n".join(lines)


# -- numbers as JSON has them


def _plain(report: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a report in its order of keys, with nothing in it but what JSON knows."""
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
