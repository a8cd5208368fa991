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
    source: Source, whole: Source, partition: Partition, run: Run, parameters: Mapping[str, Any]
) -> tuple[Source, Sequence[Array]]:
    """Return rows instead of samples with weights, see `weighted_rows`, and the weighted mean of each part.

    Without weights, the source is returned as it is, and no means. ``whole`` includes samples that are held out.

    Raises
    ------
    DataError
        If a parameter requires samples without weights.
    """
    if whole.weights is None:
        return source, ()
    counting = {name: parameters.get(name) for name in ("keep_state", "shared", "validation_fraction", "target_ssim")}
    if given := [name for name, value in counting.items() if value]:
        raise DataError(f"{given[0]} requires whole numbers in sample_weight: leave it out, or round the weights")
    mean = named_errors(weighted_mean, source.name)(source, Passes(source, run))
    rows = weighted_rows(source, mean)
    rows.weights = source.weights
    return rows, [part[0].astype(np.float64) for part in partition.all_parts(mean[None])]
