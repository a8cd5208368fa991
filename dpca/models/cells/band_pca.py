"""BandPCA: one principal component analysis for each band, a group of attributes with similar statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone

from dpca.choices import MAPPINGS
from dpca.engine.folds.fold import fold
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.sampling import read_samples, spread_samples
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array
from dpca.models.base.docs import PARTITIONED, documented
from dpca.models.base.store import Kept, StoredModel, plain
from dpca.models.cells.partitioned import PartitionedPCA
from dpca.models.cells.rank_choice import CHOICES
from dpca.partition.bands import Bands, map_at_random, map_by_moments, map_in_raster_order
from dpca.partition.whole import Whole
from dpca.representation.base import Representation
from dpca.rules.covariance.moments import Moments
from dpca.storage.arrays.layout import CHANNEL, axes_for
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number
from dpca.storage.run import Run

# Each interval takes memory, and more intervals than attributes serve no purpose.
_MOST_INTERVALS = 10_000_000
_OWN = ("band_size", "mapping", "n_intervals", "n_estimating", "keep_channels", "random_state")
_KEPT_PARAMETERS = (*CHOICES, "max_components", *_OWN)


@documented(**PARTITIONED, part="band", parts="bands", grid="n_bands")
@dataclass(eq=False, repr=False, kw_only=True)
class BandPCA(PartitionedPCA):
    """Principal component analysis of bands, groups of attributes with similar statistics (Alakkari 2020, section 4.4).

    Bands do not depend on position. BandPCA therefore supports any data: images, volumes, and vectors such as weather
    stations, molecules or spectra. The attributes of a sample are mapped to bands, and each band has its own mean and
    components from all samples. Values are analyzed in the units of the input. Integers are converted to floating
    point in blocks, never as a whole.

    Parameters
    ----------
    {n_components}
    band_size : int
        Largest number of attributes in a band (L in the thesis).
    mapping : {"mean-variance", "mean", "random", "raster"}
        How attributes are assigned to bands.

        - "mean": by similar means (Alakkari 2020, equation 4.2). The range of the means is divided into ``n_intervals``
          intervals of equal width. The attributes of an interval are sorted by their mean and cut into bands of
          ``band_size``. The last band of an interval contains the remaining attributes, so bands have unequal sizes and
          no band crosses an interval border.
        - "mean-variance": by similar means and variances (equation 4.3). As "mean", but sorted by variance.
        - "random": bands of ``band_size`` attributes, drawn by ``random_state`` (section 4.5.3). The last band contains
          the remaining attributes. Each band covers the whole sample, as holistic PCA does: its leading components, at
          their positions in the sample, resemble the holistic components (section 4.5.4).
        - "raster": consecutive attributes, as a baseline.
    n_intervals : int
        Number of intervals of the mean (s in the thesis).
    n_estimating : int, optional
        Number of samples for the estimate of means and variances (section 4.5.3, the estimating subset). The stack is
        divided into this many equal parts, and one random sample is drawn from each. Default: all samples, in an
        additional pass.
    keep_channels : bool
        Keep the channels of a pixel in one band. A band then has ``band_size // n_channels`` pixels. A pixel is mapped
        by the mean over its channels of their means and variances. (The thesis maps by the red channel and recommends
        gray values.)
    random_state : int, RandomState or None
        Seed of the random mapping, of the estimating subset, and of the samples for a quality target.
    {choices}
    {memory_budget}
    {flatten}
    {keep_state}

    Attributes
    ----------
    {components}
    {attributes}
    bands_ : Bands
        ``bands_.labels`` (*sample_shape) is the band number of each attribute.

    Notes
    -----
    {costs}
    If the mapping depends on means and variances, the stack is read once more. `partial_fit` maps by the statistics of
    its first batch.

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
    part_name: ClassVar[str] = "band"
    report_title: ClassVar[str] = "Band PCA"
    scores_kind: ClassVar[str] = Bands.scores_kind

    band_size: int
    mapping: str = "mean-variance"
    n_intervals: int = 50
    n_estimating: int | None = None
    keep_channels: bool = True

    # -- the partition

    def _partition(self, source: Source, axes: Sequence[str] | None, run: Run) -> Bands:
        self._check_parameters()
        shape = tuple(source.shape[1:])
        together = shape[-1] if self.keep_channels and (axes or axes_for(shape))[-1] == CHANNEL else 1
        size = min(int(self.band_size), math.prod(shape))
        rng = np.random.default_rng(self._seed())
        try:
            if self.mapping == "raster":
                return map_in_raster_order(shape, size, together=together)
            if self.mapping == "random":
                return map_at_random(shape, size, rng, together=together)
            mean, variance = self._moments(source, rng, run)
            keys = variance if self.mapping == "mean-variance" else None
            return map_by_moments(mean, keys, size, int(self.n_intervals), together=together)
        except PlanError:
            raise
        except ValueError as error:
            raise DataError(str(error)) from error

    def _moments(self, source: Source, rng: np.random.Generator, run: Run) -> tuple[Array, Array]:
        """Return mean and variance of each attribute, from all samples or from the estimating subset."""
        shape = tuple(source.shape[1:])
        if source.shape[0] < 2:
            raise DataError(
                "the first batch has 1 sample but the mapping requires at least 2: give more samples to the first call "
                "of partial_fit"
            )
        if self.n_estimating is None or self.n_estimating >= source.shape[0]:
            (found,), _ = fold(Moments(), source, Whole(shape), run=run.below("statistics"), stage="statistics")
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
            if name != "n_estimating" or self.n_estimating is not None:
                whole_number(getattr(self, name), name, least)
        if self.n_intervals > _MOST_INTERVALS:
            raise DataError(f"n_intervals is {self.n_intervals}: give at most {_MOST_INTERVALS:,}")

    def _most_components(self, partition: Bands) -> tuple[int, str]:
        return min(int(self.band_size), partition.labels.size), f"a band of {self.band_size}"

    def _name_of(self, place: tuple[int, ...]) -> str:
        return f"band{place[0]}"

    @property
    def bands_(self) -> Bands:
        """The bands."""
        bands: Bands = self.partition_
        return bands

    def plan_fit(self, source: Source, axes: Sequence[str], run: Run) -> tuple[Representation, bool]:
        """Plan a fit; see `Estimator.plan_fit`."""
        if self.mapping in ("random", "raster"):
            return super().plan_fit(source, axes, run)
        # Moments require a pass, and mapping by them may give more and smaller bands.
        return clone(self).set_params(mapping="raster").plan_fit(source, axes, run)[0], False

    # -- jobs and reports

    def fit_description(self, axes: Sequence[str]) -> str:
        """Return a description of the fit for logs."""
        return f"bands of {self.band_size:,} attributes"

    def report_numbers(self) -> dict[str, Any]:
        """Return the numbers of the fitted model for a report; see `dpca.report.record`."""
        bands = {"bands": self.bands_.n_partitions, "band_size": self.bands_.max_features, "mapping": self.mapping}
        return super().report_numbers() | bands

    # -- stores

    def _kept(self) -> Kept:
        axes = axes_for(self.sample_shape_)
        arrays = {
            "labels": (self.bands_.labels, axes),
            "mean": (self.mean_, axes),
            "components": (self.components_, ("component", *axes)),
            "explained_variance": (self.explained_variance_, ("band", "component")),
            "total_variance": (self.total_variance_, ("band",)),
            **self._state_arrays(),
        }
        parameters = {name: plain(getattr(self, name)) for name in _KEPT_PARAMETERS}
        facts = self._facts(n_bands=self.bands_.n_partitions) | {"parameters": parameters}
        return Kept(arrays, facts, self.store_version)

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        model = cls(**{name: stored.facts["parameters"][name] for name in _KEPT_PARAMETERS})
        shape, k, p = stored.sample_shape, stored.n_components, int(stored.facts["n_bands"])
        shapes = {"labels": shape, "components": (k, *shape), **cls._shapes(shape, (p,), k)}
        arrays = stored.arrays(shapes, integers=("labels",))
        bands = Bands(arrays["labels"])
        if bands.n_partitions != p:
            raise ValueError(f"the labels have {bands.n_partitions} bands instead of {p}")
        model._set_partitions(bands, arrays, stored.n_samples)
        model._restore_attributes(stored)
        return model
