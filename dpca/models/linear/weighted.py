"""Samples with weights as rows with the same scatter about 0, for all rules without centering."""

from __future__ import annotations

import math

import numpy as np

from dpca.engine.folds.plan import FoldPlan
from dpca.engine.sources.centered import CenteredSource
from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array, blocks
from dpca.models.base.attribute_blocks import attribute_blocks
from dpca.models.base.joined_blocks import JoinedBlocks
from dpca.models.base.mapped import mapped_array, release
from dpca.models.base.passes import Passes
from dpca.partition.cells import CellGrid
from dpca.representation.by_blocks import LARGE_SAMPLE
from dpca.rules.covariance.moments import Moments
from dpca.storage.arrays.layout import box_shape, boxes_of
from dpca.storage.errors import DataError

# Bytes of the samples for the first estimate of the mean.
_FIRST_BYTES = 2**24


def weighted_rows(source: Source, mean: Array | None = None) -> Source:
    """Return rows sqrt(f w) (x - mean), such that their second moments have the divisor of samples with weights.

    n rows without a mean have the divisor n - 1, and w say how often samples count: f = (n - 1) / (sum w - 1). Without
    a mean, the rows are those of mean 0.

    Raises
    ------
    DataError
        If the weights have a sum of at most 1.
    """
    mean = np.zeros(source.shape[1:]) if mean is None else mean
    return CenteredSource(source, mean, row_factors(np.asarray(source.weights)))


def row_factors(weights: Array, n_parts: int = 1) -> Array:
    """Return the factors (n,) of the rows of `weighted_rows`; each may be a sample of several rows of a covariance.

    Raises
    ------
    DataError
        If the weights have a sum of at most 1.
    """
    total = require_sum(weights)
    factors: Array = np.sqrt(weights * ((len(weights) * n_parts - 1) / (total * n_parts - 1)))
    return factors


def require_sum(weights: Array) -> float:
    """Return the sum of weights.

    Raises
    ------
    DataError
        If it is at most 1.
    """
    if not (total := float(weights.sum())) > 1:
        raise DataError(
            f"sample_weight has the sum {total:g}, but weights say how often samples count: multiply them by a "
            f"constant, such that their sum is above 1"
        )
    return total


def weighted_mean(source: Source, passes: Passes) -> Array:
    """Return the weighted mean (*sample_shape), float64, from a pass over blocks of attributes.

    That of large samples is in a file that is mapped to memory.
    """
    weights, near = np.asarray(source.weights), _mean_of_the_first(source)
    rows, rule = CenteredSource(source, near, weights * (len(weights) / weights.sum())), Moments()
    mean = _like_samples(source)

    def planned(grid: CellGrid) -> FoldPlan:
        return passes.plan(grid, rule, JoinedBlocks(grid, {"mean": mean}), source=rows)

    grid = attribute_blocks(rule, passes, planned=planned)
    passes.over(grid, rule, writer=JoinedBlocks(grid, {"mean": mean}), source=rows, stage="weighted mean")
    for few in blocks(len(mean), max(1, _FIRST_BYTES // mean[0].nbytes)):
        mean[few] += near[few]
        release(mean)
        release(near)
    return mean


def _mean_of_the_first(source: Source) -> Array:
    """Return the mean (*sample_shape) of the first samples, float64; of large samples it is the first one."""
    shape, read, near = tuple(source.shape[1:]), source.reader(), _like_samples(source)
    n = min(source.shape[0], max(1, _FIRST_BYTES // (math.prod(shape) * source.dtype.itemsize)))
    for region in boxes_of(shape, box_shape(shape, _FIRST_BYTES // source.dtype.itemsize, source.chunks[1:])):
        first = np.empty((n, *(b - a for a, b in region)), source.dtype)
        read((0, n), region, first)
        check_finite(first, 0, source.name)
        near[tuple(slice(*ends) for ends in region)] = first.mean(axis=0, dtype=np.float64)
        release(near)
    return near


def _like_samples(source: Source) -> Array:
    """Return an array of zeros (*sample_shape), float64; of large samples in a file that is mapped to memory."""
    shape = tuple(source.shape[1:])
    if 8 * math.prod(shape) > LARGE_SAMPLE:
        return mapped_array(shape, np.float64, "the weighted mean")
    return np.zeros(shape)
