"""What all results say: the share of variance that they stand on; and maps of modes, made when they are asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import dask.array as da
import numpy as np

from dpca.kernels.types import Array
from dpca.models.labelled import Labels
from dpca.representation.linear import LinearRepresentation
from dpca.representation.reconstruction import samples_of
from dpca.storage.readers.base import require
from dpca.timeseries.functions import TimeFunctions


@dataclass(frozen=True, eq=False)
class Result:
    """A result of time functions.

    Attributes
    ----------
    share : float
        Share of the field's variance that the time functions hold, which bounds what the result can say of the field:
        its error stays below the share that is not kept, ``1 - share``.
    """

    share: float


@dataclass(frozen=True, eq=False)
class Modes(Result):
    """Modes of a field, as combinations of the components of a model.

    Attributes
    ----------
    coefficients : array (..., K)
        Of each mode in the K components, orthonormal as these are.
    """

    coefficients: Array
    _shape: tuple[int, ...] = field(repr=False)
    _basis: LinearRepresentation | None = field(repr=False)
    _labels: Labels | None = field(repr=False)

    #: What the axes before those of a map are called.
    dims: ClassVar[tuple[str, ...]] = ("mode",)

    @property
    def modes(self) -> da.Array:
        """Maps (..., *sample_shape), a Dask array with a mode a chunk: computed, as floats, when somebody looks.

        Without a model, the K functions are the field, and these are the ``coefficients``. A map costs 2 K d
        operations, twice that where it is complex.
        """
        flat = self.coefficients.reshape(-1, self.coefficients.shape[-1])
        if self._basis is None:
            lazy = da.from_array(flat, chunks=(1, -1))
        else:
            shape = self._basis.score_shape
            parts = (flat.real, flat.imag) if np.iscomplexobj(flat) else (flat,)
            scores = [da.from_array(part.reshape(-1, *shape), chunks=(1, *shape)) for part in parts]
            lazy, *imaginary = (samples_of(self._basis, part) for part in scores)
            lazy = lazy + 1j * imaginary[0] if imaginary else lazy
        modes: da.Array = lazy.reshape(*self.coefficients.shape[:-1], *self._shape, merge_chunks=False)
        return modes

    def to_xarray(self) -> Any:
        """Return the maps as an ``xarray.DataArray`` on the grid of the samples of the fit, lazy as `modes`.

        Raises
        ------
        DataError
            If xarray is not installed.
        """
        xarray = require("xarray", "xarray", "modes as an array with names")
        modes = self.modes
        labels = self._labels or Labels.of_shape(modes.shape[len(self.dims) :])
        named = xarray.DataArray(modes, dims=(*self.dims, *labels.dims), attrs=labels.attrs, name="modes")
        named = named.assign_coords(self._coords())
        return named if labels.coords is None else named.assign_coords(labels.coords)

    def _coords(self) -> dict[str, Any]:
        """Return what stands along the axes before those of a map."""
        return {}


def with_share(given: TimeFunctions) -> dict[str, Any]:
    """Return the fields of `Modes` that follow from the functions."""
    return {"share": given.share, "_shape": given.shape, "_basis": given.basis, "_labels": given.labels}


def turned(coefficients: Array) -> Array:
    """Return the phases (m, 1), or signs, by which the largest entry of each mode becomes real and positive."""
    flat = coefficients.reshape(len(coefficients), math.prod(coefficients.shape[1:]))
    # The first of those that are as large but for rounding.
    size = np.abs(flat)
    largest = np.argmax(size >= (1 - 1e-6) * size.max(axis=1, keepdims=True), axis=1)
    entry = flat[np.arange(len(flat)), largest]
    phases: Array = (np.conj(entry) / np.abs(entry))[:, None]
    return phases
