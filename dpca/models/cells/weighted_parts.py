"""Samples with weights for cells and bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.base.passes import Passes
from dpca.models.cells.partition_rule import PartFold
from dpca.models.linear.weighted import require_sum, weighted_mean, weighted_rows
from dpca.partition.base import Partition
from dpca.storage.errors import DataError
from dpca.storage.run import Run


class WeightedParts:
    """The samples of a fit with their weights, if they have some, as a fold reads them.

    Parameters
    ----------
    source : Source
    whole : Source
        With the samples that are held out.
    folded : Partition
        The partition of the fold.
    run : Run
        For the pass of the weighted mean.
    parameters : mapping
        Those of the estimator.

    Raises
    ------
    DataError
        If a parameter requires samples without weights, or the sum of weights is at most 1.
    """

    def __init__(
        self, source: Source, whole: Source, folded: Partition, run: Run, parameters: Mapping[str, Any]
    ) -> None:
        self._source, self._folded, self._run = source, folded, run
        if whole.weights is None:
            return
        require_sum(np.asarray(whole.weights))
        counting = {name: parameters.get(name) for name in ("validation_fraction", "target_ssim")}
        if given := [name for name, value in counting.items() if value]:
            raise DataError(f"{given[0]} requires whole numbers in sample_weight: leave it out, or round the weights")

    def read_by(self, folding: PartFold) -> tuple[Source, Sequence[Array]]:
        """Return the samples for a fold, and no means; or rows, see `weighted_rows`, and the means of all parts."""
        return self._rows if folding.of_rows else (self._source, ())

    @cached_property
    def _rows(self) -> tuple[Source, Sequence[Array]]:
        mean = named_errors(weighted_mean, self._source.name)(self._source, Passes(self._source, self._run))
        rows = weighted_rows(self._source, mean)
        rows.weights = self._source.weights
        return rows, [part[0].astype(np.float64) for part in self._folded.all_parts(mean[None])]


def keep_weighted_states(model: Any, source: Source, means: Sequence[Array], n: int) -> None:
    """Change the states of rows that a fit to n samples kept to those of the samples. A model so far has no states.

    Parameters
    ----------
    model : PartitionedPCA
        With the states and the settings of all batches.
    source, means
        From `WeightedParts`.
    """
    if not means:
        return
    if n < source.shape[0]:  # its rows have the mean of all samples, not their own
        model._states = None
        return
    _, folded, rule, dtype = model._fixed
    total, dtype = float(np.asarray(source.weights).sum()), folded.split_dtype(dtype)
    states = zip(model._states, means, strict=True)
    model._states = [rule.of_weighted_rows(state, mean, total, dtype) for state, mean in states]
    model.n_samples_seen_ = total
