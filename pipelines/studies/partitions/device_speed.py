"""How long a cell takes on this machine's processors and on its accelerator (Alakkari 2020, table 4.3)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.engine.folds.device import Device
from dpca.engine.folds.fold_device import fold_on_device
from dpca.engine.sources.source import as_source
from dpca.kernels.algebra.types import Array
from dpca.models.cells.cell_pca import CellPCA
from dpca.partition.cells import CellGrid
from dpca.pipelines.studies.partitions.published import SECONDS, PublishedTime
from dpca.rules.covariance.covariance import CovariancePCA


@dataclass(frozen=True)
class CellCase:
    """A column of table 4.3: a cell, how many components of it are kept, and the thesis's seconds a cell."""

    cell_shape: tuple[int, int]
    n_components: int
    published: PublishedTime


#: Alakkari 2020, table 4.3 for LFW: 13,233 images of 250 x 250 x 3.
TABLE_4_3 = tuple(CellCase((c, c), k, SECONDS["lfw"][f"cells {c} x {c}"]) for c, k in ((5, 5), (10, 20), (25, 125)))


@dataclass(frozen=True)
class CellSpeed:
    """Seconds a cell, measured."""

    case: CellCase
    cpu: float
    gpu: float | None
    """None where there is no accelerator."""
    apart: float | None
    """Largest difference of what a cell's components capture on the two, as a share of it."""


def cell_speeds(X: Any, device: Device | None, cases: tuple[CellCase, ...] = TABLE_4_3) -> Iterator[CellSpeed]:
    """Measure table 4.3 on a stack, and yield its columns.

    Parameters
    ----------
    X
        Whatever `CellPCA.fit` takes, samples (height, width, channels).
    device : Device or None
        As `dpca.engine.folds.device.find_device` returns it.
    cases : tuple of CellCase

    Yields
    ------
    CellSpeed
    """
    for case in cases:
        cpu, captured = _measured(X, case.cell_shape, case.n_components, None)
        if device is None:
            yield CellSpeed(case, cpu, None, None)
        else:
            gpu, there = _measured(X, case.cell_shape, case.n_components, device)
            apart = float(np.max(np.abs(there - captured) / np.where(captured > 0, captured, 1)))
            yield CellSpeed(case, cpu, gpu, apart)


def cell_seconds(X: Any, cell_shape: tuple[int, ...], n_components: int, device: Device | None = None) -> float:
    """Return the seconds that one cell takes: from the stack, read once, to all components in numpy arrays.

    Parameters
    ----------
    X
        Whatever `CellPCA.fit` takes.
    cell_shape : tuple of int
    n_components : int
    device : Device, optional
        Where to compute; by default as `CellPCA` does, on the processors of this machine or the current Dask cluster.

    Raises
    ------
    DataError, PlanError
        As `CellPCA.fit`.
    """
    return _measured(X, cell_shape, n_components, device)[0]


def _measured(X: Any, cell_shape: tuple[int, ...], n_components: int, device: Device | None) -> tuple[float, Array]:
    """Return the seconds a cell, and the variance that the components of each cell capture."""
    source = as_source(X)
    if device is not None:
        # What an accelerator loads or compiles at the first call is not what is measured: four cells of noise go first.
        few = tuple(2 * c for c in cell_shape) + source.shape[1 + len(cell_shape) :]
        noise = np.random.default_rng(0).integers(0, 100, (2 * n_components + 2, *few)).astype(source.dtype)
        _captured(noise, cell_shape, n_components, device)
    began = time.perf_counter()
    captured = _captured(X, cell_shape, n_components, device)
    return (time.perf_counter() - began) / len(captured), captured


def _captured(X: Any, cell_shape: tuple[int, ...], n_components: int, device: Device | None) -> Array:
    """Return the variance that the components of each cell capture."""
    if device is None:
        variances = CellPCA(n_components, cell_shape=cell_shape).fit(X).explained_variance_
        captured: Array = variances.reshape(-1, variances.shape[-1]).sum(axis=1)
        return captured
    source = as_source(X)
    grid = CellGrid(source.shape[1:], cell_shape)
    results = fold_on_device(CovariancePCA(n_components), source, grid, device)
    return np.array([result["explained_variance"].sum() for result in results])
