"""The offset of a camera, from the noise of cells of different brightness.

The variance of the noise of a camera is gain * (mean - offset) + read_noise**2, a line in the mean. Cells show their
mean and, without their signal, their variance. The line through them is 0 at offset - read_noise**2 / gain: mean and
variance cannot tell the read noise from the offset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpca.engine.sources.held_out import repeated, spread_runs
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.denoising.filters import NOISE, FilterWriter
from dpca.storage.errors import DataError

#: Samples, spread over the stack, from which the offset is estimated: the noise of a cell of 64 values is then known to
#: a percent.
MOST_SAMPLES = 512
# With fewer cells, a line through them has no measure of its error.
_LEAST_CELLS = 8
# Standard errors within which a value is compatible with 0.
_ERRORS = 3
# Repetitions of the weighted fit, and the width of its weights (Tukey's biweight, 95 % efficient for Gaussian errors).
_STEPS, _WIDTH = 30, 4.685
# Standard deviation of Gaussian errors whose median absolute value is 1; relative difference of values that count as
# equal; and the smallest variance, as a share of the median, that the errors of the line are relative to.
_DEVIATION, _CLOSE, _LEAST = 1.4826, 1e-9, 1e-3


@dataclass(frozen=True)
class CellNoise(FilterWriter):
    """Results are ``mean`` () and ``level`` () of cells: the mean of the attributes that vary, and their noise."""

    def write_all(self, parts: Sequence[int], results: Sequence[dict[str, Array]]) -> list[dict[str, Array]]:
        """Return mean and noise of cells."""
        means = [result["rows"].mean(axis=0) if "rows" in result else result["mean"] for result in results]
        found = super().write_all(parts, results)
        for one, mean in zip(found, means, strict=True):
            varies = one["filter"][NOISE] > 0
            one["filter"] = one["filter"][:0]
            one["mean"] = np.asarray(mean[varies].mean() if varies.any() else 0)
        return found


def some_samples(source: Source) -> Source:
    """Return the samples of a source from which the offset is estimated."""
    n = source.shape[0]
    if n <= MOST_SAMPLES:
        return source
    counts = np.zeros(n, np.int64)
    counts[spread_runs(n, source.chunks[0], MOST_SAMPLES, np.random.default_rng(0))] = 1
    return repeated(source, counts)


def offset_of(cells: Sequence[dict[str, Array]], gain: float | None, read_noise: float) -> float:
    """Return the offset of a camera; 0 where it is compatible with the noise of the cells.

    A line through mean and variance of the noise of cells, fitted by iteratively reweighted least squares (Tukey's
    biweight), because the signal of some cells is taken for noise.

    Parameters
    ----------
    cells : sequence of dict
        Results of `CellNoise`.
    gain : float or None
        Slope of the line; None estimates it, too.
    read_noise : float
        Part of the noise that is not of the offset. 0 if it is unknown: then it lowers the offset.

    Raises
    ------
    DataError
        If the noise does not increase with the mean.
    """
    points = np.array([(cell["mean"], cell["level"] ** 2) for cell in cells if cell["level"] > 0]).reshape(-1, 2)
    if len(points) < _LEAST_CELLS:
        return 0.0
    mean, variance = points.T
    if gain is None and np.ptp(mean) <= _CLOSE * float(np.abs(mean).max()):
        return 0.0
    columns = np.column_stack([np.ones(len(mean)), mean][: 2 if gain is None else 1])
    known = read_noise**2 + (0 if gain is None else gain) * mean
    weight, least = np.ones(len(mean)), _LEAST * float(np.median(variance))
    for _ in range(_STEPS):
        found = columns @ (line := _solved(columns, weight, variance - known)) + known
        scale = np.maximum(found, least)
        residual = (variance - found) / scale
        spread = max(_DEVIATION * float(np.median(np.abs(residual))), _CLOSE)
        weight = (1 - np.clip(residual / (_WIDTH * spread), -1, 1) ** 2) ** 2 / scale**2
    covariance = spread**2 * np.linalg.inv((columns * weight[:, None]).T @ columns)
    errors = np.sqrt(covariance.diagonal())
    if abs(line[0]) <= _ERRORS * errors[0]:
        return 0.0
    if gain is None and line[1] <= _ERRORS * errors[1]:
        raise DataError(
            f"the variance of the noise is {found[mean.argmin()]:.4g} in cells with a mean of {mean.min():.4g}, and "
            f"{found[mean.argmax()]:.4g} with {mean.max():.4g}, but noise of photons increases with the mean: give "
            f"noise='gaussian', or offset"
        )
    slope = float(line[1]) if gain is None else gain
    # Digits beyond the error would only show the order of the sums.
    zero = round(-float(line[0]) / slope, 2 - math.floor(math.log10(errors[0] / slope)))
    return min(zero, float(mean.min()))  # no cell is darker than without light


def _solved(columns: Array, weight: Array, values: Array) -> Array:
    roots = np.sqrt(weight)
    found: Array = np.linalg.lstsq(columns * roots[:, None], values * roots, rcond=None)[0]
    return found
