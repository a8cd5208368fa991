"""PatchPCA: components of all overlapping patches of a stack, as filters of a convolution."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.centered import CenteredSource, ScaledSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.kernels.patches import PatchGrid
from dpca.models.base.attribute_blocks import mean_by_blocks
from dpca.models.base.callbacks import FitCallbacks
from dpca.models.base.component_model import WEIGHTED
from dpca.models.base.convergence import check_result, check_scale
from dpca.models.base.docs import documented
from dpca.models.base.estimator import Estimator
from dpca.models.base.labelled import Labels
from dpca.models.base.parameters import checked_rank, no_values, spatial_lengths
from dpca.models.base.passes import Passes
from dpca.models.base.samples import varied_source
from dpca.models.base.store import StoreContents, StoredModel, stored_parameters
from dpca.models.linear.weighted import weighted_mean
from dpca.models.patches.weighted_rows import weighted_patches
from dpca.models.weights.attribute_weights import attribute_weights
from dpca.parameters.patches import PatchParameters
from dpca.partition.patch_slabs import PatchSlabs
from dpca.partition.whole import Whole
from dpca.representation.base import Representation
from dpca.representation.patches import PatchRepresentation, WeightedPatches
from dpca.rules.covariance.patch_covariance import PatchCovariancePCA, PatchSums
from dpca.storage.arrays.layout import axes_for
from dpca.storage.errors import DataError, PlanError
from dpca.storage.given_numbers import is_real
from dpca.storage.run import Run


@documented()
class PatchPCA(PatchParameters, Estimator):
    """Principal component analysis of all overlapping patches of an image or volume stack: convolution filters.

    Every patch of every sample, one at each step of the stride, is a row of one analysis. All places share the mean
    patch and the components. These are the filters of PCANet (Chan et al. 2015), learned in one pass. `transform`
    returns feature maps, as a convolution without padding computes them. `filters` returns the weights of that
    convolution, optionally whitened, for a network with an untrained first layer.

    Use `CellPCA` to compress: cells cover a sample once. Use patches to extract features: they overlap, and a shifted
    sample has shifted feature maps.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    components_ : array (n_components, *patch_shape, *channels), float32 (float64 for float64 and wide integers)
        Orthonormal, ordered by variance; the entry of largest magnitude is positive.
    mean_ : array (*patch_shape, *channels), float64
        The mean patch. With weights, that of the weighted anomalies: 0 up to rounding error.
    explained_variance_ : array (n_components,), float64
        Variance of the scores of all patches, in squared units of the input (divisor: their number less 1).
    explained_variance_ratio_ : array (n_components,), float64
    total_variance_ : float
        Certificate: the exact sum of all variances of the patches.
    weights_, sample_mean_ : array (*sample_shape), float64
        The weights of attributes and the mean of the samples. Exist only after a fit with weights.
    grid_ : PatchGrid
        Positions of the patches; ``grid_.grid_shape`` is the shape of a feature map.
    n_components_, n_samples_seen_, n_features_in_ : int
    sample_shape_ : tuple of int
    fit_report_ : FoldReport
        Plan, seconds, peak memory.

    Notes
    -----
    {where}
    A fit costs one read and O(n p d^2) operations for p patches of d attributes in each of n samples. A stride of s
    over images divides p by s^2 and changes the covariance little. Memory: 8 d^2 bytes of sums, and 16 d k for k
    components, or 32 d^2 for nearly all. `transform` costs O(n p d k). Of large samples in stores, it reads boxes.
    8-bit integers are summed exactly: the result does not depend on chunks, order or workers. If whole samples do not
    fit into the memory of a task, it reads slabs of them.

    With weights, the model is that of the patches of ``(X - X.mean(axis=0)) * weights``, and `filters` apply to these.

    `inverse_transform` averages the reconstructions of all patches at each pixel. It returns the samples if all
    components are kept and the stride is not larger than the patch. Pixels beyond the last patch of a stride get the
    mean.

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import PatchPCA
    >>> images = np.random.default_rng(0).integers(0, 256, (100, 20, 30, 3), dtype=np.uint8)
    >>> model = PatchPCA(8, patch_shape=5).fit(images)
    >>> model.transform(images).shape
    (100, 16, 26, 8)
    >>> model.filters(whiten=10.0, signs=True).shape
    (16, 3, 5, 5)
    """

    store_kind: ClassVar[str] = "patch-pca"
    weighted_version: ClassVar[int] = 2
    weighs_attributes: ClassVar[bool] = True
    any_weights: ClassVar[bool] = True
    scores_kind: ClassVar[str] = PatchRepresentation.scores_kind
    measures_ssim: ClassVar[bool] = False
    report_title: ClassVar[str] = "Components of patches"

    weights_: Array
    sample_mean_: Array

    # -- learning

    def _prepared(self, X: Any, labels: Labels | None, run: Run) -> Any:
        for name in ("weights_", "sample_mean_"):
            self.__dict__.pop(name, None)
        if self.weights is None:
            return X
        source = varied_source(self, X)
        shape = tuple(source.shape[1:])
        weights = attribute_weights(self.weights, labels, shape)
        passes = Passes(source, run)
        mean = mean_by_blocks(passes, stage="mean") if source.weights is None else weighted_mean(source, passes)
        self.weights_, self.sample_mean_ = weights.copy(), mean.reshape(shape)
        rows = ScaledSource(CenteredSource(source, self.sample_mean_), weights)
        rows.weights = source.weights
        return rows

    def _fit(self, X: Any, run: Run, callbacks: FitCallbacks | None = None) -> None:
        source = varied_source(self, X)
        rule, known = self._rule(source, source.axes), dict[str, Array]()
        passes = Passes(source, run, callbacks=callbacks)
        if source.weights is not None:
            passes.source, rule, mean = named_errors(weighted_patches, source.name)(source, rule, passes)
            known = {"mean": mean}

        def set_fitted(model: Any, found: dict[str, Array], n: int) -> None:
            check_scale([check_result(found, what := "the analysis of patches")], what)
            components = found["components"].astype(working_dtype(source.dtype))
            model._set_fitted(rule.grid, {**found, **known, "components": components}, n)

        passes.set_fitted = set_fitted
        if (slabs := self._slabs(rule, passes)) is None:
            found = passes(rule, result_so_far=lambda states: rule.finish(states[0]))
        else:
            partition, sums = slabs

            def joined(results: Iterable[dict[str, Array]]) -> dict[str, Array]:
                return rule.finish(rule.joined(results))

            found = joined(passes.over(partition, sums, result_so_far=lambda states: joined(map(sums.finish, states))))
        set_fitted(self, found, source.shape[0])
        self.fit_report_ = passes.report

    def _slabs(self, rule: PatchCovariancePCA, passes: Passes) -> tuple[PatchSlabs, PatchSums] | None:
        """Return the slabs of samples to fold, and their rule; None if a task holds whole samples.

        Raises
        ------
        PlanError
            If a task cannot hold a slab with one row of patches either.
        """
        grid = rule.grid
        try:
            passes.plan(Whole(grid.sample_shape), rule)
            return None
        except PlanError as error:
            refusal = error
        for slabs in PatchSlabs.of(grid, passes.source.chunks[1]):
            (start, stop), *others = slabs.region(0)
            of_slab = replace(grid, sample_shape=(stop - start, *(b for _, b in others)))
            sums = PatchSums(of_slab, rule.n_components)
            try:
                passes.plan(slabs, sums)
                return slabs, sums
            except PlanError as error:
                refusal = error
        raise refusal

    def _rule(self, source: Source, axes: Sequence[str] | None) -> PatchCovariancePCA:
        """Return the rule for samples with axes of these names."""
        shape = tuple(source.shape[1:])
        patch = spatial_lengths(self.patch_shape, "patch_shape", axes or axes_for(shape))
        stride = self.stride if isinstance(self.stride, Sequence) else (self.stride,) * len(patch)
        try:
            grid = PatchGrid(shape, patch, tuple(map(int, stride)))
        except ValueError as error:
            raise DataError(str(error)) from error
        k, d = self.n_components, grid.n_features
        return PatchCovariancePCA(grid, d if k is None else checked_rank(k, d, None, f"a patch of {grid.shape}"))

    def plan_fit(self, source: Source, axes: Sequence[str], run: Run) -> tuple[Representation, bool]:
        """Plan a fit; see `Estimator.plan_fit`."""
        rule, shape = self._rule(source, axes), tuple(source.shape[1:])
        d, k = rule.grid.n_features, rule.n_components or 0
        zeros = no_values((d,), np.float64), no_values((k, d), working_dtype(source.dtype))
        basis = PatchRepresentation(rule.grid, *zeros)
        if self.weights is not None:
            of_sample = no_values(shape, np.float64)
            source = ScaledSource(CenteredSource(source, of_sample), of_sample)
            basis = WeightedPatches(rule.grid, *zeros, of_sample, of_sample)
        self._slabs(rule, Passes(source, run.limited_to(self.memory_budget)))
        return basis, True

    def _set_fitted(self, grid: PatchGrid, found: dict[str, Array], n: int) -> None:
        """Set the learned attributes from the result of a fit to n samples, or the arrays of a store."""
        self.grid_, self.sample_shape_, self.n_samples_seen_ = grid, grid.sample_shape, n
        self.n_features_in_ = math.prod(grid.sample_shape)
        self.components_, self.mean_ = found["components"].reshape(-1, *grid.shape), found["mean"].reshape(grid.shape)
        self.n_components_, self.explained_variance_ = len(self.components_), found["explained_variance"]
        self.total_variance_ = float(found["total_variance"])
        share = np.zeros_like(self.explained_variance_)
        np.divide(self.explained_variance_, self.total_variance_, out=share, where=self.total_variance_ > 0)
        self.explained_variance_ratio_ = share

    # -- using

    @property
    def basis_(self) -> PatchRepresentation:
        """The mean patch, the components and their positions, as tasks receive them."""
        check_is_fitted(self)
        arrays = self.mean_.ravel(), self.components_.reshape(self.n_components_, -1)
        if hasattr(self, "weights_"):
            return WeightedPatches(self.grid_, *arrays, self.weights_, self.sample_mean_)
        return PatchRepresentation(self.grid_, *arrays)

    def filters(self, whiten: float | None = None, *, signs: bool = False) -> Array:
        """Return the components as weights of a convolution, channels first.

        Parameters
        ----------
        whiten : float, optional
            Divide filter j by the root of ``explained_variance_[j] + whiten``. At least 0, in squared units of the
            samples. The outputs are uncorrelated and have variances lambda / (lambda + whiten), close to 1 if
            ``whiten`` is much smaller than lambda. Default: orthonormal filters.
        signs : bool
            Whether to append the negatives of all filters. Rectified outputs then lose no information.

        Returns
        -------
        array (n_components or twice as many, channels, *patch_shape), of the type of ``components_``
            Samples without channels have one channel here. A convolution with these weights and `filter_biases`, the
            stride of the model and no padding computes the same as `transform`.

        Raises
        ------
        DataError
            If ``whiten`` is not a number of at least 0, or is 0 and a component has no variance.
        """
        check_is_fitted(self)
        weights = self.components_.reshape(self.n_components_, *self.grid_.patch_shape, -1)
        if whiten is not None:
            scales = self._deviations(whiten).reshape(-1, *(1,) * (weights.ndim - 1))
            weights = (weights / scales).astype(weights.dtype)
        weights = np.moveaxis(weights, -1, 1)
        return np.concatenate([weights, -weights]) if signs else np.ascontiguousarray(weights)

    def filter_biases(self, whiten: float | None = None, *, signs: bool = False) -> Array:
        """Return the biases (n_components or twice as many,) of `filters`: minus their outputs for the mean patch."""
        filters = self.filters(whiten, signs=signs)
        mean = np.moveaxis(self.mean_.reshape(*self.grid_.patch_shape, -1), -1, 0)
        biases: Array = -(filters.reshape(len(filters), -1) @ mean.ravel()).astype(filters.dtype)
        return biases

    def _deviations(self, whiten: float) -> Array:
        if not is_real(whiten) or not 0 <= whiten < math.inf:
            raise DataError(f"whiten is {whiten!r}: use a number of at least 0, or None")
        variances = np.maximum(self.explained_variance_, 0) + float(whiten)
        if not variances.all():
            raise DataError(
                "whiten is 0, but some components have no variance: use a positive whiten, or keep fewer components"
            )
        return np.sqrt(variances)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the scores, in the order of the flattened scores of a sample."""
        check_is_fitted(self)
        places = ("_".join(map(str, place)) for place in np.ndindex(self.grid_.grid_shape))
        return np.array([f"patch{p}_component{j}" for p in places for j in range(self.n_components_)], dtype=object)

    # -- for jobs and reports

    def check_parameters_for(self, n_samples: int) -> None:
        """Raise `DataError` if the parameters alone show that a fit to this many samples fails."""
        if self.n_components is not None:
            checked_rank(self.n_components, self.n_components, None)

    def fit_description(self, axes: Sequence[str]) -> str:
        """Return a description of the fit to samples with axes of these names."""
        shape = " x ".join(map(str, spatial_lengths(self.patch_shape, "patch_shape", axes)))
        return f"shared components of patches of {shape}"

    def report_numbers(self) -> dict[str, Any]:
        """Return the numbers of the fitted model for a report; see `dpca.report.record`."""
        return {
            "components": self.n_components_,
            "explained_variance_ratio": float(self.explained_variance_ratio_.sum()),
            "attributes": self.grid_.n_features,
            "scalars_ratio": self.n_features_in_ / (self.grid_.n_patches * self.n_components_),
        }

    # -- on disk

    def _to_store(self) -> StoreContents:
        facts = {
            "sample_shape": list(self.sample_shape_),
            "n_components": self.n_components_,
            "n_samples_seen": self.n_samples_seen_,
            "patch_shape": list(self.grid_.patch_shape),
            "stride": list(self.grid_.stride),
            "total_variance": self.total_variance_,
            **({"parameters": parameters} if (parameters := stored_parameters(self)) else {}),
        }
        arrays = {
            "components": (self.components_.reshape(self.n_components_, -1), ("component", "attribute")),
            "mean": (self.mean_.ravel(), ("attribute",)),
            "explained_variance": (self.explained_variance_, ("component",)),
        }
        if not hasattr(self, "weights_"):
            return StoreContents(arrays, facts, self.store_version)
        axes = axes_for(self.sample_shape_)
        of_sample = {"weights": (self.weights_, axes), "sample_mean": (self.sample_mean_, axes)}
        return StoreContents(arrays | of_sample, {**facts, WEIGHTED: True}, self.weighted_version)

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        facts, k = stored.facts, stored.n_components
        patch, stride = (tuple(map(int, facts[name])) for name in ("patch_shape", "stride"))
        grid = PatchGrid(stored.sample_shape, patch, stride)
        d, total = grid.n_features, float(facts["total_variance"])
        arrays = stored.arrays({"components": (k, d), "mean": (d,), "explained_variance": (k,)})
        if not 1 <= k <= d or stored.n_samples < 2:
            raise ValueError(f"{k} components of {stored.n_samples} samples")
        model = cls(k, patch_shape=patch, stride=stride, **stored.parameters(cls))
        model._set_fitted(grid, {**arrays, "total_variance": np.asarray(total)}, stored.n_samples)
        if facts.get(WEIGHTED):
            of_sample = stored.arrays({"weights": grid.sample_shape, "sample_mean": grid.sample_shape})
            model.weights = model.weights_ = of_sample["weights"]
            model.sample_mean_ = of_sample["sample_mean"]
        return model
