"""Lazy arrays of compressed stores: as a Dask array, and as an xarray.DataArray with coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
import zarr

from dpca.codec.cells import CellCodec
from dpca.codec.waves import RUN
from dpca.kernels.algebra.types import Array
from dpca.storage.arrays.coordinates import Coordinates, coordinates_in, fixed_width
from dpca.storage.arrays.labelled import as_coords
from dpca.storage.arrays.reading import array_in
from dpca.storage.errors import StoreError
from dpca.storage.readers.base import require

#: The group of the coordinates, if the stack has any.
ALONG = "coordinates"
# Bytes of the values that one task decodes.
_CHUNK_BYTES = 2**26
_QUALITY = ("mse", "psnr", "ssim", "max_error", "noise_share")


@dataclass(frozen=True, eq=False)
class LazyViews:
    """Views of an opened compressed store, in addition to NumPy's indexing; see `Compressed` for the attributes."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[str, ...]
    facts: dict[str, Any]
    level: int | None
    codec: CellCodec
    _group: zarr.Group

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded values."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def rows(self) -> int:
        """Samples of a chunk of codes."""
        return int(self.stored("codes").chunks[-1]) * (RUN if self.codec.waves else 1)

    @property
    def has_gaps(self) -> bool:
        """Whether values are missing, NaN."""
        return bool(self.facts.get("gaps"))

    @property
    def has_infinities(self) -> bool:
        """Whether some of the missing values are infinities, which are kept."""
        return bool(self.facts.get("infinities"))

    @property
    def chunks(self) -> tuple[int, ...]:
        """Chunks of a lazy array: the samples of a chunk of codes. Large samples are divided along borders of cells."""
        grid, rows = self.codec.components.grid, self.rows
        lengths, units = list(grid.sample_shape), grid.cell_shape
        while rows * math.prod(lengths) * self.dtype.itemsize > _CHUNK_BYTES:
            axis = max(range(grid.n_spatial), key=lambda i: lengths[i] / units[i])
            if lengths[axis] <= units[axis]:
                break
            lengths[axis] = math.ceil(lengths[axis] / units[axis] / 2) * units[axis]
        return rows, *lengths

    @property
    def coordinates(self) -> Coordinates:
        """Names of the axes in the original stack, and the coordinates along them."""
        if "dims" not in self.facts:
            return Coordinates(self.axes, {}, {})
        along, dims, stated = self._group[ALONG], tuple(self.facts["dims"]), self.facts["attributes"]
        found = coordinates_in(along, dims, self.shape, stated) if isinstance(along, zarr.Group) else None
        if found is None:
            raise StoreError(f"'{self.path}' lacks complete coordinates of {dims}: make it again")
        return found

    def stored(self, name: str) -> zarr.Array[Any]:
        """Return an array of the store; see ``storage/FORMAT.md``."""
        if name not in self._arrays:
            self._arrays[name] = array_in(self._group, name)
        return self._arrays[name]

    @cached_property
    def _arrays(self) -> dict[str, zarr.Array[Any]]:
        # Opening an array takes as long as decompressing several chunks.
        return {}

    def dask(self) -> da.Array:
        """Return a Dask array of the values, in `chunks`."""
        return da.from_array(self, self.chunks, fancy=False, meta=np.empty((0,) * self.ndim, self.dtype))

    def xarray(self) -> Any:
        """Return an ``xarray.DataArray`` of `dask`, with the dims and coordinates of the stack and the samples' names.

        Raises
        ------
        DataError
            If xarray is not installed.
        """
        xarray, along = require("xarray", "xarray", "a compressed store as an array with names"), self.coordinates
        names = {"name": (along.dims[0], fixed_width(self.names))}
        labelled = xarray.DataArray(self.dask(), as_coords(along), along.dims, "samples", along.attributes)
        return labelled.assign_coords(names)

    @property
    def quality(self) -> dict[str, Array]:
        """Errors of each sample, arrays (n_samples,).

        mse, psnr, for images ssim, with an error bound max_error, and with a share of the noise noise_share.
        """
        return {name: np.asarray(self.stored(name)[...]) for name in _QUALITY if name in self._group}

    @property
    def names(self) -> Array:
        """Names (n_samples,) of the samples."""
        return np.asarray(self.stored("name")[...])
