"""Principal components of all patches of all samples, from one covariance over all positions of a patch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array
from dpca.kernels.patches import PatchGrid
from dpca.rules.base.state import State, StateLayout
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.rules.covariance.pooled_covariance import SeveralCovariances

# Number of patches per update. Smaller updates spend most of their time on adding to the matrix.
_PATCHES = 2**16


@dataclass(frozen=True)
class PatchCovariancePCA(SeveralCovariances):
    """Leading principal components of overlapping patches, shared by all positions, and one mean patch.

    Every patch of every sample is a row of one covariance, as in the filters of PCANet (Chan et al. 2015, equation 2).
    Here patches are centered by the mean of all patches, and not by their own. Products and exactness are those of
    :class:`~dpca.rules.covariance.covariance.CovariancePCA`. Patches are copied from the samples block by block.

    Parameters
    ----------
    grid : PatchGrid
    n_components : int or None
        Number of components to retain. None retains one for each attribute of a patch.

    Notes
    -----
    Costs O(n p d^2) time for p patches of d attributes in each of n samples, and O(d^3) once; state: 8 d^2 bytes.
    Results of ``finish``, float64: ``mean`` (d,), ``components`` (k, d), ``explained_variance`` (k,), descending, and
    ``total_variance`` (). The divisor is the number of all patches minus 1.
    """

    grid: PatchGrid
    n_components: int | None = None

    @property
    def _one(self) -> CovariancePCA:
        return CovariancePCA(self.n_components, precise=True)

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return self._one._layout(self.grid.n_features, dtype)

    def _take(self, state: State, batch: Array) -> None:
        one, patches = self._one, self._patches(state)
        for _, rows in self.grid.rows(batch.reshape(len(batch), *self.grid.sample_shape)):
            one.update(patches, rows)
        state.counts["n_samples"] += len(batch)

    def _covariances(self, state: State) -> Iterator[State]:
        yield self._patches(state)

    def _finish(self, state: State) -> dict[str, Array]:
        return self._one.finish(self._patches(state))

    def _patches(self, state: State) -> State:
        """Return the same arrays as the state of a covariance of patches."""
        return State(state.arrays, {"n_samples": state.counts["n_samples"] * self.grid.n_patches})

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the best number of samples per update."""
        return max(1, _PATCHES // self.grid.n_patches)

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        return self._one.result_bytes(self.grid.n_features, dtype)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: a block of patches, and those of their covariance."""
        grid, rows = self.grid, min(self.grid.block_rows, n_rows * self.grid.n_patches)
        return grid.work_bytes(n_rows, np.dtype(dtype)) + self._one.work_bytes(rows, grid.n_features, dtype)
