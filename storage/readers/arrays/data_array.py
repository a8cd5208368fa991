"""An array of xarray, in memory, in Dask or in a file that xarray opened; xarray itself is not imported here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.labelled import coordinates_of, labelled_array
from dpca.storage.errors import DataError, one_line
from dpca.storage.readers.arrays.raw import ArrayReader
from dpca.storage.readers.base import digest, runs

_BLOCK_BYTES = 32 << 20


class DataArrayReader(ArrayReader):
    """Samples of a ``DataArray``, or of a variable of a ``Dataset``, with their coordinates.

    Parameters
    ----------
    x : xarray.DataArray or Dataset
        In memory, in Dask, or not yet read from its file; tasks read, or compute, only their own samples.
    key : str, optional
        Name of the variable in a ``Dataset``.
    axes : sequence of str, optional
        See `ArrayReader`; by default the first dim counts samples.

    Raises
    ------
    DataError
        If the variable is not determined.
    """

    kind = "xarray"

    def __init__(self, x: Any, key: str | None = None, axes: Sequence[str] | None = None) -> None:
        array = labelled_array(x, key)
        name = "array" if array.name is None else str(array.name)
        super().__init__(name, array.shape, array.dtype, axes, coordinates_of(array))
        self._array = array.drop_vars(list(array.coords)).transpose(*(array.dims[i] for i in self.order))

    def fingerprint(self) -> str:
        """Hash of the values, or of the name that Dask gives them, and of what stands along them."""
        if self._array.chunks is not None:
            own = [self._array.data.name]
        else:  # what is not yet read stays so, but for a block at a time
            step = max(1, _BLOCK_BYTES // (prod(self.sample_shape) * self.dtype.itemsize))
            blocks = (range(n, min(n + step, len(self))) for n in range(0, len(self), step))
            own = [digest([np.asarray(self.fetch(block)).tobytes()]) for block in blocks]
        named = () if self.coordinates is None else self.coordinates.arrays.items()
        along = [digest([name, *c.dims, str(c.values.dtype), repr(c.values.tolist())]) for name, c in named]
        return digest([self.kind, *own, str(self._array.dtype), *self._array.shape, *along])

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Ship the wanted samples, or what computes them."""
        first = self._array.dims[0]
        pieces = [self._array.isel({first: slice(*run)}).variable for run in runs(indices)]
        # Of a graph, what these samples need.
        from dask.base import optimize  # imported already where arrays of xarray are, and slow where they are not

        return partial(_read, optimize(*pieces), self.dtype, self.name)


def _read(pieces: Sequence[Any], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    from dask.base import compute

    try:
        # A task of a cluster that asked the cluster to compute would wait for itself.
        read = [np.asarray(compute(piece, scheduler="synchronous")[0].values) for piece in pieces]
    except Exception as error:  # what made the values may fail in any way
        raise DataError(
            f"the DataArray '{name}' cannot be computed ({one_line(error)}): load() it to see where"
        ) from error
    return np.ascontiguousarray(np.concatenate(read) if len(read) > 1 else read[0], dtype)
