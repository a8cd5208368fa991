"""Filters of cells: the linear map from the noisy values of a cell to its denoised values.

The filter of a cell with scale s is x -> s V^T g V (x / s): components V of the samples divided by the standard
deviation of their noise, and the factors g of `dpca.models.denoising.shrinkage`. The samples are not centered: their
mean is one direction of the signal as any other, and often one that the signal has anyway. A cell without a component
has its mean instead.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.choices import POISSON, RICIAN
from dpca.engine.folds.fold_tasks import ResultWriter
from dpca.kernels.algebra.types import Array, PickledByFields, Region, blocks
from dpca.models.denoising.magnitudes import LEAST_VARIANCE, level_of, variances
from dpca.models.denoising.signals import Cells, n_together, require_range, those
from dpca.partition.shifted import ShiftedGrids
from dpca.storage.errors import DataError

#: Rows of a filter beside its inputs and outputs.
MEAN, NOISE, REMOVED = -3, -2, -1
# The plan assumes that signal has at most this share of the components.
_MOST_RANK = 4
# Repetitions of the estimate of Rician noise. More change it by less than its error.
_REPEATS = 2
# Standard errors within which a mean is compatible with no light.
_ERRORS = 4
# Noise of cells without noise, as a share of the deviation of their attributes.
_LITTLE = 1e-6


@dataclass(frozen=True)
class NoiseModel:
    """The standard deviation of the noise of values, as far as it is known; see `DenoisingParameters`."""

    kind: str
    sigma: Any
    gain: float | None
    offset: float
    read_noise: float

    @property
    def known(self) -> bool:
        """Whether the level is known. Otherwise `scale` is a multiple of the standard deviation."""
        return self.gain is not None if self.kind == POISSON else self.sigma is not None

    def scale(self, mean: Array, box: Region, n: int) -> Array:
        """Return the standard deviation (d,) of the noise of attributes with this mean of n samples."""
        if self.kind == POISSON:
            gain = 1.0 if self.gain is None else self.gain
            # At least one photon was counted, since an attribute without any is constant.
            return np.sqrt(np.maximum(gain * (mean - self.offset), gain * gain / n) + self.read_noise**2)
        if np.ndim(self.sigma):
            part: Array = np.asarray(self.sigma, np.float64)[tuple(slice(a, b) for a, b in box)].ravel()
            return part
        return np.full(len(mean), 1.0 if self.sigma is None else float(self.sigma))

    def require_light(self, mean: Array, variance: Array, n: int) -> None:
        """Raise `DataError` if the attributes of a cell are below the value of no photon by more than their noise."""
        noise = math.sqrt(variance.mean())
        if (level := float(mean.mean())) < self.offset - noise - _ERRORS * noise / math.sqrt(n * len(mean)):
            raise DataError(
                f"the mean of a cell is {level:.4g}, below the offset {self.offset:g}, the value of no "
                "photon: give a smaller offset, or noise='gaussian'"
            )


@dataclass(frozen=True)
class FilterWriter(PickledByFields, ResultWriter):
    """Makes the filter of each cell from its covariance or its samples, in the tasks of a fold.

    A result has ``filter`` (2 rank + 3, d): the inputs V / s, scaled so that the noise of scores has a variance of 1,
    the outputs g V s, the mean, the standard deviation of the noise, and the share of the variance that is removed.
    ``level`` () is the level of the noise in units of the scale, 0 if it was not estimated.
    """

    grids: ShiftedGrids
    noise: NoiseModel
    shrinkage: str
    n_samples: int
    dtype: np.dtype[Any]

    @property
    def kept_bytes(self) -> int:
        """Bytes of a result."""
        d = self.grids.max_features
        return self.dtype.itemsize * d * (2 * (min(d, self.n_samples) // _MOST_RANK) + 3)

    def summary(self, result: dict[str, Array]) -> dict[str, Array]:
        """Return an empty filter."""
        d = (result["rows"] if "rows" in result else result["mean"]).shape[-1]
        return {"filter": np.zeros((3, d), self.dtype), "level": np.zeros(())}

    def write(self, part: int, result: dict[str, Array]) -> dict[str, Array]:
        """Return the filter of a cell."""
        return self.write_all([part], [result])[0]

    def write_all(self, parts: Sequence[int], results: Sequence[dict[str, Array]]) -> list[dict[str, Array]]:
        """Return the filters of cells, and empty the results. Small cells of one size are computed together."""
        found: list[dict[str, Array]] = [{} for _ in parts]
        alike: dict[int, list[int]] = defaultdict(list)
        for i, part in enumerate(parts):
            alike[self.grids.n_features(part)].append(i)
        for d, places in alike.items():
            most = n_together(min(self.n_samples, d), max(array.size for array in results[places[0]].values()))
            for few in blocks(len(places), most):
                some = places[few]
                stacks = {name: np.stack([results[i].pop(name) for i in some]) for name in list(results[some[0]])}
                for i, one in zip(some, self._made([parts[i] for i in some], stacks), strict=True):
                    found[i] = one
        return found

    def _made(self, parts: Sequence[int], stacks: dict[str, Array]) -> list[dict[str, Array]]:
        """Return the filters of cells of one size. That of a cell does not depend on the others."""
        found: list[dict[str, Array]] = [{} for _ in parts]
        for cells, mean, of, given in self._varying(parts, stacks):
            for at, sigma, filters in self._filters_by_rank(given) if of.any() else _without_filter(len(cells)):
                made = np.zeros((len(at), filters.shape[1], mean.shape[1]))
                made[:, MEAN] = mean[at]
                made.swapaxes(1, 2)[of[at]] = filters.swapaxes(1, 2).reshape(-1, filters.shape[1])
                require_range(made, self.dtype)
                for i, one, level in zip(cells[at].tolist(), made.astype(self.dtype), sigma, strict=True):
                    found[i] = {"filter": one, "level": np.asarray(level)}
        return found

    def _varying(self, parts: Sequence[int], stacks: dict[str, Array]) -> Iterator[tuple[Array, Array, Array, Cells]]:
        """Yield the numbers of cells of which equally many attributes vary, the means of all, which vary, and these."""
        n = self.n_samples
        rows: Any = stacks.pop("rows", None)
        covariance: Any = stacks.pop("covariance", None)
        if rows is None:
            mean, variance = stacks["mean"], covariance.diagonal(axis1=1, axis2=2)
        else:
            rows = rows.astype(np.float64)
            # About the first sample, so that constant attributes have a variance of exactly 0.
            apart = rows - rows[:, :1]
            shift = apart.sum(axis=1) / n
            apart -= shift[:, None]
            mean, variance = rows[:, 0] + shift, np.square(apart, out=apart).sum(axis=1) / (n - 1)
            del apart
        require_range(variance)
        scale = np.stack([self.noise.scale(one, self.grids.boxes[i], n) for i, one in zip(parts, mean, strict=True)])
        # Constant attributes, such as a masked background, are neither signal nor noise.
        varies = variance > (4 * np.finfo(self.dtype).eps * np.abs(mean)) ** 2
        counts = varies.sum(axis=1)
        for d in np.unique(counts).tolist():
            cells = np.flatnonzero(counts == d)
            of = varies[cells]
            center, spread, unit = (_only(those(one, cells), of, d) for one in (mean, variance, scale))
            given = Cells(n, center, spread, unit)
            if rows is None:
                given.covariance = _within(those(covariance, cells), of, d)
            else:
                given.rows = _only(those(rows, cells), of, d)
            yield cells, mean[cells], of, given

    def _filters_by_rank(self, given: Cells) -> Iterator[tuple[Array, Array, Array]]:
        """Yield the numbers of cells of one rank, the levels of their noise, and their filters."""
        n, scale, levels = self.n_samples, given.scale, None
        if self.noise.kind == POISSON:
            for center, spread in zip(given.mean, given.variance, strict=True):
                self.noise.require_light(center, spread, n)
        if self.noise.kind == RICIAN:
            scale, levels = self._magnitudes(given)
        x = given.scaled(scale)
        for found in given.signals(x, self.noise.known, self.shrinkage):
            at, sigma, vectors = found.cells, found.sigma[:, None], found.vectors
            mean, variance, unit, (rank, d) = given.mean[at], given.variance[at], scale[at], vectors.shape[1:]
            # Products with values sum up to as many terms as the cell has attributes.
            require_range(d * (np.abs(mean) + np.sqrt(n * variance)), self.dtype)
            outputs = found.factors[..., None] * vectors
            # Without noise, that of the scores is far below the signal.
            little = _LITTLE * np.sqrt(variance).mean(axis=1) / unit.mean(axis=1)
            weight = (unit * np.where(sigma > 0, sigma, little[:, None]))[:, None]
            made = np.zeros((len(at), 2 * rank + 3, d))
            made[:, :rank], made[:, rank : 2 * rank] = vectors / weight, outputs * weight
            if not rank:  # components have the mean of the attributes
                made[:, MEAN] = _shrunk(mean / unit, sigma / math.sqrt(n)) * unit
            made[:, NOISE] = sigma * unit if levels is None else levels[at]
            kept = ((given.retained(those(x, at), vectors) @ outputs) * outputs).sum(axis=1) * unit**2
            made[:, REMOVED] = 1 - kept / variance
            yield at, found.sigma, made

    def _magnitudes(self, given: Cells) -> tuple[Array, Array]:
        """Return the standard deviation of the noise of magnitudes, and its level, which are unequal at low signal."""
        if (least := given.rows.min()) < 0:
            raise DataError(f"a value is {least:g}, but magnitudes are not negative: give noise='gaussian'")
        scale, level = given.scale.copy(), given.scale.copy()
        for _ in range(_REPEATS):
            x = given.scaled(scale)
            for found in given.signals(x, self.noise.known, self.shrinkage):
                outputs = found.factors[..., None] * found.vectors
                for i, sigma, v, out in zip(found.cells, found.sigma, found.vectors, outputs, strict=True):
                    if not sigma:
                        level[i] = 0
                        continue
                    means = ((x[i] @ v.T) @ out if len(v) else x[i].mean(axis=0)[None]) * scale[i]
                    if not self.noise.known:
                        level[i] = level_of(means, float(np.mean((sigma * scale[i]) ** 2)), len(v))
                    scale[i] = level[i] * np.sqrt(np.maximum(variances(means / level[i]).mean(axis=0), LEAST_VARIANCE))
        return scale, level


def _only(values: Array, varies: Array, d: int) -> Array:
    """Return the d attributes of each cell, along the last axis of values (c, ..., attributes), that vary."""
    if d == varies.shape[1]:
        return values
    if values.ndim == 2:
        return values[varies].reshape(len(values), d)
    return np.ascontiguousarray(values.swapaxes(1, 2)[varies].reshape(len(values), d, values.shape[1]).swapaxes(1, 2))


def _within(covariance: Array, varies: Array, d: int) -> Array:
    """Return the covariances (c, d, d) of attributes that vary."""
    if d == varies.shape[1]:
        return covariance
    return _only(_only(covariance, varies, d).swapaxes(1, 2), varies, d)


def _without_filter(n: int) -> Iterator[tuple[Array, Array, Array]]:
    """Yield what `FilterWriter._filters_by_rank` does, for n cells without an attribute that varies."""
    yield np.arange(n), np.zeros(n), np.zeros((n, 3, 0))


def _shrunk(values: Array, sigma: Array) -> Array:
    """Return values (c, d) with white noise (c, 1), shrunk towards 0 by the estimator of James & Stein (1961)."""
    energy = np.square(values).sum(axis=1, keepdims=True)
    found: Array = values * np.maximum(0, 1 - max(values.shape[1] - 2, 0) * sigma**2 / np.where(energy > 0, energy, 1))
    return found
