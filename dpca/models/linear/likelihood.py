"""Likelihood of samples under the Gaussian model of components and eigenvalues."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import dask.array as da
import numpy as np

from dpca.engine.sources.finite import check_finite
from dpca.kernels.algebra.types import Array, Region
from dpca.partition.band_box import BandBox
from dpca.representation.by_blocks import encoded_by_boxes, sums_over_boxes
from dpca.representation.linear import LinearRepresentation
from dpca.representation.whitened import WeightedRepresentation

# Bytes of the floating-point copy of one block of samples.
_BLOCK_BYTES = 2**24
#: Copies of a sample in floating point while its likelihood is computed: it, what is decoded, the rest and its parts.
LIKELIHOOD_COPIES = 4
# Variances below this would make squared distances overflow.
_LEAST_VARIANCE = 1e-200


@dataclass(frozen=True, eq=False)
class Likelihood:
    """Probabilistic PCA (Tipping & Bishop 1999) of independent parts.

    Parameters
    ----------
    basis : LinearRepresentation
    precisions : array (n_parts, n_components)
        1 / variance along each component, 0 for components that a part lacks.
    noise_precisions : array (n_parts,)
        1 / variance along every other direction, 0 if there are none.
    constant : float
        Constant of the log-likelihood: d log(2 pi) plus the logarithm of the determinant.
    """

    basis: LinearRepresentation
    precisions: Array
    noise_precisions: Array
    constant: float

    @classmethod
    def of(cls, basis: LinearRepresentation, variances: Array, totals: Array, n_samples: int) -> Self:
        """Return the model of a fit to ``n_samples``, with these variances along components and these total variances.

        The noise variance of a part is the discarded variance, averaged over the min(n, d) - k discarded
        eigenvalues, as in scikit-learn's PCA. No variance is below the rounding error of the largest one. So samples
        along a direction without variance are very unlikely, but not impossible.
        """
        # A linear basis has scores along orthonormal components, without the scale of a whitened basis.
        if isinstance(basis, WeightedRepresentation) and basis.is_by_blocks:
            basis = replace(basis, scales=np.ones_like(basis.scales))  # the blocks multiply samples by the weights
        else:
            basis = LinearRepresentation(basis.partition, basis.mean, basis.components)
        partition, ranks = basis.partition, basis.ranks
        n_parts, k = partition.n_parts, len(basis.components)
        variances, totals = variances.reshape(n_parts, k), np.reshape(totals, n_parts)
        sizes = np.array([partition.n_features(i) for i in range(n_parts)])
        floor = max(float(variances.max(initial=0)) * np.finfo(float).eps, _LEAST_VARIANCE)
        # All min(n, d) eigenvalues may be retained although a sample has more attributes.
        left_out = np.where(ranks < np.minimum(sizes, n_samples), np.minimum(sizes, n_samples), sizes) - ranks
        noise = np.maximum((totals - variances.sum(axis=1)) / np.maximum(left_out, 1), floor)
        kept = np.arange(k) < ranks[:, None]
        along = np.where(kept, np.maximum(variances, np.where(ranks < sizes, noise, floor)[:, None]), 1.0)
        constant = sizes.sum() * math.log(2 * math.pi) + np.log(along).sum() + ((sizes - ranks) * np.log(noise)).sum()
        return cls(basis, kept / along, np.where(ranks < sizes, 1 / noise, 0), float(constant))

    def box_terms(
        self, own: LinearRepresentation, samples: Array, scores: Array | None, region: Region, around: Region
    ) -> Array:
        """Return the terms (n,) of a box in the sum of squares, see `sums_over_boxes`.

        Without ``scores``, these are all terms of the parts in the box; otherwise those of the noise.
        """
        partition, noise = own.partition, self.noise_precisions
        if scores is not None:
            left = np.square(samples - own.decode(scores), dtype=np.float64).reshape(len(samples), -1)
            if isinstance(partition, BandBox):
                left = np.stack([partition.sums(row) for row in left])
            return np.asarray(left.sum(axis=1, keepdims=True) @ noise if len(noise) == 1 else left @ noise)
        numbers = np.arange(partition.n_parts).reshape(1, *partition.grid_shape, 1)
        here = own.own_scores(numbers, region, around)  # only of the parts in the box
        whole, place = self.basis, self.basis.score_places(region)
        precisions = self.precisions.reshape(whole.score_shape)[place].reshape(here.size, -1)
        noise, sums = noise.reshape(whole.score_shape[:-1])[place].ravel(), np.zeros(len(samples))
        parts, rows = partition.all_parts(samples - own.mean), partition.all_parts(own.components)
        for i, along, beside in zip(here.ravel().tolist(), precisions, noise, strict=True):
            y = parts[i] @ rows[i].T
            # Of the part itself, because the samples of a lapped cell are not complete in the box.
            left = parts[i] - y @ rows[i]
            sums += np.square(y) @ along + np.einsum("ij,ij->i", left, left) * beside
        return sums


def log_likelihoods(model: Likelihood, samples: Array, name: str = "a chunk") -> Array:
    """Return the natural logarithm of the density at each sample (n,), float64. Costs 4 n d k operations."""
    check_finite(samples, 0, name)
    basis, likelihoods = model.basis, np.empty(len(samples))
    step = max(1, _BLOCK_BYTES // (8 * math.prod(basis.sample_shape)))
    for start in range(0, len(samples), step):
        rows = slice(start, start + step)
        scores = basis.encode(samples[rows], name)
        left = basis.partition.all_parts(samples[rows] - basis.decode(scores, name))
        # The filter of lapped cells is orthogonal, so it does not change the sum of squares.
        lost = np.stack([np.einsum("ij,ij->i", part, part, dtype=np.float64) for part in left], axis=1)
        squares = np.square(scores, dtype=np.float64).reshape(len(lost), -1) @ model.precisions.ravel()
        likelihoods[rows] = -0.5 * (model.constant + squares + lost @ model.noise_precisions)
    return likelihoods


def likelihoods_by_boxes(model: Likelihood, x: Any) -> da.Array:
    """Return `log_likelihoods` of samples in a Dask or Zarr array; no task holds a whole sample."""
    basis = model.basis
    sums = sums_over_boxes(basis, x, model.box_terms)
    if basis.adds_boxes:
        scores = encoded_by_boxes(basis, x).astype(np.float64).reshape(x.shape[0], -1)
        sums = sums + (scores**2) @ model.precisions.ravel()
    return -0.5 * (model.constant + sums)
