"""Fields in time as `EOF` takes them: samples along one dim, the coordinates of both, and results on the same grid."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.engine.source import Source, as_source
from dpca.kernels.types import Array
from dpca.models.labelled import Labelled, Labels, given_to_fit, given_to_model, taken_in
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import require_one_array
from dpca.storage.labelled import as_coords, called, is_labelled, labelled_array

#: The dim of modes, numbered from 1.
MODE = "mode"


@dataclass(frozen=True, eq=False)
class Names:
    """What samples along one dim, and the places of each, are called.

    Attributes
    ----------
    labels : Labels or None
        Of samples whose dims have names.
    labelled : Labelled or None
        The samples, where they came as a ``DataArray``; from a store, one with their coordinates.
    along : xarray.DataArray or None
        The coordinate of the samples.
    dim : str
    """

    labels: Labels | None
    labelled: Labelled | None
    along: Any
    dim: str

    def series(self, values: Any, attrs: Any = None) -> Any:
        """Return time functions (n, k), as a ``DataArray`` where samples have names."""
        if self.labels is None:
            return values
        import xarray  # whoever named the samples has it

        numbers = {MODE: np.arange(1, values.shape[1] + 1)}
        if self.labelled is not None:
            return self.labelled.result(values, (MODE,), "pcs", attrs).assign_coords(numbers)
        coords = numbers if self.along is None else {**numbers, self.dim: self.along}
        return xarray.DataArray(values, coords, (self.dim, MODE), "pcs", attrs)


@dataclass(frozen=True, eq=False)
class Field(Names):
    """Samples along one dim.

    Attributes
    ----------
    source : Source
        NaN stands for missing values in it.
    """

    source: Source

    @classmethod
    def of(cls, X: Any, dim: str, key: str | None, labels: Labels | None = None) -> Field:
        """Return the field that an array, a data set, a path or a source holds; ``labels`` are those of a model.

        Raises
        ------
        DataError
            Without the dim, or for what is no array of samples.
        """
        if not is_labelled(X):
            X, found = given_to_fit(X, None, key)
            source = copy.copy(as_source(X))  # the caller's own takes no gaps elsewhere
            coordinates = None if found is None else getattr(X, "coordinates", None)
            along = None if coordinates is None else as_coords(coordinates).get(coordinates.dims[0])
            labelled, own = None, dim if coordinates is None else coordinates.dims[0]
        else:
            if hasattr(X, "data_vars") and key is None and len(X.data_vars) == 1:
                (key,) = X.data_vars
            x, own = labelled_array(X, key), dim
            if dim not in x.dims:
                raise DataError(
                    f"dim is {dim!r} but {called(x)} has the dims {x.dims}: give the one along which samples follow "
                    f"each other"
                )
            labelled, found = taken_in(x, dim) if labels is None else given_to_model(x, labels)
            if labelled.sample_dims != (dim,):
                raise DataError(f"{called(x)} has the dims {x.dims}: leave out all but {dim!r} and those of the fit")
            source, along = labelled.source(found), x.coords.get(dim)
        source.with_gaps = True
        return cls(found, labelled, along, own, source)


def on_grid(maps: Array, labels: Labels | None, name: str, attrs: Any = None) -> Any:
    """Return maps (k, *sample_shape), as a ``DataArray`` where samples have names."""
    if labels is None:
        return maps
    import xarray  # whoever named the samples has it

    found = xarray.DataArray(maps, dims=(MODE, *labels.dims), name=name, attrs=attrs)
    found = found.assign_coords({MODE: np.arange(1, len(maps) + 1)})
    return found if labels.coords is None else found.assign_coords(labels.coords)


def series_given(pcs: Any, dim: str, k: int) -> Array:
    """Return given time functions (n, k or more), a ``DataArray`` or an array, in memory.

    Raises
    ------
    DataError
        For other dims, fewer modes, or others than the first k, where these have numbers.
    """
    if named := is_labelled(pcs):
        if {*labelled_array(pcs).dims} != {dim, MODE}:
            raise DataError(f"time functions have the dims {pcs.dims}: give {(dim, MODE)}")
        pcs = pcs.transpose(dim, MODE)
    require_one_array(pcs, "pcs")
    values = np.asarray(pcs)
    if values.ndim != 2 or values.shape[1] < k:
        raise DataError(f"time functions have shape {values.shape}: give (n_samples, n_modes) of at least {k} modes")
    if named and MODE in pcs.coords and (pcs[MODE][:k] != np.arange(1, k + 1)).any():
        found = ", ".join(map(str, pcs[MODE].values))
        raise DataError(f"time functions are those of the modes {found}: give 1 to {k}, in this order")
    return values


def scale_of(eigenvalues: Array, scaling: int) -> Array:
    """Return what modes or time functions are multiplied by: 1, or the root of their eigenvalues or its inverse.

    Raises
    ------
    DataError
        For another scaling than 0, 1 to divide and 2 to multiply.
    """
    if isinstance(scaling, bool) or scaling not in (0, 1, 2):
        raise DataError(f"scaling is {scaling!r}: give 0, 1 to divide or 2 to multiply by the root of the eigenvalue")
    root = np.sqrt(np.maximum(eigenvalues, 0))
    divided = np.divide(1, root, out=np.zeros_like(root), where=root > 0)
    return np.ones_like(root) if scaling == 0 else divided if scaling == 1 else root
