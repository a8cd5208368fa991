"""Arithmetic with bit-identical results on every machine and with every version of NumPy.

Random words are the integers of a counter-based generator, which its authors specified (Philox 4x64-10: Salmon, Moraes,
Dror & Shaw 2011). Floating-point operations are only ``+ - * /`` and square roots, one at a time, which IEEE 754 rounds
correctly. A sum of many numbers, a cosine or a power may differ in the last bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Variance of `bells`.
BELL_VARIANCE = 4 * (2**16 - 1) / 12
#: Largest absolute value of `bells`.
BELL_MOST = 510
# Words per value of the counter of Philox.
_BLOCK = 4
# Coefficients of the Taylor series of cos(2 pi t) in t^2, for up to a quarter of a turn.
_COSINE = (
    *(1.0, -19.739208802178716, 64.93939402266828, -85.45681720669371),
    *(60.24464137187664, -26.426256783374388, 7.903536371318465, -1.7143907110886711),
)


def words(seed: int, stream: int, first: int, n: int, each: int = _BLOCK) -> NDArray[np.uint64]:
    """Return the random words of consecutive items, such as samples, shape (n, each).

    Parameters
    ----------
    seed : int
        From 0 to 2**64 - 1.
    stream : int
        Streams of one seed are independent of each other.
    first, n : int
        Number of the first item, and number of items. The words of an item depend only on its number.
    each : int
        Words per item, a multiple of 4.
    """
    generator = np.random.Philox(counter=first * (each // _BLOCK), key=seed + (stream << 64))
    return np.asarray(generator.random_raw(n * each)).reshape(n, each)


def octets(found: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the bytes of words, the lowest first: eight times as many along the last axis."""
    return found.astype("<u8", copy=False).view(np.uint8)


def bells(found: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return random integers with a nearly normal distribution: sums of four random bytes, minus their mean.

    Parameters
    ----------
    found : ndarray of uint8, shape (..., 4 m)

    Returns
    -------
    ndarray of float32, shape (..., m)
        The mean is 0 and the variance is `BELL_VARIANCE`, exactly. The excess kurtosis is -0.3.
    """
    four = found.reshape(*found.shape[:-1], -1, 4)
    total = four[..., 0].astype(np.int16)
    for i in (1, 2, 3):
        total += four[..., i]
    return (total - np.int16(BELL_MOST)).astype(np.float32)


def cosine(turns: Floats) -> Floats:
    """Return cos(2 pi turns), with an error below 1e-9."""
    # Mirrored at a quarter of a turn, so that the polynomial is evaluated for |t| <= 1/4 only.
    t = np.abs(turns - np.rint(turns))
    far = t > 0.25
    t = np.where(far, 0.5 - t, t)
    square = t * t
    value = np.full_like(t, _COSINE[-1])
    for coefficient in reversed(_COSINE[:-1]):
        value = value * square + coefficient
    return np.where(far, -value, value)


def places(length: int) -> Floats:
    """Return the centers of ``length`` equal cells between -1 and 1."""
    return (2 * np.arange(length, dtype=np.float64) + (1 - length)) / length
