"""Estimators accept and return arrays of xarray, with names of dims, coordinates and attributes.

Estimators compute with plain arrays, samples first and channels last. This module gets these from a ``DataArray``, in
memory or lazy (nothing is computed), and adds names and coordinates to the results.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import zarr

from dpca.engine.sources.source import Source, as_source, opened
from dpca.engine.sources.variables import VariableStack
from dpca.kernels.algebra.types import Array
from dpca.representation.base import Representation
from dpca.storage.arrays.coordinates import Coordinates, coordinates_in
from dpca.storage.arrays.labelled import as_coords, called, coordinates_of, is_labelled, labelled_array, leading_dims
from dpca.storage.arrays.layout import CHANNEL, SAMPLE, axes_for, named_axes, stack_axes
from dpca.storage.errors import DataError
from dpca.storage.readers.base import require

COMPONENT = "component"
#: The dim of scores in two axes.
SCORE = "score"


@dataclass(frozen=True, eq=False)
class Labels:
    """Names of the dims of samples, and the coordinates along them.

    Attributes
    ----------
    order : tuple
        All dims of the array, in its order.
    dims : tuple
        Dims of one sample, channels last.
    along : xarray.Coordinates, dpca.storage.arrays.coordinates.Coordinates or None
        Coordinates along these dims; those of xarray include scalar ones.
    name, attrs
        Name and attributes of the array.
    """

    order: tuple[Any, ...]
    dims: tuple[Any, ...]
    along: Any
    name: Any
    attrs: dict[str, Any]

    @classmethod
    def of(cls, x: Any, sample_dims: Sequence[Any]) -> Labels:
        """Return the labels of a ``DataArray`` with these dims of samples."""
        dims = [dim for dim in x.dims if dim not in sample_dims]
        axes = named_axes(dims) or ()
        if CHANNEL in axes:
            dims.append(dims.pop(axes.index(CHANNEL)))
        return cls(x.dims, tuple(dims), _coords_along(x, dims), x.name, dict(x.attrs))

    @classmethod
    def of_shape(cls, sample_shape: Sequence[int], given: Sequence[str] | None = None) -> Labels:
        """Return labels without coordinates for samples of this shape: the ``given`` names, or default ones."""
        axes = stack_axes(given, sample_shape)[1:] if given else axes_for(sample_shape)
        return cls(axes, axes, None, None, {})

    @classmethod
    def of_source(cls, source: Any) -> Labels | None:
        """Return the labels of a stack, or of a source of an array in a file, None if it has no names."""
        found = getattr(source, "coordinates", None)
        if found is None or (found.dims[0] == SAMPLE and not found.arrays):
            return None
        own = found.of_one_sample()
        return cls(found.dims, own.dims, own, None, dict(own.attributes))

    @classmethod
    def stored(cls, facts: Mapping[str, Any], group: zarr.Group, sample_shape: Sequence[int]) -> Labels:
        """Return the labels from the facts of a store, see `facts`, and the coordinates in a group of the store."""
        order, dims = (tuple(map(str, facts[name])) for name in ("order", "dims"))
        found = coordinates_in(group, dims, sample_shape, facts["attributes"])
        if found is None:
            raise ValueError(f"its labels {dims} do not fit samples of {tuple(sample_shape)}")
        return cls(order, dims, found, facts["name"], dict(found.attributes))

    def kept(self, sample_shape: Sequence[int]) -> Coordinates | None:
        """Return the coordinates along samples of a shape in the form of stores; None if two dims have one name."""
        if isinstance(self.along, Coordinates):
            return self.along
        import xarray  # these labels come from xarray, so it is installed

        return coordinates_of(xarray.DataArray(np.empty(sample_shape), self.along, self.dims, attrs=self.attrs))

    def facts(self, kept: Coordinates) -> dict[str, Any]:
        """Return the facts of the labels for the store of a model; it keeps the coordinates in addition."""
        name = self.name if isinstance(self.name, str) else None
        return {"order": [*map(str, self.order)], "dims": list(kept.dims), "name": name, "attributes": kept.stated}

    def renamed(self, change: Callable[[str], str]) -> Labels:
        """Return labels with other names of all dims and coordinates; ``along`` is a `Coordinates`."""
        along: Coordinates = self.along
        arrays = {change(name): replace(c, dims=tuple(map(change, c.dims))) for name, c in along.arrays.items()}
        changed = replace(along, dims=tuple(map(change, along.dims)), arrays=arrays)
        order, dims = (tuple(change(str(dim)) for dim in some) for some in (self.order, self.dims))
        return replace(self, order=order, dims=dims, along=changed)

    @cached_property
    def coords(self) -> Any:
        """The coordinates as an object of xarray, None without coordinates."""
        return as_coords(self.along) if isinstance(self.along, Coordinates) else self.along

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of a sample's axes for partitions."""
        return named_axes(self.dims) or tuple(map(str, self.dims))

    def check(self, x: Any) -> None:
        """Compare the coordinates of samples with those of the fit.

        Raises
        ------
        DataError
            If they differ.
        """
        if self.coords is not None:
            for dim in self.dims:
                _check_index(x, dim, self.coords.to_dataset().indexes.get(dim), f"x.reindex({dim}=...)")


@dataclass(frozen=True, eq=False)
class Labelled:
    """Samples or scores in a ``DataArray``.

    Attributes
    ----------
    array : xarray.DataArray
        Dims that count samples come first.
    n_sample_dims : int
        Number of dims that count samples.
    """

    array: Any
    n_sample_dims: int

    @property
    def sample_dims(self) -> tuple[Any, ...]:
        """Dims that count samples."""
        dims: tuple[Any, ...] = self.array.dims[: self.n_sample_dims]
        return dims

    @property
    def values(self) -> Any:
        """The values, samples on the first axis: a Dask array for a lazy ``DataArray``, else a numpy array."""
        values = self.array.data
        one = self.n_sample_dims == 1
        return values if one else values.reshape(-1, *values.shape[self.n_sample_dims :])

    def source(self, labels: Labels) -> Source:
        """Return the samples as a source of a fit."""
        source = as_source(self.values)
        source.name, source.axes = called(self.array), labels.axes
        return source

    def result(self, values: Any, dims: Sequence[Any] = (), name: Any = None, attrs: Any = None) -> Any:
        """Return the results for each sample (n_samples, ...) as a ``DataArray`` with the coordinates of samples."""
        import xarray  # the samples are an array of xarray, so it is installed

        if clash := {*self.sample_dims} & {*dims}:
            (dim, *_) = clash
            raise DataError(f"{dim!r} is a dim of the samples and of the result: rename it, x.rename({dim}=...)")
        n = self.array.shape[: self.n_sample_dims]
        values = values if len(n) == 1 else values.reshape(*n, *values.shape[1:])
        named = xarray.DataArray(values, dims=(*self.sample_dims, *dims), attrs=attrs)
        # Without a name it would get that of the Dask array.
        return named.assign_coords(_coords_along(self.array, self.sample_dims)).rename(name)

    def scores(self, values: Any, basis: Representation, labels: Labels, names: Array | None) -> Any:
        """Return scores as a ``DataArray``; ``names`` are the names of scores in an array of two axes."""
        attrs = {"units": labels.attrs["units"]} if "units" in labels.attrs and basis.keeps_units else {}
        if names is not None:
            return self.result(values, (SCORE,), "scores", attrs).assign_coords({SCORE: names})
        coords = score_coords(basis, labels)
        return self.result(values, basis.score_axes(labels.dims), "scores", attrs).assign_coords(coords)

    def samples(self, values: Any, labels: Labels) -> Any:
        """Return reconstructed samples as a ``DataArray`` like the one of the fit."""
        named = self.result(values, labels.dims, labels.name, labels.attrs)
        if labels.coords is not None:
            named = named.assign_coords(labels.coords)
        return named.transpose(*labels.order) if {*named.dims} == {*labels.order} else named


def samples_to_fit(
    x: Any, sample_dim: str | Sequence[str] | None, key: str | None = None, *, gaps: bool = False
) -> tuple[Any, Labels | None]:
    """Return the samples of a fit, with paths opened and arrays of xarray as a source, and their labels.

    With ``gaps``, values that a file states as missing become NaN.

    Raises
    ------
    DataError
        If there are several variables, a data set lacks a ``key``, a ``key`` is given for a single array, dims do not
        exist, or ``sample_dim`` is given for samples without named dims.
    """
    require_one_variable(x, key)
    if not is_labelled(x):
        if key is not None and not isinstance(x, str | os.PathLike):
            raise DataError(f"key={key!r} selects an array of a file, but X is not a path: omit it")
        if sample_dim is not None:
            raise DataError(
                f"sample_dim is {sample_dim!r}, but only arrays of xarray have named dims: omit it, the first axis "
                f"counts samples"
            )
        x = opened(x, key, gaps=gaps)
        return x, Labels.of_source(x)
    labelled, labels = labelled_samples(labelled_array(x, key), sample_dim)
    return labelled.source(labels), labels


def require_one_variable(x: Any, key: Any) -> None:
    """Raise `DataError` for samples that only some estimators accept, as several variables."""
    several = ""
    if isinstance(key, list | tuple):
        several = f"key={key!r}"
    elif isinstance(x, VariableStack):
        several = f"{', '.join(x.keys)} of '{x.path}'"
    elif is_labelled(x):
        names = [] if key is not None else [*getattr(x, "data_vars", ())]
        several = f"a Dataset of {', '.join(map(repr, names))}" if len(names) > 1 else ""
    elif isinstance(x, Mapping | list | tuple) and not hasattr(x, "shape") and x:  # sparse arrays can be mappings
        arrays = x.values() if isinstance(x, Mapping) else x
        several = f"a {type(x).__name__} of arrays" if all(len(getattr(a, "shape", ())) > 1 for a in arrays) else ""
    if several:
        raise DataError(
            f"{several} means several variables: give one, or fit EOF, PCA or StreamingPCA, which analyze them"
        )


def labelled_samples(x: Any, sample_dim: str | Sequence[str] | None) -> tuple[Labelled, Labels]:
    """Return samples of xarray, with the first dim as the default sample dim, and their labels."""
    x = labelled_array(x)
    dims = leading_dims(x, sample_dim)
    labels = Labels.of(x, dims)
    return Labelled(x.transpose(*dims, *labels.dims), len(dims)), labels


def samples_for_model(x: Any, labels: Labels | None) -> tuple[Labelled, Labels]:
    """Return samples of xarray for a fitted model with these labels, and the labels.

    Raises
    ------
    DataError
        If they lack a dim of the model, have no dim of samples, or have other coordinates along its dims.
    """
    if labels is None:
        return labelled_samples(x, None)
    x = labelled_array(x)
    labels.check(x)
    return _in_order(x, labels.dims), labels


def labelled_scores(x: Any, basis: Representation, n_components: int | None, labels: Labels) -> Labelled:
    """Return scores of xarray for a model, of all components or of the leading ones; see `samples_for_model`."""
    x, used = labelled_array(x), basis.leading(n_components)
    basis = used if x.sizes.get(COMPONENT) == used.score_shape[-1] else basis
    if SCORE in x.dims:
        return _in_order(x, (SCORE,))
    for dim, coord in score_coords(basis, labels).items():
        _check_index(x, dim, coord.to_index(), "as transform returns them")
    return _in_order(x, basis.score_axes(labels.dims))


def score_coords(basis: Representation, labels: Labels) -> dict[Any, Any]:
    """Return the coordinates along the dims of scores: numbers of components, centers of cells."""
    import xarray

    dims, coords = basis.score_axes(labels.dims), {}
    if labels.coords is not None:
        for axis, dim in enumerate(labels.dims):
            along = labels.coords.get(dim)
            centers = None if along is None else basis.score_centers(axis, np.asarray(along))
            if centers is not None:
                coords[dims[axis]] = xarray.DataArray(centers, dims=dims[axis], attrs=along.attrs)
    return {**coords, COMPONENT: xarray.DataArray(np.arange(basis.score_shape[-1]), dims=COMPONENT)}


def as_dataset(model: Any, labels: Labels) -> Any:
    """Return the components, means and variances of a model as an ``xarray.Dataset``; see `ComponentModel.to_xarray`.

    Raises
    ------
    DataError
        If xarray is not installed.
    """
    xarray = require("xarray", "xarray", "a model as a data set with names")
    basis, shape = model.basis_, model.sample_shape_
    own, scores = labels.dims, basis.score_axes(labels.dims)
    variables = {
        "components": ((COMPONENT, *own), model.components_.reshape(-1, *shape)),
        "mean": (own, model.mean_.reshape(shape), labels.attrs),
        "explained_variance": (scores, model.explained_variance_),
        "explained_variance_ratio": (scores, model.explained_variance_ratio_),
        "total_variance": (scores[:-1], model.total_variance_),
    }
    data = xarray.Dataset(variables).assign_coords(score_coords(basis, labels))
    return data if labels.coords is None else data.assign_coords(labels.coords)


def _in_order(x: Any, dims: Sequence[Any]) -> Labelled:
    """Return an array whose last dims are these; all others count samples."""
    sample_dims = [dim for dim in x.dims if dim not in dims]
    lacking = [dim for dim in dims if dim not in x.dims]
    if lacking or not sample_dims:
        what = f"lacks {lacking[0]!r}" if lacking else "has no dim of samples (add one by x.expand_dims)"
        raise DataError(f"{called(x)} has the dims {x.dims} and {what}: use {(*dims,)} and at least one dim of samples")
    return Labelled(x.transpose(*sample_dims, *dims), len(sample_dims))


def _coords_along(x: Any, dims: Sequence[Any]) -> Any:
    others = [name for name, coord in x.coords.items() if not set(coord.dims) <= set(dims)]
    return x.coords.to_dataset().drop_vars(others).coords


def _check_index(x: Any, dim: Any, expected: Any, remedy: str) -> None:
    found = x.indexes.get(dim)
    if found is None or expected is None or found.equals(expected):
        return
    close = len(found) == len(expected) and all(values.dtype.kind in "iuf" for values in (found, expected))
    if not (close and np.allclose(found, expected, rtol=1e-6, atol=1e-6 * _width(expected))):
        raise DataError(
            f"{called(x)} has other coordinates along {dim!r} than the model ({_ends(found)}, not "
            f"{_ends(expected)}): use the same coordinates, {remedy}"
        )


def _width(index: Any) -> float:
    return float(abs(index[-1] - index[0])) / max(1, len(index) - 1) if len(index) and math.isfinite(index[0]) else 0.0


def _ends(index: Any) -> str:
    return f"{len(index)} from {index[0]} to {index[-1]}" if len(index) else "none"
