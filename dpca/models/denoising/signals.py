"""The components of cells that are signal, from the products of their values. Small cells are solved together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.tridiagonal import Tridiagonal
from dpca.kernels.algebra.types import Array
from dpca.models.cells.rank import noise_edge
from dpca.models.denoising.shrinkage import LEAST_VALUES, estimated_noise, gains

# Up to this length, all eigenvectors cost less than the eigenvalues and then some of the vectors.
_SMALL = 64
_LARGEST = {np.dtype(one): float(np.finfo(one).max) for one in (np.float32, np.float64)}
# Bytes of the values of cells that are solved together: enough to hide the cost of calls.
_TOGETHER_BYTES = 2**20
#: Bytes of their temporary arrays (measured: 7 to 9 times those of the values).
WORK_BYTES = 10 * _TOGETHER_BYTES
# Squared singular values below this share of the largest one are its rounding errors.
_ROUNDING = 8 * np.finfo(np.float64).eps


@dataclass(frozen=True)
class Signal:
    """The components of cells of one rank.

    Parameters
    ----------
    cells : array (c,)
        Their numbers.
    sigma : array (c,)
        Level of the noise.
    factors, vectors : array (c, rank) and (c, rank, m)
        Gains, and unit vectors as rows, of the components.
    """

    cells: Array
    sigma: Array
    factors: Array
    vectors: Array


@dataclass
class Cells:
    """Cells with equally many attributes that vary.

    Parameters
    ----------
    n : int
        Number of samples.
    mean, variance, scale : array (c, d)
        Of the attributes; scale is the standard deviation of their noise, or a multiple of it.
    rows : array (c, n, d), optional
        Their samples.
    covariance : array (c, d, d), optional
        Their covariances, if there are no rows.
    """

    n: int
    mean: Array
    variance: Array
    scale: Array
    rows: Any = None
    covariance: Any = None

    def scaled(self, scale: Array) -> Array:
        """Return the samples, or covariances, of values divided by a scale (c, d)."""
        given, unit = (self.rows, scale[:, None]) if self.covariance is None else (self.covariance, _squared(scale))
        found: Array = given / unit
        return found

    def signals(self, x: Array, known: bool, shrinkage: str) -> Iterator[Signal]:
        """Yield the signal of cells, those of one rank together, with vectors of attributes.

        That of a cell does not depend on the others.

        Parameters
        ----------
        x : array
            What `scaled` returns.
        known : bool
            Whether the level of the noise is 1. Otherwise it is estimated.
        shrinkage : str
            See `dpca.models.denoising.shrinkage.gains`.
        """
        n, d = self.n, self.mean.shape[1]
        if self.rows is None:
            center = self.mean / self.scale
            products = (n - 1) * x + n * _squared(center)
        elif n >= d:
            products = x.swapaxes(1, 2) @ x
        else:
            products = x @ x.swapaxes(1, 2)
        # Values divided by a small level of the noise can be large.
        require_range(products.diagonal(axis1=1, axis2=2))
        for found in _signals(products, max(n, d), known, shrinkage):
            if self.rows is None or n >= d:
                yield found
            else:
                vectors = found.vectors @ those(x, found.cells)
                vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
                yield replace(found, vectors=vectors)

    def retained(self, x: Array, vectors: Array) -> Array:
        """Return the covariances of the scores of vectors (c, r, d), for values of `scaled`."""
        if self.rows is None:
            return vectors @ x @ vectors.swapaxes(1, 2)
        scores = x @ vectors.swapaxes(1, 2)
        scores -= scores.mean(axis=1, keepdims=True)
        return scores.swapaxes(1, 2) @ scores / (self.n - 1)


def n_together(m: int, values: int) -> int:
    """Return how many cells of some values, with m x m products each, are best solved together."""
    return 1 if m > _SMALL else max(1, _TOGETHER_BYTES // (8 * values))


def _signals(products: Array, n: int, known: bool, shrinkage: str) -> Iterator[Signal]:
    """Yield the signal of cells, those of one rank together.

    The result of a cell does not depend on the others.

    Parameters
    ----------
    products : array (cells, m, m), float64
        Of the values of each cell, along the shorter one of its axes.
    n : int
        Length of the longer axis.
    known : bool
        Whether the level of the noise is 1. Otherwise it is estimated.
    shrinkage : str
        See `dpca.models.denoising.shrinkage.gains`.
    """
    m = products.shape[1]
    small = m <= _SMALL
    if small:
        values, columns = np.linalg.eigh(products)
    else:
        reduced = [Tridiagonal(one) for one in products]
        values = np.stack([one.values() for one in reduced])
    energies = _without_rounding(values[:, ::-1])
    if known:
        ranks, sigma = (energies > noise_edge(1.0, m, n)).sum(axis=1), np.ones(len(products))
    elif m < LEAST_VALUES:
        ranks, sigma = np.full(len(products), m), np.zeros(len(products))
    else:
        ranks, sigma = estimated_noise(energies, m, n)
    factors = gains(energies, sigma, m, n, shrinkage)
    # Vectors of rounding errors are arbitrary.
    ranks = np.minimum(ranks, ((factors > 0) & (energies > 0)).sum(axis=1))
    for rank in np.unique(ranks).tolist():
        cells = np.flatnonzero(ranks == rank)
        found = columns[cells, :, m - rank :] if small else np.stack([reduced[i].vectors(rank) for i in cells])
        vectors = np.ascontiguousarray(found[..., ::-1].swapaxes(1, 2))
        yield Signal(cells, sigma[cells], factors[cells, :rank], vectors)


def _squared(vectors: Array) -> Array:
    """Return the outer product of each vector (c, d) with itself."""
    return vectors[:, :, None] * vectors[:, None]


def _without_rounding(energies: Array) -> Array:
    """Return squared singular values, descending, with 0 for those that are rounding errors of the largest one."""
    return np.where(energies > _ROUNDING * energies[:, :1], energies, 0)


def those(values: Array, cells: Array) -> Array:
    """Return the values of some cells, without a copy if they are all of them."""
    return values if len(cells) == len(values) else values[cells]


def require_range(values: Array, dtype: DTypeLike = np.float64) -> None:
    """Raise OverflowError unless a dtype can hold all values."""
    if not np.abs(values).max(initial=0) <= _LARGEST[np.dtype(dtype)]:  # false for NaN, too
        raise OverflowError(f"values exceed the range of {np.dtype(dtype)}")
