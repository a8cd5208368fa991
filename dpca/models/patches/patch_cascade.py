"""PatchCascade: layers of patch components, rectified and pooled, as features for a linear classifier."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.kernels.patches import PatchGrid
from dpca.models.base.callbacks import FitCallbacks
from dpca.models.base.convergence import check_result, check_scale
from dpca.models.base.docs import documented
from dpca.models.base.estimator import Estimator
from dpca.models.base.parameters import check_parameters, no_values, spatial_lengths
from dpca.models.base.passes import Passes
from dpca.models.base.samples import varied_source
from dpca.models.base.store import StoreContents, StoredModel, stored_parameters
from dpca.models.patches.weighted_rows import weighted_patches
from dpca.parameters.patches import CascadeParameters
from dpca.partition.whole import Whole
from dpca.representation.base import Representation
from dpca.representation.cascade import CascadeRepresentation, EncodedSource
from dpca.representation.patches import PatchRepresentation
from dpca.rules.base.orthonormal import orthonormalize
from dpca.rules.covariance.patch_covariance import PatchCovariancePCA
from dpca.storage.arrays.layout import axes_for
from dpca.storage.errors import DataError
from dpca.storage.run import Run


@documented()
class PatchCascade(CascadeParameters, Estimator):
    """Features of images or volumes by layers of patch components, learned without labels and without gradients.

    Each layer finds the components of all overlapping patches of its input (`PatchPCA`). It splits every feature map
    into its positive and its negative part, and averages the parts over blocks. The result is the input of the next
    layer. The idea is that of PCANet (Chan et al. 2015), with rectification and averages instead of hashing and
    histograms. A linear classifier is far more accurate on these features than on the pixels.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    filters_ : list of array (n_components[j], *patch_shape, channels of layer j), float32 or float64
        The filters of each layer, after whitening.
    means_ : list of array (*patch_shape, channels of layer j), float64
        The mean patch of the input of each layer.
    explained_variance_ : list of array (n_components[j],), float64
        Variance along the components of each layer; nan for random filters.
    n_samples_seen_, n_features_in_ : int
    sample_shape_ : tuple of int
    fit_report_ : FoldReport
        Plan, seconds, peak memory of the first layer.

    Notes
    -----
    {where}
    A fit costs one read for each layer. Each layer computes the features of earlier layers again: nothing is stored
    between them. Features have no inverse: `inverse_transform` raises `DataError`.

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import PatchCascade
    >>> images = np.random.default_rng(0).integers(0, 256, (50, 28, 28), dtype=np.uint8)
    >>> PatchCascade((4, 6)).fit(images).transform(images).shape
    (50, 4, 4, 12)
    """

    store_kind: ClassVar[str] = "patch-cascade"
    any_weights: ClassVar[bool] = True
    scores_kind: ClassVar[str] = CascadeRepresentation.scores_kind
    measures_ssim: ClassVar[bool] = False
    report_title: ClassVar[str] = "Cascade of patches"

    # -- learning

    def _fit(self, X: Any, run: Run, callbacks: FitCallbacks | None = None) -> None:
        source, random = varied_source(self, X), np.random.default_rng(self._seed())
        weights = source.weights
        layers: list[PatchRepresentation] = []
        self.explained_variance_: list[Array] = []
        for j, rule, given in self._layers(source, source.axes, layers):
            passes, known_mean = Passes(given, run, callbacks=callbacks), dict[str, Array]()
            if weights is not None:
                given.weights = weights
                passes.source, rule, mean = named_errors(weighted_patches, source.name)(given, rule, passes)
                known_mean = {"mean": mean}
            (found,) = passes.over(Whole(tuple(given.shape[1:])), rule, stage=f"layer {j + 1}")
            found |= known_mean
            check_scale([check_result(found, what := f"the analysis of the patches of layer {j + 1}")], what)
            layers.append(PatchRepresentation(rule.grid, found["mean"], self._filters(found, random, given.dtype)))
            known = found["explained_variance"]
            self.explained_variance_.append(known if self.filters == "pca" else np.full_like(known, np.nan))
            if j == 0:
                self.fit_report_ = passes.report
        self._set_fitted(layers, source.shape[0])

    def _layers(
        self, source: Source, axes: Sequence[str] | None, known: list[PatchRepresentation]
    ) -> Iterator[tuple[int, PatchCovariancePCA, Source]]:
        """Yield the number, the rule and the source of each layer.

        The caller appends each fitted layer to ``known`` before the next one.
        """
        counts = self._counts()
        patch = spatial_lengths(self.patch_shape, "patch_shape", axes or axes_for(source.shape[1:]))
        for j, k in enumerate(counts):
            given = EncodedSource(source, self._representation(known)) if known else source
            shape = tuple(given.shape[1:])
            try:
                grid = PatchGrid(shape, patch, (1,) * len(patch))
            except ValueError as error:
                raise DataError(f"layer {j + 1} has maps of {shape} as input: {error}, or use fewer layers") from error
            if k > grid.n_features:
                raise DataError(
                    f"n_components of layer {j + 1} is {k}: use at most {grid.n_features}, the attributes of a patch"
                )
            if self.pool > min(grid.grid_shape):
                raise DataError(
                    f"pool is {self.pool}, but the maps of layer {j + 1} are {grid.grid_shape}: use a smaller pool, or "
                    f"fewer layers"
                )
            yield j, PatchCovariancePCA(grid, k), given

    def _counts(self) -> list[int]:
        """Return the numbers of components of the layers, after a check of all parameters that require no samples."""
        check_parameters(self)
        return list(map(int, self.n_components))

    def _filters(self, found: dict[str, Array], random: np.random.Generator, dtype: np.dtype[Any]) -> Array:
        """Return the filters of a layer (k, d) from its components."""
        rows = found["components"]
        if self.filters == "random":
            rows = orthonormalize(random.standard_normal(rows.shape))
        elif self.whitening is not None:
            variances = np.maximum(found["explained_variance"], 0)
            # Constant samples have no variance: their maps are 0 for any filters.
            rows = rows / np.sqrt(variances + self.whitening * (variances[0] or 1.0))[:, None]
        filters: Array = rows.astype(working_dtype(dtype))
        return filters

    def _representation(self, layers: Sequence[PatchRepresentation]) -> CascadeRepresentation:
        return CascadeRepresentation(tuple(layers), bool(self.rectify), int(self.pool))

    def _set_fitted(self, layers: Sequence[PatchRepresentation], n: int) -> None:
        self.filters_ = [layer.components.reshape(-1, *layer.grid.shape) for layer in layers]
        self.means_ = [layer.mean.reshape(layer.grid.shape) for layer in layers]
        self._basis = self._representation(layers)
        self.sample_shape_, self.n_samples_seen_ = layers[0].sample_shape, n
        self.n_features_in_ = math.prod(self.sample_shape_)

    def plan_fit(self, source: Source, axes: Sequence[str], run: Run) -> tuple[Representation, bool]:
        """Plan a fit; see `Estimator.plan_fit`."""
        layers: list[PatchRepresentation] = []
        for _, rule, given in self._layers(source, axes, layers):
            passes = Passes(given, run.limited_to(self.memory_budget))
            passes.plan(Whole(tuple(given.shape[1:])), rule)
            d, k = rule.grid.n_features, rule.n_components or 0
            zeros = no_values((d,), np.float64), no_values((k, d), working_dtype(given.dtype))
            layers.append(PatchRepresentation(rule.grid, *zeros))
        return self._representation(layers), True

    # -- using

    @property
    def basis_(self) -> CascadeRepresentation:
        """The filters of all layers, as tasks receive them."""
        check_is_fitted(self)
        return self._basis

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the features, in the order of the flattened features of a sample."""
        *grid, k = self.basis_.score_shape
        places = ("_".join(map(str, place)) for place in np.ndindex(*grid))
        return np.array([f"block{p}_map{j}" for p in places for j in range(k)], dtype=object)

    # -- for jobs and reports

    def check_parameters_for(self, n_samples: int) -> None:
        """Raise `DataError` if the parameters alone show that a fit to this many samples fails."""
        self._counts()

    def fit_description(self, axes: Sequence[str]) -> str:
        """Return a description of the fit to samples with axes of these names."""
        return f"{len(self._counts())} layers of patch components"

    def report_numbers(self) -> dict[str, Any]:
        """Return the numbers of the fitted model for a report; see `dpca.report.record`."""
        features = math.prod(self.basis_.score_shape)
        return {"components": self.basis_.score_shape[-1], "scalars_ratio": self.n_features_in_ / features}

    # -- on disk

    def _to_store(self) -> StoreContents:
        layers = self._basis.layers
        facts = {
            "sample_shape": list(self.sample_shape_),
            "n_components": self._basis.score_shape[-1],
            "n_samples_seen": self.n_samples_seen_,
            "layers": [len(layer.components) for layer in layers],
            "patch_shape": list(layers[0].grid.patch_shape),
            "parameters": stored_parameters(self),
        }
        arrays: dict[str, Any] = {}
        for j, layer in enumerate(layers):
            arrays[f"filters_{j}"] = layer.components, (f"component_{j}", f"attribute_{j}")
            arrays[f"mean_{j}"] = layer.mean, (f"attribute_{j}",)
            arrays[f"explained_variance_{j}"] = self.explained_variance_[j], (f"component_{j}",)
        return StoreContents(arrays, facts, self.store_version)

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        facts = stored.facts
        counts, patch = (tuple(map(int, facts[name])) for name in ("layers", "patch_shape"))
        model = cls(counts, patch_shape=patch, **stored.parameters(cls))
        layers: list[PatchRepresentation] = []
        model._counts()
        model.explained_variance_ = []
        shape = stored.sample_shape
        for j, k in enumerate(counts):
            grid = PatchGrid(shape, patch, (1,) * len(patch))
            d = grid.n_features
            names = {f"filters_{j}": (k, d), f"mean_{j}": (d,), f"explained_variance_{j}": (k,)}
            filters, mean, variances = stored.arrays(names).values()
            layers.append(PatchRepresentation(grid, mean, filters))
            model.explained_variance_.append(variances)
            shape = model._representation(layers).score_shape
        if shape[-1] != stored.n_components or 0 in shape:
            raise ValueError(f"its features have shape {shape}")
        model._set_fitted(layers, stored.n_samples)
        return model
