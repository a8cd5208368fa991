"""Arithmetic whose bits are those of every machine and every version of numpy.

Words of a counter-based generator are integers that its authors fixed (Philox 4x64-10: Salmon, Moraes, Dror & Shaw
2011). Of floating-point numbers only ``+ - * /`` and square roots, one operation at a time: IEEE 754 rounds them
correctly, whereas a sum of many, a cosine or a power may differ in the last bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Variance of `bells`.
BELL_VARIANCE = 4 * (2**16 - 1) / 12
#: No bell is farther from 0.
BELL_MOST = 510
# A Philox counter stands for so many words.
_BLOCK = 4
# Taylor's coefficients of cos(2 pi t) in t^2, up to a quarter of a turn.
_COSINE = (
    *(1.0, -19.739208802178716, 64.93939402266828, -85.45681720669371),
    *(60.24464137187664, -26.426256783374388, 7.903536371318465, -1.7143907110886711),
)


def words(seed: int, stream: int, first: int, n: int, each: int = _BLOCK) -> NDArray[np.uint64]:
    """Return random words of things that are counted, shape (n, each).

    Parameters
    ----------
    seed : int
        From 0 to 2**64 - 1.
    stream : int
        Streams of one seed are independent of each other.
    first, n : int
        Number of the first thing, and how many there are; the words of a thing follow from its number alone.
    each : int
        Words of a thing, a multiple of 4.
    """
    generator = np.random.Philox(counter=first * (each // _BLOCK), key=seed + (stream << 64))
    return np.asarray(generator.random_raw(n * each)).reshape(n, each)


def octets(found: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return words as their bytes, the lowest first: eight times as many along the last axis."""
    return found.astype("<u8", copy=False).view(np.uint8)


def bells(found: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return random integers that are nearly normal: sums of four random bytes less their mean.

    Parameters
    ----------
    found : ndarray of uint8, shape (..., 4 m)

    Returns
    -------
    ndarray of float32, shape (..., m)
        Of mean 0 and variance `BELL_VARIANCE`, exactly; of excess kurtosis -0.3.
    """
    four = found.reshape(*found.shape[:-1], -1, 4)
    total = four[..., 0].astype(np.int16)
    for i in (1, 2, 3):
        total += four[..., i]
    return (total - np.int16(BELL_MOST)).astype(np.float32)


def cosine(turns: Floats) -> Floats:
    """Return cos(2 pi turns), with an error below 1e-9."""
    # |t| <= 1/2, then its mirror image about a quarter: the polynomial meets |t| <= 1/4 only
    t = np.abs(turns - np.rint(turns))
    far = t > 0.25
    t = np.where(far, 0.5 - t, t)
    square = t * t
    value = np.full_like(t, _COSINE[-1])
    for coefficient in reversed(_COSINE[:-1]):
        value = value * square + coefficient
    return np.where(far, -value, value)


def places(length: int) -> Floats:
    """Return the centers of so many cells between -1 and 1."""
    return (2 * np.arange(length, dtype=np.float64) + (1 - length)) / length
