"""Samples with weights as rows with the same scatter about 0, for all rules without centering."""

from __future__ import annotations

import numpy as np

from dpca.engine.sources.centered import CenteredSource
from dpca.engine.sources.sampling import first_samples
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.base.passes import Passes
from dpca.partition.whole import Whole
from dpca.rules.covariance.moments import Moments
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
    """Return the weighted mean (*sample_shape), float64, from a pass."""
    weights, shape = np.asarray(source.weights), tuple(source.shape[1:])
    near: Array = first_samples(source, _FIRST_BYTES).mean(axis=0, dtype=np.float64)
    rows = CenteredSource(source, near, weights * (len(weights) / weights.sum()))
    (found,) = passes.over(Whole(shape), Moments(), source=rows, stage="weighted mean")
    return near + found["mean"].reshape(shape)
