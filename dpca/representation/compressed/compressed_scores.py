"""Orthonormal scores of compressed stores, and other values of a sample that are linear in its codes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import to_pixels
from dpca.partition.lapped import LappedGrid
from dpca.representation.compressed.compressed import Compressed, TiledCompressed
from dpca.representation.compressed.compressed_form import filter_along, pixels_of
from dpca.storage.errors import DataError

# A component counts as linearly dependent if the part of it that others do not explain is below this share of it.
_DEPENDENT = 1e-6


@dataclass(frozen=True, eq=False)
class Cell:
    """The codes and components of a cell.

    Attributes
    ----------
    positions : array (m,) of integers
        Rows of codes.
    components : array (rank, n_features)
        The integers ``which`` (m,) select the component of each row of codes. Codes are in units of ``step``.
    into : array (m, p), float64
        Maps codes to scores of orthonormal components.
    """

    positions: Array
    components: Array
    which: Array
    step: float
    into: Array

    @property
    def back(self) -> Array:
        """Matrix (p, m) that maps scores of orthonormal components to codes."""
        return np.linalg.pinv(self.into)

    @property
    def rows(self) -> Array:
        """The values that a code of 1 adds to the cell, (m, n_features), float64."""
        return self.components[self.which].astype(np.float64) * self.step


def cells_of(store: Compressed) -> list[Cell]:
    """Return the codes and components of each cell, up to the level of the store.

    Raises
    ------
    DataError
        If the store has only residuals and no components, or has tiles.
    """
    codec = store.codec
    if isinstance(store, TiledCompressed):
        raise DataError(
            f"this analysis requires components of whole samples, but '{store.path}' has tiles of large samples: fit a "
            f"model to the decoded samples, such as PCA(3).fit(store.dask())"
        )
    if not len(codec.cell) and store.facts["residual_step"] is not None:
        raise DataError(
            f"this analysis requires components, but '{store.path}' has only residuals: decode its samples, or encode "
            f"them with another goal than max_error"
        )
    level = np.inf if store.level is None else store.level
    grams = [rows.astype(np.float64) @ rows.T.astype(np.float64) for rows in codec.components.rows]
    found = []
    for rows, group in zip(codec.rows_of_cell, codec.components.group, strict=True):
        positions = rows[codec.component[rows] < level]
        which = codec.component[positions]
        into = codec.step * _root(grams[group][np.ix_(which, which)])
        found.append(Cell(positions, codec.components.rows[group], which, codec.step, into))
    return found


def _root(gram: Array) -> Array:
    """Return a root R (m, p) of a matrix of inner products: R R' is the matrix."""
    try:
        root = np.linalg.cholesky(gram)
        if (np.diag(root) > _DEPENDENT * np.sqrt(np.diag(gram))).all():
            return root
    except np.linalg.LinAlgError:
        pass
    # Quantized components can be linearly dependent, or zero.
    variances, vectors = np.linalg.eigh(gram)
    safe = variances > _DEPENDENT**2 * variances.max()
    return np.asarray(vectors[:, safe] * np.sqrt(variances[safe]))


class PerSample:
    """Values of each sample that are linear in its codes. They are computed when the array is indexed."""

    def __init__(self, store: Compressed, shape: Sequence[int], dtype: Any) -> None:
        self.store, self.shape, self.dtype = store, (store.shape[0], *shape), np.dtype(dtype)
        self.ndim = len(self.shape)

    def lazy(self) -> da.Array:
        """Return a Dask array. Its chunks hold the samples of a chunk of codes."""
        meta, chunks = np.empty((0,) * self.ndim, self.dtype), (self.store.rows, *self.shape[1:])
        return da.from_array(self, chunks, fancy=False, meta=meta)

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.store.__dask_tokenize__(), self.shape

    def __getitem__(self, index: Any) -> Array:
        first, *others = index if isinstance(index, tuple) else (index,)
        wanted = range(self.shape[0])[first] if isinstance(first, slice) else range(int(first), int(first) + 1)
        samples, places = np.unique(np.asarray(wanted, int), return_inverse=True)
        codes = self.store.codes(self._positions, samples)
        values = self._of(codes if wanted.step == 1 else codes[:, places])
        return values[(slice(None) if isinstance(first, slice) else 0, *others)]

    @cached_property
    def _cells(self) -> list[Cell]:
        return cells_of(self.store)

    @cached_property
    def _positions(self) -> Array:
        """All rows of codes in use, ascending."""
        return np.sort(np.concatenate([cell.positions for cell in self._cells]))

    @cached_property
    def _places(self) -> list[Array]:
        """For each cell, the indices of its rows in `_positions`."""
        return [np.searchsorted(self._positions, cell.positions) for cell in self._cells]

    @abstractmethod
    def _of(self, codes: Array) -> Array:
        """Return the values of samples from their codes (all positions, n)."""


class OrthonormalScores(PerSample):
    """Scores (n_samples, p) for orthonormal components of each cell; the mean in the store is subtracted."""

    def __init__(self, store: Compressed) -> None:
        self.store = store
        super().__init__(store, (sum(cell.into.shape[1] for cell in self._cells),), store.codec.dtype)

    def __reduce__(self) -> Any:
        return OrthonormalScores, (self.store,)

    def _of(self, codes: Array) -> Array:
        found, end = np.empty((self.shape[1], codes.shape[1]), self.dtype), 0
        for cell, places in zip(self._cells, self._places, strict=True):
            begin, end = end, end + cell.into.shape[1]
            np.matmul(cell.into.T.astype(self.dtype), codes[places].astype(self.dtype), out=found[begin:end])
        return found.T


class Thumbnails(PerSample):
    """Means over parts of the spatial axes, in the type of the samples."""

    def __init__(self, store: Compressed, lengths: tuple[int, ...]) -> None:
        self.lengths = lengths
        super().__init__(store, (*lengths, *store.codec.components.grid.channel_shape), store.dtype)

    def __reduce__(self) -> Any:
        return Thumbnails, (self.store, self.lengths)

    @cached_property
    def _maps(self) -> list[Array]:
        """For each spatial axis, the matrix that maps filtered samples to means over pixels."""
        grid = self.store.codec.components.grid
        shares = [_shares(length, few) for length, few in zip(grid.sample_shape, self.lengths, strict=False)]
        if isinstance(grid, LappedGrid):
            return [share @ filter_along(grid, axis) for axis, share in enumerate(shares)]
        return shares

    @cached_property
    def _parts(self) -> list[tuple[tuple[slice, ...], Array]]:
        """For each cell, the part of a thumbnail that it affects, and the values that its codes add there."""
        grid, found = self.store.codec.components.grid, []
        for c, cell in enumerate(self._cells):
            box = grid.box(c)
            values, reached = cell.rows.reshape(-1, *(b - a for a, b in box)), []
            for axis, along in enumerate(self._maps):
                part = along[:, slice(*box[axis])]
                touched = np.flatnonzero(part.any(axis=1))
                reached.append(slice(touched[0], touched[-1] + 1))
                values = np.moveaxis(np.tensordot(values, part[reached[-1]], (axis + 1, 1)), -1, axis + 1)
            found.append((tuple(reached), values.astype(self.store.codec.dtype)))
        return found

    @cached_property
    def _mean(self) -> Array:
        values = self.store.codec.components.mean.astype(np.float64)
        for axis, along in enumerate(self._maps):
            values = np.moveaxis(np.tensordot(along, values, (1, axis)), 0, axis)
        return values.astype(self.store.codec.dtype)

    def _of(self, codes: Array) -> Array:
        found = np.repeat(self._mean[None], codes.shape[1], axis=0)
        for (where, values), places in zip(self._parts, self._places, strict=True):
            added = codes[places].T.astype(values.dtype) @ values.reshape(len(values), math.prod(values.shape[1:]))
            found[(slice(None), *where)] += added.reshape(-1, *values.shape[1:])
        return to_pixels(found, *pixels_of(self.store.facts))


def _shares(length: int, few: int) -> Array:
    """Return the matrix (few, length) of means over equal parts of an axis; a pixel on a border counts for both."""
    ends = np.arange(length + 1) * few / length
    inside = np.minimum(ends[1:], np.arange(1, few + 1)[:, None]) - np.maximum(ends[:-1], np.arange(few)[:, None])
    return np.maximum(inside, 0)


def joined(store: Compressed, cells: Sequence[Array]) -> Array:
    """Return float64 samples (k, *sample_shape) from the filtered values (k, n_features) of their cells."""
    grid = store.codec.components.grid
    samples = np.empty((len(cells[0]), *grid.sample_shape))
    return grid.join(((c, np.ascontiguousarray(values)[None]) for c, values in enumerate(cells)), samples)


def means_of(store: Compressed) -> list[Array]:
    """Return the float64 mean (n_features,) of each cell of filtered samples, as the store keeps it."""
    grid, kept = store.codec.components.grid, store.codec.components.mean.astype(np.float64)
    boxes = map(grid.box, range(grid.n_parts))
    return [kept[tuple(slice(*ends) for ends in box)].ravel() for box in boxes]


def mean_codes(store: Compressed) -> Array:
    """Return the float64 mean over all samples of each row of codes."""
    rows = np.arange(len(store.codec.cell))
    total: Array = np.zeros(len(rows))
    for start in range(0, len(store), store.rows):
        samples = np.arange(start, min(start + store.rows, len(store)))
        codes = store.codes(rows, samples)
        total += codes.sum(axis=1, dtype=np.float64 if codes.dtype.kind == "f" else np.int64)
    total /= len(store)
    return total
