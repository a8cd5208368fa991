"""The report of a job after samples were appended: numbers of all samples, pictures of the new ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from dpca import plots
from dpca.jobs.base.input_stack import compressed_bytes
from dpca.jobs.base.stages import StageCost
from dpca.jobs.scores.report import pictured, quality_numbers
from dpca.plots.given import boxes_of, samples_given, worst_first
from dpca.plots.overviews import overview
from dpca.report.record import read_pictures, report_folder, write_report
from dpca.representation.compressed.compressed import Compressed, compressed_in
from dpca.storage.arrays.arrays import open_written
from dpca.storage.disk import bytes_at
from dpca.storage.integrity.manifest import Carried
from dpca.storage.remote.objects import Place
from dpca.storage.stack import Stack

_SHOWN = 6
# The picture of all samples. An interrupted run may have replaced it without a new manifest.
_RENEWED = "ssim_histogram"
# Captions say that some pictures show only the samples of the first job.
_CAPTIONS = {
    "comparison": ("Originals and reconstructions", "Samples that the job compressed, before others were appended."),
    "worst": ("The worst samples", "The samples with the lowest quality of those that the job compressed."),
    "appended": ("Appended samples", "The samples with the lowest quality of those that were appended last."),
}


def renew_report(
    report: Mapping[str, Any],
    before: Compressed,
    new: Stack,
    paths: Sequence[str],
    store: Place,
    carried: Carried,
    cost: StageCost,
) -> None:
    """Write the report of a job again, for the store with the appended samples.

    Parameters
    ----------
    report : mapping
        Numbers of the earlier samples, and the notes of all.
    before : Compressed
        The store before the append. The longer store replaces it under the same name.
    new : Stack
        The appended samples.
    paths : sequence of str
        Input files of the new samples.
    store : Path or ObjectPath
        The longer store.
    carried : Carried
        The files that it reuses.
    cost : StageCost
        Cost of the append.
    """
    folder, longer = report_folder(before.path), compressed_in(open_written(store), os.fspath(store))
    quality, size = longer.quality, compressed_bytes(store, carried)
    given, more = report.get("bytes_given"), bytes_at(paths)
    written = {**report.get("bytes_written", {}), "compressed": size}
    written["total"] = sum(value for name, value in written.items() if name != "total")
    renewed = {
        **report,
        "samples": len(longer),
        "bytes_compressed": size,
        "bytes_ratio": longer.nbytes / size,
        "bytes_given": None if given is None or more is None else given + more,
        "bytes_decoded": longer.nbytes,
        "bytes_written": written,
        **quality_numbers(longer.names, quality, "ssim_mean" in report),
        "rejected": [*report.get("rejected", []), *new.rejected],
        "stages": {**report.get("stages", {}), "append": asdict(cost)},
    }
    first = len(before)
    worst = [first + i for i in worst_first({name: values[first:] for name, values in quality.items()})[:_SHOWN]]
    samples, axes, boxes = samples_given(new), new.axes[1:], boxes_of(longer)
    originals = {i: samples.overview(i - first) for i in worst}
    rebuilt = np.stack(
        [overview(partial(boxes, i), longer.shape[1:], longer.dtype.itemsize, axes, longer.chunks[1:]) for i in worst]
    )
    bounds = tuple(report["data_range"])
    figures: dict[str, Any] = read_pictures(folder, besides=_RENEWED)
    if "ssim" in quality:
        figures[_RENEWED] = plots.ssim_histogram(quality["ssim"])
    figures["appended"] = pictured(originals, rebuilt, longer.names, quality.get("ssim"), bounds, samples)
    title = f"Cell PCA of {longer.facts['source'].get('name') or 'a stack'}"
    write_report(folder, renewed, figures, title=title, captions=_CAPTIONS)
