"""BandPCA: one principal component analysis for each band, a group of attributes with similar statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone

from dpca.engine.folds.fold import fold
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.sampling import read_samples, spread_samples
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.base.component_model import ON_DISK
from dpca.models.base.docs import PARTITIONED, documented
from dpca.models.base.parameters import check_parameters
from dpca.models.base.store import StoreContents, StoredModel
from dpca.models.cells.bands_by_blocks import BandsByBlocks, are_few, is_large, moments_in_files
from dpca.models.cells.partition_rule import PartFold
from dpca.models.cells.partitioned import PartitionedPCA
from dpca.models.cells.rank_choice import RankChoice
from dpca.models.gaps.parts_with_gaps import PartsWithGaps
from dpca.parameters.cells import CHOICES, BandParameters
from dpca.parameters.declaration import always_stored_names
from dpca.partition.bands import Bands, map_at_random, map_by_moments, map_in_raster_order
from dpca.partition.base import Partition
from dpca.partition.whole import Whole
from dpca.representation.base import Representation
from dpca.rules.base.rule import Rule
from dpca.rules.covariance.moments import Moments
from dpca.rules.gaps.present import PresentMoments
from dpca.storage.arrays.layout import CHANNEL, axes_for
from dpca.storage.errors import DataError
from dpca.storage.remote.memory import usable_bytes
from dpca.storage.run import Run

# Bytes for each attribute while bands are found: its band and its place among all; with moments, these, their average
# over channels, and the keys and work arrays of the sort.
_MAP_BYTES, _MOMENTS_BYTES = 12, 52
# Bytes for each attribute of its weight in a model: that, the means of samples and rows, and temporary arrays.
_WEIGHING_BYTES = 40


@documented(**PARTITIONED, part="band", parts="bands", grid="n_bands")
class BandPCA(BandParameters, PartsWithGaps, PartitionedPCA):
    """Principal component analysis of bands, groups of attributes with similar statistics (Alakkari 2020, section 4.4).

    Bands do not depend on position. BandPCA therefore supports any data: images, volumes, and vectors such as weather
    stations, molecules or spectra. The attributes of a sample are mapped to bands, and each band has its own mean and
    components from all samples. Values are analyzed in the units of the input. Integers are converted to floating
    point in blocks, never as a whole.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {components}
    {attributes}
    bands_ : Bands
        ``bands_.labels`` (*sample_shape) is the band number of each attribute.

    Notes
    -----
    {costs}
    If the mapping depends on means and variances, the stack is read once more. Few samples of more than 64 MiB in
    float64 are read in blocks of attributes, twice; directions without variance then have no component, and
    ``n_components=None`` keeps one fewer than there are samples.
    `partial_fit` maps by the statistics of its first batch.

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import BandPCA
    >>> readings = np.random.default_rng(0).normal(size=(200, 1000)).astype(np.float32)
    >>> model = BandPCA(5, band_size=100, mapping="random", random_state=0).fit(readings)
    >>> model.transform(readings).shape
    (200, 10, 5)
    """

    store_kind: ClassVar[str] = "band-pca"
    any_weights: ClassVar[bool] = True
    part_name: ClassVar[str] = "band"
    report_title: ClassVar[str] = "Band PCA"
    scores_kind: ClassVar[str] = Bands.scores_kind
    stored_first: ClassVar[tuple[str, ...]] = (*CHOICES, "max_components", *always_stored_names(BandParameters))

    # -- the partition

    def _partition(self, source: Source, axes: Sequence[str] | None, run: Run) -> Bands:
        check_parameters(self)
        shape = tuple(source.shape[1:])
        together = shape[-1] if self.keep_channels and self._named(axes, source.shape)[-1] == CHANNEL else 1
        size = min(int(self.band_size), d := math.prod(shape))
        if (need := self._map_bytes(shape)) > usable_bytes():
            raise PlanError(
                f"the bands of samples of {d:,} attributes need {need / 1e6:,.0f} MB of memory, and this process may "
                f"use {usable_bytes() / 1e6:,.0f} MB: use CellPCA"
                + (", or mapping='random'" if self._by_moments else "")
            )
        rng = np.random.default_rng(self._seed())
        try:
            if self.mapping == "raster":
                return map_in_raster_order(shape, size, together=together)
            if self.mapping == "random":
                return map_at_random(shape, size, rng, together=together)
            mean, variance = self._moments(source, rng, run)
            keys = variance if self.mapping == "mean-variance" else None
            return map_by_moments(mean, keys, size, int(self.n_intervals), together=together)
        except (PlanError, DataError):
            raise
        except ValueError as error:
            raise DataError(str(error)) from error

    @property
    def _by_moments(self) -> bool:
        return self.mapping not in ("raster", "random")

    @property
    def _weighing_bytes(self) -> int:
        """Bytes of this process for each attribute for weights: these, and means of samples and of rows."""
        return _WEIGHING_BYTES if self._plans_weights else 0

    def _map_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of this process while bands of samples of a shape are found."""
        return (_MOMENTS_BYTES if self._by_moments else _MAP_BYTES) * math.prod(shape)

    def _moments(self, source: Source, rng: np.random.Generator, run: Run) -> tuple[Array, Array]:
        """Return mean and variance of each attribute, from all samples or from the estimating subset."""
        shape = tuple(source.shape[1:])
        if source.shape[0] < 2:
            raise DataError(
                "the first batch has 1 sample but the mapping requires at least 2: give more samples to the first call "
                "of partial_fit"
            )
        n, few = source.shape[0], self.n_estimating
        numbers = None if few is None or few >= n else spread_samples(n, int(few), rng)
        if source.with_gaps:
            found = _found_by(PresentMoments(self.missing_value), source, numbers, run.below("count"))
            source.with_gaps = not found["complete"]
        if not source.with_gaps:
            if numbers is None and is_large(shape):
                return moments_in_files(source, run.below("statistics"))
            found = _found_by(Moments(), source, numbers, run.below("statistics"))
        return found["mean"].reshape(shape), found["variance"].reshape(shape)

    def _to_compute(self, choice: RankChoice, n: int | None, partition: Partition) -> int | None:
        k = super()._to_compute(choice, n, partition)
        if k is None and n is not None and not self.keep_state and is_large(partition.sample_shape):
            # More components of few samples have no variance, and would take more memory than the samples.
            return n - 1 if are_few(n, partition) else None
        return k

    def _most_components(self, partition: Bands) -> tuple[int, str]:
        return min(int(self.band_size), partition.labels.size), f"a band of {self.band_size}"

    def _folding(
        self, choice: RankChoice, source: Source, partition: Partition, run: Run, disk: Run | None
    ) -> tuple[PartFold, Any]:
        n, shape = source.shape[0], tuple(source.shape[1:])
        k = self._to_compute(choice, n, partition)
        # The samples of a target are encoded with components of whole samples.
        whole = self.keep_state or choice.name == "target_ssim" or choice.validation_fraction is not None
        if k is None or whole or source.with_gaps or not isinstance(partition, Bands) or not are_few(n, partition):
            return super()._folding(choice, source, partition, run, disk)
        if not is_large(shape):
            try:
                return super()._folding(choice, source, partition, run, disk)
            except PlanError as error:
                refusal = error
        try:
            least, beside = min(k, self._least_kept(choice, n, partition)), math.prod(shape) * self._weighing_bytes
            how: Any = {"before": self._map_bytes(shape), "disk": disk is not None, "beside": beside}
            blocks = BandsByBlocks(source, partition, k, least, run, **how)
        except PlanError:
            if is_large(shape):
                return super()._folding(choice, source, partition, run, disk)
            raise refusal from None
        return blocks.fold(), blocks

    def _name_of(self, place: tuple[int, ...]) -> str:
        return f"band{place[0]}"

    @property
    def bands_(self) -> Bands:
        """The bands."""
        bands: Bands = self.partition_
        return bands

    def plan_fit(self, source: Source, axes: Sequence[str], run: Run) -> tuple[Representation, bool]:
        """Plan a fit; see `Estimator.plan_fit`."""
        if not self._by_moments:
            return super().plan_fit(source, axes, run)
        # Moments require a pass, and mapping by them may give more and smaller bands.
        return clone(self).set_params(mapping="raster").plan_fit(source, axes, run)[0], False

    # -- jobs and reports

    def fit_description(self, axes: Sequence[str]) -> str:
        """Return a description of the fit for logs."""
        return f"bands of {self.band_size:,} attributes"

    def report_numbers(self) -> dict[str, Any]:
        """Return the numbers of the fitted model for a report; see `dpca.report.record`."""
        bands = {"bands": self.bands_.n_parts, "band_size": self.bands_.max_features, "mapping": self.mapping}
        return super().report_numbers() | bands

    # -- stores

    def _to_store(self) -> StoreContents:
        arrays = {"labels": (self.bands_.labels, axes_for(self.sample_shape_)), **self._stored_arrays(("band",))}
        return StoreContents(arrays, self._facts(n_bands=self.bands_.n_parts), self._version_of(self.store_version))

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        shape, k, p = stored.sample_shape, stored.n_components, int(stored.facts["n_bands"])
        shapes = {"labels": shape, "components": (k, *shape), **cls._shapes(shape, (p,), k)}
        on_disk: dict[str, Any] = {}
        if stored.facts.get(ON_DISK):
            on_disk = {name: stored.array_on_disk(name, shapes.pop(name)) for name in ("mean", "components")}
        arrays = stored.arrays(shapes, integers=("labels",)) | on_disk
        bands = Bands(arrays["labels"])
        if bands.n_parts != p:
            raise ValueError(f"the labels have {bands.n_parts} bands instead of {p}")
        return cls._restored(stored, bands, arrays)


def _found_by(rule: Rule, source: Source, numbers: Array | None, run: Run) -> dict[str, Array]:
    """Return the result of a rule for all samples, or those of some numbers."""
    shape = tuple(source.shape[1:])
    if numbers is None:
        (found,), _ = fold(rule, source, Whole(shape), run=run, stage="statistics")
        return found
    state = rule.init(math.prod(shape), source.dtype)
    for samples in read_samples(source, numbers):
        state = rule.update(state, samples.reshape(len(samples), -1))
    return rule.finish(state)
