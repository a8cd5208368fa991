"""Mask: a region of samples, such as an organ or a cell, that is analyzed without the values outside."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import ArrayLike

from dpca.engine.sources.source import as_dense
from dpca.kernels.algebra.types import Array
from dpca.representation.lazy import as_lazy, is_lazy
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.errors import DataError


class Mask:
    """A region of samples: gives its values to any estimator, and puts results back in place.

    Parameters
    ----------
    inside : array_like of bool, the shape of a sample or of its first axes
        True in the region. Further axes, such as channels, are in the region as a whole.

    Attributes
    ----------
    inside : array of bool

    Notes
    -----
    Samples may be in memory, or lazy: a Dask array, a Zarr array, a stack, or a path. Results are then Dask arrays.
    For arrays of xarray, use ``x.where(mask)`` and `EOF`, or ``x.stack``.

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import PCA, Mask
    >>> movie = np.random.default_rng(0).normal(size=(50, 20, 30))
    >>> inside = np.zeros((20, 30), bool)
    >>> inside[5:15, 10:25] = True
    >>> mask = Mask(inside)
    >>> model = PCA(3).fit(mask.values(movie))
    >>> mask.in_place(model.components_).shape
    (3, 20, 30)
    """

    def __init__(self, inside: ArrayLike) -> None:
        self.inside = np.asarray(inside)
        if self.inside.dtype != bool or not self.inside.any():
            raise DataError(
                f"a mask of {self.inside.shape} {self.inside.dtype} was given: give truth values, at least one True"
            )

    def values(self, X: Any) -> Any:
        """Return the values (n_samples, number of values in the region) of samples."""
        x = self._samples(X)
        rest = x.shape[1 + self.inside.ndim :]
        places = np.flatnonzero(self.inside)
        taken: Any = x.reshape(len(x), self.inside.size, *rest)[:, places]
        return taken.reshape(len(x), len(places) * math.prod(rest)) if rest else taken

    def filled(self, X: Any, fill_value: float = 0) -> Any:
        """Return samples with a constant outside of the region, for `CellPCA`, which requires whole samples.

        The constant has no variance: components, variances and scores are those of the region. Quality targets and
        errors are means over whole samples.
        """
        x = self._samples(X)
        inside = self.inside.reshape(*self.inside.shape, *(1,) * (x.ndim - 1 - self.inside.ndim))
        where: Any = da.where if isinstance(x, da.Array) else np.where
        return where(inside, x, np.asarray(fill_value).astype(x.dtype))

    def in_place(self, values: Any, fill_value: float = math.nan) -> Any:
        """Return values of the region, such as components or reconstructions, in whole samples.

        Parameters
        ----------
        values : array (n, number of values in the region) or (n, ...) of whole samples
            As `values` returns them, or as an estimator returns them after `filled`.
        fill_value : float
            Value outside. NaN turns integers into float64.

        Returns
        -------
        array (n, *sample_shape)
        """
        places, n = int(self.inside.sum()), values.shape[1] if values.ndim > 1 else 0
        whole = values.shape[1 : 1 + self.inside.ndim] == self.inside.shape
        if not whole and (values.ndim != 2 or n == 0 or n % places):
            raise DataError(
                f"values have the shape {values.shape}, but the mask has {places} of {self.inside.shape}: give values "
                f"of the region, or whole samples"
            )
        rest = values.shape[1 + self.inside.ndim :] if whole else (n // places,) if n > places else ()
        keeps = values.dtype.kind == "f" or float(fill_value).is_integer()
        dtype = values.dtype if keeps else np.result_type(values.dtype, np.float64)
        if not isinstance(values, da.Array):
            return _placed(np.asarray(values), self.inside, rest, fill_value, dtype)
        lengths = (*self.inside.shape, *rest)
        parts = values.rechunk(dict.fromkeys(range(1, values.ndim), -1))
        return parts.map_blocks(
            _placed,
            self.inside,
            rest,
            fill_value,
            dtype,
            dtype=dtype,
            chunks=(parts.chunks[0], *((length,) for length in lengths)),
            drop_axis=range(1, values.ndim),
            new_axis=range(1, 1 + len(lengths)),
        )

    def _samples(self, X: Any) -> Any:
        if is_labelled(X):
            raise DataError("the samples are an array of xarray: use x.where(mask) with EOF, or x.values")
        x = as_lazy(X) if is_lazy(X) else as_dense(X)
        if x.shape[1 : 1 + self.inside.ndim] != self.inside.shape:
            raise DataError(
                f"samples have the shape {x.shape[1:]}, but the mask has {self.inside.shape}: give a mask of their "
                f"shape, or of their first axes"
            )
        return x


def _placed(values: Array, inside: Array, rest: tuple[int, ...], fill_value: float, dtype: Any) -> Array:
    out = np.full((len(values), *inside.shape, *rest), fill_value, dtype)
    own = values[:, inside] if values.shape[1 : 1 + inside.ndim] == inside.shape else values
    out[:, inside] = own.reshape(len(values), int(inside.sum()), *rest)
    return out
