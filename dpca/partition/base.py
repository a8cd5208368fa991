"""The contract of partitions: split the attributes of a sample, and join them again."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array, PickledByFields, Region


class Partition(PickledByFields, ABC):
    """Base class of divisions of the attributes of a sample into numbered parts.

    The defaults describe one part with all attributes. A subclass is a frozen dataclass with a ``sample_shape``. It
    implements `split` and `join`. If it has several parts, it also implements `grid_shape` and `n_features`.
    """

    #: Kind of a store of scores of this partition. It ends in "scores".
    scores_kind: ClassVar[str] = "scores"
    #: What an error advises where one of them does not fit into memory.
    remedy: ClassVar[str] = "choose smaller cells or bands"

    if TYPE_CHECKING:  # a dataclass would use a property of its base class as the default of its field

        @property
        def sample_shape(self) -> tuple[int, ...]:
            """Shape of one sample."""

    @property
    def identity(self) -> Any:
        """JSON values or an array that distinguish partitions of the same kind and shapes."""
        return []

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Shape of the grid of parts: the axes of the scores between samples and components."""
        return ()

    def grid_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Name the axes of the grid, given the names of a sample's axes."""
        return ()

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return math.prod(self.grid_shape)

    def n_features(self, index: int) -> int:
        """Return the number of attributes of a part."""
        return math.prod(self.sample_shape)

    @property
    def held_bytes(self) -> int:
        """Bytes of arrays of the size of a sample that describe the parts, for the planner."""
        return 0

    @property
    def max_features(self) -> int:
        """Number of attributes of the largest part."""
        return max(map(self.n_features, range(self.n_parts)))

    def region(self, index: int) -> Region:
        """Return the smallest box of a sample that must be read for a part."""
        return tuple((0, length) for length in self.sample_shape)

    def tiles(self, chunk_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield groups of parts, such that as few groups as possible share a chunk.

        Parameters
        ----------
        chunk_shape : tuple of int
            Chunk length along every axis of a sample.
        """
        yield tuple(range(self.n_parts))

    def finer_tiles(self, chunk_shape: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
        """Yield finer and finer groupings of all parts, for `tiles` that are too large for a task; by default none.

        Their groups are compact, so that they share fewer chunks than parts in the order of their numbers.
        """
        return iter(())

    def split_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Return the dtype of the values of `split` for samples of a dtype."""
        return np.dtype(dtype)

    def split_bytes(self, region: Region, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of `split`, for a region of samples of a dtype."""
        return 0

    @abstractmethod
    def split(self, block: Array, parts: Sequence[int], origin: tuple[int, ...], buffer: Array) -> list[Array]:
        """Copy parts out of a block of samples.

        Parameters
        ----------
        block : array (n_samples, ...), C-ordered, of any library
            Samples, or a box of them that contains the regions of these parts.
        parts : sequence of int
        origin : tuple of int
            Start of the block along each axis of a sample.
        buffer : array (at least n_samples times the attributes of all these parts,) of dtype `split_dtype`

        Returns
        -------
        list of array (n_samples, n_features)
            One for each part, C-ordered: consecutive views of ``buffer`` from its start. A part with all attributes may
            be a view of ``block`` instead.
        """

    def all_parts(self, samples: Array) -> list[Array]:
        """Return all parts (n_samples, n_features) of whole samples, see `split`."""
        samples = np.ascontiguousarray(samples)
        buffer = np.empty(samples.size, self.split_dtype(samples.dtype))
        return self.split(samples, range(self.n_parts), (0,) * (samples.ndim - 1), buffer)

    def part_of(self, samples: Any, index: int) -> Array:
        """Return one part (n_samples, n_features) of whole samples. Only the box that it depends on is read."""
        region = self.region(index)
        block = np.ascontiguousarray(samples[(slice(None), *(slice(*ends) for ends in region))])
        buffer = np.empty(len(block) * self.n_features(index), self.split_dtype(block.dtype))
        return self.split(block, [index], tuple(low for low, _ in region), buffer)[0]

    @abstractmethod
    def join(self, parts: Iterable[tuple[int, Array]], samples: Array) -> Array:
        """Join all parts, the inverse of `split`.

        Parameters
        ----------
        parts : iterable of (first, array (count, n, n_features))
            Runs of consecutive parts of equal size: the number of the first part, and the values of all of them for the
            first n samples. A generator can compute each run when it is requested.
        samples : array (n_samples, *sample_shape), C-ordered, of dtype `split_dtype`
            Overwritten. If n is smaller than n_samples, the remaining samples must be zero.

        Returns
        -------
        array
            ``samples``.
        """
