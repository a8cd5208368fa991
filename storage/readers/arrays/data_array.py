"""An xarray array: in memory, in Dask, or in a file that xarray opened. xarray itself is not imported here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.labelled import coordinates_of, labelled_array
from dpca.storage.arrays.layout import Region
from dpca.storage.readers.arrays.raw import ArrayReader
from dpca.storage.readers.base import digest, runs, source_errors

_BLOCK_BYTES = 32 << 20


class DataArrayReader(ArrayReader):
    """Samples of a ``DataArray``, or of a variable of a ``Dataset``, with their coordinates.

    Parameters
    ----------
    x : xarray.DataArray or Dataset
        In memory, in Dask, or not yet read from its file. Tasks read or compute only their own samples.
    key : str, optional
        Name of the variable in a ``Dataset``.
    axes : sequence of str, optional
        See `ArrayReader`. By default, samples are along the first dim.

    Raises
    ------
    DataError
        If a ``Dataset`` has no such variable, or ``key`` is not given.
    """

    kind = "xarray"
    reads_boxes = True

    def __init__(self, x: Any, key: str | None = None, axes: Sequence[str] | None = None) -> None:
        array = labelled_array(x, key)
        name = "array" if array.name is None else str(array.name)
        super().__init__(name, array.shape, array.dtype, axes, coordinates_of(array))
        self._array = array.drop_vars(list(array.coords)).transpose(*(array.dims[i] for i in self.order))

    def fingerprint(self) -> str:
        """Hash of the values, or of their name in Dask, and of the coordinates."""
        if self._array.chunks is not None:
            own = [self._array.data.name]
        else:  # only one block is in memory at a time
            step = max(1, _BLOCK_BYTES // (prod(self.sample_shape) * self.dtype.itemsize))
            blocks = (range(n, min(n + step, len(self))) for n in range(0, len(self), step))
            own = [digest([np.asarray(self.fetch(block)).tobytes()]) for block in blocks]
        named = () if self.coordinates is None else self.coordinates.arrays.items()
        along = [digest([name, *c.dims, str(c.values.dtype), repr(c.values.tolist())]) for name, c in named]
        return digest([self.kind, *own, str(self._array.dtype), *self._array.shape, *along])

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Return a function with these samples, or with the graph that computes them."""
        return self.box(indices, ())

    def box(self, indices: Sequence[int], region: Region) -> Callable[[], NDArray[Any]]:
        """Return a function with a box of these samples, or with the graph that computes it."""
        first, *others = self._array.dims
        inside = self._array.isel({dim: slice(*ends) for dim, ends in zip(others, region, strict=False)})
        pieces = [inside.isel({first: slice(*run)}).variable for run in runs(indices)]
        from dask.base import optimize  # slow to import, unless xarray did it

        # This removes the tasks of other samples from a graph.
        return partial(_read, optimize(*pieces), self.dtype, self.name)


def _read(pieces: Sequence[Any], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    from dask.base import compute

    with source_errors(f"the DataArray '{name}' cannot be computed", "load() it to see where"):
        # A task of a cluster that submitted tasks to the cluster would wait for itself.
        read = [np.asarray(compute(piece, scheduler="synchronous")[0].values) for piece in pieces]
    return np.ascontiguousarray(np.concatenate(read) if len(read) > 1 else read[0], dtype)
