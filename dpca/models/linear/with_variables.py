"""Base of the estimators of whole samples that analyze several variables together, and standardize attributes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import dask.array as da
import numpy as np
from numpy.typing import DTypeLike
from sklearn.utils.validation import check_is_fitted

from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.source import ArraySource, Source, ZarrSource
from dpca.engine.sources.variables import VariableStack
from dpca.kernels.algebra.types import Array
from dpca.models.base.attribute_blocks import moments_by_blocks
from dpca.models.base.labelled import COMPONENT, Labelled, Labels, labelled_scores
from dpca.models.base.passes import Passes
from dpca.models.base.samples import allows_gaps, varied_source
from dpca.models.base.store import StoreContents, StoredModel
from dpca.models.eof.fields import FieldNames
from dpca.models.eof.variables import (
    SeveralVariables,
    VariableNames,
    merged_exactly,
    variables_given,
    variables_read,
    variables_stored,
)
from dpca.models.linear.weighted import weighted_mean, weighted_rows
from dpca.models.weights.attribute_weights import attribute_weights, standardized
from dpca.models.weights.with_weights import WithWeights
from dpca.parameters.common import VARIABLE
from dpca.representation.lazy import as_lazy
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.errors import DataError
from dpca.storage.run import Run
from dpca.storage.stack import VARIABLES

# The fact of a store that names the dim of samples of several variables.
_DIM = "variables_dim"
# Deviations below this share of the mean are rounding errors of constant attributes.
_CONSTANT = 64 * np.finfo(np.float64).eps


class WithVariables(WithWeights):
    """Base of the estimators of whole samples that analyze several variables together, and standardize attributes.

    A sample of such a model has the attributes of all variables along one axis, as have ``components_`` and ``mean_``;
    `by_variable` returns those of each variable.
    """

    #: Whether a fit accepts several variables.
    supports_variables: ClassVar[bool] = True

    standardize: bool | str

    _variables: VariableNames | None = None  # of a model of several variables
    _variance: Array | None = None  # of each attribute, during a fit that standardizes

    # -- samples

    def _samples_to_fit(
        self, X: Any, sample_dim: str | Sequence[str] | None, key: Any = None, *, gaps: bool = False
    ) -> tuple[Any, Any]:
        given = self._several(X, sample_dim, key, None)
        if given is None:
            return super()._samples_to_fit(X, sample_dim, key, gaps=gaps)
        return given.source, given.bare()

    def _several(
        self, X: Any, sample_dim: str | Sequence[str] | None, key: Any, names: VariableNames | None
    ) -> SeveralVariables | None:
        """Return several variables, those of a model if it has ``names``; None for a single one."""
        if not self.supports_variables or (sample_dim is not None and not isinstance(sample_dim, str)):
            return None
        if isinstance(X, VariableStack):
            X, key = X.path, key or X.keys
        if names is None and not isinstance(X, dict | list | tuple) and not is_labelled(X) and key is None:
            return None
        dim = names.dim if names is not None else sample_dim or _leading_dim(X)
        given = variables_given(X, dim, key, names)
        if given is not None:
            given.source.with_gaps = allows_gaps(self)
        return given

    def _names_of(self, labels: Any, key: Any) -> dict[str, Any]:
        several = isinstance(labels, VariableNames)
        own = super()._names_of(None if several else labels, None if several else key)
        return {**own, "_variables": labels if several else None}

    @property
    def _known_labels(self) -> Any:
        return self._variables or self._labels

    def _batch(self, X: Any, sample_dim: str | Sequence[str] | None, sample_weight: Any) -> Array:
        fresh = self._states is None
        given = self._several(X, sample_dim, None, None) if fresh else self._again(X)
        if fresh:
            self._variables = None if given is None else given.bare()
        if given is not None:
            X, sample_dim = _read(given.source), None
        return super()._batch(X, sample_dim, sample_weight)

    def _again(self, X: Any) -> SeveralVariables | None:
        """Return further samples of the variables of this model; None if it has one, or for rows of all of them."""
        names, by_path = self._variables, isinstance(X, str | os.PathLike | VariableStack)
        if names is None or (hasattr(X, "shape") and not by_path and not is_labelled(X)):
            return None
        return self._several(X, None, [*names.keys] if by_path else None, names)

    # -- weights

    @property
    def _weighs(self) -> bool:
        return super()._weighs or bool(self.standardize)

    def _prepared(self, X: Any, labels: Any, run: Run) -> Any:
        if not self.standardize:
            return super()._prepared(X, labels, run)
        self._check_weights()  # before the pass
        X = varied_source(self, X)
        self._variance = named_errors(_variance, X.name)(X, run)
        try:
            return super()._prepared(X, labels, run)
        finally:
            self._variance = None

    def _attribute_weights(self, labels: Any, shape: tuple[int, ...]) -> Array:
        names = labels if isinstance(labels, VariableNames) else None
        given, labels = self.weights, None if names is not None else labels
        if names is not None:
            given = names.weights(given, shape)
        found = None if given is None else attribute_weights(given, labels, shape)
        if not self.standardize:
            return attribute_weights(1.0, labels, shape) if found is None else found
        if self._variance is None:
            raise DataError(
                f"standardize is {self.standardize!r}, which requires a pass over all samples: use fit, or give "
                f"weights, 1 / standard deviation"
            )
        variables = None
        if self.standardize == VARIABLE:
            places = np.arange(len(self._variance))
            variables = np.zeros_like(places) if names is None else names.variable_of(places)
        factors = standardized(None if found is None else found.ravel(), self._variance, variables)
        return attribute_weights(factors.reshape(shape), None, shape)

    # -- using

    def transform(self, X: Any) -> Any:
        """Return the scores (n_samples, n_components) of samples, as `Estimator.transform`.

        Several variables are given in any form, with the dim of the samples of the fit. The scores are lazy if one of
        them is lazy, and a ``DataArray`` if one of them is.
        """
        if (given := self._again(X)) is None:
            return super().transform(X)
        return self._of_samples(given, super().transform(_rows(given)))

    def inverse_transform(self, X: Any, n_components: int | None = None) -> Any:
        """Return the reconstruction of samples from scores, as `Estimator.inverse_transform`.

        That of several variables has the form in which they were given in the fit.
        """
        if self._variables is None:
            return super().inverse_transform(X, n_components)
        scores = None
        if is_labelled(X):
            scores = labelled_scores(X, self.basis_, n_components, Labels.of_shape(self.sample_shape_))
            X = scores.values
        return self._by_variable(super().inverse_transform(X, n_components), self._variables.dim, scores)

    def by_variable(self, values: Any) -> Any:
        r"""Return values of all attributes, such as ``components_`` or ``mean_``, by variable.

        Parameters
        ----------
        values : array (n_features,) or (k, n_features)

        Returns
        -------
        list, tuple, dict or xarray.Dataset
            Arrays (\*shape) or (k, \*shape) of each variable, in the form in which the variables were given. Those of a
            ``DataArray`` are a ``DataArray``, with the first dim "component".

        Raises
        ------
        DataError
            If the model has one variable, or the values have another number of attributes.
        """
        check_is_fitted(self)
        if self._variables is None:
            raise DataError("the model has one variable: use values.reshape(-1, *model.sample_shape_)")
        if values.ndim not in (1, 2) or values.shape[-1] != self.n_features_in_:
            raise DataError(f"values have shape {values.shape}: give (k, {self.n_features_in_}) for all attributes")
        return self._by_variable(values, COMPONENT if values.ndim == 2 else None)

    def report_numbers(self) -> dict[str, Any]:
        """Return the numbers of the fitted model for a report; see `dpca.report.record`."""
        names = {} if self._variables is None else {VARIABLES: list(self._variables.keys)}
        return super().report_numbers() | names

    def to_xarray(self) -> Any:
        """Return the model as an ``xarray.Dataset``, see `ComponentModel.to_xarray`.

        Of several variables, "components" and "mean" are those of each one, "t_components" and "t_mean" of a variable
        "t". Dims of a variable without names are its own: "t_dim_1", "t_dim_2", ...
        """
        data = super().to_xarray()
        if (names := self._variables) is None:
            return data
        found = [data.drop_vars(["components", "mean"])]
        for name, values in (("components", self.components_), ("mean", self.mean_)):
            lead = COMPONENT if values.ndim == 2 else None
            parts = names.split(values if lead else values[None])
            for key, one, part in zip(names.keys, names.variables, parts, strict=True):
                key = key.replace(" ", "_")  # "variable 0" of a list
                own = tuple(f"{key}_dim_{i}" for i in range(1, part.ndim))
                found.append(_with_labels(part, one.labels or Labels(own, own, None, None, {}), lead, None))
                found[-1].name = f"{key}_{name}"
        return merged_exactly(found, "drop_conflicts")

    def _by_variable(self, values: Any, lead: str | None, scores: Labelled | None = None) -> Any:
        """Return values, with the dim ``lead`` or those of ``scores`` first, in the form of the variables."""
        names = self._variables
        assert names is not None
        parts = names.split(values if lead is not None else values[None])
        pairs = zip(parts, names.variables, strict=True)
        return names.formed(_with_labels(part, one.labels, lead, scores) for part, one in pairs)

    def _of_samples(self, given: SeveralVariables, scores: Any) -> Any:
        """Return scores of samples with the labels of these."""
        if given.labelled is None or not isinstance(scores, np.ndarray | da.Array):  # a table
            return scores
        numbers = {COMPONENT: np.arange(scores.shape[1])}
        return given.labelled.result(scores, (COMPONENT,), "scores").assign_coords(numbers)

    def _each_sample(
        self, X: Any, function: Any, basis: Any, shape: tuple[int, ...], dtype_for: Callable[[DTypeLike], DTypeLike]
    ) -> Any:
        given = self._again(X)
        return super()._each_sample(X if given is None else _rows(given), function, basis, shape, dtype_for)

    def _like_samples(self, X: Any, function: Any, dtype_for: Any) -> Any:
        if (given := self._again(X)) is None:
            return super()._like_samples(X, function, dtype_for)
        scores = None if given.labelled is None else given.labelled
        return self._by_variable(super()._like_samples(_rows(given), function, dtype_for), given.dim, scores)

    # -- on disk

    def _with_stored_weights(self, contents: StoreContents) -> StoreContents:
        contents = super()._with_stored_weights(contents)
        if (names := self._variables) is None:
            return contents
        facts, along = variables_stored(names)
        facts = {**contents.facts, **facts, _DIM: names.dim}
        return replace(contents, facts=facts, beside=Coordinates((), along, {}))

    def _restore_weights(self, stored: StoredModel) -> Self:
        super()._restore_weights(stored)
        if _DIM in stored.facts:
            names = variables_read(stored, FieldNames(None, None, None, str(stored.facts[_DIM])))
            assert isinstance(names, VariableNames)
            self._variables = names
            if self._is_weighted:
                self.weights = [part[0] for part in names.split(self.weights[None])]
        return self


def _leading_dim(X: Any) -> str:
    """Return the first dim of the first variable with names, the default dim of samples."""
    if is_labelled(X):
        several = X.data_vars.values() if hasattr(X, "data_vars") else [X]
    else:
        several = X.values() if isinstance(X, dict) else X if isinstance(X, list | tuple) else ()
    first = next((x for x in several if is_labelled(x)), None)
    return "sample" if first is None or not first.dims else str(first.dims[0])


def _with_labels(values: Any, labels: Labels | None, lead: str | None, scores: Labelled | None) -> Any:
    """Return the values (n, *sample_shape) of a variable with its labels; without ``lead``, the only ones."""
    if labels is None:
        return values if lead is not None else values[0]
    if scores is not None:
        return scores.samples(values, labels)
    import xarray  # the variable was an array of xarray, so it is installed

    dims = labels.dims if lead is None else (lead, *labels.dims)
    found = xarray.DataArray(values if lead is not None else values[0], dims=dims, name=labels.name, attrs=labels.attrs)
    return found if labels.coords is None else found.assign_coords(labels.coords)


def _read(source: Source) -> Array:
    """Return all samples of a source in memory."""
    n, *lengths = source.shape
    source.reader()((0, n), tuple((0, length) for length in lengths), rows := np.empty(source.shape, source.dtype))
    return rows


def _rows(given: SeveralVariables) -> Any:
    """Return the samples of variables as rows: an array if all are in memory, else a Dask array."""
    sources = given.source.sources
    if all(isinstance(source, ArraySource) and isinstance(source.array, np.ndarray) for source in sources):
        return _read(given.source)
    rows = [_lazy(source).reshape(source.shape[0], -1).astype(given.source.dtype) for source in sources]
    return da.concatenate(rows, axis=1).rechunk({1: -1})


def _lazy(source: Source) -> Any:
    if isinstance(source, ZarrSource):
        return as_lazy(source.path)
    found: Any = da.from_array(source.array) if isinstance(source, ArraySource) else source.as_dask()
    return found


def _variance(source: Source, run: Run) -> Array:
    """Return the variance (d,) of each attribute, with the divisor of the number of samples; 0 of constant ones."""
    passes = Passes(source, run)
    if source.weights is None:
        found, n = moments_by_blocks(passes, stage="standard deviations"), source.shape[0]
        mean, variance = found["mean"], found["variance"] * ((n - 1) / n)
    else:
        mean = weighted_mean(source, passes).ravel()
        passes.source = weighted_rows(source, mean.reshape(source.shape[1:]))
        found, n, total = moments_by_blocks(passes, stage="standard deviations"), source.shape[0], source.weights.sum()
        variance = (found["variance"] + found["mean"] ** 2 * (n / (n - 1))) * ((total - 1) / total)
    variance[variance <= (_CONSTANT * mean) ** 2] = 0
    return variance
