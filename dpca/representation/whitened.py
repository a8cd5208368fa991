"""Scores divided by their standard deviations, and scores of samples with weights of attributes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.sources.centered import scaled
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


@dataclass(frozen=True, eq=False)
class WeightedRepresentation(Whitened):
    """Scores of samples with each attribute multiplied by its weight; decoded samples are in the units of samples.

    Parameters
    ----------
    partition, mean, components, scales
        As in `Whitened`, of the weighted samples.
    weights : array (*sample_shape), float64, at least 0
    sample_mean : array (*sample_shape), float64
        The mean of the samples themselves: the decoded value of an attribute of weight 0.
    """

    weights: Array
    sample_mean: Array

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return super().nbytes + self.weights.nbytes + self.sample_mean.nbytes

    @property
    def held_bytes(self) -> int:
        """Bytes of the arrays that are in memory, and not in a store."""
        return super().held_bytes + self.weights.nbytes + self.sample_mean.nbytes

    def fingerprint(self) -> str:
        """Return the hash of the components, the scales, the weights and the mean."""
        return fingerprint_of("weighted", super().fingerprint(), *map(array_digest, (self.weights, self.sample_mean)))

    def work_bytes(self, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        """Bytes of temporary arrays, as `Representation.work_bytes`, including the weighted samples."""
        d, itemsize = self.mean.size, self.score_dtype(dtype).itemsize
        return super().work_bytes(n_rows, dtype) + (n_rows + 3) * d * itemsize

    def box(self, region: Region, n_components: int | None = None) -> Self:
        """Return the representation of a box of samples, as `LinearRepresentation.box`."""
        inside = tuple(slice(a, b) for a, b in region)
        return replace(
            super().box(region, n_components), weights=self.weights[inside], sample_mean=self.sample_mean[inside]
        )

    @property
    def of_rows(self) -> Whitened:
        """The representation of the weighted samples."""
        return Whitened(self.partition, self.mean, self.components, self.scales)

    def mean_box(self, region: Region) -> Array:
        """Return a box of the mean of the samples themselves."""
        return self.sample_mean[tuple(slice(a, b) for a, b in region)]

    def _encode(self, samples: Array) -> Array:
        return super()._encode(scaled(samples, self.weights))

    def _decode(self, scores: Array, pixels: Pixels | None) -> Array:
        return in_units(super()._decode(scores, None), self.weights, self.sample_mean)


def in_units(rows: Array, weights: Array, sample_mean: Array) -> Array:
    """Return the samples of weighted ones (n, *sample_shape), in place: their mean where the weight is 0."""
    counts = weights > 0
    np.divide(rows, weights.astype(rows.dtype), out=rows, where=counts)
    np.copyto(rows, sample_mean.astype(rows.dtype), where=~counts)
    return rows
