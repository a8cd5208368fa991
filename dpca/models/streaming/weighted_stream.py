"""A fit of `StreamingPCA` to samples with weights that are not whole numbers."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.base.passes import Passes
from dpca.models.base.samples import allows_gaps, weighted_source
from dpca.models.linear.weighted import weighted_mean, weighted_rows
from dpca.models.streaming.streaming_methods import method_name
from dpca.storage.errors import DataError


def weighted_stream(model: Any, source: Source, passes: Passes, kept: Any) -> tuple[Source, dict[str, Array]]:
    """Return rows with the scatter about 0 of the samples, and their mean, from a pass.

    ``kept`` is the rule of the state that the model keeps, None if it keeps none.

    Raises
    ------
    DataError
        If a parameter of the model requires samples without weights.
    """
    forgetting = {model.forgetting, getattr(model.method, "forgetting", None)}
    if allows_gaps(model) or not forgetting <= {None, 1}:
        raise DataError(
            "gaps or forgetting is given, which requires whole numbers in sample_weight: omit it, or round the weights"
        )
    if kept is not None and not hasattr(kept, "of_weighted_rows"):
        raise DataError(
            f"keep_state=True with {method_name(model.method)} requires whole numbers in sample_weight: round them, or "
            f"omit it"
        )
    if not model.center:
        return weighted_rows(source), {"mean": np.zeros(math.prod(source.shape[1:]))}
    mean = named_errors(weighted_mean, source.name)(source, passes)
    return weighted_rows(source, mean), {"mean": mean.ravel()}


def stream_to_iterate(model: Any, X: Any, sample_weight: Any) -> Source:
    """Return samples with weights for `StreamingPCA.iter_fit`; the model does not change.

    Raises
    ------
    DataError
        If the weights are invalid, or a parameter of the model requires whole numbers.
    """
    source = weighted_source(copy.copy(model), X, sample_weight)
    if model.shuffle and source.weights is not None:
        raise DataError("shuffle=True requires whole numbers in sample_weight: omit it, or round them")
    return source
