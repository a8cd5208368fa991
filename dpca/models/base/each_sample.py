"""Functions that apply to each sample: in memory, lazily, or on arrays with named dims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import DTypeLike

from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.source import check_numeric, opened
from dpca.kernels.algebra.types import Array
from dpca.models.base.labelled import Labels, samples_for_model
from dpca.models.base.samples import allows_gaps, dense_samples, masked_as_nan
from dpca.models.linear.likelihood import LIKELIHOOD_COPIES, likelihoods_by_boxes, log_likelihoods
from dpca.representation.base import Representation
from dpca.representation.by_blocks import encoded_by_boxes, is_by_boxes
from dpca.representation.gappy import fill_errors, filled_samples, score_errors
from dpca.representation.gaps_by_boxes import errors_by_boxes, fill_errors_by_boxes, filled_by_boxes
from dpca.representation.lazy import as_lazy, is_lazy, lazily_opened, map_samples
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.errors import DataError

# Functions of each sample, and those that return the same for large samples.
_BY_BOXES: dict[Any, Callable[[Any, Any], Any]] = {
    Representation.encode: encoded_by_boxes,
    score_errors: errors_by_boxes,
    filled_samples: filled_by_boxes,
    fill_errors: fill_errors_by_boxes,
}


class EachSample:
    """Base of models that compute a result for each sample, lazily for lazy samples."""

    sample_shape_: tuple[int, ...]

    _labels: Labels | None = None  # dims and coordinates of the samples of the fit, if they had names
    _key: str | None = None  # name of their array in the file

    def _in_memory(self, X: Any) -> Array:
        """Return samples that are held in memory, after a check."""
        return dense_samples(self, X, reset=False)

    def _each_sample(
        self, X: Any, function: Any, basis: Any, shape: tuple[int, ...], dtype_for: Callable[[DTypeLike], DTypeLike]
    ) -> Any:
        """Apply ``function(basis, samples, name)`` to samples in memory, or lazily to each chunk of them.

        The result has shape (n_samples, *shape). Its dtype is ``dtype_for`` of the dtype of the samples. For a
        ``DataArray``, which must yield one number per sample, it is a ``DataArray``.
        """
        if is_labelled(X):
            samples, _ = samples_for_model(X, self._labels)
            return samples.result(self._each_sample(samples.values, function, basis, shape, dtype_for))
        if not is_lazy(X):
            return named_errors(function, "X")(basis, self._of_this_shape(self._in_memory(X)), "X")
        gaps = allows_gaps(self)
        lazy = self._of_this_shape(lazily_opened(opened(masked_as_nan(X) if gaps else X, self._key, gaps=gaps)))
        check_numeric(lazy.shape, lazy.dtype, "X")
        if (by_boxes := _BY_BOXES.get(function)) is not None and is_by_boxes(basis, lazy.dtype):
            return by_boxes(basis, lazy)
        if function is log_likelihoods and is_by_boxes(basis.basis, lazy.dtype, LIKELIHOOD_COPIES):
            return likelihoods_by_boxes(basis, lazy)
        return map_samples(as_lazy(lazy), function, basis, shape, dtype_for(lazy.dtype))

    def _of_this_shape(self, X: Any) -> Any:
        if tuple(X.shape[1:]) != self.sample_shape_:
            raise DataError(
                f"samples have shape {tuple(X.shape[1:])} but this model was fitted to {self.sample_shape_}: give "
                f"samples of that shape"
            )
        return X


@dataclass(frozen=True)
class OfRows:
    """A function of rows, applied to the samples from which they are computed."""

    function: Callable[..., Array]
    rows_of: Callable[[Array], Array]

    def __call__(self, basis: Any, samples: Array, name: str = "a chunk") -> Array:
        """Return the results of samples."""
        check_finite(samples, 0, name)
        return self.function(basis, self.rows_of(samples), name)
