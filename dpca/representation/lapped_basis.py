"""What a fitted cell PCA with an overlap is: a cell PCA of filtered samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpca.kernels.dtypes import working_dtype
from dpca.partition.lapped import LappedGrid
from dpca.representation.cell_basis import CellBasis

Array = NDArray[Any]

# Squared length of a row below which it is what rounding left where a cell has no component.
_NO_ROW = 1e-6


@dataclass(frozen=True, eq=False)
class LappedBasis(CellBasis):
    """Mean and components of every lapped cell, in place, as samples.

    Parameters
    ----------
    grid : LappedGrid
        Where the cells are, and the orthogonal prefilter P across their borders.
    mean : array (*sample_shape)
        Mean sample.
    components : array (n_components, *sample_shape)
        Component j of every cell, summed where those of neighbors reach into each other: P^T c, where the cells of c
        hold orthonormal rows, or zero where a cell has no such component.
    """

    grid: LappedGrid

    def __reduce__(self) -> tuple[type[LappedBasis], tuple[LappedGrid, Array, Array]]:
        # The basis of P x is made where it is needed: shipping it would take as many bytes again.
        return LappedBasis, (self.grid, self.mean, self.components)

    @property
    def _everywhere(self) -> tuple[int, ...]:
        return (0,) * len(self.grid.sample_shape)

    @cached_property
    def _filtered(self) -> CellBasis:
        """The basis of P x."""
        grid, prefilter = self.grid.plain, self.grid.prefilter
        # Copies, which filtering overwrites.
        mean = prefilter.apply(np.array(self.mean, np.float64, order="C")[None], self._everywhere)[0]
        components = prefilter.apply(np.array(self.components, order="C"), self._everywhere)
        for i in range(grid.n_partitions):
            cell = (slice(None), *(slice(a, b) for a, b in grid.box(i)))
            rows = components[cell].reshape(len(components), -1)
            components[cell][np.einsum("ij,ij->i", rows, rows) < _NO_ROW] = 0
        return CellBasis(grid, mean, components)

    def project(self, samples: Array) -> Array:
        """Return the scores of samples: those of the cells of P x.

        Parameters
        ----------
        samples : array (n, *sample_shape), any real dtype

        Returns
        -------
        array (n, *grid_shape, n_components)
            float32; float64 for float64 samples or components.
        """
        dtype = np.result_type(working_dtype(samples.dtype), self.components.dtype)
        filtered = self.grid.prefilter.apply(np.array(samples, dtype, order="C"), self._everywhere)
        return self._filtered.project(filtered)

    def reconstruct(self, scores: Array, out: Array | None = None) -> Array:
        """Return the samples that scores stand for: P^T of what they stand for in P x.

        Parameters
        ----------
        scores : array (n, *grid_shape, n_components)
        out : array (n, *sample_shape), optional
            Where to write, float32 or float64, C-ordered.

        Returns
        -------
        array (n, *sample_shape)
            In the dtype of the scores, neither rounded nor clipped.
        """
        return self.grid.prefilter.invert(self._filtered.reconstruct(scores, out), self._everywhere)

    def work_bytes(self, n_rows: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays of projecting or reconstructing ``n_rows`` samples, results included."""
        work = np.result_type(working_dtype(dtype), self.components.dtype)
        filtering = self.grid.prefilter.work_bytes(self.grid.sample_shape, work)
        # Samples are filtered, or put back together: once in either case.
        return super().work_bytes(n_rows, work) + filtering + 2 * self.components.nbytes
