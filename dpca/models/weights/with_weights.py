"""Base of the estimators that multiply attributes by weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.sources.centered import ScaledSource, scaled
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.base.attribute_blocks import mean_by_blocks
from dpca.models.base.component_model import WEIGHTED, ComponentModel
from dpca.models.base.each_sample import OfRows
from dpca.models.base.labelled import Labels
from dpca.models.base.parameters import no_values
from dpca.models.base.passes import Passes
from dpca.models.base.samples import allows_gaps, fitted_source
from dpca.models.base.store import StoreContents, StoredModel
from dpca.models.linear.weighted import weighted_mean
from dpca.models.weights.attribute_weights import attribute_weights
from dpca.representation.base import Representation
from dpca.representation.linear import LinearRepresentation
from dpca.representation.whitened import WeightedRepresentation, Whitened
from dpca.storage.errors import DataError
from dpca.storage.run import Run


class WithWeights(ComponentModel):
    """Base of the estimators that multiply attributes by weights.

    The fit reads samples times weights. Components and variances are those of these rows. The mean is that of the
    samples, and reconstructions are in their units.
    """

    #: Whether ``weights`` are factors of attributes; a subclass may have another parameter of this name.
    weighs_attributes: ClassVar[bool] = True

    weighted_version: ClassVar[int] = 3
    #: Whether the mean and the weights of attributes have one axis.
    flat_attributes: ClassVar[bool] = True

    weights: Any
    weights_: Array

    _unweighted_mean: Array | None = None  # mean of the samples of the fit, if some weights are 0

    @property
    def _is_weighted(self) -> bool:
        return self.weighs_attributes and hasattr(self, "weights_")

    # -- fitting

    def _prepared(self, X: Any, labels: Labels | None, run: Run) -> Any:
        if not self.weighs_attributes:
            return super()._prepared(X, labels, run)
        if not self._weighs:
            self._first_weights(labels, ())
            return X
        _, source = fitted_source(self, X)
        shape = tuple(source.shape[1:])
        self._first_weights(labels, shape)
        if not self.weights_.all() and getattr(self, "center", True) and source.shape[0] > 1:
            passes = Passes(source, run)
            one_each = source.weights is None
            mean = mean_by_blocks(passes, stage="mean") if one_each else weighted_mean(source, passes)
            self._unweighted_mean = mean
        return ScaledSource(source, self.weights_.reshape(shape))

    def _batch(self, X: Any, sample_dim: str | Sequence[str] | None, sample_weight: Any) -> Array:
        fresh, rows = self._states is None, super()._batch(X, sample_dim, sample_weight)
        if not self.weighs_attributes:
            return rows
        if fresh:
            self._first_weights(self._known_labels, tuple(rows.shape[1:]))
        if not self._is_weighted:
            return rows
        self._require_positive_weights()
        rows = rows if fresh else self._of_this_shape(rows)
        return scaled(rows, self.weights_.reshape(rows.shape[1:]))

    def _weighted_stream(self, source: Source, labels: Labels | None, *, fresh: bool) -> Source:
        """Return the rows of samples that are read as one stream; the first one sets the weights."""
        if not self.weighs_attributes:
            return source
        shape = tuple(source.shape[1:])
        if fresh:
            self._first_weights(labels, shape)
        if not self._is_weighted or (not fresh and shape != self.sample_shape_):
            return source
        self._require_positive_weights()
        return ScaledSource(source, self.weights_.reshape(shape))

    def _require_weights_of(self, other: WithWeights) -> None:
        own, others = (one.weights_ if one._is_weighted else np.empty(0) for one in (self, other))
        if not np.array_equal(own, others):
            raise DataError("the two estimators differ in weights: use the same for both")

    def _first_weights(self, labels: Labels | None, shape: tuple[int, ...]) -> None:
        """Set the weights of a new model, if it has some."""
        self._unweighted_mean = None
        self._set_optional({"weights_": None})
        if self._weighs:
            self._set_weights(labels, shape)

    def _set_weights(self, labels: Labels | None, shape: tuple[int, ...]) -> None:
        """Set the weights of the attributes of samples.

        Raises
        ------
        DataError
            If they are invalid, see `attribute_weights`, or the fit supports no weights.
        """
        self._check_weights()
        found = self._attribute_weights(labels, shape)
        self.weights_ = found.ravel() if self.flat_attributes else found

    def _attribute_weights(self, labels: Any, shape: tuple[int, ...]) -> Array:
        """Return the weights (*sample_shape) of the attributes of samples; see `attribute_weights`."""
        return attribute_weights(self.weights, labels, shape)

    @property
    def _known_labels(self) -> Any:
        """The labels of the samples of `partial_fit`."""
        return self._labels

    @property
    def _weighs(self) -> bool:
        """Whether a fit multiplies attributes by weights."""
        return self.weights is not None

    def _check_weights(self) -> None:
        """Raise `DataError` if other parameters do not support weights."""
        if allows_gaps(self):
            raise DataError("gaps is 'iterate', which does not support weights: omit one of them")

    def _require_positive_weights(self) -> None:
        if not self.weights_.all():
            raise DataError(
                "weights holds 0, which requires a pass over all samples for the mean: use fit, or omit these "
                "attributes from the samples"
            )

    def _set_fitted(self, found: dict[str, Any], sample_shape: tuple[int, ...], n: int) -> None:
        if self._is_weighted:
            found = {**found, "mean": self._mean_of_samples(found["mean"], found["components"].dtype)}
        super()._set_fitted(found, sample_shape, n)

    def _mean_of_samples(self, mean: Any, dtype: DTypeLike) -> Array:
        """Return the mean of the samples from that of the rows of a fit in a working dtype."""
        rows = np.asarray(mean[:], np.float64).reshape(self.weights_.shape)  # it may be on disk
        factors, known = self.weights_.astype(dtype), self._unweighted_mean
        found = np.zeros(rows.shape) if known is None else known.reshape(rows.shape).copy()
        return np.divide(rows, factors, out=found, where=factors > 0)

    def _planned(self, source: Source) -> Source:
        """Return a source of the size of the rows of a fit."""
        if not self._plans_weights:
            return source
        self._check_weights()
        return ScaledSource(source, no_values(tuple(source.shape[1:]), float))

    @property
    def _plans_weights(self) -> bool:
        return self.weighs_attributes and self._weighs

    def _planned_basis(self, basis: Representation) -> Representation:
        """Return the placeholder of the basis of a fit."""
        if not (self._plans_weights and isinstance(basis, LinearRepresentation)):
            return basis
        ones = no_values(basis.sample_shape, float)
        return _weighted(basis, ones, ones, ones)

    # -- using

    def _with_weights(self, basis: LinearRepresentation) -> LinearRepresentation:
        """Return the basis of samples from that of this model's arrays."""
        if not self._is_weighted:
            return basis
        mean, shape = np.asarray(basis.mean), basis.sample_shape
        factors = self.weights_.astype(basis.dtype).reshape(mean.shape)
        return _weighted(basis, mean * factors, self.weights_.reshape(shape), mean.reshape(shape))

    def _each_sample(
        self, X: Any, function: Any, basis: Any, shape: tuple[int, ...], dtype_for: Callable[[DTypeLike], DTypeLike]
    ) -> Any:
        whole = self._is_weighted and not self.basis_.is_by_blocks  # blocks have the weights themselves
        if whole and function is not Representation.encode and not isinstance(function, OfRows):
            function = OfRows(function, partial(scaled, factors=self.weights_.reshape(self.sample_shape_)))
        return super()._each_sample(X, function, basis, shape, dtype_for)

    def expected_mse(self, data_range: tuple[float, float]) -> float | None:
        """Return the mean squared error, see `Estimator.expected_mse`; None with weights, which scale all errors."""
        return None if self._is_weighted else super().expected_mse(data_range)

    # -- on disk

    def _with_stored_weights(self, contents: StoreContents) -> StoreContents:
        """Return the content of a store of this model, given that without weights."""
        own, stated = self._stored_weights(contents.arrays["mean"][1])
        arrays, facts = {**contents.arrays, **own}, {**contents.facts, **stated}
        return replace(contents, arrays=arrays, facts=facts, version=self._version_of(contents.version))

    def _version_of(self, version: int) -> int:
        """Return the version of a store of this model, given that without weights."""
        return self.weighted_version if self._is_weighted else version

    def _stored_weights(self, axes: Sequence[str]) -> tuple[dict[str, tuple[Array, tuple[str, ...]]], dict[str, bool]]:
        """Return the array of the weights, with the names of its axes, and the fact that a store contains it, if so."""
        return ({"weights": (self.weights_, tuple(axes))}, {WEIGHTED: True}) if self._is_weighted else ({}, {})

    def _restore_weights(self, stored: StoredModel) -> Self:
        """Set the weights that a store contains, and return this model."""
        if stored.facts.get(WEIGHTED):
            (found,) = stored.arrays({"weights": self.mean_.shape}).values()
            self.weights_, self.weights = found, found.reshape(stored.sample_shape)
        return self


def _weighted(basis: LinearRepresentation, mean: Array, weights: Array, sample_mean: Array) -> WeightedRepresentation:
    """Return the basis of samples with weights, given the mean of the weighted ones and that of the samples."""
    scales = basis.scales if isinstance(basis, Whitened) else np.ones(len(basis.components))
    return WeightedRepresentation(basis.partition, mean, basis.components, scales, weights, sample_mean)
