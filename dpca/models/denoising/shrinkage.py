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
from dpca.models.cells.rank import noise_rank

#: With fewer singular values, noise cannot be told from signal.
LEAST_VALUES = 4


def estimated_noise(energies: Array, m: int, n: int) -> tuple[int, float]:
    """Return the number of singular values above the noise, and the standard deviation of the noise.

    Parameters
    ----------
    energies : array (m,)
        Squared singular values, descending.
    m, n : int
        Lengths of the matrix, m <= n.
    """
    rank = noise_rank(energies, n)
    # Each component also takes its row and its column of the noise.
    return rank, math.sqrt(max(float(energies[rank:].sum()), 0.0) / ((m - rank) * (n - rank)))


def gains(energies: Array, sigma: float, m: int, n: int, shrinkage: str) -> Array:
    """Return the factors for singular values above the noise, between 0 and 1; 0 if they are better left out.

    "optimal" is the least squared error in large matrices (Gavish & Donoho 2017, section 3.1), "hard" the optimal
    threshold (Gavish & Donoho 2014), and "none" keeps all.

    Parameters
    ----------
    energies : array (rank,)
        Their squares, descending.
    """
    if shrinkage not in (OPTIMAL, HARD) or sigma == 0 or not energies.size:
        return np.ones(len(energies))
    beta, y = m / n, np.sqrt(energies / (n * sigma**2))
    if shrinkage == HARD:
        least = math.sqrt(2 * (beta + 1) + 8 * beta / (beta + 1 + math.sqrt(beta**2 + 14 * beta + 1)))
        return (y > least).astype(np.float64)
    square = np.maximum((y**2 - beta - 1) ** 2 - 4 * beta, 0)
    factors: Array = np.where(y > 1 + math.sqrt(beta), np.sqrt(square) / y**2, 0.0)
    return factors
