"""Compiled loops that code masks, an arithmetic coder of bits.

Import this module only in functions that need it; see `dpca.kernels.compiled`.
"""

from __future__ import annotations

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.kernels.compiled import compiled

# The leading byte of the interval is written when it no longer changes. An interval below _SHORT is cut at the border
# of the byte instead, so that no carry reaches a byte that was written. Sums of counts stay below _MOST, much shorter.
_BYTE, _SHORT, _ALL, _MOST = 2**24, 2**16, 2**32 - 1, 2**14
_CONTEXTS = 2**11


@compiled
def _context(m: Array, t: int, y: int, x: int) -> int:
    """Return the earlier neighbors of a bit of a padded mask as an integer: in its sample and in the one before."""
    return (
        (m[t, y, x - 1] << 0)
        | (m[t, y, x - 2] << 1)
        | (m[t, y - 1, x] << 2)
        | (m[t, y - 1, x - 1] << 3)
        | (m[t, y - 1, x + 1] << 4)
        | (m[t, y - 2, x] << 5)
        | (m[t - 1, y, x] << 6)
        | (m[t - 1, y, x + 1] << 7)
        | (m[t - 1, y + 1, x] << 8)
        | (m[t - 1, y, x - 1] << 9)
        | (m[t - 1, y - 1, x] << 10)
    )


@compiled
def _count(counts: Array, context: int, bit: int) -> None:
    """Count a bit. Counts are halved when they are large, so that recent bits weigh more."""
    counts[context, bit] += 2
    if counts[context, 0] + counts[context, 1] >= _MOST:
        counts[context, 0] = (counts[context, 0] + 1) // 2
        counts[context, 1] = (counts[context, 1] + 1) // 2


@compiled
def _settled(low: int, length: int) -> int:
    """Return the length of an interval whose leading byte no longer changes, which may be cut for that; otherwise 0."""
    if low // _BYTE == (low + length) // _BYTE:
        return length
    return 0 if length >= _SHORT else _SHORT - low % _SHORT


@compiled
def encode(mask: Array, out: Array) -> bool:
    """Write a padded mask to ``out``, from byte 1 on; return False if it has too few bytes."""
    counts = np.ones((_CONTEXTS, 2), np.int64)
    low, length, at = np.int64(0), np.int64(_ALL), 1
    for t in range(1, mask.shape[0]):
        for y in range(2, mask.shape[1] - 1):
            for x in range(2, mask.shape[2] - 2):
                context, bit = _context(mask, t, y, x), mask[t, y, x]
                unit = length // (counts[context, 0] + counts[context, 1])
                if bit:
                    low += unit * counts[context, 0]
                length = unit * counts[context, bit]
                _count(counts, context, bit)
                settled = _settled(low, length)
                while settled:
                    if at == len(out):
                        return False
                    out[at] = low // _BYTE
                    at += 1
                    low, length = (low * 256) & _ALL, (settled * 256) & _ALL
                    settled = _settled(low, length)
    # One byte more than the bytes in which all numbers of the interval agree; zeros follow.
    for size in range(5):
        unit = 1 << (32 - 8 * size)
        first = -(-low // unit) * unit
        if first < low + length:
            if at + size > len(out):
                return False
            for i in range(size):
                out[at + i] = (first >> (24 - 8 * i)) & 255
            return True
    return False


@compiled
def decode(coded: Array, mask: Array) -> None:
    """Overwrite a padded mask with that of bytes from 1 on; zeros follow the last byte."""
    counts = np.ones((_CONTEXTS, 2), np.int64)
    low, length, at, value = np.int64(0), np.int64(_ALL), 1, np.int64(0)
    for _ in range(4):
        value = value * 256 + (coded[at] if at < len(coded) else 0)
        at += 1
    for t in range(1, mask.shape[0]):
        for y in range(2, mask.shape[1] - 1):
            for x in range(2, mask.shape[2] - 2):
                context = _context(mask, t, y, x)
                unit = length // (counts[context, 0] + counts[context, 1])
                bit = 1 if ((value - low) & _ALL) >= unit * counts[context, 0] else 0
                if bit:
                    low += unit * counts[context, 0]
                length = unit * counts[context, bit]
                mask[t, y, x] = bit
                _count(counts, context, bit)
                settled = _settled(low, length)
                while settled:
                    low, length = (low * 256) & _ALL, (settled * 256) & _ALL
                    value = ((value * 256) & _ALL) + (coded[at] if at < len(coded) else 0)
                    at += 1
                    settled = _settled(low, length)
