"""Filters of cells: the linear map from the noisy values of a cell to its denoised values.

The filter of a cell with scale s is x -> s V^T g V (x / s): components V of the samples divided by the standard
deviation of their noise, and the factors g of `dpca.models.denoising.shrinkage`. The samples are not centered: their
mean is one direction of the signal as any other, and often one that the signal has anyway. A cell without a component
has its mean instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from scipy.linalg import eigh

from dpca.choices import POISSON, RICIAN
from dpca.engine.folds.fold_tasks import ResultWriter
from dpca.kernels.algebra.types import Array, PickledByFields, Region
from dpca.models.cells.rank import noise_edge
from dpca.models.denoising.magnitudes import LEAST_VARIANCE, amplitudes, level_of, variances
from dpca.models.denoising.shrinkage import LEAST_VALUES, estimated_noise, gains
from dpca.models.denoising.time_filter import Series, filtered
from dpca.partition.shifted import ShiftedGrids
from dpca.storage.errors import DataError

# Rows of a filter beside its inputs and outputs.
_MEAN, NOISE, _REMOVED = -3, -2, -1
# The plan assumes that signal has at most this share of the components.
_MOST_RANK = 4
# Repetitions of the estimate of Rician noise. More change it by less than its error.
_REPEATS = 2
# Squared singular values below this share of the largest one are its rounding errors.
_ROUNDING = 8 * np.finfo(np.float64).eps
# Squares of values below this lose precision in float64.
_LEAST = 1e-146
# Standard errors within which a mean is compatible with no light.
_ERRORS = 4
# Up to this length, all eigenvectors cost less than the eigenvalues and then some of the vectors.
_SMALL = 128
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
        n, rows = self.n_samples, result.get("rows")
        if rows is None:
            mean, variance = result["mean"], result["covariance"].diagonal()
        else:
            rows = rows.astype(np.float64)
            # About the first sample, so that constant attributes have a variance of exactly 0.
            mean, variance = rows[0] + (rows - rows[0]).mean(axis=0), (rows - rows[0]).var(axis=0, ddof=1)
        _require_range(variance)
        # Constant attributes, such as a masked background, are neither signal nor noise.
        varies = variance > (4 * np.finfo(self.dtype).eps * np.abs(mean)) ** 2
        d = int(varies.sum())
        found = np.zeros((3, len(mean)))
        found[_MEAN] = mean
        if not d:
            return {"filter": found.astype(self.dtype), "level": np.zeros(())}
        if self.noise.kind == POISSON:
            self.noise.require_light(mean[varies], variance[varies], n)
        scale = self.noise.scale(mean, self.grids.boxes[part], n)[varies]
        level: Array | None = None
        if self.noise.kind == RICIAN and rows is not None:
            scale, level = self._magnitudes(rows[:, varies], scale)
        if rows is None:
            center, covariance = mean[varies] / scale, result["covariance"][np.ix_(varies, varies)]
            covariance /= np.outer(scale, scale)
            rank, sigma, factors, vectors = self._signal((n - 1) * covariance + n * np.outer(center, center), n, d)
            retained = vectors @ covariance @ vectors.T
        else:
            x = rows[:, varies] / scale
            rank, sigma, factors, vectors = self._signal_of(x)
            scores = x @ vectors.T
            scores -= scores.mean(axis=0)
            retained = scores.T @ scores / (n - 1)
        outputs = factors[:, None] * vectors
        # Without noise, that of the scores is far below the signal.
        unit = sigma or _LITTLE * float(np.sqrt(variance[varies]).mean() / scale.mean())
        made = np.zeros((2 * rank + 3, len(mean)))
        made[_MEAN] = mean
        made[:rank, varies], made[rank : 2 * rank, varies] = vectors / (scale * unit), outputs * (scale * unit)
        # Components have the mean of the attributes that vary; others keep theirs.
        made[_MEAN, varies] = 0 if rank else _shrunk(mean[varies] / scale, sigma / math.sqrt(n)) * scale
        made[NOISE, varies] = sigma * scale if level is None else level
        kept = ((retained @ outputs) * outputs).sum(axis=0) * scale**2
        made[_REMOVED, varies] = 1 - kept / variance[varies]
        # Products with values sum up to as many terms as the cell has attributes.
        _require_range(d * (np.abs(mean[varies]) + np.sqrt(n * variance[varies])), self.dtype)
        _require_range(made, self.dtype)
        return {"filter": made.astype(self.dtype), "level": np.asarray(sigma)}

    def _magnitudes(self, rows: Array, scale: Array) -> tuple[Array, Array]:
        """Return the standard deviation of the noise of magnitudes, and its level, which are unequal at low signal."""
        if (least := rows.min()) < 0:
            raise DataError(f"a value is {least:g}, but magnitudes are not negative: give noise='gaussian'")
        level = scale
        for _ in range(_REPEATS):
            rank, sigma, factors, vectors = self._signal_of(x := rows / scale)
            if not sigma:
                return scale, np.zeros(len(scale))
            means = ((x @ vectors.T) @ (factors[:, None] * vectors) if rank else x.mean(axis=0)[None]) * scale
            if not self.noise.known:
                level = np.full(len(scale), level_of(means, float(np.mean((sigma * scale) ** 2)), rank))
            scale = level * np.sqrt(np.maximum(variances(means / level).mean(axis=0), LEAST_VARIANCE))
        return scale, level

    def _signal_of(self, x: Array) -> tuple[int, float, Array, Array]:
        """Return what `_signal` does, with vectors of attributes, from all samples."""
        n, d = x.shape
        if n >= d:
            return self._signal(x.T @ x, n, d)
        rank, sigma, factors, vectors = self._signal(x @ x.T, n, d)
        vectors = vectors @ x
        return rank, sigma, factors, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def _signal(self, products: Array, n: int, d: int) -> tuple[int, float, Array, Array]:
        """Return the rank, the level of the noise, and the gains and vectors of the components that are signal."""
        m, longer = min(n, d), max(n, d)
        # Values divided by a small level of the noise can be large.
        _require_range(products.diagonal())
        if self.noise.known:
            edge = noise_edge(1.0, m, longer)
            values, columns = eigh(products, subset_by_value=(edge, np.inf), check_finite=False)
            rank, sigma = len(values), 1.0
        elif m < LEAST_VALUES:
            return m, 0.0, *_leading(products, m)
        elif len(products) <= _SMALL:
            values, columns = np.linalg.eigh(products)
            rank, sigma = estimated_noise(_without_rounding(values[::-1][:m]), m, longer)
        else:
            values = eigh(products, eigvals_only=True, check_finite=False)
            rank, sigma = estimated_noise(_without_rounding(values[::-1][:m]), m, longer)
            values, columns = _top(products, rank)
        values, rows = values[::-1][:rank], columns[:, ::-1][:, :rank].T
        factors = gains(values, sigma, m, longer, self.shrinkage)
        # Beside large values, those of rounding can be above a known edge. Their vectors of few samples are arbitrary.
        some = (factors > 0) & (_without_rounding(values) > 0)
        return int(some.sum()), sigma, factors[some], rows[some]


def _without_rounding(energies: Array) -> Array:
    """Return squared singular values, descending, with 0 for those that are rounding errors of the largest one."""
    return np.where(energies > _ROUNDING * energies[:1], energies, 0)


def _require_range(values: Array, dtype: DTypeLike = np.float64) -> None:
    """Raise OverflowError unless a dtype can hold all values."""
    if not (np.abs(values) <= np.finfo(dtype).max).all():
        raise OverflowError(f"values exceed the range of {np.dtype(dtype)}")


def _shrunk(values: Array, sigma: float) -> Array:
    """Return values with white noise, shrunk towards 0 by the estimator of James & Stein (1961)."""
    energy = float(values @ values)
    return values * max(0.0, 1 - max(len(values) - 2, 0) * sigma**2 / energy) if energy else values


def _top(products: Array, k: int) -> tuple[Array, Array]:
    """Return the k largest eigenvalues, ascending, and their vectors as columns."""
    size = len(products)
    if not k:
        return np.zeros(0), np.zeros((size, 0))
    values, columns = eigh(products, subset_by_index=(size - k, size - 1), check_finite=False)
    return values, columns


def _leading(products: Array, m: int) -> tuple[Array, Array]:
    """Return gains of 1 and the m leading vectors as rows: the identity on the samples."""
    return np.ones(m), _top(products, m)[1][:, ::-1].T


@dataclass(frozen=True)
class CellFilters(PickledByFields):
    """The weighted average of the filters of all cells, on whole samples or on boxes of them.

    Parameters
    ----------
    grids : ShiftedGrids
    filters : mapping of int to array (2 rank, d)
        Inputs and weighted outputs of cells.
    mean : array (*lengths of the box)
        The weighted mean that is added.
    box : Region
        The box of a sample for which there are filters and a mean.
    sigma : array (*lengths of the box), optional
        The level of the noise of magnitudes, whose bias is removed.
    """

    grids: ShiftedGrids
    filters: dict[int, Array]
    mean: Array
    box: Region
    sigma: Array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.mean.nbytes + sum(one.nbytes for one in self.filters.values())

    def packed(self, box: Region) -> dict[str, Array]:
        """Return the filters of a box of a sample in few arrays."""
        parts = self.grids.overlapping(box)
        arrays = [self.filters[part] for part in parts]
        level = {} if self.sigma is None else {"sigma": self.sigma[places(box, self.box)]}
        return {
            **level,
            "parts": np.array(parts),
            "ranks": np.array([len(one) // 2 for one in arrays]),
            "values": np.concatenate([one.ravel() for one in arrays]),
            "mean": self.mean[places(box, self.box)],
        }

    @classmethod
    def unpacked(cls, grids: ShiftedGrids, box: Region, arrays: dict[str, Array]) -> CellFilters:
        """Return the filters of a box from the arrays of `packed`."""
        filters, at = {}, 0
        for part, rank in zip(arrays["parts"].tolist(), arrays["ranks"].tolist(), strict=True):
            size = 2 * rank * grids.n_features(part)
            filters[part] = arrays["values"][at : at + size].reshape(2 * rank, -1) if rank else np.zeros((0, 0))
            at += size
        return cls(grids, filters, arrays["mean"], box, arrays.get("sigma"))

    def needed(self, core: Region) -> Region:
        """Return the box of all cells with attributes in a box."""
        boxes = np.array([self.grids.boxes[part] for part in self.grids.overlapping(core)])
        return tuple(zip(boxes[..., 0].min(axis=0).tolist(), boxes[..., 1].max(axis=0).tolist(), strict=True))

    def apply(self, samples: Array, region: Region, core: Region, series: Series | None = None) -> Array:
        """Return the denoised box ``core`` of samples (n, *lengths of a region that `needed` returns).

        With a place in a series in time, scores are filtered along it, too.
        """
        x = samples.astype(self.mean.dtype, copy=False)
        out = np.empty((len(x) if series is None else series.rows, *(b - a for a, b in core)), self.mean.dtype)
        out[...] = self.mean[places(core, self.box)]
        for part in self.grids.overlapping(core):
            rows, box = self.filters[part], self.grids.boxes[part]
            rank = len(rows) // 2
            if not rank:
                continue
            scores = x[(slice(None), *places(box, region))].reshape(len(x), -1) @ rows[:rank].T
            if series is not None:
                scores = filtered(scores, series)
            inner = tuple((max(a, c), min(b, e)) for (a, b), (c, e) in zip(box, core, strict=True))
            outputs = rows[rank:].reshape(rank, *(b - a for a, b in box))[(slice(None), *places(inner, box))]
            target = out[(slice(None), *places(inner, core))]
            target += (scores @ outputs.reshape(rank, -1)).reshape(target.shape)
        return out if self.sigma is None else amplitudes(out, self.sigma[places(core, self.box)])


def places(box: Region, region: Region) -> tuple[slice, ...]:
    """Return the place of a box in an array of a region."""
    return tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(box, region, strict=True))


@dataclass(frozen=True)
class NoiseMaps:
    """Maps of the shape of a sample: noise, rank, and the share of the variance that is removed.

    ``level`` is the median level of the noise of all cells, in units of its scale.
    """

    sigma: Array
    rank: Array
    removed: Array
    level: float


def averaged(grids: ShiftedGrids, results: Sequence[dict[str, Array]], kind: str) -> tuple[CellFilters, NoiseMaps]:
    """Return the weighted average of the filters of all cells, and maps, for a kind of noise. The results are emptied.

    A cell of rank r has the weight 1 / (1 + r), since its estimate has about as much of the noise. Within a cell, the
    weight decreases as the square root of the distance to its borders, along each axis.
    """
    dtype, shape = results[0]["filter"].dtype, grids.sample_shape
    sums = {name: np.zeros(shape) for name in ("weight", "mean", "noise", "measured", "rank", "removed")}
    for part, result in enumerate(results):
        rows, place = result["filter"], tuple(slice(a, b) for a, b in grids.boxes[part])
        rank, lengths = len(rows) // 2 - 1, tuple(b - a for a, b in grids.boxes[part])
        weight = _taper(lengths, len(grids.cell_shape)) / (1 + rank)
        mean, noise, removed = (rows[i].reshape(lengths) for i in (_MEAN, NOISE, _REMOVED))
        measured = weight * (noise > 0)
        terms = (weight, weight * mean, measured * noise, measured, weight * rank, weight * removed)
        for total, term in zip(sums.values(), terms, strict=True):
            total[place] += term
    levels = np.array([float(result["level"]) for result in results])
    filters = {}
    for part, result in enumerate(results):
        rows, place = result.pop("filter")[:-3], tuple(slice(a, b) for a, b in grids.boxes[part])
        rank, lengths = len(rows) // 2, tuple(b - a for a, b in grids.boxes[part])
        weight = _taper(lengths, len(grids.cell_shape)) / (1 + rank) / sums["weight"][place]
        outputs = (rows[rank:] * weight.ravel()).astype(dtype)
        filters[part] = np.concatenate([rows[:rank], outputs])
    whole = sums["weight"]
    if 0 < (largest := float(np.abs(sums["mean"] / whole).max())) < _LEAST:
        raise DataError(f"no mean exceeds {largest:.3g}, too little for squares in float64: multiply all values first")
    maps = NoiseMaps(
        sigma=(sums["noise"] / np.maximum(sums["measured"], np.finfo(float).tiny)).astype(np.float32),
        rank=(sums["rank"] / whole).astype(np.float32),
        # Few samples with noise may vary less than their signal, by chance.
        removed=np.clip(sums["removed"] / whole, 0, 1).astype(np.float32),
        level=float(np.median(levels[levels > 0])) if levels.any() else 0.0,
    )
    box = tuple((0, length) for length in shape)
    level = maps.sigma if kind == RICIAN else None
    return CellFilters(grids, filters, (sums["mean"] / whole).astype(dtype), box, level), maps


@lru_cache(maxsize=256)
def _taper(lengths: tuple[int, ...], n_spatial: int) -> Array:
    """Return the square root of the distance to the borders of a cell along each spatial axis."""
    weight: Array = np.ones(())
    for axis, length in enumerate(lengths):
        along = np.arange(length) + 0.5
        near = np.sqrt(np.minimum(along, length - along)) if axis < n_spatial else np.ones(length)
        weight = weight[..., None] * near
    return weight
