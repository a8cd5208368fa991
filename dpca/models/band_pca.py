"""BandPCA: one principal component analysis for each band of attributes with like values."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpca.engine.checkpoint import Checkpoints
from dpca.engine.fold import fold
from dpca.engine.plan import PlanError
from dpca.engine.sampling import read_samples, spread_samples
from dpca.engine.source import Source
from dpca.models.partitioned import PartitionedPCA
from dpca.partition.bands import Bands, map_at_random, map_by_moments, map_in_raster_order
from dpca.partition.whole import Whole
from dpca.representation.band_basis import BandBasis
from dpca.rules.moments import Moments
from storage.errors import DataError
from storage.layout import CHANNEL, axes_for

Array = NDArray[Any]

# More of them than there are attributes mean nothing, and each takes memory.
_MOST_INTERVALS = 10_000_000
MAPPINGS = ("mean-variance", "mean", "random", "raster")


class BandPCA(PartitionedPCA):
    """Principal component analysis of bands: attributes that go together by their values, not their places (T 4.4).

    Makes no use of space, so it takes any data: images and volumes, and weather stations, molecules or spectra as
    vectors. The attributes of a sample are mapped to bands; each band gets its own mean and components from all
    samples. Values are analyzed in the units of the input; integers are never copied whole to floating point.

    Parameters
    ----------
    n_components : int, "marchenko-pastur" or None
        Components of each band; None keeps all; "marchenko-pastur" those whose variance noise of one level does not
        explain (Veraart et al. 2016). A band with fewer attributes keeps all of its own.
    band_size : int
        Most attributes of a band (L in the thesis).
    mapping : {"mean-variance", "mean", "random", "raster"}
        Which attributes make a band.

        - "mean": like means (T 4.4.1, eq. 4.2). The range of the means is divided into ``n_intervals`` of equal width;
          the attributes of an interval are sorted by their mean and cut into bands of ``band_size``. The last band of
          an interval takes the interval's rest, so that bands have unequal sizes and none reaches across a border.
        - "mean-variance": like means and variances (T 4.4.2, eq. 4.3). The same, but sorted by their variance.
        - "random": bands of ``band_size`` drawn by ``random_state``, the last one takes the rest (T 4.5.3). Each band
          sees the whole sample as the holistic analysis does: its leading components, in place, resemble the holistic
          ones (T 4.5.4).
        - "raster": consecutive attributes, a baseline.
    n_intervals : int
        Intervals of the mean (s in the thesis).
    n_estimating : int, optional
        Samples that means and variances are estimated from, one at random in each of so many equal parts of the stack
        (T 4.5.3, the estimating subset). Default all, which takes a pass of its own.
    keep_channels : bool
        Keep the channels of a pixel in one band, so that a band has ``band_size // n_channels`` pixels. A pixel is then
        mapped by the averages of its channels' means and variances (the thesis maps by the red channel, and recommends
        gray values).
    random_state : int, RandomState or None
        Seed of the random mapping, of the estimating subset, and of the samples that a target is met on.
    threshold : float, optional
        Instead of ``n_components``: each band keeps the fewest components that explain more than this share of its
        variance (T 4.1), at most ``max_components``.
    total_components : int, optional
        Instead: so many components in all, spread over the bands to leave the least squared error.
    ratio : float, optional
        Instead: as many components in all as make so many attributes into one score, spread likewise: attributes of a
        sample, divided by this and rounded to an integer.
    target_mse, target_psnr : float, optional
        Instead: the fewest components, spread likewise, whose mean squared error is at most this, of values scaled so
        that ``data_range`` has length 1, or whose peak signal-to-noise ratio of that error is at least this, in dB,
        before values are rounded to pixels. Met on the samples of the fit unless ``validation_fraction`` is given.
        It follows from the
        eigenvalues, without a second pass; exactly, unless bands were folded by incremental SVD, whose error is at most
        what they say.
    target_ssim : float, optional
        Instead: the fewest components, spread likewise, whose mean SSIM (uniform windows of 7 pixels a side, values
        rounded and clipped to pixels) is at least this. It is searched on 500 samples spread over the stack, of those
        that ``validation_fraction`` leaves out where it is given, which are read once and held in memory with their
        scores; on fewer where these would take more than half of ``memory_budget``.
    validation_fraction : float, optional
        Share of the samples, at most .5, that is left out of the fit, and on which a target is met instead: what
        ``target_mse`` and ``target_psnr`` promise then holds for samples that the fit did not see, which the components
        of few samples fit worse. At most 10,000 samples, spread over the stack by ``random_state``; they are read once
        more, a twentieth of a large stack at most.
    max_components : int, optional
        Bound on the components of each band where their numbers differ, and how many are computed. Default four times
        the mean, or a third of the attributes where no mean is asked for; a `RankWarning` says where that is too few.
    data_range : tuple of float, optional
        Smallest and largest possible value, for the targets; default that of the stack or of the integer type.
    memory_budget : int, optional
        Bytes that one task may take beyond what its process holds; default from the workers' limits or the machine.

    Attributes
    ----------
    components_ : array (n_components, *sample_shape), float32 (float64 for float64 and integers of over 16 bits)
        Component j of every band at the places of the band's attributes: ``components_[j]`` looks like a sample. Rows
        of a band are orthonormal, ordered by variance; the entry of largest magnitude is positive. Where a band has
        fewer attributes than there are components, the surplus rows are zero.
    mean_ : array (*sample_shape), float64
    explained_variance_ : array (n_bands, n_components), float64
        Variance of the scores, in squared units of the input (divisor n - 1).
    explained_variance_ratio_ : array (n_bands, n_components), float64
        The same divided by the band's total variance; 0 where a band is constant.
    total_variance_ : array (n_bands,), float64
        Certificate: (total - sum explained) (n - 1) / n is exactly the squared error of a band, summed over its
        attributes and averaged over the samples of the fit; where incremental SVD was used, the error is at most that.
    singular_values_ : array (n_bands, n_components), float64
    ranks_ : array (n_bands,), int
        Components that each band keeps; its rows of ``components_`` beyond are zero.
    target_reached_ : float
        Value of the target's measure on the samples that it was met on; only where there is a target.
    target_standard_error_ : float
        Its standard error, by how much these samples differ; 0 for the squared error of the samples of the fit.
    validation_samples_ : array of int
        Numbers of the samples that were left out of the fit, ascending; only with ``validation_fraction``.
    n_components_, n_samples_seen_, n_features_in_ : int
    sample_shape_ : tuple of int
    bands_ : Bands
        ``bands_.labels`` (*sample_shape) is the band of each attribute.
    fit_report_ : FoldReport
        Plan, seconds, peak memory of the pass that found the components; ``note`` says in a sentence what was folded,
        and how often the stack was read for it.

    Notes
    -----
    Runs on the current ``distributed.Client`` if there is one and the input is on disk or a Dask array, else on threads
    of this process. Costs one read of the stack for means and variances where the mapping needs them, and one for the
    covariances (threads share it; of several workers each may read for its own bands), O(n d L) arithmetic for d
    attributes. Where the covariances of all bands are more than the memory budget, groups of bands take turns, each
    with its own read of the stack; where this would be more than 8 reads, or one covariance alone is too much, every
    band is folded by incremental SVD instead, if that needs fewer reads by that factor.

    `partial_fit` maps by the means and variances of its first batch.

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import BandPCA
    >>> readings = np.random.default_rng(0).normal(size=(200, 1000)).astype(np.float32)
    >>> model = BandPCA(5, band_size=100, mapping="random", random_state=0).fit(readings)
    >>> model.transform(readings).shape
    (200, 10, 5)
    """

    part_name: ClassVar[str] = "band"
    scores_kind: ClassVar[str] = BandBasis.scores_kind

    def __init__(
        self,
        n_components: int | str | None = None,
        *,
        band_size: int,
        mapping: str = "mean-variance",
        n_intervals: int = 50,
        n_estimating: int | None = None,
        keep_channels: bool = True,
        random_state: Any = None,
        threshold: float | None = None,
        total_components: int | None = None,
        ratio: float | None = None,
        target_mse: float | None = None,
        target_psnr: float | None = None,
        target_ssim: float | None = None,
        validation_fraction: float | None = None,
        max_components: int | None = None,
        data_range: tuple[float, float] | None = None,
        memory_budget: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.band_size = band_size
        self.mapping = mapping
        self.n_intervals = n_intervals
        self.n_estimating = n_estimating
        self.keep_channels = keep_channels
        self.random_state = random_state
        self.threshold = threshold
        self.total_components = total_components
        self.ratio = ratio
        self.target_mse = target_mse
        self.target_psnr = target_psnr
        self.target_ssim = target_ssim
        self.validation_fraction = validation_fraction
        self.max_components = max_components
        self.data_range = data_range
        self.memory_budget = memory_budget

    # -- what the bands are

    def _partition(self, source: Source, axes: Sequence[str] | None, **running: Any) -> Bands:
        self._check_parameters()
        shape = tuple(source.shape[1:])
        together = shape[-1] if self.keep_channels and (axes or axes_for(shape))[-1] == CHANNEL else 1
        size = min(int(self.band_size), math.prod(shape))
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        try:
            if self.mapping == "raster":
                return map_in_raster_order(shape, size, together=together)
            if self.mapping == "random":
                return map_at_random(shape, size, rng, together=together)
            mean, variance = self._moments(source, rng, **running)
            keys = variance if self.mapping == "mean-variance" else None
            return map_by_moments(mean, keys, size, int(self.n_intervals), together=together)
        except PlanError:
            raise
        except ValueError as error:
            raise DataError(str(error)) from error

    def _moments(
        self, source: Source, rng: np.random.Generator, checkpoints: Checkpoints | None = None, **running: Any
    ) -> tuple[Array, Array]:
        """Return mean and variance of every attribute, from all samples or the estimating subset."""
        shape = tuple(source.shape[1:])
        if source.shape[0] < 2:
            raise DataError("the first batch has 1 sample, whose variance maps nothing: begin with at least 2 samples")
        if self.n_estimating is None or self.n_estimating >= source.shape[0]:
            here = None if checkpoints is None else Checkpoints(f"{checkpoints.folder}/statistics")
            budget = self.memory_budget
            results, _ = fold(
                Moments(), source, Whole(shape), budget=budget, checkpoints=here, stage="statistics", **running
            )
            found = results[0]
        else:
            rule = Moments()
            state = rule.init(math.prod(shape), source.dtype)
            for samples in read_samples(source, spread_samples(source.shape[0], int(self.n_estimating), rng)):
                state = rule.update(state, samples.reshape(len(samples), -1))
            found = rule.finish(state)
        return found["mean"].reshape(shape), found["variance"].reshape(shape)

    def _check_parameters(self) -> None:
        if self.mapping not in MAPPINGS:
            raise DataError(f"mapping is {self.mapping!r}: give one of {', '.join(MAPPINGS)}")
        for name, least in (("band_size", 1), ("n_intervals", 1), ("n_estimating", 2)):
            value = getattr(self, name)
            if name == "n_estimating" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise DataError(f"{name} is {value!r}: give an integer of at least {least}")
        if self.n_intervals > _MOST_INTERVALS:
            raise DataError(f"n_intervals is {self.n_intervals}: give an integer of at most {_MOST_INTERVALS:,}")

    def _basis_of(self, partition: Bands, mean: Array, components: Array) -> BandBasis:
        return BandBasis(partition, mean, components)

    def _checked_components(self, n: int | None, partition: Bands) -> int | None:
        most = min(int(self.band_size), partition.labels.size)
        return self._checked_count(n, most, f"a band of {self.band_size}", "choose larger bands")

    def _name_of(self, place: tuple[int, ...]) -> str:
        return f"band{place[0]}"

    def restore(
        self,
        partition: Bands,
        components: Array,
        mean: Array,
        explained_variance: Array,
        total_variance: Array,
        n_samples: int,
    ) -> None:
        """Set the learned attributes from what a store holds or a fit found."""
        super().restore(partition, components, mean, explained_variance, total_variance, n_samples)
        self.bands_ = partition

    @property
    def basis_(self) -> BandBasis:
        """The mean and the components with their bands: what tasks are sent."""
        check_is_fitted(self, "components_")
        return cast("BandBasis", self._basis)

    # -- what jobs and reports ask

    def announced(self, axes: Sequence[str]) -> str:
        """Say what is fitted."""
        return f"bands of {self.band_size:,} attributes"

    def report_numbers(self) -> dict[str, Any]:
        """Return what a report says of the fitted model; see `dpca.report.record`."""
        bands = {"bands": self.bands_.n_partitions, "band_size": self.bands_.max_features, "mapping": self.mapping}
        return super().report_numbers() | bands

    # -- keeping

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a Zarr group; see `load`."""
        from dpca.models.band_store import save_model

        check_is_fitted(self, "components_")
        save_model(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote; nothing in it is executed.

        Raises
        ------
        StoreError
            If there is no such model, or it comes from a newer version.
        """
        from dpca.models.band_store import load_model

        return cast("Self", load_model(path))
