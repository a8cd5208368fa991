"""Magnitudes of complex values with Gaussian noise, such as those of MRI: their noise is Rician.

For an amplitude A, and noise of standard deviation sigma in the real and in the imaginary part, a magnitude has the
mean sigma h(A / sigma), which is above A, and the variance sigma^2 xi(A / sigma), which is below sigma^2 (Koay & Basser
2006). Without signal, h is sqrt(pi / 2) and xi is 2 - pi / 2. Both increase with the signal; xi approaches 1.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import ive

from dpca.kernels.algebra.types import Array

# Above this ratio of signal to noise, a magnitude is the square root of A^2 + sigma^2 with Gaussian noise, up to 1e-6.
_MOST, _STEP = 40.0, 0.005
#: Variance of the magnitudes of noise alone, of level 1.
LEAST_VARIANCE = 2 - math.pi / 2
# Standard errors within which a ratio is compatible with noise alone.
_ERRORS = 3
_BINS, _STEPS, _CLOSE = 1000, 100, 1e-4


@lru_cache(maxsize=1)
def _table() -> tuple[Array, Array, Array]:
    """Return ratios of signal to noise, and the mean and the variance of magnitudes with noise of level 1."""
    ratio = np.arange(0, _MOST + _STEP, _STEP)
    z = ratio**2 / 4
    mean = math.sqrt(math.pi / 2) * ((1 + 2 * z) * ive(0, z) + 2 * z * ive(1, z))
    return ratio, mean, 2 + ratio**2 - mean**2


def magnitudes(amplitude: Array, sigma: Array) -> Array:
    """Return the mean magnitudes of amplitudes, for positive levels of the noise; the inverse of `amplitudes`."""
    ratio, mean, _ = _table()
    given = amplitude / sigma
    found = np.where(given > _MOST, np.hypot(given, 1), np.interp(given, ratio, mean))
    return (found * sigma).astype(amplitude.dtype, copy=False)


def amplitudes(means: Array, sigma: Array) -> Array:
    """Return the amplitudes of mean magnitudes; 0 where a mean is not above that of noise."""
    ratio, mean, _ = _table()
    there = sigma > 0
    given = means / np.where(there, sigma, 1)
    # Squares of given values could overflow.
    strong = np.sqrt(np.maximum(given - 1, 0)) * np.sqrt(np.maximum(given + 1, 0))
    found = np.where(given > mean[-1], strong, np.interp(given, mean, ratio))
    return np.where(there, found * sigma, means).astype(means.dtype, copy=False)


def variances(means: Array) -> Array:
    """Return the variances of magnitudes from estimates of their means, for noise of level 1.

    Below the mean of noise alone, a line continues them, so that errors of the means do not increase their average.
    """
    _, mean, of_mean = _table()
    slope = (of_mean[1] - of_mean[0]) / (mean[1] - mean[0])
    found: Array = np.interp(means, mean, of_mean) + slope * np.minimum(means - mean[0], 0)
    return found


def level_of(means: Array, variance: float, rank: int) -> float:
    """Return the level sigma of the noise of magnitudes from estimates of their means and their mean variance.

    Where all are noise, the ratio of mean and deviation shows the amplitude badly, since it hardly increases with it.
    So if there is no signal but one mean, and this ratio is compatible with noise alone, noise alone is assumed.

    Parameters
    ----------
    means : array
    variance : float
    rank : int
        Number of components of the means.
    """
    mean = math.sqrt(math.pi / 2)
    most = sigma = math.sqrt(variance / LEAST_VARIANCE)
    error = math.sqrt((0.5 + LEAST_VARIANCE / mean**2) / means.size)
    if rank <= 1 and means.mean() / most < mean * (1 + _ERRORS * error):
        return most
    counts, edges = np.histogram(means, _BINS)
    middles = (edges[1:] + edges[:-1]) / 2
    for _ in range(_STEPS):
        share = max(float(counts @ variances(middles / sigma)) / means.size, LEAST_VARIANCE)
        before, sigma = sigma, min(most, math.sqrt(variance / share))
        if abs(sigma - before) <= _CLOSE * sigma:
            break
    return sigma
