"""The report of the main job: its numbers, gathered from the stores, and its pictures."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpca import metrics, plots
from dpca.models.cell_basis import to_pixels
from dpca.models.cell_pca import CellPCA
from dpca.models.cell_write import expected_mse
from dpca.report import write_report
from dpca.rules.quality import psnr_from_mse
from storage.arrays import open_array
from storage.errors import StoreError
from storage.stack import Stack

Array = NDArray[Any]

_SHOWN, _WORST, _EIGENFACES = 6, 6, 8


def report_folder(output: str | os.PathLike[str]) -> Path:
    """Return where the report of an output goes: ``out.report`` for ``out.zarr``."""
    path = Path(output)
    return path.with_name(f"{path.stem if path.suffix == '.zarr' else path.name}.report")


def read_report(folder: Path) -> dict[str, Any] | None:
    """Return the numbers of an earlier report, None if there is none."""
    try:
        report = json.loads((folder / "report.json").read_bytes())
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) and (folder / "index.html").exists() else None


def write_job_report(
    stack: Stack, store: Path, folder: Path, stages: Mapping[str, Mapping[str, Any]]
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
    """
    model = CellPCA.load(store / "model")
    quality = {name: _column(store, name) for name in ("mse", "psnr", "ssim")}
    report = _numbers(stack, store, model, quality, stages)
    figures = _figures(stack, store, model, quality)
    write_report(folder, report, figures, title=f"Cell PCA of {stack.source.get('name') or 'a stack'}")
    written = read_report(folder)
    if written is None:
        raise StoreError(f"the report in '{folder}' cannot be read back: remove that folder and run again")
    return written


def _numbers(
    stack: Stack,
    store: Path,
    model: CellPCA,
    quality: Mapping[str, Array | None],
    stages: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    grid, k = model.grid_, model.n_components_
    kept = sum(min(k, grid.n_features(i)) for i in range(grid.n_partitions))
    ssim, mse = quality["ssim"], quality["mse"]
    assert mse is not None
    worst = None if ssim is None else int(ssim.argmin())
    low, high = stack.data_range or (0.0, 1.0)
    return {
        "samples": stack.n_samples,
        "sample_shape": stack.sample_shape,
        "cells": grid.n_partitions,
        "cell_shape": grid.cell_shape,
        "components": k,
        "scalars_ratio": math.prod(stack.sample_shape) / kept,
        "bytes_ratio": stack.nbytes / (_disk_bytes(store / "scores") + _disk_bytes(store / "model")),
        "mse": float(mse.mean()),
        "psnr": float(psnr_from_mse(mse.mean())),
        "ssim_mean": None if ssim is None else float(ssim.mean()),
        "ssim_min": None if ssim is None else float(ssim.min()),
        "ssim_min_name": None if worst is None else str(stack.names[worst]),
        "explained_variance_ratio": float(model.explained_variance_.sum() / max(model.total_variance_.sum(), 1e-300)),
        "rejected": stack.rejected,
        "stages": {name: dict(cost) for name, cost in stages.items()},
        "mse_expected": expected_mse(model, (low, high)),
        "data_range": (low, high),
    }


def _figures(stack: Stack, store: Path, model: CellPCA, quality: Mapping[str, Array | None]) -> dict[str, Figure]:
    scores = open_array(store / "scores")
    data_range = stack.data_range or (0.0, 1.0)
    axes = stack.axes[1:]
    ssim = quality["ssim"]
    # Higher is better in both.
    goodness = ssim if ssim is not None else -np.asarray(quality["mse"])

    def pictured(draw: Any, indices: list[int]) -> Figure:
        originals = np.stack([np.asarray(stack.samples[i]) for i in indices])
        rebuilt = model.basis_.reconstruct(np.stack([np.asarray(scores[i]) for i in indices]))
        shown = to_pixels(rebuilt, stack.dtype, data_range)
        names = [str(stack.names[i]) for i in indices]
        return draw(originals, shown, names, None if ssim is None else ssim[indices], data_range, axes=axes)  # type: ignore[no-any-return]

    spread = np.linspace(0, stack.n_samples - 1, min(_SHOWN, stack.n_samples)).round().astype(int)
    figures = {
        "comparison": pictured(plots.comparison, list(map(int, spread))),
        "worst": pictured(plots.worst, list(map(int, np.argsort(goodness, kind="stable")[:_WORST]))),
    }
    n_cells = model.grid_.n_partitions
    explained = model.explained_variance_.reshape(n_cells, -1)
    total = model.total_variance_.reshape(n_cells)
    figures["eigenfaces"] = plots.eigenfaces(
        model.components_[:_EIGENFACES],
        axes=axes,
        cell_shape=model.grid_.cell_shape if len(model.grid_.cell_shape) > 1 else None,
        explained_variance_ratio=explained[:, :_EIGENFACES].sum(0) / max(total.sum(), 1e-300),
    )
    curve = np.where(total[:, None] > 0, metrics.explained_variance_ratio(explained, total), np.nan)
    if np.isfinite(curve).any():
        figures["explained_variance"] = plots.explained_variance_curve(curve)
    if ssim is not None:
        figures["ssim_histogram"] = plots.ssim_histogram(ssim)
    return figures


def _column(store: Path, name: str) -> Array | None:
    """One number a sample, or None where the measure is not defined (SSIM of samples under 7 pixels)."""
    return np.asarray(open_array(store / name)[...]) if (store / name).exists() else None


def _disk_bytes(folder: Path) -> int:
    return sum(os.path.getsize(os.path.join(root, file)) for root, _, files in os.walk(folder) for file in files)
