"""The block cosine transform as a basis of every cell, so that its error is measured like that of components."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.partition.cells import CellGrid
from dpca.pipelines.studies.partitions.dct_moments import cell_waves, low_frequencies
from dpca.representation.linear import LinearRepresentation


def dct_basis(
    grid: CellGrid, moments: Mapping[str, Array], n_components: int, chosen: bool, across_channels: bool
) -> tuple[LinearRepresentation, Array]:
    """Return a basis with the cosines of the kept coefficients as components of every cell.

    Parameters
    ----------
    grid : CellGrid
    moments : mapping
        ``mean`` and ``variance`` of the coefficients, (*sample_shape), from
        `dpca.pipelines.studies.partitions.dct_moments.BlockDCTMoments`.
    n_components : int
        Number of kept coefficients of every cell; a cell with fewer attributes keeps all.
    chosen : bool
        Keep those with the most variance in each cell, which is the optimum for one set for all samples; otherwise
        those of low frequency.
    across_channels : bool
        As in `dpca.pipelines.studies.partitions.dct_moments.block_dct`.

    Returns
    -------
    basis : LinearRepresentation
        float32. Surplus rows of smaller cells are zero.
    held : array (n_components,)
        Variance of the first, second, ... kept coefficient, summed over all cells.
    """
    channels, parts = grid.channel_shape, range(grid.n_parts)
    whole = (0,) * len(grid.sample_shape)
    blocks = [np.ascontiguousarray(moments[name])[None] for name in ("mean", "variance")]
    means, variances = (grid.split(block, parts, whole, np.empty(block.size)) for block in blocks)
    waves: dict[tuple[int, ...], Array] = {}
    held, found, rows = np.zeros(n_components), [], []
    for i in parts:
        cell = tuple(stop - start for start, stop in grid.region(i)[: grid.n_spatial])
        if cell not in waves:
            waves[cell] = cell_waves(cell, channels, across_channels=across_channels)
        variance = variances[i][0]
        order = np.argsort(-variance, kind="stable") if chosen else low_frequencies(cell, channels)
        kept = order[:n_components]
        held[: len(kept)] += variance[kept]
        rows.append((i, waves[cell][kept].astype(np.float32)[None]))
        found.append((i, (means[i] @ waves[cell])[None]))
    components = grid.join(rows, np.zeros((n_components, *grid.sample_shape), np.float32))
    mean = grid.join(found, np.empty((1, *grid.sample_shape)))
    return LinearRepresentation(grid, mean[0], components), held
