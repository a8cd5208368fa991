"""Samples with weights for `PatchPCA`: rows whose patches have the weighted covariance about the mean patch."""

from __future__ import annotations

import numpy as np

from dpca.engine.sources.centered import CenteredSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.base.passes import Passes
from dpca.models.linear.weighted import row_factors, weighted_mean
from dpca.rules.covariance.patch_covariance import PatchCovariancePCA, WeightedPatchPCA


def weighted_patches(
    source: Source, rule: PatchCovariancePCA, passes: Passes
) -> tuple[Source, WeightedPatchPCA, Array]:
    """Return rows, their rule, and the weighted mean patch (d,), from a pass.

    The mean patch differs from place to place of a patch, but patches overlap: the rows have the mean of each channel
    subtracted, and the rule subtracts the rest from the products.
    """
    grid, weights = rule.grid, np.asarray(source.weights)
    image, mean = weighted_mean(source, passes), np.zeros(grid.n_features)
    for _, rows in grid.rows(image[None]):
        mean += rows.sum(axis=0)
    mean /= grid.n_patches
    near = mean.reshape(-1, *grid.channel_shape).mean(axis=0)
    found = CenteredSource(
        source, np.broadcast_to(near, grid.sample_shape).copy(), row_factors(weights, grid.n_patches)
    )
    total = float(weights.sum()) * grid.n_patches
    offset = (mean.reshape(-1, *grid.channel_shape) - near).ravel() * np.sqrt(total / (total - 1))
    return found, WeightedPatchPCA(grid, rule.n_components, offset), mean
