"""Feature maps: the scores of overlapping patches, as a convolution computes them, and their decoding to samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.types import Array, Region
from dpca.kernels.patches import PatchGrid
from dpca.kernels.pixels import Pixels
from dpca.representation.base import array_digest
from dpca.representation.divided import DividedRepresentation
from dpca.representation.whitened import in_units
from dpca.storage.arrays.layout import box_shape, boxes_of
from dpca.storage.transaction.workspace import fingerprint_of

# Number of arrays of the size of a sample in the work on one.
_COPIES = 4


@dataclass(frozen=True, eq=False)
class PatchRepresentation(DividedRepresentation):
    """The scores of each patch are the products of its centered values with orthonormal components.

    A decoded sample averages, at each pixel, all decoded patches that contain the pixel. Its patches are nearest to the
    decoded patches in the sum of squares. This is the diagonal averaging of singular spectrum analysis (Golyandina &
    Zhigljavsky 2013, section 2.1) in several dimensions. Pixels outside all patches, which a stride can leave at the
    end, get the mean of all patches in their channel.

    Parameters
    ----------
    grid : PatchGrid
    mean : array (n_features,)
    components : array (n_components, n_features)
    """

    grid: PatchGrid
    mean: Array
    components: Array

    scores_kind: ClassVar[str] = "patch-scores"  # type: ignore[misc]

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.grid.sample_shape

    @property
    def score_shape(self) -> tuple[int, ...]:
        """Shape of one sample's scores: (*grid_shape, n_components)."""
        return (*self.grid.grid_shape, len(self.components))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the components."""
        return self.components.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the mean and the components."""
        return self.mean.nbytes + self.components.nbytes

    def score_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the axes of one sample's scores, given those of a sample."""
        return (*(f"patch_{axis}" for axis in axes[: self.grid.n_spatial]), "component")

    def n_spatial(self, axes: Sequence[str]) -> int:
        """Return the number of spatial axes of a sample, as patches have them."""
        return self.grid.n_spatial

    def fingerprint(self) -> str:
        """Return the hash of the patches, the mean and the components."""
        grid = [list(lengths) for lengths in (self.grid.sample_shape, self.grid.patch_shape, self.grid.stride)]
        return fingerprint_of(self.scores_kind, grid, *map(array_digest, (self.mean, self.components)))

    def work_bytes(self, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        """Bytes of temporary arrays, as `Representation.work_bytes`."""
        work, d = self.score_dtype(dtype), math.prod(self.sample_shape)
        results = n_rows * (2 * d + math.prod(self.score_shape)) * work.itemsize + 8 * math.prod(self.sample_shape)
        blocks = self.grid.work_bytes(n_rows, dtype) + self.grid.work_bytes(n_rows, work)
        return results + blocks + 2 * self.components.size * work.itemsize

    @property
    def divides(self) -> bool:
        """Whether `box` is supported."""
        return True

    @property
    def unit(self) -> tuple[int, ...]:
        """Lengths of the smallest box of samples to decode."""
        return (*(1,) * self.grid.n_spatial, *self.grid.channel_shape)

    def aligned(self, region: Region) -> Region:
        """Return the smallest box of whole patches, from the first one on, with all patches that overlap a box."""
        grid = self.grid
        sizes = zip(region, grid.patch_shape, grid.stride, grid.sample_shape, strict=False)
        spatial = ((max(0, a - p + 1) // s * s, min(b + p - 1, n)) for (a, b), p, s, n in sizes)
        return (*spatial, *region[grid.n_spatial :])

    def score_places(self, region: Region) -> tuple[slice, ...]:
        """Return the places of the patches that are in a box, which begins with a patch."""
        sizes = zip(region, self.grid.patch_shape, self.grid.stride, strict=False)
        return tuple(slice(a // s, (b - p) // s + 1) for (a, b), p, s in sizes)

    @property
    def large_scores(self) -> bool:
        """Whether the scores of a sample may be larger than it."""
        return True

    def scored_boxes(self, most: int, chunk: tuple[int, ...] = ()) -> list[tuple[Region, Region]]:
        """Return boxes of samples to encode, twice: those of ranges of patches, so that each patch is in one of them.

        A box has about ``most`` attributes, or one patch; with a ``chunk``, it is of whole chunks of patches.
        """
        grid = self.grid
        count = max(1, most // math.prod((*grid.stride, *grid.channel_shape)))
        few = box_shape(grid.grid_shape, count, chunk or (1,) * grid.n_spatial)
        boxes = list[tuple[Region, Region]]()
        for places in boxes_of(grid.grid_shape, few):
            sizes = zip(places, grid.patch_shape, grid.stride, strict=True)
            spatial = (((a * s), (b - 1) * s + p) for (a, b), p, s in sizes)
            region = (*spatial, *((0, length) for length in grid.channel_shape))
            boxes.append((region, region))
        return boxes

    def box(self, region: Region, n_components: int | None = None) -> Self:
        """Return the representation of the patches in a box of samples, which begins with a patch."""
        grid = replace(self.grid, sample_shape=tuple(b - a for a, b in region))
        return replace(self, grid=grid, components=self.components[:n_components])

    def box_bytes(self, region: Region, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        """Bytes of the temporary arrays of a box, as `work_bytes`."""
        return self.box(region).work_bytes(n_rows, dtype, pixels=pixels)

    def box_features(self, n_bytes: int, itemsize: int) -> int:
        """Return about the number of attributes of a box of which samples and scores have these bytes."""
        per_sample = math.prod(self.score_shape) / math.prod(self.sample_shape)
        return int(n_bytes / (itemsize * (_COPIES + per_sample)))

    def _leading(self, n_components: int) -> Self:
        return replace(self, components=self.components[:n_components])

    def _encode(self, samples: Array) -> Array:
        """Return (x - mean) V^T of every patch x. Costs 2 n p d k operations."""
        dtype, k = self.score_dtype(samples.dtype), len(self.components)
        scores, mean = np.empty((len(samples), *self.score_shape), dtype), self.mean.astype(dtype)
        filters = self.components.astype(dtype, copy=False).T
        for box, patches in self.grid.rows(samples):
            x = linalg.scratch("values", patches.shape, dtype)
            # Together faster than one call that converts and subtracts.
            np.copyto(x, patches)
            x -= mean
            np.matmul(x, filters, out=scores[box].reshape(-1, k))
        return scores

    def _decode(self, scores: Array, pixels: Pixels | None) -> Array:
        dtype, grid = self.decoded_dtype(scores.dtype), self.grid
        filters, k = self.components.astype(dtype, copy=False), len(self.components)
        samples = np.zeros((len(scores), *grid.sample_shape), dtype)
        for box in grid.boxes(len(scores)):
            grid.add(scores[box].reshape(-1, k).astype(dtype, copy=False) @ filters, box, samples)
        samples /= np.maximum(self._per_pixel(grid.counts()), 1).astype(dtype)
        samples += self._mean_sample.astype(dtype)
        return samples

    @property
    def _mean_sample(self) -> Array:
        """The sample (*sample_shape), float64, that scores of 0 decode to."""
        grid, mean = self.grid, np.zeros((1, *self.grid.sample_shape))
        for box in grid.boxes(1):
            places = math.prod(cut.stop - cut.start for cut in box)
            grid.add(np.broadcast_to(self.mean, (places, grid.n_features)), box, mean)
        counts = self._per_pixel(grid.counts())
        of_channel = self.mean.reshape(grid.shape).mean(axis=tuple(range(grid.n_spatial)))
        return np.where(counts > 0, mean[0] / np.maximum(counts, 1), of_channel)

    def _per_pixel(self, values: Array) -> Array:
        """Return values of pixels, with axes of length 1 for channels."""
        return values.reshape(*values.shape, *(1,) * len(self.grid.channel_shape))


@dataclass(frozen=True, eq=False)
class WeightedPatches(PatchRepresentation):
    """The scores of the patches of weighted anomalies; decoded samples are in the units of the samples.

    Parameters
    ----------
    grid, mean, components
        As in `PatchRepresentation`, of the anomalies times their weights.
    weights : array (*sample_shape), float64, at least 0
    sample_mean : array (*sample_shape), float64
        The decoded value of an attribute of weight 0.
    """

    weights: Array
    sample_mean: Array

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return super().nbytes + self.weights.nbytes + self.sample_mean.nbytes

    def fingerprint(self) -> str:
        """Return the hash of the patches, the weights and the mean."""
        return fingerprint_of("weighted", super().fingerprint(), *map(array_digest, (self.weights, self.sample_mean)))

    def work_bytes(self, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        """Bytes of temporary arrays, as `Representation.work_bytes`, including the weighted anomalies."""
        d, itemsize = math.prod(self.sample_shape), self.score_dtype(dtype).itemsize
        return super().work_bytes(n_rows, dtype, pixels=pixels) + (n_rows + 3) * d * itemsize

    def box(self, region: Region, n_components: int | None = None) -> Self:
        """Return the representation of the patches in a box of samples, as `PatchRepresentation.box`."""
        inside = tuple(slice(a, b) for a, b in region)
        return replace(
            super().box(region, n_components), weights=self.weights[inside], sample_mean=self.sample_mean[inside]
        )

    def _encode(self, samples: Array) -> Array:
        rows = samples - self.sample_mean.astype(self.score_dtype(samples.dtype))
        rows *= self.weights.astype(rows.dtype)
        return super()._encode(rows)

    def _decode(self, scores: Array, pixels: Pixels | None) -> Array:
        rows = in_units(super()._decode(scores, None), self.weights, np.zeros(self.sample_shape))
        rows += self.sample_mean.astype(rows.dtype)
        return rows
