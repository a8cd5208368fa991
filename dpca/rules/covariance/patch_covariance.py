"""Principal components of all patches of all samples, from one covariance over all positions of a patch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

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
    ``total_variance`` (). The divisor is the number of all patches minus 1. Batches may be slabs of samples, see
    `dpca.partition.patch_slabs`, of which `PatchSums` returns the sums.
    """

    grid: PatchGrid
    n_components: int | None = None

    counts: ClassVar[Sequence[str]] = ("n_samples", "n_patches")

    @property
    def _one(self) -> CovariancePCA:
        return CovariancePCA(self.n_components, precise=True)

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return self._one._layout(self.grid.n_features, dtype)

    def _take(self, state: State, batch: Array) -> None:
        one, patches = self._one, self._patches(state)
        others = self.grid.sample_shape[1:]
        # A slab is shorter than a sample along the first axis.
        grid = replace(self.grid, sample_shape=(batch.shape[1] // math.prod(others), *others))
        for _, rows in grid.rows(batch.reshape(len(batch), *grid.sample_shape)):
            one.update(patches, rows)
        state.counts["n_samples"] += len(batch)
        state.counts["n_patches"] = patches.counts["n_samples"]

    def _covariances(self, state: State) -> Iterator[State]:
        yield self._patches(state)

    def _finish(self, state: State) -> dict[str, Array]:
        return self._one.finish(self._patches(state))

    def _patches(self, state: State) -> State:
        """Return the same arrays as the state of a covariance of patches."""
        return State(state.arrays, {"n_samples": state.counts["n_patches"]})

    def joined(self, slabs: Iterable[dict[str, Array]]) -> State:
        """Return the state of all patches from the results of `PatchSums`. It counts each slab as a sample."""
        whole = self.init(math.prod(self.grid.sample_shape), np.float64)
        for slab in slabs:
            arrays, counts = (
                {name: slab[name] for name in whole.arrays},
                {name: int(slab[name]) for name in self.counts},
            )
            self.merge(whole, State(arrays, counts))
        return whole

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


@dataclass(frozen=True)
class WeightedPatchPCA(PatchCovariancePCA):
    """The same of rows that are not centered: a product of a vector with itself is subtracted from their covariance.

    Parameters
    ----------
    offset : array (d,)
        The mean of the patches, times the root of the sum of weights by the divisor of the covariance.

    Notes
    -----
    The mean in the results of ``finish`` is 0.
    """

    offset: Array | None = None

    @property
    def _one(self) -> CovariancePCA:
        return replace(super()._one, center=False)

    def _finish(self, state: State) -> dict[str, Array]:
        patches, offset = self._patches(state), np.asarray(self.offset)
        patches.arrays["cross"] -= (patches.counts["n_samples"] - 1) * np.outer(offset, offset)
        return self._one.finish(patches)


@dataclass(frozen=True)
class PatchSums(PatchCovariancePCA):
    """The sums of `PatchCovariancePCA` over slabs of samples, for its ``joined``.

    Notes
    -----
    Results of ``finish``: the arrays of the state, ``n_samples`` () and ``n_patches`` ().
    """

    least_samples: ClassVar[int] = 1

    def _finish(self, state: State) -> dict[str, Array]:
        return {**state.arrays, **{name: np.asarray(count) for name, count in state.counts.items()}}

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        return self.state_bytes(n_features, dtype)
