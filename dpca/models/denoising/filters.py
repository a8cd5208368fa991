"""Filters of cells: the linear map from the noisy values of a cell to its denoised values.

The filter of a cell with scale s is x -> s V^T g V (x / s): components V of the samples divided by the standard
deviation of their noise, and the factors g of `dpca.models.denoising.shrinkage`. The samples are not centered: their
mean is one direction of the signal as any other, and often one that the signal has anyway. A cell without a component
has its mean instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from scipy.linalg import eigh

from dpca.choices import POISSON, RICIAN
from dpca.engine.folds.fold_tasks import ResultWriter
from dpca.kernels.algebra.tridiagonal import Tridiagonal
from dpca.kernels.algebra.types import Array, PickledByFields, Region
from dpca.models.cells.rank import noise_edge
from dpca.models.denoising.magnitudes import LEAST_VARIANCE, level_of, variances
from dpca.models.denoising.shrinkage import LEAST_VALUES, estimated_noise, gains
from dpca.partition.shifted import ShiftedGrids
from dpca.storage.errors import DataError

#: Rows of a filter beside its inputs and outputs.
MEAN, NOISE, REMOVED = -3, -2, -1
# The plan assumes that signal has at most this share of the components.
_MOST_RANK = 4
# Repetitions of the estimate of Rician noise. More change it by less than its error.
_REPEATS = 2
# Squared singular values below this share of the largest one are its rounding errors.
_ROUNDING = 8 * np.finfo(np.float64).eps
_LARGEST = {np.dtype(one): float(np.finfo(one).max) for one in (np.float32, np.float64)}
# Standard errors within which a mean is compatible with no light.
_ERRORS = 4
# Up to this length, all eigenvectors cost less than the eigenvalues and then some of the vectors.
_SMALL = 64
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
            apart = rows - rows[0]
            shift = apart.sum(axis=0) / n
            apart -= shift
            mean, variance = rows[0] + shift, np.square(apart, out=apart).sum(axis=0) / (n - 1)
        _require_range(variance)
        # Constant attributes, such as a masked background, are neither signal nor noise.
        varies = variance > (4 * np.finfo(self.dtype).eps * np.abs(mean)) ** 2
        d = int(varies.sum())
        some: Any = slice(None) if d == len(mean) else varies
        found = np.zeros((3, len(mean)))
        found[MEAN] = mean
        if not d:
            return {"filter": found.astype(self.dtype), "level": np.zeros(())}
        if self.noise.kind == POISSON:
            self.noise.require_light(mean[some], variance[some], n)
        scale = self.noise.scale(mean, self.grids.boxes[part], n)[some]
        level: Array | None = None
        if self.noise.kind == RICIAN and rows is not None:
            scale, level = self._magnitudes(rows[:, some], scale)
        if rows is None:
            center, covariance = mean[some] / scale, result["covariance"][np.ix_(varies, varies)]
            covariance /= np.outer(scale, scale)
            rank, sigma, factors, vectors = self._signal((n - 1) * covariance + n * np.outer(center, center), n, d)
            retained = vectors @ covariance @ vectors.T
        else:
            x = rows[:, some] / scale
            rank, sigma, factors, vectors = self._signal_of(x)
            scores = x @ vectors.T
            scores -= scores.mean(axis=0)
            retained = scores.T @ scores / (n - 1)
        outputs = factors[:, None] * vectors
        # Without noise, that of the scores is far below the signal.
        unit = sigma or _LITTLE * float(np.sqrt(variance[some]).mean() / scale.mean())
        made = np.zeros((2 * rank + 3, len(mean)))
        made[MEAN] = mean
        made[:rank, some], made[rank : 2 * rank, some] = vectors / (scale * unit), outputs * (scale * unit)
        # Components have the mean of the attributes that vary; others keep theirs.
        made[MEAN, some] = 0 if rank else _shrunk(mean[some] / scale, sigma / math.sqrt(n)) * scale
        made[NOISE, some] = sigma * scale if level is None else level
        kept = ((retained @ outputs) * outputs).sum(axis=0) * scale**2
        made[REMOVED, some] = 1 - kept / variance[some]
        # Products with values sum up to as many terms as the cell has attributes.
        _require_range(d * (np.abs(mean[some]) + np.sqrt(n * variance[some])), self.dtype)
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
            reduced = Tridiagonal(products)
            values = reduced.values()
            rank, sigma = estimated_noise(_without_rounding(values[::-1][:m]), m, longer)
            columns = reduced.vectors(rank)
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
    if not np.abs(values).max(initial=0) <= _LARGEST[np.dtype(dtype)]:  # false for NaN, too
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
