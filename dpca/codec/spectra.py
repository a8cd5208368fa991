"""Cosine transforms of components over their cell. Components of images are smooth and have few large coefficients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.fft import dctn, idctn

from dpca.kernels.algebra.types import Array
from dpca.partition.cells import CellGrid


def lengths_of(grid: CellGrid, group: Array) -> Iterator[tuple[int, ...]]:
    """Yield the lengths of the cells of each group, along all axes."""
    for cell in np.unique(group, return_index=True)[1].tolist():
        yield tuple(stop - start for start, stop in grid.box(cell))


def to_spectrum(rows: Array, lengths: tuple[int, ...]) -> Array:
    """Return the cosine transforms (n, n_features) of rows over a cell: type II along all axes, orthonormal."""
    found: Array = dctn(rows.reshape(-1, *lengths), axes=range(1, 1 + len(lengths)), norm="ortho")
    return found.reshape(rows.shape)


def from_spectrum(spectrum: Array, lengths: tuple[int, ...]) -> Array:
    """Invert `to_spectrum`."""
    found: Array = idctn(spectrum.reshape(-1, *lengths), axes=range(1, 1 + len(lengths)), norm="ortho")
    return found.reshape(spectrum.shape)


def length_in_bits(values: Array) -> Array:
    """Estimate the bits of values (..., n) as integers, summed over the last axis."""
    return np.log2(1 + 2 * np.abs(values)).sum(axis=-1)
