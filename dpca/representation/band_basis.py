"""What a fitted band PCA is, and its two maps: samples to scores and scores to samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpca.kernels import linalg
from dpca.kernels.dtypes import working_dtype
from dpca.partition.bands import Bands
from dpca.representation.basis import array_digest, kept_rows
from storage.layout import CHANNEL

Array = NDArray[Any]

# Floating-point copy of the samples that are mapped at once: enough rows for matrix products, few enough for the cache.
_BLOCK_BYTES = 2**25


@dataclass(frozen=True, eq=False)
class BandBasis:
    """Mean and components of every band, in place.

    Parameters
    ----------
    bands : Bands
    mean : array (*sample_shape)
    components : array (n_components, *sample_shape)
        Component j of every band lies where the band's attributes lie. Rows of a band are orthonormal; where a band has
        fewer attributes than there are components, the surplus rows are zero.
    """

    bands: Bands
    mean: Array
    components: Array

    scores_kind: ClassVar[str] = "band-scores"

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.bands.sample_shape

    @property
    def cell_shape(self) -> None:
        """Samples are not cut into cells: a band may lie anywhere."""
        return None

    @property
    def score_shape(self) -> tuple[int, ...]:
        """Shape of one sample's scores: (n_bands, n_components)."""
        return (self.bands.n_partitions, self.n_components)

    @property
    def split(self) -> list[Any]:
        """What says how attributes are split: the band of each."""
        return array_digest(self.bands.labels)

    def score_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Name the axes of one sample's scores."""
        return ("band", "component")

    def n_spatial(self, axes: Sequence[str]) -> int:
        """Return how many of a sample's axes, which have these names, are axes of space."""
        return sum(axis != CHANNEL for axis in axes)

    @property
    def n_components(self) -> int:
        """Components of each band."""
        return len(self.components)

    def leading(self, n_components: int) -> BandBasis:
        """Return the basis of the first ``n_components`` components of every band."""
        return replace(self, components=self.components[:n_components])

    @cached_property
    def _ordered(self) -> tuple[Array, list[Array]]:
        """Mean (d,), attributes band after band, and the components (rank, d_band) of each band."""
        order, k = self.bands.order, self.n_components
        mean = self.mean.reshape(-1)[order].astype(self.components.dtype)
        flat = self.components.reshape(k, -1)
        rows = []
        for i in range(self.bands.n_partitions):
            where = self.bands.attributes(i)
            of_band = np.take(flat[: len(where)], where, axis=1)
            rows.append(of_band[: kept_rows(of_band)])
        return mean, rows

    @cached_property
    def _places(self) -> Array:
        """Where each attribute of a sample lies in the order of the bands."""
        places = np.empty_like(self.bands.order)
        places[self.bands.order] = np.arange(len(places))
        return places

    def project(self, samples: Array) -> Array:
        """Return the scores of samples.

        Parameters
        ----------
        samples : array (n, *sample_shape), any real dtype

        Returns
        -------
        array (n, n_bands, n_components)
            float32; float64 for float64 samples or components. Costs 2 n d k multiplications for n_components k of
            samples of d attributes.
        """
        dtype = np.result_type(working_dtype(samples.dtype), self.components.dtype)
        mean, components = self._ordered
        flat, offsets = np.ascontiguousarray(samples).reshape(len(samples), len(mean)), self.bands.offsets
        scores = np.zeros((len(samples), self.bands.n_partitions, self.n_components), dtype)
        step = self._step(dtype.itemsize)
        for start in range(0, len(samples), step):
            some = flat[start : start + step]
            raw = linalg.scratch("band raw", some.shape, some.dtype)
            np.take(some, self.bands.order, axis=1, out=raw, mode="clip")
            x = np.subtract(raw, mean, out=linalg.scratch("bands", raw.shape, dtype), dtype=dtype)
            for i, rows in enumerate(components):
                here = scores[start : start + step, i, : len(rows)]
                np.matmul(x[:, offsets[i] : offsets[i + 1]], rows.T, out=here)
        return scores

    def reconstruct(self, scores: Array) -> Array:
        """Return the samples (n, *sample_shape) that scores (n, n_bands, n_components) stand for.

        In the dtype of the scores (float64 for float64 components), neither rounded nor clipped.
        """
        mean, components = self._ordered
        dtype, offsets = np.result_type(scores.dtype, self.components.dtype), self.bands.offsets
        samples = np.empty((len(scores), len(mean)), dtype)
        step = self._step(dtype.itemsize)
        for start in range(0, len(scores), step):
            some = scores[start : start + step]
            x = linalg.scratch("bands", (len(some), len(mean)), dtype)
            for i, rows in enumerate(components):
                np.matmul(some[:, i, : len(rows)], rows, out=x[:, offsets[i] : offsets[i + 1]])
            x += mean
            np.take(x, self._places, axis=1, out=samples[start : start + step], mode="clip")
        return samples.reshape(len(scores), *self.bands.sample_shape)

    def work_bytes(self, n_rows: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays of projecting or reconstructing ``n_rows`` samples, results included."""
        itemsize: int = np.result_type(working_dtype(dtype), self.components.dtype).itemsize
        d = self.bands.labels.size
        results = n_rows * (d + math.prod(self.score_shape)) * itemsize
        block = min(n_rows, self._step(itemsize)) * d * (itemsize + np.dtype(dtype).itemsize)
        # Mean and components band after band; the order, the places and what they are made from.
        model = (self.n_components + 1) * d * self.components.itemsize + 4 * d * np.dtype(np.intp).itemsize
        return results + block + model

    def _step(self, itemsize: int) -> int:
        return max(1, _BLOCK_BYTES // (self.bands.labels.size * itemsize))
