"""BandPCA: one principal component analysis for each band of attributes with like values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone

from dpca.choices import MAPPINGS
from dpca.engine.checkpoint import Checkpoints
from dpca.engine.fold import fold
from dpca.engine.plan import PlanError
from dpca.engine.sampling import read_samples, spread_samples
from dpca.engine.source import Source
from dpca.kernels.types import Array
from dpca.models.docs import PARTITIONED, documented
from dpca.models.partitioned import PartitionedPCA
from dpca.models.rank_choice import CHOICES
from dpca.models.store import Kept, StoredModel, plain
from dpca.partition.bands import Bands, map_at_random, map_by_moments, map_in_raster_order
from dpca.partition.whole import Whole
from dpca.representation.base import Representation
from dpca.rules.moments import Moments
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number
from dpca.storage.layout import CHANNEL, axes_for

# More of them than there are attributes mean nothing, and each takes memory.
_MOST_INTERVALS = 10_000_000
_OWN = ("band_size", "mapping", "n_intervals", "n_estimating", "keep_channels", "random_state")
_KEPT_PARAMETERS = (*CHOICES, "max_components", *_OWN)


@documented(**PARTITIONED, part="band", parts="bands", grid="n_bands")
@dataclass(eq=False, repr=False, kw_only=True)
class BandPCA(PartitionedPCA):
    """Principal component analysis of bands, attributes that go together by their values (Alakkari 2020, section 4.4).

    It does not use space, so it takes any data: images and volumes, and weather stations, molecules or spectra as
    vectors. The attributes of a sample are mapped to bands; each band gets its own mean and components from all
    samples. Values are analyzed in the units of the input; integers are never copied whole to floating point.

    Parameters
    ----------
    {n_components}
    band_size : int
        Largest number of attributes of a band (L in the thesis).
    mapping : {"mean-variance", "mean", "random", "raster"}
        Which attributes make a band.

        - "mean": like means (Alakkari 2020, equation 4.2). The range of the means is divided into ``n_intervals`` of
          equal width; the attributes of an interval are sorted by their mean and cut into bands of ``band_size``. The
          last band of an interval takes the interval's rest, so that bands have unequal sizes and none reaches across a
          border.
        - "mean-variance": like means and variances (equation 4.3). The same, but sorted by their variance.
        - "random": bands of ``band_size`` drawn by ``random_state``, the last one takes the rest (section 4.5.3). Each
          band sees the whole sample as the holistic analysis does: its leading components, in place, resemble the
          holistic ones (section 4.5.4).
        - "raster": consecutive attributes, a baseline.
    n_intervals : int
        Number of intervals of the mean (s in the thesis).
    n_estimating : int, optional
        Samples that means and variances are estimated from, one at random in each of so many equal parts of the stack
        (section 4.5.3, the estimating subset). Default all, which takes a pass of its own.
    keep_channels : bool
        Keep the channels of a pixel in one band, so that a band has ``band_size // n_channels`` pixels. A pixel is then
        mapped by the averages of its channels' means and variances (the thesis maps by the red channel, and recommends
        gray values).
    random_state : int, RandomState or None
        Seed of the random mapping, of the estimating subset, and of the samples that a target is met on.
    {choices}
    {memory_budget}
    {flatten}
    {keep_state}

    Attributes
    ----------
    {components}
    {attributes}
    bands_ : Bands
        ``bands_.labels`` (*sample_shape) is the band of each attribute.

    Notes
    -----
    {costs}
    Means and variances take one more read of the stack where the mapping needs them; `partial_fit` maps by those of its
    first batch.

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

    # -- what the bands are

    def _partition(self, source: Source, axes: Sequence[str] | None, **running: Any) -> Bands:
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
            here = None if checkpoints is None else replace(checkpoints, folder=f"{checkpoints.folder}/statistics")
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
            if name != "n_estimating" or self.n_estimating is not None:
                whole_number(getattr(self, name), name, least)
        if self.n_intervals > _MOST_INTERVALS:
            raise DataError(f"n_intervals is {self.n_intervals}: give an integer of at most {_MOST_INTERVALS:,}")

    def _most_components(self, partition: Bands) -> tuple[int, str]:
        return min(int(self.band_size), partition.labels.size), f"a band of {self.band_size}"

    def _name_of(self, place: tuple[int, ...]) -> str:
        return f"band{place[0]}"

    @property
    def bands_(self) -> Bands:
        """The bands."""
        bands: Bands = self.partition_
        return bands

    def plan_fit(self, source: Source, axes: Sequence[str], client: Any | None) -> tuple[Representation, bool]:
        """Plan a fit; see `Estimator.plan_fit`."""
        if self.mapping in ("random", "raster"):
            return super().plan_fit(source, axes, client)
        # Moments take a pass, and may make more bands, which are smaller.
        return clone(self).set_params(mapping="raster").plan_fit(source, axes, client)[0], False

    # -- what jobs and reports ask

    def announced(self, axes: Sequence[str]) -> str:
        """Say what is fitted."""
        return f"bands of {self.band_size:,} attributes"

    def report_numbers(self) -> dict[str, Any]:
        """Return what a report says of the fitted model; see `dpca.report.record`."""
        bands = {"bands": self.bands_.n_partitions, "band_size": self.bands_.max_features, "mapping": self.mapping}
        return super().report_numbers() | bands

    # -- keeping

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
            raise ValueError(f"{bands.n_partitions} bands, not {p}")
        model._learned_parts(bands, arrays, stored.n_samples)
        model._remember(stored)
        return model
