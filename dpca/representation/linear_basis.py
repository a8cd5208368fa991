"""A mean and orthonormal components of whole samples: projecting on them and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpca.kernels import linalg
from dpca.kernels.dtypes import working_dtype
from storage.layout import CHANNEL

Array = NDArray[Any]

# Samples that are centered at once: they stay in cache for the product that follows.
_BLOCK_BYTES = 2**22


@dataclass(frozen=True, eq=False)
class LinearBasis:
    """Components of whole samples.

    Parameters
    ----------
    mean : array (n_features,), float64
    components : array (n_components, n_features), orthonormal rows
    sample_shape : tuple of int
    """

    mean: Array
    components: Array
    sample_shape: tuple[int, ...]

    scores_kind: ClassVar[str] = "scores"

    @property
    def cell_shape(self) -> None:
        """Samples are left whole."""
        return None

    @property
    def score_shape(self) -> tuple[int, ...]:
        """Shape of one sample's scores: (n_components,)."""
        return (len(self.components),)

    @property
    def split(self) -> list[Any]:
        """Attributes are not split."""
        return []

    def score_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Name the axis of one sample's scores."""
        return ("component",)

    def n_spatial(self, axes: Sequence[str]) -> int:
        """Return how many of a sample's axes, which have these names, are axes of space."""
        return sum(axis != CHANNEL for axis in axes)

    def leading(self, n_components: int) -> LinearBasis:
        """Return the basis of the first ``n_components`` components."""
        return replace(self, components=self.components[:n_components])

    def project(self, samples: Array) -> Array:
        """Return scores (n, k) of samples (n, *sample_shape): (x - mean) V^T. Costs 2 n d k operations."""
        n, d = len(samples), len(self.mean)
        rows = samples.reshape(n, d)
        dtype = np.result_type(working_dtype(samples.dtype), self.components.dtype)
        mean, components = self.mean.astype(dtype), self.components.astype(dtype, copy=False)
        scores = np.empty((n, len(components)), dtype)
        step = max(1, _BLOCK_BYTES // (d * dtype.itemsize))
        for start in range(0, n, step):
            block = rows[start : start + step]
            centered = np.subtract(block, mean, out=linalg.scratch("centered", block.shape, dtype), dtype=dtype)
            np.matmul(centered, components.T, out=scores[start : start + step])
        return scores

    def reconstruct(self, scores: Array) -> Array:
        """Return the samples (n, *sample_shape) that scores (n, k) stand for: y V + mean."""
        dtype = np.result_type(scores.dtype, self.components.dtype)
        rows: Array = np.matmul(scores, self.components, dtype=dtype)
        rows += self.mean.astype(dtype)
        return rows.reshape(len(scores), *self.sample_shape)

    def work_bytes(self, n_rows: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays of projecting or reconstructing ``n_rows`` samples, results included."""
        k, d = self.components.shape
        itemsize = np.result_type(working_dtype(dtype), self.components.dtype).itemsize
        centered = max(_BLOCK_BYTES, d * itemsize)
        return int(n_rows * (d + k) * itemsize + centered + (k + 2) * d * itemsize)
