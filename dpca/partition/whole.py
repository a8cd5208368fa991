"""The partition of holistic PCA: all attributes of a sample together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpca.kernels.namespace import namespace

Array = NDArray[Any]
Region = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Whole:
    """One partition that holds every attribute.

    Parameters
    ----------
    sample_shape : tuple of int
        Shape of one sample.
    """

    sample_shape: tuple[int, ...]

    @property
    def n_partitions(self) -> int:
        """Return 1."""
        return 1

    def n_features(self, index: int) -> int:
        """Return the number of attributes of a sample."""
        return math.prod(self.sample_shape)

    def region(self, index: int) -> Region:
        """Return the whole sample."""
        return tuple((0, length) for length in self.sample_shape)

    def tiles(self, chunk_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield the one group there is."""
        yield (0,)

    def split_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Return the type of the values that `split` gives for samples of a type: the same."""
        return np.dtype(dtype)

    def split_bytes(self, region: Region, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of `split`: it has none."""
        return 0

    def split(self, block: Array, parts: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Return the samples as rows: a view, nothing is copied."""
        return [namespace(block).reshape(block, (block.shape[0], math.prod(block.shape[1:]))) for _ in parts]
