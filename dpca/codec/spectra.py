"""Cosine transforms of components over their cell. Components of images are smooth and have few large coefficients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from scipy.fft import dctn, idctn

from dpca.kernels.algebra.types import Array, blocks
from dpca.partition.cells import CellGrid

# Upper limit of the values of the groups that are processed together, unless one group has more.
_VALUES = 2**18


def lengths_of(grid: CellGrid, group: Array) -> list[tuple[int, ...]]:
    """Return the lengths of the cells of each group, along all axes."""
    at = np.unravel_index(np.unique(group, return_index=True)[1], grid.grid_shape)
    sizes = zip(at, grid.cell_shape, grid.sample_shape, strict=False)
    spatial = [np.minimum(cell, size - i * cell).tolist() for i, cell, size in sizes]
    return [(*lengths, *grid.channel_shape) for lengths in zip(*spatial, strict=True)]


def alike(shapes: Iterable[tuple[int, ...]]) -> Iterator[Array]:
    """Yield positions of equal shapes, a limited number at a time: calls for each of many small cells take long."""
    positions: dict[tuple[int, ...], list[int]] = {}
    for i, shape in enumerate(shapes):
        positions.setdefault(shape, []).append(i)
    for shape, found in positions.items():
        for few in blocks(len(found), max(1, _VALUES // max(1, math.prod(shape)))):
            yield np.array(found[few])


def stacked(arrays: Sequence[Array], few: Array) -> Array:
    """Return those of the arrays at a few positions along a new first axis. A single one is not copied."""
    return arrays[few[0]][None] if len(few) == 1 else np.stack([arrays[i] for i in few])


def to_spectrum(rows: Array, lengths: tuple[int, ...]) -> Array:
    """Return the cosine transforms (..., n_features) of rows over a cell: type II along all axes, orthonormal."""
    found: Array = dctn(rows.reshape(-1, *lengths), axes=range(1, 1 + len(lengths)), norm="ortho")
    return found.reshape(rows.shape)


def from_spectrum(spectrum: Array, lengths: tuple[int, ...]) -> Array:
    """Invert `to_spectrum`."""
    found: Array = idctn(spectrum.reshape(-1, *lengths), axes=range(1, 1 + len(lengths)), norm="ortho")
    return found.reshape(spectrum.shape)


def length_in_bits(values: Array) -> Array:
    """Estimate the bits of values (..., n) as integers, summed over the last axis."""
    return np.log2(1 + 2 * np.abs(values)).sum(axis=-1)
