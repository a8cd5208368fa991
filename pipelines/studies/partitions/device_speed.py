"""Seconds per cell on the processors and the accelerator of this machine (Alakkari 2020, table 4.3)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dpca.engine.folds.device import Device
from dpca.engine.folds.fold_device import fold_on_device
from dpca.engine.sources.source import as_source
from dpca.kernels.algebra.types import Array
from dpca.models.cells.cell_pca import CellPCA
from dpca.partition.cells import CellGrid
from dpca.pipelines.studies.partitions.published import PUBLISHED, PublishedStrategy
from dpca.rules.covariance.covariance import CovariancePCA


class CellCase(NamedTuple):
    """A column of table 4.3: a cell, its number of components, and the thesis's seconds per cell."""

    cell_shape: tuple[int, int]
    n_components: int
    published: PublishedStrategy


#: Alakkari 2020, table 4.3 for LFW: 13,233 images of 250 x 250 x 3.
TABLE_4_3 = tuple(CellCase((c, c), k, PUBLISHED["lfw"][f"cells {c} x {c}"]) for c, k in ((5, 5), (10, 20), (25, 125)))


class CellSpeed(NamedTuple):
    """Measured seconds per cell."""

    case: CellCase
    cpu: float
    gpu: float | None
    """None without an accelerator."""
    apart: float | None
    """Largest relative difference of the variance that the components of a cell capture on the two."""


def cell_speeds(X: Any, device: Device | None, cases: tuple[CellCase, ...] = TABLE_4_3) -> Iterator[CellSpeed]:
    """Measure table 4.3 on a stack, and yield its columns.

    A measurement lasts from the stack, read once, to all components in numpy arrays.

    Parameters
    ----------
    X
        Input of `CellPCA.fit`, samples (height, width, channels).
    device : Device or None
        As `dpca.engine.folds.device.find_device` returns it.
    cases : tuple of CellCase

    Yields
    ------
    CellSpeed

    Raises
    ------
    DataError, PlanError
        As `CellPCA.fit`.
    """
    for case in cases:
        cpu, captured = _measured(X, case, None)
        gpu = apart = None
        if device is not None:
            gpu, there = _measured(X, case, device)
            apart = float(np.max(np.abs(there - captured) / np.where(captured > 0, captured, 1)))
        yield CellSpeed(case, cpu, gpu, apart)


def _measured(X: Any, case: CellCase, device: Device | None) -> tuple[float, Array]:
    """Return the seconds per cell, and the variance that the components of each cell capture."""
    if device is not None:
        # Four cells of noise first, because the first call on an accelerator loads and compiles.
        source = as_source(X)
        few = tuple(2 * c for c in case.cell_shape) + source.shape[1 + len(case.cell_shape) :]
        noise = np.random.default_rng(0).integers(0, 100, (2 * case.n_components + 2, *few)).astype(source.dtype)
        _captured(noise, case, device)
    began = time.perf_counter()
    captured = _captured(X, case, device)
    return (time.perf_counter() - began) / len(captured), captured


def _captured(X: Any, case: CellCase, device: Device | None) -> Array:
    """Return the variance that the components of each cell capture."""
    if device is None:
        variances = CellPCA(case.n_components, cell_shape=case.cell_shape).fit(X).explained_variance_
        captured: Array = variances.reshape(-1, variances.shape[-1]).sum(axis=1)
        return captured
    source = as_source(X)
    grid = CellGrid(source.shape[1:], case.cell_shape)
    results = fold_on_device(CovariancePCA(case.n_components), source, grid, device)
    return np.array([result["explained_variance"].sum() for result in results])
