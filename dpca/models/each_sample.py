"""Functions of each sample: in memory, lazily, or of arrays with names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import DTypeLike

from dpca.engine.boundary import guarded
from dpca.engine.source import check_numeric, opened
from dpca.kernels.types import Array
from dpca.models.labelled import Labels, given_to_model
from dpca.models.samples import dense_samples
from dpca.representation.lazy import as_lazy, is_lazy, map_samples
from dpca.storage.errors import DataError
from dpca.storage.labelled import is_labelled


class EachSample:
    """Base of models that compute something of each sample, lazily where samples are lazy."""

    sample_shape_: tuple[int, ...]

    _labels: Labels | None = None  # of the samples of the fit, where xarray named them
    _key: str | None = None  # which array of a file they were

    def _in_memory(self, X: Any) -> Array:
        """Return samples to be mapped that are held in memory, checked."""
        return dense_samples(self, X, reset=False)

    def _each_sample(
        self, X: Any, function: Any, basis: Any, shape: tuple[int, ...], dtype_for: Callable[[DTypeLike], DTypeLike]
    ) -> Any:
        """Apply ``function(basis, samples, name)`` to samples in memory, or lazily to each chunk of them.

        The result has shape (n_samples, *shape), and for samples of a type the type that ``dtype_for`` returns. That of
        a ``DataArray`` is one of a number for each sample.
        """
        if is_labelled(X):
            samples, _ = given_to_model(X, self._labels)
            return samples.result(self._each_sample(samples.values, function, basis, shape, dtype_for))
        if not is_lazy(X):
            return guarded(function, "X")(basis, self._of_this_shape(self._in_memory(X)), "X")
        lazy = self._of_this_shape(as_lazy(opened(X, self._key)))
        check_numeric(lazy.shape, lazy.dtype, "X")
        return map_samples(lazy, function, basis, shape, dtype_for(lazy.dtype))

    def _of_this_shape(self, X: Any) -> Any:
        if tuple(X.shape[1:]) != self.sample_shape_:
            raise DataError(
                f"samples have shape {tuple(X.shape[1:])} but this model was fitted to {self.sample_shape_}"
            )
        return X
