"""Block cosine transform, and the mean and variance of every coefficient: the baseline without learned bases."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import scipy.fft
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.rules.base.state import State
from dpca.rules.covariance.moments import Moments

_BLOCK_ROWS = 64


def block_dct(samples: Array, cell_shape: tuple[int, ...], *, across_channels: bool, out: Array | None = None) -> Array:
    """Transform every cell of some samples (DCT-II, orthonormal; Alakkari 2020, section 2.5.2, Wallace 1992).

    Parameters
    ----------
    samples : array (n, *spatial, *channels), float32 or float64
    cell_shape : tuple of int
        Length of a cell along each spatial axis. Cells at the far edges are smaller, and so is their transform.
    across_channels : bool
        Also transform along the channels, which separates their common part from their differences; otherwise every
        channel is transformed by itself.
    out : array of the same shape and dtype, optional

    Returns
    -------
    array of the same shape and dtype
        The coefficients of every cell at the position of the cell, low frequencies first along each axis.
    """
    coefficients = np.empty_like(samples) if out is None else out
    n_spatial, channels = len(cell_shape), samples.shape[1 + len(cell_shape) :]
    axes = [2 + 2 * axis for axis in range(n_spatial)]
    if across_channels:
        axes += [1 + 2 * n_spatial + axis for axis in range(len(channels))]
    cuts = [_whole_and_rest(length, cell) for length, cell in zip(samples.shape[1:], cell_shape, strict=False)]
    for part in itertools.product(*cuts):
        where = (slice(None), *(slice(start, stop) for start, stop, _ in part))
        cells = [length for start, stop, cell in part for length in ((stop - start) // cell, cell)]
        block = samples[where]
        split = block.reshape(len(samples), *cells, *channels)
        coefficients[where] = scipy.fft.dctn(split, axes=axes, norm="ortho").reshape(block.shape)
    return coefficients


def cell_waves(cell_shape: tuple[int, ...], channel_shape: tuple[int, ...], *, across_channels: bool) -> Array:
    """Return the orthonormal basis of `block_dct` for one cell.

    Returns
    -------
    array (d, d), float64
        Row j is the flattened cell with coefficient 1 at the flat index j and 0 elsewhere.
    """
    shape = (*cell_shape, *channel_shape)
    d = int(np.prod(shape))
    axes = range(1, 1 + len(shape if across_channels else cell_shape))
    waves: Array = scipy.fft.idctn(np.eye(d).reshape(d, *shape), axes=axes, norm="ortho").reshape(d, d)
    return waves


def low_frequencies(cell_shape: tuple[int, ...], channel_shape: tuple[int, ...]) -> Array:
    """Return the flat indices of the coefficients of a cell, low frequencies first.

    The order is JPEG's zigzag, except for the direction of its turns: by the sum of the indices along the spatial axes,
    ties in the order of the array, with the channels of a frequency together.
    """
    spatial = np.indices(cell_shape).reshape(len(cell_shape), -1).sum(axis=0)
    channels = int(np.prod(channel_shape))
    return (np.argsort(spatial, kind="stable")[:, None] * channels + np.arange(channels)).ravel()


@dataclass(frozen=True)
class BlockDCTMoments(Moments):
    """Mean and variance of every coefficient of the block cosine transform, in one pass.

    The transform is orthonormal: the sum of the variances of a cell's coefficients is that of its attributes, and the
    mean squared error of a set of coefficients is the variance of the others.

    Parameters
    ----------
    sample_shape : tuple of int
        Shape of the samples, which are given as rows.
    cell_shape, across_channels
        As in `block_dct`.

    Results of ``finish``: ``mean`` and ``variance`` (divisor n - 1), float64, shape (n_features,), at the positions
    of `block_dct`. Costs O(n d log c) time for cells of c attributes.
    """

    sample_shape: tuple[int, ...]
    cell_shape: tuple[int, ...]
    across_channels: bool = False

    stackable = False

    def _take(self, state: State, batch: Array) -> None:
        dtype = working_dtype(batch.dtype)
        for start in range(0, len(batch), _BLOCK_ROWS):
            rows = batch[start : start + _BLOCK_ROWS]
            shape = (len(rows), *self.sample_shape)
            x = linalg.scratch("dct samples", shape, dtype)
            np.copyto(x.reshape(rows.shape), rows)
            found = linalg.scratch("dct coefficients", shape, dtype)
            block_dct(x, self.cell_shape, across_channels=self.across_channels, out=found)
            super()._take(state, found.reshape(rows.shape))

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Bytes of temporary arrays in an update: samples, their cells in C order, coefficients twice."""
        rows = min(n_rows, _BLOCK_ROWS)
        transform = 4 * rows * n_features * working_dtype(dtype).itemsize
        return transform + super().work_bytes(rows, n_features, dtype)


def _whole_and_rest(length: int, cell: int) -> list[tuple[int, int, int]]:
    """Return runs (start, stop, cell) of an axis: the whole cells, and the rest as a smaller one."""
    whole = length // cell * cell
    runs = [(0, whole, cell), (whole, length, length - whole)]
    return [(start, stop, size) for start, stop, size in runs if stop > start]
