"""Base classes of results: the retained share of the variance, and lazy maps of modes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import dask.array as da
import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.models.base.labelled import Labels
from dpca.representation.linear import LinearRepresentation
from dpca.representation.reconstruction import samples_of
from dpca.storage.readers.base import require


@dataclass(frozen=True, eq=False)
class Result:
    """A result of a time series analysis.

    Attributes
    ----------
    share : float
        Share of the variance of the field that the scores retain. For the field, the error of the result is at most the
        discarded share, ``1 - share``.
    """

    share: float


@dataclass(frozen=True, eq=False)
class FieldGrid:
    """The grid of a field, and the basis with which coefficients of modes become maps on it.

    Attributes
    ----------
    shape : tuple of int
        Shape of a map.
    basis : LinearRepresentation or None
        The basis, with mean 0. None without a model.
    placed : callable or None
        Function that puts maps (n, d) of the basis on the grid of the field (n, *shape). None if all grid points have
        data.
    labels : Labels or None
        Names of the dims of a map.
    """

    shape: tuple[int, ...]
    basis: LinearRepresentation | None = None
    placed: Callable[[Array], Array] | None = None
    labels: Labels | None = None

    def maps(self, coefficients: Array) -> da.Array:
        """Return the maps (..., *shape) of coefficients (..., K), lazy, with one map per chunk."""
        flat = coefficients.reshape(-1, coefficients.shape[-1])
        if self.basis is None:
            lazy = da.from_array(flat, chunks=(1, -1))
        else:
            shape = self.basis.score_shape
            parts = (flat.real, flat.imag) if np.iscomplexobj(flat) else (flat,)
            scores = [da.from_array(part.reshape(-1, *shape), chunks=(1, *shape)) for part in parts]
            lazy, *imaginary = (samples_of(self.basis, part) for part in scores)
            lazy = lazy + 1j * imaginary[0] if imaginary else lazy
        if self.placed is not None:
            lazy = lazy.reshape(len(flat), -1).rechunk((1, -1))
            on_grid = {"drop_axis": 1, "new_axis": range(1, 1 + len(self.shape)), "dtype": lazy.dtype}
            meta = np.empty((0,) * (1 + len(self.shape)), lazy.dtype)
            lazy = lazy.map_blocks(self.placed, chunks=((1,) * len(flat), *self.shape), meta=meta, **on_grid)
        maps: da.Array = lazy.reshape(*coefficients.shape[:-1], *self.shape, merge_chunks=False)
        return maps


@dataclass(frozen=True, eq=False)
class Modes(Result):
    """Modes of a field, as linear combinations of the components of a model.

    Attributes
    ----------
    coefficients : array (..., K)
        Coefficients of each mode in the K orthonormal components.
    """

    coefficients: Array
    _grid: FieldGrid = field(repr=False)

    #: Names of the axes before the axes of a map.
    dims: ClassVar[tuple[str, ...]] = ("mode",)

    @property
    def modes(self) -> da.Array:
        """Maps (..., *sample_shape), a Dask array of floats with one mode per chunk.

        For an `EOF` they are maps of weighted anomalies, as its ``eofs``, with NaN where there is no data. Without a
        model, they are the ``coefficients``. A map costs 2 K d operations, twice that if it is complex.
        """
        return self._grid.maps(self.coefficients)

    def to_xarray(self) -> Any:
        """Return the maps as a lazy ``xarray.DataArray`` on the grid of the samples of the fit.

        Raises
        ------
        DataError
            If xarray is not installed.
        """
        xarray = require("xarray", "xarray", "modes with named dims")
        modes = self.modes
        labels = self._grid.labels or Labels.of_shape(modes.shape[len(self.dims) :])
        named = xarray.DataArray(modes, dims=(*self.dims, *labels.dims), attrs=labels.attrs, name="modes")
        named = named.assign_coords(self._coords())
        return named if labels.coords is None else named.assign_coords(labels.coords)

    def _coords(self) -> dict[str, Any]:
        """Return the coordinates of the axes before the axes of a map."""
        return {}


def phase_factors(coefficients: Array) -> Array:
    """Return the phase factors (m, 1), or signs, that make the largest entry of each mode real and positive."""
    flat = coefficients.reshape(len(coefficients), math.prod(coefficients.shape[1:]))
    # Entries that are equal up to rounding error count as ties, and the first one is used.
    size = np.abs(flat)
    largest = np.argmax(size >= (1 - 1e-6) * size.max(axis=1, keepdims=True), axis=1)
    entry = flat[np.arange(len(flat)), largest]
    phases: Array = (np.conj(entry) / np.abs(entry))[:, None]
    return phases
