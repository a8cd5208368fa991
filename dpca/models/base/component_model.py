"""Base of the estimators with a mean and components; the eigenvalues yield their reconstruction error."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import dask.array as da
import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpca.kernels.algebra.types import Array
from dpca.models.base.estimator import Estimator
from dpca.models.base.labelled import Labels, as_dataset
from dpca.models.linear.likelihood import Likelihood, log_likelihoods
from dpca.representation.linear import LinearRepresentation
from dpca.representation.on_disk import ArrayOnDisk

#: Fact of a store whose mean and components have the axes of a sample, and are read where they are used.
ON_DISK = "by_blocks"
#: Fact of a store with weights of attributes.
WEIGHTED = "weighted"


class ComponentModel(Estimator):
    """Base of the estimators with a mean and components; the eigenvalues yield their reconstruction error."""

    #: Name of one part of the partition.
    part_name: ClassVar[str]

    n_components: Any

    components_: Array
    explained_variance_: Array
    total_variance_: Any

    @property
    @abstractmethod
    def basis_(self) -> LinearRepresentation:
        """The mean and the components, as they are sent to tasks."""

    _on_disk: Mapping[str, ArrayOnDisk] = MappingProxyType({})  # mean and components, if not in memory
    _target: dict[str, Any] | None = None  # the quality target and the value reached
    _previous_components: Array | None = None  # the previous components, for models that compute components on access

    def _set_fitted(self, found: dict[str, Any], sample_shape: tuple[int, ...], n: int) -> None:
        """Set the attributes of every model from a store or from the results of a fit to n samples."""
        self._on_disk = {name: found[name] for name in ("mean", "components") if isinstance(found[name], ArrayOnDisk)}
        found = {**found, **{name: self._lazily(name, array) for name, array in self._on_disk.items()}}
        self.components_, self.mean_ = found["components"], found["mean"]
        self.explained_variance_, self.total_variance_ = found["explained_variance"], found["total_variance"]
        share, total = np.zeros_like(self.explained_variance_), np.asarray(self.total_variance_)[..., None]
        np.divide(self.explained_variance_, total, out=share, where=total > 0)
        self.explained_variance_ratio_ = share
        self.singular_values_ = np.sqrt(np.maximum(self.explained_variance_, 0)) * math.sqrt(max(n - 1, 0))
        self.n_samples_seen_, self.n_components_ = n, len(self.components_)
        self.sample_shape_, self.n_features_in_ = sample_shape, math.prod(sample_shape)

    def _lazily(self, name: str, array: ArrayOnDisk) -> da.Array:
        """Return the mean or the components on disk as the fitted attribute."""
        return array.as_dask(array.edges)

    @property
    def _arrays(self) -> tuple[Any, Any]:
        """The mean and the components, in memory or on disk."""
        kept = self._on_disk
        return (kept.get("mean", self.mean_), kept["components"]) if kept else (self.mean_, self.components_)

    def stored_at(self, path: str | os.PathLike[str]) -> None:
        """Read the mean and the components, if they are on disk, from the store at ``path`` from now on."""
        if self._on_disk:
            stored = type(self).load(path)
            for name in ("_on_disk", "mean_", "components_", "_basis"):
                if name in vars(stored):
                    setattr(self, name, vars(stored)[name])

    def _set_optional(self, attributes: Mapping[str, Any]) -> None:
        """Set the attributes that only some fits have; delete those that are None, as they are of an earlier fit."""
        for name, value in attributes.items():
            if value is not None:
                setattr(self, name, value)
            elif hasattr(self, name):
                delattr(self, name)

    def to_xarray(self) -> Any:
        """Return the model as an ``xarray.Dataset``, with the dims and coordinates of the samples of the fit.

        Returns
        -------
        xarray.Dataset
            "components" (component, ...), on the grid of the samples; "mean" (...), with the metadata attributes of
            the samples; "explained_variance" and "explained_variance_ratio" (..., component) and "total_variance"
            (...), with dims of cells or bands if there are any. If neither the samples nor their store have names for
            the dims, the dims have the default names of stacks, such as "y" and "x" for images, and no coordinates.

        Raises
        ------
        DataError
            If xarray is not installed.
        """
        check_is_fitted(self)
        return as_dataset(self, self._labels or Labels.of_shape(self.sample_shape_, getattr(self, "axes", None)))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of samples under probabilistic PCA (Tipping & Bishop 1999). Higher is better.

        The residual variance counts as noise, equal in all other directions, as in scikit-learn's ``PCA.score``. Cells
        and bands are independent: the log-likelihood is the sum over them. Use it on held-out samples to choose the
        number of components, for example with ``GridSearchCV``. It is not the mean of `score_samples`.

        Parameters
        ----------
        X : as in `transform`
            Lazy samples are read once.
        y : ignored

        Returns
        -------
        float
            In nats. Costs 4 n d k operations.
        """
        model = Likelihood.of(self.basis_, self.explained_variance_, self.total_variance_, self.n_samples_seen_)
        return float(self._each_sample(X, log_likelihoods, model, (), lambda dtype: np.float64).mean())

    def expected_mse(self, data_range: tuple[float, float]) -> float | None:
        """Return the mean squared error according to the eigenvalues; see `Estimator.expected_mse`."""
        lost = np.sum(self.total_variance_) - self.explained_variance_.sum()
        n, width = self.n_samples_seen_, float(data_range[1] - data_range[0])
        per_value = float(max(lost, 0.0) * (n - 1) / n / self.n_features_in_)
        # Two divisions, because the square of an extreme range may overflow.
        return per_value / width / width

    def report_numbers(self) -> dict[str, Any]:
        """Return the numbers of the fitted model for a report; see `dpca.report.record`."""
        share = self.explained_variance_.sum() / max(np.sum(self.total_variance_), 1e-300)
        return {"components": len(self.components_), "explained_variance_ratio": float(share)}

    def component_maps(self, count: int) -> Array:
        """Return the first components (count, *sample_shape), each part of the partition at its position."""
        check_is_fitted(self)
        return self.components_[:count].reshape(-1, *self.sample_shape_)
