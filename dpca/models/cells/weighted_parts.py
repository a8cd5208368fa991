"""Samples with weights for cells and bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.base.passes import Passes
from dpca.models.linear.weighted import weighted_mean, weighted_rows
from dpca.partition.base import Partition
from dpca.storage.errors import DataError
from dpca.storage.run import Run


def weighted_parts(
    source: Source, whole: Source, folded: Partition, run: Run, parameters: Mapping[str, Any]
) -> tuple[Source, Sequence[Array]]:
    """Return rows instead of samples with weights, see `weighted_rows`, and the weighted mean of each part.

    Without weights, the source is returned as it is, and no means. ``whole`` includes samples that are held out, and
    ``folded`` is the partition of the fold.

    Raises
    ------
    DataError
        If a parameter requires samples without weights.
    """
    if whole.weights is None:
        return source, ()
    counting = {name: parameters.get(name) for name in ("validation_fraction", "target_ssim")}
    if given := [name for name, value in counting.items() if value]:
        raise DataError(f"{given[0]} requires whole numbers in sample_weight: leave it out, or round the weights")
    mean = named_errors(weighted_mean, source.name)(source, Passes(source, run))
    rows = weighted_rows(source, mean)
    rows.weights = source.weights
    return rows, [part[0].astype(np.float64) for part in folded.all_parts(mean[None])]


def keep_weighted_states(model: Any, means: Sequence[Array], source: Source, n: int) -> None:
    """Change the states of rows that a fit to n samples kept to those of the samples. A model so far has no states.

    Parameters
    ----------
    model : PartitionedPCA
        With the states and the settings of all batches.
    means, source
        From `weighted_parts`.
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
