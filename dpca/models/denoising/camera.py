"""The offset of a camera, from the noise of attributes of different brightness.

The variance of the noise of a camera is gain * (mean - offset) + read_noise**2, a line in the mean. The line is 0 at
offset - read_noise**2 / gain: mean and variance cannot tell the read noise from the offset.

Without the components of its cell, an attribute has a residual that is a known mixture of the noise of the cell. Its
variance is the same mixture of the variances of the noise. The mixture of a line is again a line, so that residuals are
points on the line of the camera, at the mixture of the means. Attributes differ in their noise, so components are those
of values divided by its standard deviation, which is the residual's in a first step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpca.choices import PLAIN
from dpca.engine.sources.held_out import repeated, spread_runs
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.denoising.filters import FilterWriter
from dpca.models.denoising.shrinkage import LEAST_VALUES
from dpca.models.denoising.signals import Cells, Signal, those
from dpca.storage.errors import DataError

#: Samples, spread over the stack, from which the offset is estimated: the noise of a cell of 64 values is then known to
#: a percent.
MOST_SAMPLES = 512
#: Lengths of its cells by the number of spatial axes: small ones are solved faster.
LENGTHS = {1: 16, 2: 6, 3: 3}
# Attributes of a cell are grouped by their mean, up to this many groups. The mean of a group is that of samples with
# noise: if noise is a larger share of the variance of the means, the cell is a single group.
_GROUPS, _MOST_NOISE = 8, 0.02
# Means are compared in units of their magnitude times this power of 2, so that rounding errors change no order.
_DIGITS = -18
# Groups of attributes that keep a smaller share of their noise show it badly.
_LEAST_SHARE = 0.1
# Noise is a rounding error below this share of the squares of values.
_NOTHING = 1e-11
# Least noise of an attribute, as a share of the median variance of its cell: components can have all of its values.
_LEAST_NOISE = 0.05
# With fewer points, a line through them has no measure of its error.
_LEAST_POINTS = 8
# Standard errors within which a value is compatible with 0.
_ERRORS = 3
# Repetitions of the weighted fit, and the width of its weights (Tukey's biweight, 95 % efficient for Gaussian errors).
_STEPS, _WIDTH = 30, 4.685
# Standard deviation of Gaussian errors whose median absolute value is 1; relative difference of values that count as
# equal; the smallest variance, as a share of the median, that the errors of the line are relative to; and the smallest
# magnitude of a mean.
_DEVIATION, _CLOSE, _LEAST, _TINY = 1.4826, 1e-9, 1e-3, 1e-300

#: Facts of a camera: attributes of `Denoiser` without their underscore.
FACTS = ("gain", "offset", "offset_error")


@dataclass(frozen=True)
class CellNoise(FilterWriter):
    """Results are ``points`` (k, 3) of cells: mean, variance of the noise, and its number of degrees of freedom."""

    def summary(self, result: dict[str, Array]) -> dict[str, Array]:
        """Return no points."""
        return {"points": np.zeros((0, 3))}

    def _made(self, parts: Sequence[int], stacks: dict[str, Array]) -> list[dict[str, Array]]:
        found = [self.summary({}) for _ in parts]
        for cells, _, of, given in self._varying(parts, stacks):
            for at, points in _points(given) if of.any() else ():
                for i, one in zip(cells[at].tolist(), points, strict=True):
                    found[i]["points"] = one[one[:, 2] > 0]
        return found


def some_samples(source: Source) -> Source:
    """Return the samples of a source from which the offset is estimated."""
    n = source.shape[0]
    if n <= MOST_SAMPLES:
        return source
    counts = np.zeros(n, np.int64)
    counts[spread_runs(n, source.chunks[0], MOST_SAMPLES, np.random.default_rng(0))] = 1
    return repeated(source, counts)


def offset_of(points: Array, gain: float | None, read_noise: float) -> tuple[float, float | None]:
    """Return the offset of a camera, 0 where it is compatible with the noise, and its standard error.

    A line through mean and variance of the noise, fitted by iteratively reweighted least squares (Tukey's biweight),
    because the signal of some cells is taken for noise. The error is None if the noise does not determine the line.

    Parameters
    ----------
    points : array (k, 3)
        Those of `CellNoise`, of all cells.
    gain : float or None
        Slope of the line; None estimates it, too.
    read_noise : float
        Part of the noise that is not of the offset. 0 if it is unknown: then it lowers the offset.

    Raises
    ------
    DataError
        If the noise does not increase with the mean.
    """
    mean, variance, freedom = points.T
    if len(mean) < _LEAST_POINTS or (gain is None and np.ptp(mean) <= _CLOSE * float(np.abs(mean).max())):
        return 0.0, None
    variance, precision = variance - read_noise**2, np.sqrt(freedom / freedom.max())
    certain = math.sqrt(2 / freedom.max())  # of Gaussian noise; few points may agree better by chance
    weight, least = precision**2, _LEAST * float(np.median(variance + read_noise**2))
    for _ in range(_STEPS):
        total = weight.sum()
        center, level = float(weight @ mean / total), float(weight @ variance / total)
        width = max(float(weight @ (mean - center) ** 2), _TINY)
        slope = float(weight @ ((mean - center) * (variance - level))) / width if gain is None else gain
        found = level + slope * (mean - center)
        scale = np.maximum(found + read_noise**2, least) / precision
        residual = (variance - found) / scale
        spread = max(_DEVIATION * float(np.median(np.abs(residual))), certain)
        weight = (1 - np.clip(residual / (_WIDTH * spread), -1, 1) ** 2) ** 2 / scale**2
    # The error of the slope turns the line around its center.
    turned = spread / math.sqrt(width) if gain is None else 0.0
    at_0 = math.hypot(spread / math.sqrt(total), turned * center)
    sure = gain is not None or slope > _ERRORS * turned
    if abs(level - slope * center) <= _ERRORS * at_0:
        return 0.0, at_0 / slope if sure else None
    if not sure:
        raise DataError(
            f"the variance of the noise is {found[mean.argmin()]:.4g} in cells with a mean of {mean.min():.4g}, and "
            f"{found[mean.argmax()]:.4g} with {mean.max():.4g}, but noise of photons increases with the mean, unless "
            f"values are saturated: give noise='gaussian', or offset"
        )
    error = math.hypot(spread / math.sqrt(total), turned * level / slope) / slope
    # Digits beyond the error would only show the order of the sums.
    zero = round(center - level / slope, 2 - math.floor(math.log10(error)))
    return min(zero, float(mean.min())), error  # nothing is darker than without light


def camera_in_words(facts: Mapping[str, Any]) -> str:
    """Return the gain and the offset of a camera in words."""
    error, offset = facts.get("offset_error", 0), f"{facts['offset']:.5g}"
    if error is None:
        offset += " (the noise does not determine it: give it if you know it)"
    return f"gain {facts['gain']:.5g}, offset {offset}" + (f" \N{PLUS-MINUS SIGN} {error:.1g}" if error else "")


def _points(given: Cells) -> Iterator[tuple[Array, Array]]:
    """Yield the numbers of cells of one rank, and points (c, groups, 3), with 0 degrees of freedom for unused ones."""
    scale = np.sqrt(given.variance)
    noise = np.empty_like(scale)
    for one, residual, mixed in _residuals(given, scale):
        at = one.cells
        noise[at] = given.variance[at] * residual / np.maximum(mixed(np.ones(residual.shape)), _LEAST_SHARE)
    least = np.maximum(_LEAST_NOISE * np.median(noise, axis=1, keepdims=True), _NOTHING * given.variance)
    scale = np.sqrt(np.maximum(noise, least))
    for one, residual, mixed in _residuals(given, scale):
        yield one.cells, _grouped(given, scale, one, residual, mixed)


def _residuals(given: Cells, scale: Array) -> Iterator[tuple[Signal, Array, _Mixture]]:
    """Yield for cells of one rank their signal, the variances (c, d) of their residuals, and how noise is mixed there.

    All are of values divided by a scale (c, d).
    """
    given = replace(given, scale=scale)
    n, x = given.n, given.scaled(scale)
    for one in given.signals(x, True, PLAIN):
        at, vectors = one.cells, one.vectors
        center = given.mean[at] / scale[at]
        kept = given.retained(those(x, at), vectors).diagonal(axis1=1, axis2=2)
        energies = (n - 1) * kept + n * np.square(vectors @ center[..., None])[..., 0]
        total = (n - 1) * given.variance[at] / scale[at] ** 2 + n * center**2
        left = total - (energies[:, None] @ vectors**2)[:, 0]
        yield one, np.maximum(left, 0) / max(n - vectors.shape[1], 1), _Mixture(vectors)


@dataclass(frozen=True)
class _Mixture:
    """The variances of the residuals of noise of some variances, both (c, d), without the components (c, r, d)."""

    vectors: Array

    def __call__(self, variances: Array) -> Array:
        v = self.vectors
        own = 1 - 2 * np.square(v).sum(axis=1)
        between = (v * variances[:, None]) @ v.swapaxes(1, 2)
        found: Array = own * variances + ((between @ v) * v).sum(axis=1)
        return found


def _grouped(given: Cells, scale: Array, one: Signal, residual: Array, mixed: _Mixture) -> Array:
    """Return mean, variance and degrees of freedom (c, groups, 3) of groups of attributes of similar mean."""
    freedom, mean, unit = given.n - one.vectors.shape[1], given.mean[one.cells], scale[one.cells] ** 2
    d = mean.shape[1]
    if freedom < LEAST_VALUES:
        return np.zeros((len(mean), 1, 3))
    sums = np.stack([mixed(mean / unit), residual, mixed(1 / unit)], axis=-1) * unit[..., None]
    step = np.exp2(np.floor(np.log2(np.maximum(np.abs(mean).max(axis=1, keepdims=True), _TINY))) + _DIGITS)
    order = np.argsort(np.rint(mean / step), axis=1, kind="stable")
    starts = np.arange(k := min(_GROUPS, d)) * d // k
    found = np.add.reduceat(np.take_along_axis(sums, order[..., None], axis=1), starts, axis=1)
    whole = found.sum(axis=1)
    apart = whole[:, 1] <= _MOST_NOISE * given.n * mean.var(axis=1) * whole[:, 2]
    found[~apart], found[~apart, 0] = 0, whole[~apart]
    size = np.where(apart[:, None], np.diff(starts, append=d), d)
    nothing = _NOTHING * (mean**2 + given.variance[one.cells]).max(axis=1)
    shown = (found[..., 2] > _LEAST_SHARE * size) & (found[..., 1] > nothing[:, None] * found[..., 2])
    found[..., :2] /= np.where(shown, found[..., 2], 1)[..., None]
    found[..., 2] *= shown * freedom
    return found
