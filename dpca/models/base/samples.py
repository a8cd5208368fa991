"""Samples for estimators: arrays in memory, checked by scikit-learn's conventions, or sources."""

from __future__ import annotations

import copy
import math
from typing import Any

import dask.array as da
import numpy as np
import zarr
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.held_out import repeated
from dpca.engine.sources.source import Source, as_dense, as_source, batches, check_numeric, opened
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.representation.lazy import is_lazy
from dpca.storage.errors import DataError

# Weights above this are hardly counts of samples, and the time of a fit grows with them.
_MOST_REPETITIONS = 2**20


def fitted_source(model: Any, X: Any, sample_weight: Any = None) -> tuple[Any, Source]:
    """Return the opened samples of a fit, and their source; set ``n_features_in_`` of the model.

    Samples in memory are checked, but for those whose weight is 0.
    """
    lazy = is_lazy(X) or isinstance(X, Source)
    stack = opened(X) if lazy else np.ascontiguousarray(dense_samples(model, X, sample_weight, reset=True))
    source = as_source(stack)
    if lazy:
        model.n_features_in_ = math.prod(source.shape[1:])
    if not source.complete and allows_gaps(model) and (source.dtype.kind == "f" or model.missing_value is not None):
        source = copy.copy(source)
        source.with_gaps = True
    return stack, source


def allows_gaps(model: Any) -> bool:
    """Return whether a model supports missing values."""
    if not hasattr(model, "missing_value"):
        return False
    if model.gaps == "reject" and model.missing_value is not None:
        raise DataError(f"missing_value is {model.missing_value!r}, but gaps is 'reject': use gaps='iterate'")
    return bool(model.gaps == "iterate")


def masked_as_nan(X: Any) -> Any:
    """Return a masked array of numpy or Dask as floating-point numbers with NaN for masked values; others as given."""
    if isinstance(X, np.ma.MaskedArray):
        return np.ma.filled(X.astype(working_dtype(X.dtype)), np.nan)
    if isinstance(X, da.Array) and isinstance(X._meta, np.ma.MaskedArray):
        return da.ma.filled(X.astype(working_dtype(X.dtype)), np.nan)
    return X


def varied_source(model: Any, X: Any) -> Source:
    """Return the source of a fit as `fitted_source` does, with at least 2 samples.

    Raises
    ------
    DataError
        If there are fewer samples.
    """
    _, source = fitted_source(model, X)
    if source.shape[0] < 2:
        raise DataError(f"the stack has {source.shape[0]} sample: a fit requires at least 2 samples")
    return source


def weighted_source(model: Any, X: Any, sample_weight: Any) -> Source:
    """Return the source of a fit as `fitted_source` does, with each sample as often as its weight says.

    If a model supports any weights and they are not whole, the samples of positive weight have them as ``weights``.

    Raises
    ------
    DataError
        If the weights are invalid, see `repetitions`.
    """
    _, source = fitted_source(model, X, sample_weight)
    counts, fractions = counts_and_fractions(sample_weight, source.shape[0], any_weights=model.any_weights)
    weighted = source if (counts == 1).all() else repeated(source, counts)
    if weighted is not source:
        # Atoms have their masses here.
        weighted.coordinates = source.coordinates and source.coordinates.of_one_sample()
    if fractions is not None:
        weighted = copy.copy(weighted)
        weighted.weights = fractions
    return weighted


def counts_and_fractions(sample_weight: Any, n_samples: int, *, any_weights: bool) -> tuple[Array, Array | None]:
    """Return how often each sample is read, int64, and the weights of those that are read, float64.

    Weights that are whole numbers are counts only; the second result is then None. With ``any_weights``, others are
    allowed: each sample of positive weight is read once.

    Raises
    ------
    DataError
        If the weights are invalid, see `repetitions`.
    """
    weights = given_weights(sample_weight, n_samples)
    if any_weights and (fractions := fractions_of(weights)) is not None:
        return (weights > 0).astype(np.int64), fractions
    return repetitions(weights, n_samples), None


def fractions_of(sample_weight: Any) -> Array | None:
    """Return the positive ones of valid weights, float64; None if there are no weights, or all are whole numbers."""
    weights = np.asarray(0 if sample_weight is None else sample_weight)
    return None if (weights == np.rint(weights)).all() else weights[weights > 0].astype(np.float64)


def given_weights(sample_weight: Any, n_samples: int) -> Array:
    """Return the weights of samples as an array.

    Raises
    ------
    DataError
        If they are not numbers of at least 0, one for each sample, or all are 0.
    """
    try:
        weights = np.asarray(sample_weight)
    except ValueError:  # lists of several lengths
        weights = np.asarray(None)
    if weights.shape != (n_samples,) or weights.dtype.kind not in "buif":
        raise DataError(
            f"sample_weight has shape {weights.shape} and dtype {weights.dtype}: give one real number for each of the "
            f"{n_samples} samples"
        )
    if (wrong := ~((weights >= 0) & (weights < np.inf))).any():
        i = int(wrong.argmax())
        raise DataError(f"sample_weight[{i}] is {weights[i]}: give finite numbers of at least 0")
    if not weights.any():
        raise DataError(f"all {n_samples} weights in sample_weight are zero: give a positive weight to some samples")
    return weights


def repetitions(sample_weight: Any, n_samples: int) -> Array:
    """Return how often each sample counts, int64, from the weights of the samples.

    Raises
    ------
    DataError
        If they are invalid, see `given_weights`, or not whole numbers.
    """
    weights = given_weights(sample_weight, n_samples)
    if (wrong := (weights != np.rint(weights)) | (weights > _MOST_REPETITIONS)).any():
        i = int(wrong.argmax())
        raise DataError(
            f"sample_weight[{i}] is {weights[i]}, but a weight here says how often a sample counts: give whole numbers "
            f"up to {_MOST_REPETITIONS:,}"
        )
    return weights.astype(np.int64)


def first_magnitude(source: Source, n: int) -> float:
    """Return the largest magnitude of the first samples, of ``n``, that are not all 0; 0 if there are none."""
    region = tuple((0, length) for length in source.shape[1:])
    for _, batch in batches(source, (0, n), region, source.read_rows(region)):
        if batch.any():
            return magnitude(batch)
    return 0.0


def magnitude(samples: Array) -> float:
    """Return the largest magnitude of samples. NaN, a missing value, does not count."""
    least, most = (float(of.reduce(samples, axis=None, initial=0)) for of in (np.fmin, np.fmax))
    return max(most, -least)


def dense_samples(model: Any, X: Any, sample_weight: Any = None, *, reset: bool) -> Array:
    """Check samples in memory by scikit-learn's conventions, for samples with any number of axes.

    ``reset`` sets the number and names of the features of the model; otherwise they must equal those of the model.
    Samples whose weight is 0 may hold any value.
    """
    X = masked_as_nan(X) if allows_gaps(model) else X
    dense = as_dense(X)
    if isinstance(X, zarr.Array):
        X = dense
    shape = dense.shape
    if len(shape) < 2:
        raise DataError(
            f"X has shape {shape}, but samples on axis 0 and at least one axis of attributes are required: Reshape "
            f"your data"
        )
    if dense.dtype.kind not in "buifO":
        check_numeric(shape, dense.dtype, "X")
    samples: Array
    try:
        # `check_finite` checks for NaN and infinity, because its error names the sample.
        if len(shape) == 2:
            samples = validate_data(model, X, dtype="numeric", reset=reset, ensure_all_finite=False)
        else:
            samples = check_array(
                X, dtype="numeric", allow_nd=True, ensure_all_finite=False, estimator=model, input_name="X"
            )
    except ValueError as error:
        raise DataError(str(error)) from error
    if not allows_gaps(model):
        counts = None if sample_weight is None else given_weights(sample_weight, len(samples))
        check_finite(samples, 0, "X", counts=counts)
    if reset and len(shape) > 2:
        model.n_features_in_ = math.prod(samples.shape[1:])
    return samples
