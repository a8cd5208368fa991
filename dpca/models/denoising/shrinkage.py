"""Singular values of a matrix with white noise: how many are signal, the level of the noise, and how to shrink them.

A matrix of m x n entries, m <= n, has singular values s. Without signal, those of white noise of standard deviation
sigma lie below sigma (sqrt(m) + sqrt(n)) for large matrices (Marchenko & Pastur 1967). With the aspect ratio
beta = m / n and y = s / (sigma sqrt(n)), this edge is y = 1 + sqrt(beta).
"""

from __future__ import annotations

import math

import numpy as np

from dpca.choices import HARD, OPTIMAL
from dpca.kernels.algebra.types import Array
from dpca.models.cells.rank import noise_ranks

#: With fewer singular values, noise cannot be told from signal.
LEAST_VALUES = 4


def estimated_noise(energies: Array, m: int, n: int) -> tuple[Array, Array]:
    """Return the numbers of singular values above the noise (...), and the standard deviations of the noise (...).

    Parameters
    ----------
    energies : array (..., m)
        Squared singular values of some matrices, descending.
    m, n : int
        Lengths of a matrix, m <= n.
    """
    ranks = noise_ranks(energies, n)
    noise = np.where(np.arange(m) < ranks[..., None], 0, energies).sum(axis=-1)
    # Each component also takes its row and its column of the noise.
    return ranks, np.sqrt(np.maximum(noise, 0) / ((m - ranks) * (n - ranks)))


def gains(energies: Array, sigma: Array, m: int, n: int, shrinkage: str) -> Array:
    """Return the factors for singular values (..., m), between 0 and 1; 0 if they are better left out.

    "optimal" is the least squared error in large matrices (Gavish & Donoho 2017, section 3.1), "hard" the optimal
    threshold (Gavish & Donoho 2014), and "none" keeps all. Without noise, all are kept.

    Parameters
    ----------
    energies : array (..., m)
        Their squares, at least 0.
    sigma : array (...)
        Level of the noise of each matrix.
    """
    noisy = sigma[..., None] > 0
    if shrinkage not in (OPTIMAL, HARD):
        return np.ones(energies.shape)
    beta, y = m / n, np.sqrt(energies / np.where(noisy, n * sigma[..., None] ** 2, 1))
    if shrinkage == HARD:
        least = math.sqrt(2 * (beta + 1) + 8 * beta / (beta + 1 + math.sqrt(beta**2 + 14 * beta + 1)))
        return np.where(noisy, y > least, 1.0)
    square = np.maximum((y**2 - beta - 1) ** 2 - 4 * beta, 0)
    above = y > 1 + math.sqrt(beta)
    return np.where(noisy, np.where(above, np.sqrt(square) / np.where(above, y, 1) ** 2, 0), 1)
