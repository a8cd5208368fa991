"""The block cosine transform as the basis of every cell, so that it is measured by what measures components."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.partition.cells import CellGrid
from dpca.representation.cell_basis import CellBasis
from pipelines.studies.partitions.dct_moments import cell_waves, low_frequencies

Array = NDArray[Any]


def dct_basis(
    grid: CellGrid, moments: Mapping[str, Array], n_components: int, chosen: bool, across_channels: bool
) -> tuple[CellBasis, Array]:
    """Make the cosines of the coefficients that are kept the components of every cell.

    Parameters
    ----------
    grid : CellGrid
    moments : mapping
        ``mean`` and ``variance`` of the coefficients in their places (*sample_shape), as
        `pipelines.studies.partitions.dct_moments.BlockDCTMoments` measured them.
    n_components : int
        Coefficients kept of every cell; one of fewer attributes keeps them all.
    chosen : bool
        Keep those of most variance in each cell, the best that any set that is the same for all samples can do;
        otherwise those of low frequency.
    across_channels : bool
        As in `pipelines.studies.partitions.dct_moments.block_dct`.

    Returns
    -------
    basis : CellBasis
        float32. Surplus rows of smaller cells are zero.
    held : array (n_components,)
        Variance of the first, second, ... coefficient that is kept, summed over all cells.
    """
    shape, origin = grid.sample_shape, (0,) * len(grid.sample_shape)
    channels = grid.channel_shape
    waves: dict[tuple[int, ...], Array] = {}
    mean, held = np.zeros((1, *shape)), np.zeros(n_components)
    components = np.zeros((n_components, *shape), np.float32)
    means, variances = (np.ascontiguousarray(moments[name])[None] for name in ("mean", "variance"))
    for i in range(grid.n_partitions):
        d = grid.n_features(i)
        cell = tuple(stop - start for start, stop in grid.region(i)[: grid.n_spatial])
        if cell not in waves:
            waves[cell] = cell_waves(cell, channels, across_channels=across_channels)
        variance = grid.take(variances, i, origin, np.empty((1, d)))[0]
        order = np.argsort(-variance, kind="stable") if chosen else low_frequencies(cell, channels)
        kept = order[:n_components]
        held[: len(kept)] += variance[kept]
        grid.put(waves[cell][kept].astype(np.float32), i, origin, components[: len(kept)])
        grid.put(grid.take(means, i, origin, np.empty((1, d))) @ waves[cell], i, origin, mean)
    return CellBasis(grid, mean[0], components), held
