"""What estimators of components of whole samples share: checking samples, projecting and back, outlier scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from dpca.engine.boundary import guarded
from dpca.engine.source import Source, as_dense, as_source, check_finite, check_numeric, opened
from dpca.kernels.dtypes import working_dtype
from dpca.models.outliers import residual_scores
from dpca.models.parameters import given_parameters
from dpca.representation.lazy import as_lazy, is_lazy, map_samples, scores_of
from dpca.representation.linear_basis import LinearBasis
from dpca.representation.reconstruction import samples_of
from storage.errors import DataError

Array = NDArray[Any]

# Shares of the variance that a report gives one by one.
_LEADING = 5


class LinearModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted mean and orthonormal components of whole samples."""

    #: What a store of the scores calls itself.
    scores_kind: ClassVar[str] = LinearBasis.scores_kind
    #: Whether jobs measure SSIM where they keep no reconstructions: it costs more than the scores of whole samples.
    measures_ssim: ClassVar[bool] = False
    #: What one partition of the attributes is called.
    part_name: ClassVar[str] = "sample"
    #: What the pictures of a report show.
    report_title: ClassVar[str] = "Eigenimages"

    # -- learning

    def _source(self, X: Any) -> Source:
        if is_lazy(X) or isinstance(X, Source):
            source = as_source(opened(X))
            self.n_features_in_ = math.prod(source.shape[1:])
        else:
            source = as_source(np.ascontiguousarray(self._dense(X, reset=True)))
        if source.shape[0] < 2:
            raise DataError(f"{source.shape[0]} sample has no variance: a fit needs at least 2 samples")
        return source

    def _dense(self, X: Any, *, reset: bool) -> Array:
        """Check samples in memory by scikit-learn's conventions, which count features along a single axis only."""
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
                samples = validate_data(self, X, dtype="numeric", reset=reset, ensure_all_finite=False)
            else:
                samples = check_array(
                    X, dtype="numeric", allow_nd=True, ensure_all_finite=False, estimator=self, input_name="X"
                )
        except ValueError as error:
            raise DataError(str(error)) from error
        if samples.dtype.kind == "f":
            check_finite(samples, 0, "X")
        if reset and len(shape) > 2:
            self.n_features_in_ = math.prod(samples.shape[1:])
        return samples

    def _learned(self, found: dict[str, Array], sample_shape: tuple[int, ...], n: int) -> None:
        """Set what every model knows from what a rule found or a store holds."""
        self.components_ = found["components"]
        self.mean_ = found["mean"]
        self.explained_variance_ = found["explained_variance"]
        self.total_variance_ = float(found["total_variance"])
        total = self.total_variance_
        self.explained_variance_ratio_ = self.explained_variance_ / total if total > 0 else 0 * self.explained_variance_
        self.singular_values_ = np.sqrt(np.maximum(self.explained_variance_, 0)) * math.sqrt(max(n - 1, 0))
        self.n_samples_seen_ = n
        self.n_components_ = len(self.components_)
        self.sample_shape_ = sample_shape
        self.n_features_in_ = math.prod(sample_shape)

    # -- using

    @property
    def basis_(self) -> LinearBasis:
        """The mean and the components: what tasks are sent."""
        check_is_fitted(self, "components_")
        return LinearBasis(self.mean_, self.components_, self.sample_shape_)

    def transform(self, X: Any) -> Any:
        """Return the scores (n_samples, n_components): a Dask array for Dask arrays, Zarr arrays, stacks and paths."""
        basis = self.basis_
        return self._each_sample(X, scores_of, basis, (basis.components.shape[0],), basis.components.dtype)

    def inverse_transform(self, X: Any, n_components: int | None = None) -> Any:
        """Return the samples (n_samples, *sample_shape) that scores stand for, neither rounded nor clipped.

        Parameters
        ----------
        X : array (n_samples, n_components_), numpy, Dask or Zarr; or the path of a Zarr array
            Scores of all components, or of ``n_components``.
        n_components : int, optional
            Use only so many of the first components; default all.

        Returns
        -------
        array
            Lazy in, lazy out, as `transform`. Of scores in a store, chunks that hold only other components are never
            read.

        Raises
        ------
        DataError
            For scores of another shape, or more components than there are.
        """
        return samples_of(self.basis_, X, n_components)

    def score_samples(self, X: Any) -> Any:
        """Return minus the squared reconstruction error of each sample, -|x - x^|^2: the lower, the more an outlier.

        Parameters
        ----------
        X : as in `transform`

        Returns
        -------
        array (n_samples,), float64; a Dask array for Dask arrays, Zarr arrays, stacks and paths. Costs 4 n d k
        operations.
        """
        return self._each_sample(X, residual_scores, self.basis_, (), np.float64)

    def _each_sample(self, X: Any, function: Any, basis: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """Apply ``function(basis, samples)`` to samples in memory, or lazily to each chunk of them."""
        if not is_lazy(X):
            return guarded(function, "X")(basis, self._checked(self._dense(X, reset=False)))
        lazy = self._checked(as_lazy(X))
        check_numeric(lazy.shape, lazy.dtype, "X")
        return map_samples(lazy, function, basis, shape, np.result_type(working_dtype(lazy.dtype), dtype))

    def _checked(self, X: Any) -> Any:
        if tuple(X.shape[1:]) != self.sample_shape_:
            raise DataError(
                f"samples have shape {tuple(X.shape[1:])} but this model was fitted to {self.sample_shape_}"
            )
        return X

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    # -- what jobs and reports ask

    def cells_for(self, axes: Sequence[str]) -> None:
        """Return the cells that the chunks of a stack should fit: none, samples are left whole."""

    def job_settings(self) -> dict[str, Any]:
        """Return what identifies a job on this estimator: the parameters that are given."""
        return {"model": given_parameters(self)}

    def report_numbers(self) -> dict[str, Any]:
        """Return what a report says of the fitted model; see `dpca.report.record`."""
        return {
            "attributes": self.n_features_in_,
            "components": self.n_components_,
            "scalars_ratio": self.n_features_in_ / self.n_components_,
            "leading_ratios": self.explained_variance_ratio_[:_LEADING],
            "captured_bound": None if math.isnan(self.captured_bound_) else self.captured_bound_,
            "total_variance": self.total_variance_,
            "explained_variance": self.explained_variance_,
        }

    def pictured_components(self, count: int) -> Array:
        """Return the first components (count, *sample_shape)."""
        rows: Array = self.components_[:count].reshape(-1, *self.sample_shape_)
        return rows
