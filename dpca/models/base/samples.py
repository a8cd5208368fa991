"""Samples as estimators are given them: arrays in memory by scikit-learn's conventions, or sources that are read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import zarr
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from dpca.engine.sources.source import Source, as_dense, as_source, batches, check_finite, check_numeric, opened
from dpca.kernels.algebra.types import Array
from dpca.representation.lazy import is_lazy
from dpca.storage.errors import DataError


def fitted_source(model: Any, X: Any) -> tuple[Any, Source]:
    """Return what a model is fitted to, opened, and its source; the model learns ``n_features_in_``."""
    lazy = is_lazy(X) or isinstance(X, Source)
    stack = opened(X) if lazy else np.ascontiguousarray(dense_samples(model, X, reset=True))
    source = as_source(stack)
    if lazy:
        model.n_features_in_ = math.prod(source.shape[1:])
    return stack, source


def varied_source(model: Any, X: Any) -> Source:
    """Return the source of what a model is fitted to, as `fitted_source` does, of at least 2 samples.

    Raises
    ------
    DataError
    """
    _, source = fitted_source(model, X)
    if source.shape[0] < 2:
        raise DataError(f"{source.shape[0]} sample has no variance: a fit needs at least 2 samples")
    return source


def first_magnitude(source: Source, n: int) -> float:
    """Return the largest magnitude of the first samples, of ``n``, that are not all 0; 0 if there are none."""
    region = tuple((0, length) for length in source.shape[1:])
    for _, batch in batches(source, (0, n), region, source.read_rows(region)):
        if batch.any():
            return magnitude(batch)
    return 0.0


def magnitude(samples: Array) -> float:
    """Return the largest magnitude of samples."""
    return float(max(samples.max(initial=0), -float(samples.min(initial=0))))


def dense_samples(model: Any, X: Any, *, reset: bool) -> Array:
    """Check samples in memory by scikit-learn's conventions, which count features along a single axis only.

    ``reset`` lets the model learn number and names of the features; otherwise they must be those that it knows.
    """
    dense = as_dense(X)
    if isinstance(X, zarr.Array):
        X = dense
    shape = dense.shape
    if len(shape) < 2:
        raise DataError(
            f"X has shape {shape} but samples on axis 0 and at least one axis of attributes are needed: Reshape "
            f"your data"
        )
    if dense.dtype.kind not in "buifO":
        check_numeric(shape, dense.dtype, "X")
    samples: Array
    try:
        # Values that are not finite are for our own sentence, which names the sample.
        if len(shape) == 2:
            samples = validate_data(model, X, dtype="numeric", reset=reset, ensure_all_finite=False)
        else:
            samples = check_array(
                X, dtype="numeric", allow_nd=True, ensure_all_finite=False, estimator=model, input_name="X"
            )
    except ValueError as error:
        raise DataError(str(error)) from error
    check_finite(samples, 0, "X")
    if reset and len(shape) > 2:
        model.n_features_in_ = math.prod(samples.shape[1:])
    return samples
