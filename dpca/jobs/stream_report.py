"""The report of a streaming PCA: its numbers, gathered from the stores, and its pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpca import metrics
from dpca.jobs.report_parts import Quality, disk_bytes, picture_samples, read_quality, write_and_read_report
from dpca.jobs.score_write import expected_mse
from dpca.models.streaming_pca import StreamingPCA
from dpca.report import plots
from storage.reading import open_array
from storage.stack import Stack

Array = NDArray[Any]

_EIGENIMAGES, _SPECTRUM = 12, 5
# Points that a scatter plot can still show, and the runs of samples that they are read in.
_POINTS, _RUNS = 10_000, 20

_CAPTIONS = {
    "eigenimages": (
        "Eigenimages",
        "The first components, each scaled on its own; grey is zero, and the sign is free. The share of the variance "
        "that it holds stands beside its number.",
    ),
    "explained_variance": (
        "Explained variance",
        "Share of the whole variance that the first components hold together.",
    ),
    "scores": (
        "Scores",
        "Every point is a sample, placed by its first two scores; dark points come early in the stack, light ones "
        "late, so that a drift or a sorted source shows.",
    ),
}


def write_stream_report(
    stack: Stack, store: Path, folder: Path, stages: Mapping[str, Mapping[str, Any]], notes: Sequence[str]
) -> dict[str, Any]:
    """Gather the numbers of a scores store, draw its pictures, write both, and return the numbers.

    Parameters
    ----------
    stack : Stack
        The originals.
    store : Path
        The scores store, with its model.
    folder : Path
        Where the report goes.
    stages : mapping
        Name of each stage to its seconds, bytes and peak memory.
    notes : sequence of str
        What the fit warned of.
    """
    model = StreamingPCA.load(store / "model")
    quality = read_quality(store)
    report = _numbers(stack, store, model, quality, stages, notes)
    figures = _figures(stack, store, model, quality)
    title = f"Eigenimages of {stack.source.get('name') or 'a stack'}"
    return write_and_read_report(folder, report, figures, title, _CAPTIONS)


def _numbers(
    stack: Stack,
    store: Path,
    model: StreamingPCA,
    quality: Quality,
    stages: Mapping[str, Mapping[str, Any]],
    notes: Sequence[str],
) -> dict[str, Any]:
    low, high = stack.data_range or (0.0, 1.0)
    numbers = quality.numbers(stack)
    if quality.ssim is None:
        # Not measured, which is not the same as not defined.
        numbers = {name: value for name, value in numbers.items() if not name.startswith("ssim")}
    return {
        "samples": stack.n_samples,
        "sample_shape": stack.sample_shape,
        "attributes": model.n_features_in_,
        "components": model.n_components_,
        "method": model.method,
        "passes": model.n_passes,
        "scalars_ratio": model.n_features_in_ / model.n_components_,
        "bytes_ratio": stack.nbytes / (disk_bytes(store / "scores") + disk_bytes(store / "model")),
        **numbers,
        "explained_variance_ratio": float(model.explained_variance_ratio_.sum()),
        "leading_ratios": model.explained_variance_ratio_[:_SPECTRUM],
        "captured_bound": None if math.isnan(model.captured_bound_) else model.captured_bound_,
        "rejected": stack.rejected,
        "notes": list(notes),
        "stages": {name: dict(cost) for name, cost in stages.items()},
        "mse_expected": expected_mse(model, (low, high)),
        "total_variance": model.total_variance_,
        "explained_variance": model.explained_variance_,
        "data_range": (low, high),
    }


def _figures(stack: Stack, store: Path, model: StreamingPCA, quality: Quality) -> dict[str, Figure]:
    shares = model.explained_variance_ratio_
    images = model.components_[:_EIGENIMAGES].reshape(-1, *model.sample_shape_)
    figures = {
        "eigenimages": plots.eigenfaces(images, axes=stack.axes[1:], explained_variance_ratio=shares[: len(images)])
    }
    figures |= picture_samples(stack, store, model.basis_, quality)
    if model.total_variance_ > 0:
        curve = metrics.explained_variance_ratio(model.explained_variance_, model.total_variance_)
        figures["explained_variance"] = plots.explained_variance_curve(curve)
    rows, scores = some_scores(store)
    figures["scores"] = plots.score_scatter(scores, rows / max(stack.n_samples - 1, 1), shares)
    if quality.ssim is not None:
        figures["ssim_histogram"] = plots.ssim_histogram(quality.ssim)
    return figures


def some_scores(store: Path) -> tuple[Array, Array]:
    """Read the scores of up to 10,000 samples in runs from all over a stack: their numbers (m,) and scores (m, k)."""
    stored = open_array(store / "scores")
    n = stored.shape[0]
    if n <= _POINTS:
        return np.arange(n), np.asarray(stored[...])
    length = _POINTS // _RUNS
    starts = np.linspace(0, n - length, _RUNS).astype(int)
    rows = np.concatenate([np.arange(start, start + length) for start in starts])
    return rows, np.concatenate([np.asarray(stored[start : start + length]) for start in starts])
