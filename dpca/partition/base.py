"""What every partition is: a split of the attributes of a sample, and its inverse."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.types import Array, Region


class Partition(ABC):
    """A split of the attributes of a sample into numbered partitions.

    The defaults are those of one partition that holds all attributes. A subclass is a frozen dataclass with a
    ``sample_shape``, and implements `split` and `join`; if it has several partitions, `grid_shape` and `n_features`,
    too.
    """

    #: What a store of scores of such partitions calls itself; it ends in "scores".
    scores_kind: ClassVar[str] = "scores"

    if TYPE_CHECKING:  # a dataclass would take a property of its base for the default of its field

        @property
        def sample_shape(self) -> tuple[int, ...]:
            """Shape of one sample."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Every task of a graph is sent its partition: what is cached beside the fields takes far more bytes.
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]

    @property
    def identity(self) -> Any:
        """What tells partitions of the same kind and shapes apart: values that JSON holds, or an array."""
        return []

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """How the partitions lie: the axes of the scores between samples and components."""
        return ()

    def grid_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Name the axes of the grid, given the names of a sample's axes."""
        return ()

    @property
    def n_partitions(self) -> int:
        """Number of partitions."""
        return math.prod(self.grid_shape)

    def n_features(self, index: int) -> int:
        """Return the number of attributes of a partition."""
        return math.prod(self.sample_shape)

    @property
    def max_features(self) -> int:
        """Attributes of the largest partition."""
        return max(map(self.n_features, range(self.n_partitions)))

    def region(self, index: int) -> Region:
        """Return the smallest box of a sample that must be read for a partition."""
        return tuple((0, length) for length in self.sample_shape)

    def tiles(self, chunk_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield groups of partitions such that each chunk is touched by as few groups as possible.

        Parameters
        ----------
        chunk_shape : tuple of int
            Chunk length along every axis of a sample.
        """
        yield tuple(range(self.n_partitions))

    def split_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Return the type of the values that `split` gives for samples of a type."""
        return np.dtype(dtype)

    def split_bytes(self, region: Region, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of `split` for samples, or boxes of them, of a region and a type."""
        return 0

    @abstractmethod
    def split(self, block: Array, parts: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Copy partitions out of a block of samples.

        Parameters
        ----------
        block : array (n_samples, ...), C-ordered, of any library
            Samples, or a box of them that holds the regions of these partitions.
        parts : sequence of int
        origin : tuple of int
            Where the block begins along each axis of a sample.
        buffer : array (at least n_samples times the attributes of all these partitions,) of type `split_dtype`

        Returns
        -------
        list of array (n_samples, n_features)
            One for each partition, C-ordered: views of ``buffer``, one after the other from its beginning. A partition
            of all attributes may return a view of ``block`` instead.
        """

    def all_parts(self, samples: Array) -> list[Array]:
        """Return every partition (n_samples, n_features) of whole samples, as `split` does."""
        samples = np.ascontiguousarray(samples)
        buffer = np.empty(samples.size, self.split_dtype(samples.dtype))
        return self.split(samples, range(self.n_partitions), (0,) * (samples.ndim - 1), buffer)

    @abstractmethod
    def join(self, parts: Iterable[tuple[int, Array]], samples: Array) -> Array:
        """Put all partitions together again: the inverse of `split`.

        Parameters
        ----------
        parts : iterable of (first, array (count, n, n_features))
            For runs of consecutive partitions of equal size, the number of the first one and the values of all of them
            for the leading n samples. They are asked for one after the other, so that each may be made when its turn
            comes.
        samples : array (n_samples, *sample_shape), C-ordered, of type `split_dtype`
            Overwritten. Where values for fewer samples are given, the rest must be zero.

        Returns
        -------
        array
            ``samples``.
        """
