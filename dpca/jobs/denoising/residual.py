"""The residual, what was removed from samples in standard deviations of the noise: whether it looks like noise.

Noise that is independent between pixels and samples has the same power at all spatial frequencies, no correlation with
its neighbors, and in no cell a component above its edge (Marchenko & Pastur 1967). Signal that was removed has. Some
samples and a box in their middle show it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from scipy.fft import fftn, fftshift

from dpca.choices import RICIAN
from dpca.kernels.algebra.types import Array, Region
from dpca.models.cells.rank import noise_edge
from dpca.models.denoising.magnitudes import magnitudes, variances
from dpca.models.denoising.shrinkage import LEAST_VALUES
from dpca.partition.shifted import ShiftedGrids
from dpca.storage.arrays.layout import count_spatial
from dpca.storage.stack import Stack

# Consecutive samples, and values of all of them, that are read. Largest distance of correlated neighbors.
_SAMPLES, _VALUES, _LAGS = 256, 2**23, 16
# Values of a block of spectra.
_BLOCK = 2**20
# Noise is not correlated if the correlation between direct neighbors is at most this, or at most so many errors.
_CORRELATED, _ERRORS = 0.05, 4
# Cells that are looked at. A component of noise is less than this multiple of the edge, up to this share of the cells.
_CELLS, _ABOVE, _SHARE = 64, 1.15, 0.02
_TIME = "samples"


@dataclass(frozen=True)
class Residual:
    """The residual of some samples.

    Parameters
    ----------
    shape : tuple of int
        Shape of the values that were looked at, samples first.
    variance : float
        Mean square, in variances of the noise. It is below 1 by the share of the noise that is left in the samples.
    power : array
        Power by spatial frequency along the last two spatial axes (or one), 0 in the middle, of mean 1.
    above : float
        Share of the cells in which the residual has a component above the noise; NaN if all cells are too small.
    correlations : mapping of str to array
        Correlation with the neighbors at distances of 1, 2, ... along samples and each spatial axis.
    pairs : mapping of str to int
        Number of direct neighbors.
    """

    shape: tuple[int, ...]
    variance: float
    power: Array
    above: float
    correlations: Mapping[str, Array]
    pairs: Mapping[str, int]

    @property
    def verdict(self) -> str:
        """One sentence that says whether the residual looks like noise."""
        if not self.variance:
            return "Nothing was removed where the residual was measured"
        if math.isnan(self.above):
            return (
                f"The residual is too small to look like noise or signal: that takes {LEAST_VALUES} samples, and cells "
                f"of {LEAST_VALUES} values with noise"
            )
        strong = {
            name: float(along[0])
            for name, along in self.correlations.items()
            if along[0] > max(_CORRELATED, _ERRORS / math.sqrt(self.pairs[name]))
        }
        above = f"in {self.above:.0%} of the cells it has components above the noise" if self.above > _SHARE else ""
        if not strong and not above:
            return "The residual looks like noise: it has no correlated neighbors, and no component above the noise"
        along = " and ".join(f"{value:.2f} along {name}" for name, value in strong.items())
        found = ", and ".join(filter(None, (above, f"neighbors are correlated by {along}" if along else "")))
        correlated = (
            "the noise is not independent between pixels and samples (denoise before other steps of processing)"
        )
        removed = "signal was removed (let the noise be estimated, or give less of it)"
        cause = " or ".join([*([removed] if above else []), *([correlated] if along else [])])
        return f"The residual does not look like noise: {found}, so {cause}"


def residual_of(stack: Stack, clean: Any, sigma: Array, noise: str, cell_shape: tuple[int, ...]) -> Residual:
    """Return the residual of a denoised stack, from a run of samples and a box in their middle.

    Parameters
    ----------
    stack : Stack
        The samples with noise.
    clean : array_like (n_samples, *sample_shape)
        The denoised samples.
    sigma : array (*sample_shape)
        Standard deviation of the noise; 0 where values are constant.
    noise : str
        Kind of the noise. Magnitudes with Rician noise have a larger mean, and less noise, than where signal is strong.
    cell_shape : tuple of int
        Lengths of a cell.
    """
    n_spatial = count_spatial(stack.axes[1:])
    region = _middle(stack.shape, n_spatial)
    place = tuple(slice(start, stop) for start, stop in region)
    level = sigma[place[1:]].astype(np.float32)
    there = level > 0
    scale = np.where(there, level, 1)
    expected = np.asarray(clean[place], np.float32)
    if noise == RICIAN:
        expected = magnitudes(expected, scale)
        scale = scale * np.sqrt(variances(expected / scale)).astype(np.float32)
    values = np.where(there, (np.asarray(stack.samples[place], np.float32) - expected) / scale, 0)
    count = len(values) * int(there.sum())
    variance = float(np.square(values, dtype=np.float64).sum()) / max(count, 1)
    names = (_TIME, *stack.axes[1 : 1 + n_spatial])
    correlations, pairs = {}, {}
    for axis, name in enumerate(names):
        mask = np.broadcast_to(there, values.shape)
        lags = range(1, min(_LAGS, values.shape[axis] // 2) + 1)
        found = list(takewhile(lambda one: one[1], (_product(values, mask, axis, lag) for lag in lags)))
        if found and variance:
            correlations[name] = np.array([total / number / variance for total, number in found])
            pairs[name] = found[0][1]
    above = _above(values, cell_shape) if variance else 0.0
    return Residual(values.shape, variance, _power(values, n_spatial), above, correlations, pairs)


def _middle(shape: tuple[int, ...], n_spatial: int) -> Region:
    """Return a run of samples, and a box of their spatial axes, in the middle of a stack."""
    rows = min(shape[0], _SAMPLES)
    channels = math.prod(shape[1 + n_spatial :])
    edge = max(8, int((_VALUES / rows / channels) ** (1 / n_spatial)))
    lengths = (rows, *(min(edge, length) for length in shape[1 : 1 + n_spatial]), *shape[1 + n_spatial :])
    return tuple(((whole - part) // 2, (whole - part) // 2 + part) for whole, part in zip(shape, lengths, strict=True))


def _product(values: Array, mask: Array, axis: int, lag: int) -> tuple[float, int]:
    """Return the summed products of neighbors at a distance along an axis, and their number."""
    first = tuple(slice(None, -lag) if i == axis else slice(None) for i in range(values.ndim))
    second = tuple(slice(lag, None) if i == axis else slice(None) for i in range(values.ndim))
    return float(np.vdot(values[first], values[second])), int((mask[first] & mask[second]).sum())


def _above(values: Array, cell_shape: tuple[int, ...]) -> float:
    """Return the share of cells with a component above the edge of noise."""
    boxes = ShiftedGrids(values.shape[1:], cell_shape, False).boxes
    found = []
    for box in boxes[:: -(-len(boxes) // _CELLS)]:
        x = values[(slice(None), *(slice(start, stop) for start, stop in box))].reshape(len(values), -1)
        x = x[:, x.any(axis=0)].astype(np.float64)
        if min(x.shape) >= LEAST_VALUES:
            short, longer = sorted(x.shape)
            largest = np.linalg.eigvalsh(x @ x.T if short == len(x) else x.T @ x)[-1]
            found.append(largest > _ABOVE * noise_edge(float(np.sqrt(np.mean(x**2))), short, longer))
    return float(np.mean(found)) if found else math.nan


def _power(values: Array, n_spatial: int) -> Array:
    """Return the mean power of all images, or of all vectors, by frequency."""
    axes = tuple(range(values.ndim))[max(1, n_spatial - 1) : 1 + n_spatial]
    total = np.zeros(tuple(values.shape[axis] for axis in axes))
    others = tuple(axis for axis in range(values.ndim) if axis not in axes)
    rows = max(1, _BLOCK // math.prod(values.shape[1:]))
    for start in range(0, len(values), rows):
        total += np.square(np.abs(fftn(values[start : start + rows], axes=axes))).sum(axis=others)
    mean = total.mean()
    return fftshift(total / mean if mean else total)
