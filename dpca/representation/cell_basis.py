"""What a fitted cell PCA is, and its two maps: samples to scores and scores to samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpca.kernels import linalg
from dpca.kernels.dtypes import working_dtype
from dpca.partition.cells import CellGrid
from dpca.partition.shared import SharedGrid
from dpca.representation.basis import kept_rows

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class CellBasis:
    """Mean and components of every cell, in place.

    Parameters
    ----------
    grid : CellGrid
        Where the cells are.
    mean : array (*sample_shape)
        Mean sample.
    components : array (n_components, *sample_shape)
        Component j of every cell lies where its cell lies: ``components[j]`` looks like a sample. Rows of a cell are
        orthonormal; where an edge cell has fewer attributes than there are components, the surplus rows are zero.
    shared : bool
        Whether cells of one shape have the same components.
    """

    grid: CellGrid
    mean: Array
    components: Array
    shared: bool = False

    scores_kind: ClassVar[str] = "cell-scores"

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.grid.sample_shape

    @property
    def cell_shape(self) -> tuple[int, ...]:
        """Length of a cell along each spatial axis."""
        return self.grid.cell_shape

    @property
    def score_shape(self) -> tuple[int, ...]:
        """Shape of one sample's scores: (*grid_shape, n_components)."""
        return (*self.grid.grid_shape, self.n_components)

    @property
    def split(self) -> list[Any]:
        """What says how attributes are split: the cells, and how far they reach into each other."""
        return [list(self.cell_shape), getattr(self.grid, "overlap", 0)]

    def score_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Name the axes of one sample's scores, given those of a sample."""
        return (*(f"cell_{name}" for name in axes[: self.grid.n_spatial]), "component")

    def n_spatial(self, axes: Sequence[str]) -> int:
        """Return how many axes the cells cut."""
        return self.grid.n_spatial

    @property
    def n_components(self) -> int:
        """Components of each cell."""
        return len(self.components)

    def leading(self, n_components: int) -> CellBasis:
        """Return the basis of the first ``n_components`` components of every cell."""
        return replace(self, components=self.components[:n_components])

    @cached_property
    def _cells(self) -> list[tuple[Array, Array]]:
        """(mean (d,), components (rank, d)) of each cell, ready for matrix products."""
        origin = (0,) * len(self.grid.sample_shape)
        mean = np.ascontiguousarray(self.mean, self.components.dtype)[None]
        components = np.ascontiguousarray(self.components)
        groups = SharedGrid(self.grid).cells if self.shared else [[i] for i in range(self.grid.n_partitions)]
        cells = {}
        for group in groups:
            d = self.grid.n_features(group[0])
            rows = self.grid.take(components, group[0], origin, np.empty((self.n_components, d), components.dtype))
            rows = rows[: kept_rows(rows)]
            for i in group:
                cells[i] = (self.grid.take(mean, i, origin, np.empty((1, d), mean.dtype))[0], rows)
        return [cells[i] for i in range(len(cells))]

    def project(self, samples: Array) -> Array:
        """Return the scores of samples.

        Parameters
        ----------
        samples : array (n, *sample_shape), any real dtype

        Returns
        -------
        array (n, *grid_shape, n_components)
            float32; float64 for float64 samples or components. Costs 2 n d k multiplications for k components of d
            attributes.
        """
        grid = self.grid
        samples = np.ascontiguousarray(samples)
        dtype = np.result_type(working_dtype(samples.dtype), self.components.dtype)
        n = len(samples)
        scores = np.zeros((grid.n_partitions, n, self.n_components), dtype)
        origin = (0,) * len(grid.sample_shape)
        for i, (mean, rows) in enumerate(self._cells):
            raw = linalg.scratch("cell raw", (n, len(mean)), samples.dtype)
            x = linalg.scratch("cell", raw.shape, dtype)
            np.subtract(grid.take(samples, i, origin, raw), mean, out=x, dtype=dtype)
            np.matmul(x, rows.T, out=scores[i, :, : len(rows)])
        return np.ascontiguousarray(scores.swapaxes(0, 1)).reshape(n, *grid.grid_shape, self.n_components)

    def reconstruct(self, scores: Array, out: Array | None = None) -> Array:
        """Return the samples that scores stand for.

        Parameters
        ----------
        scores : array (n, *grid_shape, n_components)
        out : array (n, *sample_shape), optional
            Where to write; its dtype must hold floating-point values.

        Returns
        -------
        array (n, *sample_shape)
            In the dtype of the scores, neither rounded nor clipped.
        """
        grid = self.grid
        n = len(scores)
        by_cell = np.ascontiguousarray(scores.reshape(n, grid.n_partitions, self.n_components).swapaxes(0, 1))
        dtype = np.result_type(by_cell.dtype, self.components.dtype)
        samples = np.empty((n, *grid.sample_shape), dtype) if out is None else out
        origin = (0,) * len(grid.sample_shape)
        for i, (mean, rows) in enumerate(self._cells):
            x = linalg.scratch("cell", (n, len(mean)), dtype)
            np.matmul(by_cell[i, :, : len(rows)], rows, out=x)
            x += mean
            grid.put(x, i, origin, samples)
        return samples

    def work_bytes(self, n_rows: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays of projecting or reconstructing ``n_rows`` samples, results included."""
        itemsize: int = np.result_type(working_dtype(dtype), self.components.dtype).itemsize
        sample = math.prod(self.grid.sample_shape)
        scores = self.grid.n_partitions * self.n_components
        cell = self.grid.max_features * (itemsize + np.dtype(dtype).itemsize)
        return n_rows * ((sample + 2 * scores) * itemsize + cell) + 2 * self.components.nbytes
