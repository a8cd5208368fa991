"""Exact principal components of bands of few samples, by blocks of attributes.

The Gram matrix of a band is the sum of those of its attributes (method of snapshots; Sirovich 1987, part I, section 4).
A first pass adds these up for all bands, block by block. In a second pass, each block has its own part of the
components. So no task holds a whole sample, although the attributes of a band are everywhere in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.rules.base.rule import check_products
from dpca.rules.base.state import State, StateLayout
from dpca.rules.covariance.snapshots import KeptSamples, leading_pairs

# Directions with a smaller share of the variance of a band have no accurate component: it is 0.
_LEAST_SHARE = 1e-10
# Bands whose eigenproblems are solved together.
_TOGETHER = 1024


@dataclass(frozen=True)
class BandBlocks(KeptSamples):
    """At most ``n_samples`` samples at each block of attributes, with the band of each attribute.

    Parameters
    ----------
    n_samples : int
        See `KeptSamples`, also for ``sample_weight``.
    labels : array (*sample_shape), int32, or ArrayOnDisk
        The band of each attribute.
    regions : sequence of Region
        The boxes of the blocks of attributes.
    n_bands : int
    """

    labels: Any
    regions: Sequence[Region]
    n_bands: int
    least_samples = 2

    def of_part(self, part: int) -> Self:
        """Return the rule that starts the state of a block."""
        return replace(self, labels=self.labels[tuple(slice(a, b) for a, b in self.regions[part])])

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return {**super()._layout(n_features, dtype), "labels": ((n_features,), np.int32)}

    def _start(self, state: State, dtype: DTypeLike) -> None:
        state.arrays["labels"][:] = np.ravel(self.labels)

    def _copy_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        return 4 * self.n_samples * n_features if np.dtype(dtype) == np.float16 else 0

    def _read(self, state: State) -> tuple[Array, Array, Array]:
        """Return the samples (n, d) of a block, the bands of its attributes (d,), and how often samples count (n,)."""
        n = state.counts["n_samples"]
        rows, (weights, _) = state.arrays["rows"][:n], self.weights_of(n)
        rows = rows if rows.dtype != np.float16 else rows.astype(np.float32)
        return rows, state.arrays["labels"], np.ones(n) if weights is None else weights


@dataclass(frozen=True)
class BandGrams(BandBlocks):
    """The sums of the Gram matrices of the attributes of each band, of one block of attributes.

    Parameters are those of `BandBlocks`. Costs n^2 d / 2 operations. Results of ``finish``, float64: ``gram`` (n_bands,
    n, n), lower triangles, and ``mean_largest`` (), the largest magnitude of the mean.
    """

    def _finish(self, state: State) -> dict[str, Array]:
        from dpca.kernels.band_loops import add_grams

        rows, labels, weights = self._read(state)
        gram = np.zeros((self.n_bands, len(rows), len(rows)))
        largest = add_grams(rows, labels, weights, gram)
        return {"gram": gram, "mean_largest": np.asarray(largest)}

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        return 8 * self.n_bands * self.n_samples**2

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: samples in another type."""
        return self._copy_bytes(n_features, dtype)


@dataclass(frozen=True)
class BandImages(BandBlocks):
    """The components of all bands at one block of attributes, from `band_components`.

    Parameters
    ----------
    n_samples, labels, regions, n_bands
        As in `BandBlocks`.
    turns : array (n_bands, k, n_samples), float64
        See `band_components`.

    Costs 2 n d k operations. Results of ``finish``: ``image`` (k, d) in the working dtype, ``mean`` (d,), float64, and
    ``inner`` (0, 0), because products of blocks have no meaning for bands.
    """

    turns: Any

    def _finish(self, state: State) -> dict[str, Array]:
        from dpca.kernels.band_loops import band_images

        rows, labels, weights = self._read(state)
        mean, image = np.empty(len(labels)), np.empty((self.turns.shape[1], len(labels)), working_dtype(rows.dtype))
        band_images(rows, labels, weights, self.turns, mean, image)
        return {"image": image, "mean": mean, "inner": np.empty((0, 0))}

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        return n_features * (8 + self.turns.shape[1] * working_dtype(dtype).itemsize)

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: the result, and samples in another type."""
        return self.result_bytes(n_features, dtype) + self._copy_bytes(n_features, dtype)


def band_components(grams: Array, k: int, divisor: float) -> tuple[Array, Array, Array]:
    """Return the rows that turn the samples into the leading components of each band, and the variances.

    Parameters
    ----------
    grams : array (n_bands, n, n), float64
        Lower triangles of the Gram matrices of centered samples. They are overwritten.
    k : int
    divisor : float
        That of variances.

    Returns
    -------
    turns : array (n_bands, k, n), float64
        The components are the turns times the centered samples, and roots of weights if samples have some. The largest
        entry of each row is positive. Rows without variance are 0.
    variances : array (n_bands, k), float64
        Variances along the components, descending.
    totals : array (n_bands,), float64
    """
    m, n, _ = grams.shape
    totals = np.trace(grams, axis1=1, axis2=2)
    check_products(np.isfinite(totals).all())
    turns, variances = np.zeros((m, k, n)), np.zeros((m, k))
    few = min(n - 1, k)  # n centered samples have no variance in one direction
    for some in blocks(m, _TOGETHER):
        values, vectors = leading_pairs(grams[some], few)
        values[values <= _LEAST_SHARE * totals[some, None]] = 0
        scale = np.zeros_like(values)
        np.divide(1, np.sqrt(values), out=scale, where=values > 0)
        turns[some, :few] = linalg.fix_signs(vectors * scale[..., None])
        variances[some, :few] = values / divisor
    return turns, variances, totals / divisor
