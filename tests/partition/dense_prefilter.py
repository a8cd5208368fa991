"""The prefilter as a matrix, from its published definition written out; nothing is shared with what is tested."""

from __future__ import annotations

from functools import reduce

import numpy as np

Array = np.ndarray


def dct2(n: int) -> Array:
    """Rows are the orthonormal basis of the DCT-II."""
    scale = np.where(np.arange(n) == 0, np.sqrt(1 / n), np.sqrt(2 / n))
    return np.array([[scale[k] * np.cos(np.pi * k * (j + 0.5) / n) for j in range(n)] for k in range(n)])


def dct4(n: int) -> Array:
    """Rows are the orthonormal basis of the DCT-IV."""
    return np.array([[np.sqrt(2 / n) * np.cos(np.pi * (k + 0.5) * (j + 0.5) / n) for j in range(n)] for k in range(n)])


def zone(h: int) -> Array:
    """1/2 W diag(I, V) W with W = [I J; J -I] and V = J C2^T C4 J."""
    i, j = np.eye(h), np.fliplr(np.eye(h))
    w = np.block([[i, j], [j, -i]])
    v = j @ dct2(h).T @ dct4(h) @ j
    return w @ np.block([[i, np.zeros((h, h))], [np.zeros((h, h)), v]]) @ w / 2


def along_axis(size: int, cell: int, overlap: int) -> Array:
    """P of one axis (size, size)."""
    p = np.eye(size)
    for border in range(cell, size, cell):
        h = min(overlap, cell // 2, min(cell, size - border) // 2)
        if h:
            p[border - h : border + h, border - h : border + h] = zone(h)
    return p


def dense_prefilter(shape: tuple[int, ...], cell: tuple[int, ...], overlap: int) -> Array:
    """P of flattened samples (d, d): x -> P x."""
    axes = [along_axis(size, c, overlap) for size, c in zip(shape, cell, strict=False)]
    return reduce(np.kron, [*axes, np.eye(int(np.prod(shape[len(cell) :])))])
