"""Denoise stacks by local PCA on shifted grids of cells."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dpca.choices import POISSON, RICIAN
from dpca.engine.folds.fold import fold, plan_for
from dpca.engine.folds.plan import FoldPlan
from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.source import Source, as_samples, as_source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region, blocks
from dpca.kernels.pixels import to_pixels
from dpca.models.base.docs import documented
from dpca.models.base.parameters import check_parameters, given_parameters, spatial_lengths
from dpca.models.base.passes import run_of_fit
from dpca.models.cells.known_noise import check_noise, given_noise
from dpca.models.denoising.averages import NoiseMaps, averaged
from dpca.models.denoising.camera import LENGTHS, MOST_SAMPLES, CellNoise, offset_of, some_samples
from dpca.models.denoising.filters import FilterWriter, NoiseModel
from dpca.models.denoising.shrinkage import LEAST_VALUES
from dpca.models.denoising.signals import WORK_BYTES
from dpca.models.denoising.time_filter import WINDOW, Series, context
from dpca.parameters.denoising import DenoisingParameters
from dpca.partition.shifted import ShiftedGrids
from dpca.rules.base.rule import Rule
from dpca.rules.covariance.covariance import Covariance
from dpca.rules.covariance.snapshots import KeptSamples
from dpca.storage.arrays.layout import axes_for, count_spatial
from dpca.storage.errors import DataError
from dpca.storage.integrity.manifest import digest_of
from dpca.storage.run import Run

# Shortest and longest default cell by the number of spatial axes.
_CELLS = {1: (16, 64), 2: (8, 16), 3: (4, 6)}
# Samples of an update of the covariances.
_BATCH = 2048
# Bytes of a block of samples in floating point.
BLOCK_BYTES = 2**24


@dataclass(frozen=True)
class _CellCovariance(Covariance):
    """The covariance of a cell, from which `FilterWriter` makes its filter."""

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the best number of samples per update: those of all cells of a group stay in the cache."""
        return min(_BATCH, super().batch_rows(dtype))

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays, including those of the filters."""
        return super().work_bytes(n_rows, n_features, dtype) + max(6 * 8 * n_features**2, WORK_BYTES)


@dataclass(frozen=True)
class _CellSamples(KeptSamples):
    """The samples of a cell, from which `FilterWriter` makes its filter."""

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays of the filters."""
        one = 8 * (8 * self.n_samples * n_features + 4 * min(self.n_samples, n_features) ** 2)
        return max(one, WORK_BYTES)


@documented()
class Denoiser(DenoisingParameters, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Remove noise from stacks of images or volumes by PCA of small cells.

    Neighboring pixels of many samples have a signal of few components, and noise spreads over all of them. Each cell
    keeps the components above the noise, and shrinks them. Cells of shifted grids overlap, and the average of their
    estimates has less noise and no visible borders. This is what MP-PCA of MRI does with a window at every voxel
    (Veraart et al. 2016), at a fraction of the cost.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    sigma_ : array (*sample_shape), float32
        Standard deviation of the noise, estimated or given; of Rician noise, that of the real and imaginary parts.
    rank_ : array (*sample_shape), float32
        Weighted mean number of components of the cells of an attribute.
    removed_ : array (*sample_shape), float32
        Share of the variance of an attribute that is removed, without the filter in time. If the signal is constant,
        it is 1. Where few samples vary less than their signal by chance, it is 0.
    gain_ : float
        Value of one photon, estimated or given. Exists only for Poisson noise.
    offset_ : float
        Value at which the variance of Poisson noise is 0: the offset that is given or, if it is estimated without a
        gain, offset - read_noise**2 / gain. Otherwise 0.
    offset_error_ : float or None
        Standard error of ``offset_``: 0 if it is given, and None if it is 0 because the noise does not determine it,
        as where all of the stack is equally bright.
    n_samples_seen_ : int
    sample_shape_ : tuple of int
    fit_report_ : FoldReport
        Plan, seconds and peak memory of the pass.

    Notes
    -----
    {where}
    Costs one pass over the samples, and another over at most 512 if an offset is estimated: O(n d c) arithmetic for
    each grid of cells of c attributes, and covariances of 8 c**2 bytes for each cell. With fewer samples than
    attributes of a cell, and for Rician noise, the samples themselves are used. `dpca denoise` and
    `dpca.jobs.denoise_store` write a stack of any size in a second pass.

    Constant attributes, such as a masked background, are kept and do not count. Values that are not finite are
    rejected. Cells of fewer than 4 attributes that vary, or with fewer than 4 samples, are kept as they are unless the
    level of the noise is given.

    References
    ----------
    Koay & Basser (2006). Analytically exact correction scheme for signal extraction from noisy magnitude MR signals.
    Journal of Magnetic Resonance 179.
    Veraart et al. (2016). Denoising of diffusion MRI using random matrix theory. NeuroImage 142.
    Gavish & Donoho (2017). Optimal shrinkage of singular values. IEEE Trans. Inf. Theory 63.

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import Denoiser
    >>> signal = np.outer(np.sin(np.arange(200)), np.ones(256)).reshape(200, 16, 16)
    >>> noisy = signal + np.random.default_rng(0).normal(0, 0.5, signal.shape)
    >>> clean = Denoiser().fit_transform(noisy)
    >>> bool(np.std(clean - signal) < 0.1 * np.std(noisy - signal))
    True
    """

    sigma_: Array
    rank_: Array
    removed_: Array

    def fit(self, X: Any, y: Any = None, *, run: Run = Run()) -> Self:
        """Find the signal and the noise of each cell, in one pass.

        Parameters
        ----------
        X : path, Stack, zarr.Array, dask.array.Array or array (n_samples, *sample_shape)
        y : ignored
        run : Run
            Where the pass runs, its memory and its checkpoints.

        Raises
        ------
        DataError
            If a parameter is invalid, a value is not finite or too large or small for its square, there is a single
            sample, or the mean of a cell is below the offset of Poisson noise.
        PlanError
            If a cell does not fit into the memory.
        """
        source, run = as_source(X), run_of_fit(run, self.memory_budget)
        rule, grids, writer = self._settings(source)
        self.offset_, self.offset_error_ = self._offset(source, run)
        writer = replace(writer, noise=replace(writer.noise, offset=self.offset_))
        results, self.fit_report_ = fold(rule, source, grids, run=run, stage="noise", writer=writer)
        self.filters_, maps = averaged(grids, results, self.noise)
        self._set_maps(maps, source)
        return self

    def n_before(self, n_samples: int) -> int:
        """Return how many of ``n_samples`` samples are read before the pass, to estimate the offset."""
        return min(n_samples, MOST_SAMPLES) if self.noise == POISSON and self.offset is None else 0

    def _offset(self, source: Source, run: Run) -> tuple[float, float | None]:
        """Return the offset of the camera, estimated in small cells unless it is given, and its standard error."""
        if not self.n_before(source.shape[0]):
            return self.offset or 0.0, 0.0
        few = some_samples(source)
        if few.shape[0] < LEAST_VALUES:
            return 0.0, None
        k = count_spatial(source.axes or axes_for(source.shape[1:]))
        cells = Denoiser(LENGTHS.get(k, 3), shifted=False)
        rule, grids, writer = cells._settings(few)
        found, _ = fold(rule, few, grids, run=run.below("offset"), stage="offset", writer=CellNoise(**vars(writer)))
        return offset_of(np.concatenate([cell["points"] for cell in found]), self.gain, self.read_noise)

    def _set_maps(self, maps: NoiseMaps, source: Source) -> None:
        self.sigma_, self.rank_, self.removed_ = maps.sigma, maps.rank, maps.removed
        self.sample_shape_, self.n_samples_seen_ = tuple(source.shape[1:]), source.shape[0]
        if self.noise == POISSON:
            self.gain_ = maps.level**2 if self.gain is None else float(self.gain)

    def transform(self, X: Any) -> Array:
        """Return denoised samples in memory.

        Parameters
        ----------
        X : array (n_samples, *sample_shape)
            The samples of the fit, or others with the same signal and noise; with ``time_filter``, a series in time.

        Raises
        ------
        DataError
            If samples have another shape, or a value is not finite.
        """
        check_is_fitted(self)
        x = as_samples(X, "X")
        if x.shape[1:] != self.sample_shape_:
            raise DataError(f"X has samples of {x.shape[1:]}, but the fit had {self.sample_shape_}: give such samples")
        check_finite(x, 0, "X")
        whole: Region = tuple((0, length) for length in self.sample_shape_)
        out, filters = np.empty(x.shape, self.output_dtype(x.dtype)), self.filters_.within(whole, whole)
        step = block_rows(whole, self.filters_.mean.dtype)
        # Scores of the samples around a block are computed, too.
        step = -(-step // WINDOW) * WINDOW if self.time_filter else step
        for rows in blocks(n := len(x), step):
            span = rows.indices(n)[:2]
            low, high = context(*span, n) if self.time_filter else span
            series = Series(low, *span, n) if self.time_filter else None
            out[rows] = finished(filters.apply(x[low:high], series), out.dtype)
        return out

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Array:
        """Fit the samples, and return them denoised."""
        return self.fit(X, **fit_params).transform(X)

    def plan(self, X: Any, run: Run = Run()) -> FoldPlan:
        """Return the plan of `fit`, without reading.

        Raises
        ------
        DataError, PlanError
            As `fit`.
        """
        source = as_source(X)
        rule, grids, writer = self._settings(source)
        return plan_for(rule, source, grids, run=run_of_fit(run, self.memory_budget), writer=writer)

    def output_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Return the dtype of denoised samples."""
        return np.dtype(dtype) if self.keep_dtype else working_dtype(dtype)

    def job_settings(self) -> dict[str, Any]:
        """Return the parameters that identify a job with this estimator: those that are given, a map by its hash."""
        return {name: _stated(value) for name, value in given_parameters(self).items() if name != "memory_budget"}

    def _settings(self, source: Source) -> tuple[Rule, ShiftedGrids, FilterWriter]:
        """Return what the pass over a source computes."""
        check_parameters(self)
        n, shape = source.shape[0], tuple(source.shape[1:])
        if n < 2:
            raise DataError(f"{source.name} has {n} sample, which shows no noise: give at least 2 samples")
        if self.noise == POISSON and self.sigma is not None:
            raise DataError("sigma is given, but Poisson noise follows from the mean: give gain, or noise='gaussian'")
        if self.noise == POISSON and self.read_noise and self.gain is None:
            raise DataError(f"read_noise is {self.read_noise}, which requires the gain: give gain too")
        if self.noise != POISSON and (self.gain is not None or self.offset is not None or self.read_noise):
            raise DataError("gain, offset and read_noise are those of Poisson noise: give noise='poisson'")
        sigma = given_noise(self.sigma)
        if np.shape(sigma) == (1, *shape):
            sigma = sigma[0]
        if sigma is not None:
            check_noise(sigma, shape)
        noise = NoiseModel(self.noise, sigma, self.gain, self.offset or 0.0, self.read_noise)
        grids = self.grids_for(source)
        if not noise.known and min(n, grids.max_features) < LEAST_VALUES:
            raise DataError(
                f"noise cannot be estimated from {n:,} samples of cells of {grids.max_features:,} values: give sigma "
                f"(or gain), larger cells, or at least {LEAST_VALUES} of each"
            )
        # Whichever takes less memory. The variance of magnitudes follows from all of them.
        few = self.noise == RICIAN or n * source.dtype.itemsize <= 8 * grids.max_features
        rule = _CellSamples(n) if few else _CellCovariance()
        return rule, grids, FilterWriter(grids, noise, self.shrinkage, n, working_dtype(source.dtype))

    def grids_for(self, source: Source) -> ShiftedGrids:
        """Return the grids of cells for samples of a source."""
        n, shape = source.shape[0], tuple(source.shape[1:])
        axes = source.axes or axes_for(shape)
        k = count_spatial(axes)
        if self.cell_shape is not None:
            given = spatial_lengths(self.cell_shape, "cell_shape", axes)
        else:
            least, most = _CELLS.get(k, (3, 4))
            given = (min(max(round(n ** (1 / k)), least), most),) * k
        if len(given) != k or min(given) < 1:
            raise DataError(f"cell_shape is {self.cell_shape}: give one positive length for each of {k} spatial axes")
        return ShiftedGrids(shape, tuple(min(pair) for pair in zip(given, shape, strict=False)), self.shifted)


def block_rows(region: Region, dtype: np.dtype[Any]) -> int:
    """Return how many samples of a region are denoised at a time."""
    return max(1, BLOCK_BYTES // (dtype.itemsize * math.prod(b - a for a, b in region)))


def finished(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return denoised values in the dtype of the output; integers are rounded and clipped."""
    return to_pixels(values, dtype, (-math.inf, math.inf))


def _stated(value: Any) -> Any:
    """Return a parameter as JSON: a map by its hash."""
    if np.ndim(value):
        values = np.ascontiguousarray(value)
        return digest_of(values.tobytes()) if values.dtype.kind == "f" else list(map(int, value))
    return value.item() if isinstance(value, np.generic) else value
