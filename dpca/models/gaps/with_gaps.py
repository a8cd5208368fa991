"""Base of the estimators that support missing values."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpca.models.base.component_model import ComponentModel
from dpca.models.base.labelled import Labelled, samples_for_model
from dpca.representation.gappy import GappyRepresentation, fill_errors, filled_samples, score_errors
from dpca.representation.linear import LinearRepresentation
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.errors import DataError


class WithGaps(ComponentModel):
    """Base of the estimators that support missing values."""

    gaps: str
    missing_value: Any

    def _require_gaps(self) -> GappyRepresentation:
        if not isinstance(basis := self.basis_, GappyRepresentation):
            raise DataError(f"gaps is {self.gaps!r}: use gaps='iterate' for samples with missing values")
        return basis

    def _with_gaps(self, basis: LinearRepresentation) -> LinearRepresentation:
        """Return the basis for samples with gaps, if this model supports them."""
        if self.gaps != "iterate":
            return basis
        arrays = basis.partition, np.asarray(basis.mean), np.asarray(basis.components)
        return GappyRepresentation(*arrays, self.explained_variance_, self.total_variance_, self.missing_value)

    def _require_values(self, method: str) -> None:
        check_is_fitted(self)
        if self.gaps == "iterate" and (unknown := int(np.isnan(self.mean_).sum())):
            raise DataError(
                f"{unknown:,} attribute(s) had no value in the fit, and {method} requires all: fit samples without them"
            )

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of samples without missing values, see `ComponentModel.score`.

        Raises
        ------
        DataError
            If an attribute had no value in the fit.
        """
        self._require_values("score")
        return super().score(X, y)

    def score_errors(self, X: Any) -> Any:
        """Return the standard errors (n_samples, *score_shape) of the scores of samples with missing values.

        The error of a score is its standard deviation, given the values that are there: the variance of the missing
        values under the model. It is 0 if no value is missing. Errors of the components themselves are not included.

        Parameters
        ----------
        X : as in `transform`

        Raises
        ------
        DataError
            If ``gaps`` is "reject".
        """
        basis = self._require_gaps()

        def labelled_scores(samples: Labelled, labels: Any, errors: Any) -> Any:
            return samples.scores(errors, basis, labels, None)

        return self._of_each(X, score_errors, basis.score_shape, basis.score_dtype, labelled_scores)

    def fill(self, X: Any) -> Any:
        """Return samples with missing values replaced by their expectation, in the dtype of the samples.

        Values that are there do not change. Values of integers are rounded. Nothing changes at attributes that had no
        value in the fit.

        Parameters
        ----------
        X : as in `transform`

        Returns
        -------
        array (n_samples, *sample_shape)
            Lazy as in `transform`. `fill_errors` returns the standard errors.

        Raises
        ------
        DataError
            If ``gaps`` is "reject".
        """
        return self._like_samples(X, filled_samples, np.dtype)

    def fill_errors(self, X: Any) -> Any:
        """Return the standard errors (n_samples, *sample_shape), float32, of the values of `fill`.

        They include the noise of a value, and are 0 where a value is there, and NaN at attributes that had no value in
        the fit.

        Parameters
        ----------
        X : as in `transform`

        Raises
        ------
        DataError
            If ``gaps`` is "reject".
        """
        return self._like_samples(X, fill_errors, lambda dtype: np.float32)

    def _like_samples(self, X: Any, function: Any, dtype_for: Any) -> Any:
        """Apply a function that returns samples to samples, with their labels if they have some."""

        def labelled_samples(samples: Labelled, labels: Any, found: Any) -> Any:
            return samples.samples(found, labels)

        return self._of_each(X, function, self.sample_shape_, dtype_for, labelled_samples)

    def _of_each(self, X: Any, function: Any, shape: tuple[int, ...], dtype_for: Any, label: Any) -> Any:
        """Apply a function of the basis to each sample; ``label`` adds the labels of samples that have some."""
        basis = self._require_gaps()
        if not is_labelled(X):
            return self._each_sample(X, function, basis, shape, dtype_for)
        samples, labels = samples_for_model(X, self._labels)
        return label(samples, labels, self._each_sample(samples.values, function, basis, shape, dtype_for))
