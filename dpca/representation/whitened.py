"""Scores of variance 1: scores of a linear representation, divided by their standard deviations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from numpy.typing import DTypeLike

from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.pixels import Pixels
from dpca.representation.base import array_digest
from dpca.representation.linear import LinearRepresentation, first_rows
from dpca.storage.transaction.workspace import fingerprint_of


@dataclass(frozen=True, eq=False)
class Whitened(LinearRepresentation):
    """Scores by orthonormal components, divided by a scale for each component.

    Parameters
    ----------
    partition, mean, components
        As in `LinearRepresentation`.
    scales : array (n_components,), positive
    """

    scales: Array

    keeps_units: ClassVar[bool] = False

    def fingerprint(self) -> str:
        """Return the hash of the linear representation and the scales."""
        return fingerprint_of("whitened", super().fingerprint(), array_digest(self.scales))

    def work_bytes(self, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        """Bytes of temporary arrays, as `Representation.work_bytes`, including a copy of the scores."""
        copy = n_rows * self.scales.size * self.score_dtype(dtype).itemsize
        return super().work_bytes(n_rows, dtype, pixels=pixels) + copy

    def box(self, region: Region, n_components: int | None = None) -> Self:
        """Return the representation of a box of samples, as `LinearRepresentation.box`."""
        return replace(super().box(region, n_components), scales=self.scales[:n_components])

    def _leading(self, n_components: int) -> Self:
        return replace(self, components=first_rows(self.components, n_components), scales=self.scales[:n_components])

    def _encode(self, samples: Array) -> Array:
        scores = super()._encode(samples)
        scores /= self.scales.astype(scores.dtype)
        return scores

    def _decode(self, scores: Array, pixels: Pixels | None) -> Array:
        return super()._decode(scores * self.scales.astype(scores.dtype), pixels)
