"""The base class of representations that encode and decode boxes of samples."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array, Region
from dpca.representation.base import Representation


@dataclass(frozen=True, eq=False)
class DividedRepresentation(Representation):
    """Encodes and decodes boxes of samples, if it `divides`.

    The scores of a sample are the sum of the `own_scores` of its boxes, each at its `score_places`, if it `adds_boxes`.
    Otherwise each score is in one box. What is summed may be more than scores, see `summands`.
    """

    if TYPE_CHECKING:  # at run time, a dataclass would use this property as the default of its field

        @property
        def components(self) -> Any:
            """Array or ArrayOnDisk, components on its first axis."""

    @property
    @abstractmethod
    def divides(self) -> bool:
        """Whether `box` is supported."""

    @property
    def adds_boxes(self) -> bool:
        """Whether the scores of a sample are sums over boxes, and not those of the parts in each box."""
        return False

    @property
    def large_scores(self) -> bool:
        """Whether the scores of a sample may be larger than it."""
        return False

    @property
    def held_bytes(self) -> int:
        """Bytes of the arrays that are in memory, and not in a store."""
        return self.nbytes

    @property
    @abstractmethod
    def unit(self) -> tuple[int, ...]:
        """Lengths of the smallest box of whole parts."""

    @abstractmethod
    def aligned(self, region: Region) -> Region:
        """Return the box around a box of a sample that is encoded or decoded for it."""

    @abstractmethod
    def scored_boxes(self, most: int, chunk: tuple[int, ...] = ()) -> list[tuple[Region, Region]]:
        """Return boxes with up to ``most`` attributes, each with the `aligned` box that is encoded for its scores.

        Boxes of `large_scores` are multiples of ``chunk`` along each axis of the grid, or end with it.
        """

    @abstractmethod
    def score_places(self, region: Region) -> tuple[slice, ...]:
        """Return the place of the scores of a box along the axes of the grid."""

    def own_scores(self, scores: Array, region: Region, around: Region) -> Array:
        """Return the scores of a box of whole parts, given those of the `aligned` box around it."""
        both = zip(self.score_places(region), self.score_places(around), strict=True)
        return scores[(slice(None), *(slice(a.start - b.start, a.stop - b.start) for a, b in both))]

    @abstractmethod
    def box(self, region: Region, n_components: int | None = None) -> Self:
        """Return the representation of an `aligned` box of samples, with the first ``n_components`` components."""

    @abstractmethod
    def box_bytes(self, region: Region, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        """Bytes of the representation of a box, and of its temporary arrays, as `work_bytes`; nothing is read."""

    @abstractmethod
    def box_features(self, n_bytes: int, itemsize: int) -> int:
        """Return about the number of attributes of a box whose components and temporary arrays have these bytes."""

    @property
    def summand_shape(self) -> tuple[int, ...]:
        """Shape of the `summands` of a sample."""
        return self.score_shape

    def summands(self, samples: Array, name: str = "a chunk", first: int = 0) -> Array:
        """Return what is summed over boxes (n, *summand_shape); the default is `encode`. This is called for a box."""
        return self.encode(samples, name, first)

    def scores_of_sums(self, sums: Array, dtype: DTypeLike) -> Array:
        """Return the scores (n, *score_shape) of samples of a type from sums of `summands`, float64."""
        return sums.astype(self.score_dtype(dtype))


def in_any_boxes(basis: Representation) -> DividedRepresentation | None:
    """Return a representation that encodes and decodes samples in boxes, or None."""
    return basis if isinstance(basis, DividedRepresentation) and basis.divides else None
