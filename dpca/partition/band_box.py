"""A box of samples that are divided into bands: each band has some of its attributes there, or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array, Region
from dpca.partition.base import Partition


@dataclass(frozen=True, eq=False)
class BandBox(Partition):
    """The bands of the attributes in a box of samples. Scores of a band are sums over all boxes.

    Parameters
    ----------
    labels : array (*lengths), integer
        Band of each attribute.
    n_bands : int
        Number of all bands.
    """

    labels: Array
    n_bands: int

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of the box of one sample."""
        return self.labels.shape

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of all bands, as a grid with one axis."""
        return (self.n_bands,)

    @cached_property
    def _flat(self) -> Array:
        return self.labels.reshape(-1).astype(np.intp)

    @cached_property
    def _sizes(self) -> list[int]:
        sizes: list[int] = np.bincount(self._flat, minlength=self.n_bands).tolist()
        return sizes

    def n_features(self, index: int) -> int:
        """Return the number of attributes of a band in the box, which may be 0."""
        return self._sizes[index]

    def split_bytes(self, region: Region, dtype: DTypeLike) -> int:
        """Return the bytes of the bands and of temporary arrays of a sample."""
        return 4 * 8 * self.labels.size

    def sums(self, values: Array) -> Array:
        """Return the sum (n_bands,), float64, of values (d,) over the attributes of each band."""
        return np.bincount(self._flat, weights=values, minlength=self.n_bands)

    def spread(self, values: Array) -> Array:
        """Return the value of the band of each attribute (d,), given one (n_bands,) for each band."""
        return values[self._flat]

    def split(self, block: Array, parts: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Copy bands out of a box of samples, see `Partition.split`."""
        order, ends = np.argsort(self._flat, kind="stable"), np.cumsum([0, *self._sizes])
        rows, found, start = block.reshape(len(block), -1), [], 0
        for i in parts:
            stop = start + len(block) * self._sizes[i]
            out = buffer[start:stop].reshape(len(block), self._sizes[i])
            np.take(rows, order[ends[i] : ends[i + 1]], axis=1, out=out)
            found.append(out)
            start = stop
        return found

    def join(self, parts: Iterable[tuple[int, Array]], samples: Array) -> Array:
        """Join all bands, see `Partition.join`."""
        order, ends = np.argsort(self._flat, kind="stable"), np.cumsum([0, *self._sizes])
        rows = samples.reshape(len(samples), -1)
        for first, values in parts:
            for i, part in enumerate(values, first):
                rows[: len(part), order[ends[i] : ends[i + 1]]] = part
        return samples
