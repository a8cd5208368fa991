"""Input and output of `EOF`: fields with their dims and coordinates, and results on the same grid."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dpca.engine.sources.marked import MarkedSource
from dpca.engine.sources.source import Source, as_source
from dpca.kernels.algebra.types import Array
from dpca.models.base.labelled import (
    Labelled,
    Labels,
    labelled_samples,
    require_one_variable,
    samples_for_model,
    samples_to_fit,
)
from dpca.models.base.samples import masked_as_nan
from dpca.models.weights.attribute_weights import field_weights
from dpca.storage.arrays.labelled import as_coords, called, is_labelled, labelled_array
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import require_one_array

#: The dim of modes. They are numbered from 1.
MODE = "mode"


@dataclass(frozen=True, eq=False)
class FieldNames:
    """The dims and coordinates of a field.

    Attributes
    ----------
    labels : Labels or None
        Dims and coordinates of a sample, if the dims have names.
    labelled : Labelled or None
        The samples, if they were given as a ``DataArray``; from a store, a ``DataArray`` with their coordinates.
    along : xarray.DataArray or None
        The coordinate of the samples.
    dim : str
    """

    labels: Labels | None
    labelled: Labelled | None
    along: Any
    dim: str

    @property
    def named(self) -> bool:
        """Whether the dims of samples have names."""
        return self.labels is not None

    def variable_of(self, places: Array) -> Array:
        """Return the number of the variable at each of some places of a flattened sample."""
        return np.zeros(len(places), np.int64)

    def weights(self, given: Any, sample_shape: tuple[int, ...]) -> Array | None:
        """Return the weights of the anomalies at each place; see `field_weights`."""
        return field_weights(given, self.labels, sample_shape)

    def maps(self, values: Array, name: str, attributes: Callable[[Labels], dict[str, Any]]) -> Any:
        """Return maps (k, *sample_shape), as a ``DataArray`` if the dims of samples have names.

        ``attributes`` returns its metadata attributes from the labels of the field.
        """
        return on_grid(values, self.labels, name, None if self.labels is None else attributes(self.labels))

    def merged(self, maps: Any) -> list[Any]:
        """Return results of `maps` as parts of one ``Dataset``."""
        return [maps]

    def by_mode(self, values: Array, name: str) -> Any:
        """Return numbers of modes (k,), as a ``DataArray`` if the dims of samples have names."""
        if not self.named:
            return values
        import xarray  # only samples with names require it

        return xarray.DataArray(values, {MODE: np.arange(1, len(values) + 1)}, (MODE,), name)

    def field(self, values: Array, pcs: Any) -> Any:
        """Return samples (n, *sample_shape), as a ``DataArray`` if the dims of samples and those of PCs have names."""
        labels = self.labels
        if labels is None or not is_labelled(pcs):
            return values
        found = on_grid(values, labels, labels.name or "reconstruction", labels.attrs).drop_vars(MODE)
        found = found.rename({MODE: self.dim}).assign_coords(pcs.drop_vars(MODE, errors="ignore").coords)
        return found.transpose(*labels.order) if {*found.dims} == {*labels.order} else found

    def table(self, found: Any) -> Any:
        """Return the fields of a dataclass, arrays (k,), as a ``Dataset`` if the dims of samples have names."""
        if not self.named:
            return found
        import xarray  # only samples with names require it

        return xarray.Dataset({one.name: self.by_mode(getattr(found, one.name), one.name) for one in fields(found)})

    def series(self, values: Any, attrs: Any = None, name: str = "pcs") -> Any:
        """Return PC time series (n, k), as a ``DataArray`` if the dims of samples have names."""
        if not self.named:
            return values
        import xarray  # only samples with names require it

        numbers = {MODE: np.arange(1, values.shape[1] + 1)}
        if self.labelled is not None:
            return self.labelled.result(values, (MODE,), name, attrs).assign_coords(numbers)
        coords = numbers if self.along is None else {**numbers, self.dim: self.along}
        return xarray.DataArray(values, coords, (self.dim, MODE), name, attrs)


@dataclass(frozen=True, eq=False)
class Field(FieldNames):
    """Samples along one dim.

    Attributes
    ----------
    source : Source
        Missing values are NaN.
    """

    source: Source

    @classmethod
    def of(cls, X: Any, dim: str, key: str | None, labels: Labels | None = None, missing: Any = None) -> Field:
        """Return the field in an array, a ``Dataset``, a path or a source; ``labels`` are those of a model.

        ``missing`` marks missing values in addition to NaN: a number, or `INFINITE`.

        Raises
        ------
        DataError
            If the dim is missing, or the input is not an array of samples.
        """
        require_one_variable(X, key)
        X = masked_as_nan(X)
        if not is_labelled(X):
            X, found = samples_to_fit(X, None, key, gaps=True)
            source = copy.copy(as_source(X))  # elsewhere, the source of the caller rejects missing values
            coordinates = None if found is None else getattr(X, "coordinates", None)
            along = None if coordinates is None else as_coords(coordinates).get(coordinates.dims[0])
            labelled, own = None, dim if coordinates is None else coordinates.dims[0]
        else:
            if hasattr(X, "data_vars") and key is None and len(X.data_vars) == 1:
                (key,) = X.data_vars
            x, own = labelled_array(X, key), dim
            if dim not in x.dims:
                raise DataError(
                    f"dim is {dim!r} but {called(x)} has the dims {x.dims}: state the dim of the samples as dim="
                )
            labelled, found = labelled_samples(x, dim) if labels is None else samples_for_model(x, labels)
            if labelled.sample_dims != (dim,):
                raise DataError(f"{called(x)} has the dims {x.dims}: remove all except {dim!r} and those of the fit")
            source, along = labelled.source(found), x.coords.get(dim)
        source.with_gaps = True
        source = source if missing is None else MarkedSource(source, missing)
        return cls(found, labelled, along, own, source)


def on_grid(maps: Array, labels: Labels | None, name: str, attrs: Any = None) -> Any:
    """Return maps (k, *sample_shape), as a ``DataArray`` if the dims of samples have names."""
    if labels is None:
        return maps
    import xarray  # only samples with names require it

    found = xarray.DataArray(maps, dims=(MODE, *labels.dims), name=name, attrs=attrs)
    found = found.assign_coords({MODE: np.arange(1, len(maps) + 1)})
    return found if labels.coords is None else found.assign_coords(labels.coords)


def attributes_of(what: str, *, keep_units: bool) -> Callable[[Labels | None], dict[str, Any]]:
    """Return a function that gives the metadata attributes of results from the labels of a field, None without.

    They say what the results are, and have the units of the field with ``keep_units``. Others, such as a standard name
    or a valid range, are true of the field only.
    """

    def attributes(labels: Labels | None) -> dict[str, Any]:
        if labels is None:
            return {"long_name": what}
        name = labels.attrs.get("long_name", labels.name)
        units = {"units": labels.attrs["units"]} if keep_units and "units" in labels.attrs else {}
        return {"long_name": f"{what} of {name}" if name else what, **units}

    return attributes


def series_given(pcs: Any, dim: str, k: int) -> Array:
    """Return PC time series (n, k or more), given as a ``DataArray`` or an array, in memory.

    Raises
    ------
    DataError
        If the dims differ, there are fewer than k modes, or the numbered modes are not 1 to k in order.
    """
    if named := is_labelled(pcs):
        if {*labelled_array(pcs).dims} != {dim, MODE}:
            raise DataError(f"pcs has the dims {pcs.dims}: give {(dim, MODE)}")
        pcs = pcs.transpose(dim, MODE)
    require_one_array(pcs, "pcs")
    values = np.asarray(pcs)
    if values.ndim != 2 or values.shape[1] < k:
        raise DataError(f"pcs has shape {values.shape}: give (n_samples, n_modes) with at least {k} modes")
    if named and MODE in pcs.coords and (pcs[MODE][:k] != np.arange(1, k + 1)).any():
        found = ", ".join(map(str, pcs[MODE].values))
        raise DataError(f"pcs has the modes {found}: give 1 to {k}, in this order")
    return values


def scale_of(eigenvalues: Array, scaling: int) -> Array:
    """Return the factors of modes or PC time series: 1, or the square root of the eigenvalues or its inverse.

    Raises
    ------
    DataError
        If scaling is not 0, 1 or 2.
    """
    if isinstance(scaling, bool) or scaling not in (0, 1, 2):
        raise DataError(
            f"scaling is {scaling!r}: give 0 for none, 1 to divide by the root of the eigenvalue, or 2 to multiply"
        )
    root = np.sqrt(np.maximum(eigenvalues, 0))
    divided = np.divide(1, root, out=np.zeros_like(root), where=root > 0)
    return np.ones_like(root) if scaling == 0 else divided if scaling == 1 else root
