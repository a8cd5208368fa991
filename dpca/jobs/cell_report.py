"""The report of the main job: its numbers, gathered from the stores, and its pictures."""

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
from dpca.models.band_pca import BandPCA
from dpca.models.cell_pca import CellPCA
from dpca.models.stored_basis import load_any
from dpca.partition.lapped import LappedGrid
from dpca.report import plots
from storage.stack import Stack

_EIGENFACES = 8

_CAPTIONS_OF_BANDS = {
    "eigenfaces": (
        "Eigenvectors",
        "First eigenvectors of every band, each entry in the place of its attribute; grey is zero, and the sign is "
        "free from band to band.",
    ),
    "ranks": (
        "Components kept",
        "How many components the band of each attribute keeps: more where they pay.",
    ),
    "explained_variance": (
        "Explained variance",
        "Share of a band's variance that its first components hold: the mean with all bands counting alike, and how "
        "far they are apart.",
    ),
}


def write_job_report(
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
        What the fit has to say.
    """
    model: CellPCA | BandPCA = load_any(store / "model")
    quality = read_quality(store)
    report = _numbers(stack, store, model, quality, stages) | {"notes": list(notes)}
    figures = _figures(stack, store, model, quality)
    title = f"{model.part_name.capitalize()} PCA of {stack.source.get('name') or 'a stack'}"
    return write_and_read_report(
        folder, report, figures, title, _CAPTIONS_OF_BANDS if isinstance(model, BandPCA) else None
    )


def _numbers(
    stack: Stack,
    store: Path,
    model: CellPCA | BandPCA,
    quality: Quality,
    stages: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    kept = int(model.ranks_.sum())
    low, high = stack.data_range or (0.0, 1.0)
    return {
        "samples": stack.n_samples,
        "sample_shape": stack.sample_shape,
        **_parts(model),
        "components": model.n_components_,
        **rank_numbers(model),
        "scalars_ratio": math.prod(stack.sample_shape) / kept if kept else None,
        "bytes_ratio": stack.nbytes / (disk_bytes(store / "scores") + disk_bytes(store / "model")),
        **quality.numbers(stack),
        "explained_variance_ratio": float(model.explained_variance_.sum() / max(model.total_variance_.sum(), 1e-300)),
        "rejected": stack.rejected,
        "stages": {name: dict(cost) for name, cost in stages.items()},
        "mse_expected": expected_mse(model, (low, high)),
        "data_range": (low, high),
    }


def rank_numbers(model: CellPCA | BandPCA) -> dict[str, dict[str, float]]:
    """Return ``ranks``: the least, mean, most and sum of the components of parts, nothing where all keep as many."""
    ranks = model.ranks_
    low, high, total = int(ranks.min()), int(ranks.max()), int(ranks.sum())
    return {} if low == high else {"ranks": {"min": low, "mean": total / ranks.size, "max": high, "total": total}}


def _parts(model: CellPCA | BandPCA) -> dict[str, Any]:
    if isinstance(model, CellPCA):
        cells = {"cells": model.grid_.n_partitions, "cell_shape": model.grid_.cell_shape}
        return cells | {name: getattr(model, name) for name in ("overlap", "shared") if getattr(model, name)}
    return {"bands": model.bands_.n_partitions, "band_size": model.bands_.max_features, "mapping": model.mapping}


def _figures(stack: Stack, store: Path, model: CellPCA | BandPCA, quality: Quality) -> dict[str, Figure]:
    figures = picture_samples(stack, store, model.basis_, quality)
    n_parts = model.partition_.n_partitions
    explained = model.explained_variance_.reshape(n_parts, -1)
    total = model.total_variance_.reshape(n_parts)
    cell, shown = model.basis_.cell_shape, model.components_[:_EIGENFACES].copy()
    if isinstance(model.partition_, LappedGrid):
        # Each cell's own, whose signs are free: as samples they are summed with those of neighbors.
        model.partition_.prefilter.apply(shown, (0,) * (shown.ndim - 1))
    figures["eigenfaces"] = plots.eigenfaces(
        shown,
        axes=stack.axes[1:],
        cell_shape=cell if cell is not None and len(cell) > 1 else None,
        explained_variance_ratio=explained[:, :_EIGENFACES].sum(0) / max(total.sum(), 1e-300),
    )
    if np.ptp(model.ranks_):
        figures["ranks"] = plots.rank_map(_in_place(model), axes=stack.axes[1:])
    curve = np.where(total[:, None] > 0, metrics.explained_variance_ratio(explained, total), np.nan)
    if np.isfinite(curve).any():
        figures["explained_variance"] = plots.explained_variance_curve(curve, parts=f"{model.part_name}s")
    if quality.ssim is not None:
        figures["ssim_histogram"] = plots.ssim_histogram(quality.ssim)
    return figures


def _in_place(model: CellPCA | BandPCA) -> NDArray[np.int64]:
    """Return the rank of the part that each attribute belongs to, in the shape of a sample."""
    partition = model.partition_
    partition = partition.plain if isinstance(partition, LappedGrid) else partition
    ranks = enumerate(model.ranks_.flat)
    values = ((i, np.full((1, 1, partition.n_features(i)), rank)) for i, rank in ranks)
    placed: NDArray[np.int64] = partition.join(values, np.empty((1, *partition.sample_shape), np.int64))[0]
    return placed
