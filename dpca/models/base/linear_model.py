"""Base of the estimators of components of whole samples: fitted attributes, outlier scores, stores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Self

import dask.array as da
import numpy as np
from numpy.typing import DTypeLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin
from sklearn.utils.validation import check_is_fitted

from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.source import Source, check_numeric, opened
from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.models.base.component_model import ON_DISK, WEIGHTED, ComponentModel
from dpca.models.base.parameters import explained_share, no_values
from dpca.models.base.store import StoreContents, StoredModel, count_of, stored_parameters
from dpca.models.cells.rank import ranks_by_threshold
from dpca.models.linear.likelihood import Likelihood, log_likelihoods
from dpca.partition.whole import Whole
from dpca.representation.base import Representation
from dpca.representation.by_blocks import BasisBlocks
from dpca.representation.lazy import is_lazy, lazily_opened
from dpca.representation.linear import LinearRepresentation
from dpca.representation.on_disk import ArrayOnDisk
from dpca.representation.whitened import Whitened
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.arrays.layout import axes_for

# Number of leading shares of the variance in a report.
_LEADING = 5
# Bytes of one block of centered samples.
_BLOCK_BYTES = 2**22


class LinearModel(ClassNamePrefixFeaturesOutMixin, ComponentModel):  # type: ignore[misc]
    """Base of the estimators of orthonormal components of whole samples; a subclass fits, and plans a fit."""

    #: Content of a store: arrays with the names of their axes, and facts of a type.
    #: Attributes that a model lacks are omitted, and may be missing in an older store.
    array_axes: ClassVar[dict[str, tuple[str, ...]]] = {
        "mean": ("feature",),
        "components": ("component", "feature"),
        "explained_variance": ("component",),
    }
    kept_facts: ClassVar[dict[str, type]] = {}

    scores_kind: ClassVar[str] = Whole.scores_kind
    measures_ssim: ClassVar[bool] = False  # SSIM costs more than the scores of whole samples
    part_name: ClassVar[str] = "sample"
    report_title: ClassVar[str] = "Eigenimages"

    n_components: int | float | None
    whiten: bool

    # -- learning

    def _set_fitted(self, found: dict[str, Any], sample_shape: tuple[int, ...], n: int) -> None:
        """Set the fitted attributes from the result of a rule or the arrays of a store."""
        super()._set_fitted({**found, "total_variance": float(found["total_variance"])}, sample_shape, n)
        self.captured_bound_ = float(found.get("captured_bound", np.nan))

    def _lazily(self, name: str, array: ArrayOnDisk) -> da.Array:
        """Return the mean or the components on disk, whose attributes have one axis here."""
        return array.flat(1 if name == "components" else 0)

    def _truncated(self, found: dict[str, Array]) -> dict[str, Array]:
        """Truncate the result to ``n_components`` if that is a share of the variance."""
        share, variances = explained_share(self.n_components), found["explained_variance"]
        if share is None:
            return found
        total = np.atleast_1d(found["total_variance"])
        k = max(1, int(ranks_by_threshold(variances[None], total, share, max_components=len(variances))[0]))
        if k == len(variances):
            return found
        return {**found, "components": found["components"][:k].copy(), "explained_variance": variances[:k]}

    def _basis_to_be(self, source: Source, k: int) -> tuple[Representation, bool]:
        """Return a placeholder basis of ``k`` components for plans, and whether the number is final.

        The placeholder uses no memory. For a share of the variance it has one component.
        """
        shape, known = tuple(source.shape[1:]), explained_share(self.n_components) is None
        k = k if known else 1
        d, dtype = math.prod(shape), working_dtype(source.dtype)
        return LinearRepresentation(Whole(shape), no_values((d,), np.float64), no_values((k, d), dtype)), known

    # -- using

    @property
    def basis_(self) -> LinearRepresentation:
        """The mean and the components, as tasks receive them."""
        check_is_fitted(self)
        whole, (mean, components) = Whole(self.sample_shape_), self._arrays
        if not self.whiten:
            return LinearRepresentation(whole, mean, components)
        # As in scikit-learn, the scale of directions without variance is limited.
        deviations = np.sqrt(np.maximum(self.explained_variance_, np.finfo(float).eps ** 2))
        return Whitened(whole, mean, components, deviations)

    def _each_sample(
        self, X: Any, function: Any, basis: Any, shape: tuple[int, ...], dtype_for: Callable[[DTypeLike], DTypeLike]
    ) -> Any:
        """Apply a function to each sample, see `EachSample`; block by block if the components are on disk."""
        if not self._on_disk or is_labelled(X):
            return super()._each_sample(X, function, basis, shape, dtype_for)
        in_memory = not is_lazy(X)
        x = self._of_this_shape(self._in_memory(X) if in_memory else lazily_opened(opened(X, self._key)))
        check_numeric(x.shape, x.dtype, "X")
        found = _BY_BLOCKS[function](basis, x)
        return found.compute(scheduler="threads") if in_memory else found

    def score_samples(self, X: Any) -> Any:
        """Return minus the squared reconstruction error of each sample: outliers have low values.

        Parameters
        ----------
        X : as in `transform`

        Returns
        -------
        array (n_samples,), float64; a Dask array for Dask arrays, Zarr arrays, stacks and paths. Costs 4 n d k
        operations.
        """
        return self._each_sample(X, residual_scores, self.basis_, (), lambda dtype: np.float64)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def report_numbers(self) -> dict[str, Any]:
        """Return the numbers of the fitted model for a report; see `dpca.report.record`."""
        return super().report_numbers() | {
            "attributes": self.n_features_in_,
            "scalars_ratio": self.n_features_in_ / self.n_components_,
            "leading_ratios": self.explained_variance_ratio_[:_LEADING],
            "captured_bound": None if math.isnan(self.captured_bound_) else self.captured_bound_,
            "total_variance": self.total_variance_,
            "explained_variance": self.explained_variance_,
        }

    # -- on disk

    def _to_store(self) -> StoreContents:
        known = {name: getattr(self, f"{name}_") for name in self.kept_facts}
        facts = {
            "sample_shape": list(self.sample_shape_),
            "n_components": int(self.n_components_),
            "n_samples_seen": count_of(self.n_samples_seen_),
            "total_variance": self.total_variance_,
            # JSON has no NaN.
            **{name: None if value != value else value for name, value in known.items()},
            "parameters": stored_parameters(self),
        }
        names = [name for name in self.array_axes if hasattr(self, f"{name}_")]
        arrays = {name: (getattr(self, f"{name}_"), self.array_axes[name]) for name in names}
        if self._on_disk:
            axes = axes_for(self.sample_shape_)
            arrays |= {name: (array, (*self.array_axes[name][:-1], *axes)) for name, array in self._on_disk.items()}
            facts[ON_DISK] = True
        return StoreContents(arrays, facts, self.store_version)

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        facts = stored.facts
        names = [name for name in cls.array_axes if name in facts.get("kept", cls.array_axes)]
        if not LinearModel.array_axes.keys() <= set(names):
            raise ValueError(f"it has only the arrays {names}")
        model = cls(**{"n_components": stored.n_components, **cls._restored_parameters(stored)})
        known = {name: kind(facts[name]) for name, kind in cls.kept_facts.items() if facts.get(name) is not None}
        lengths = cls._stored_lengths(stored)
        shapes = {name: tuple(lengths[axis] for axis in cls.array_axes[name]) for name in names}
        arrays: dict[str, Any] = {}
        if facts.get(ON_DISK):
            for name in ("components",) if facts.get(WEIGHTED) else ("mean", "components"):
                arrays[name] = stored.array_on_disk(name, (*shapes.pop(name)[:-1], *stored.sample_shape))
        arrays |= stored.arrays(shapes)
        total = float(facts["total_variance"])
        model._set_fitted({**arrays, **known, "total_variance": total}, stored.sample_shape, stored.n_samples)
        for name, value in known.items():
            setattr(model, f"{name}_", value)
        return model

    @classmethod
    def _restored_parameters(cls, stored: StoredModel) -> dict[str, Any]:
        """Return the parameters in a store."""
        return stored.parameters(cls)

    @classmethod
    def _stored_lengths(cls, stored: StoredModel) -> dict[str, int]:
        """Return the lengths of the axes of the arrays in a store."""
        return {"component": stored.n_components, "feature": math.prod(stored.sample_shape)}


class LeastComponents(NamedTuple):
    """Orthonormal rows of the smallest variances, and these variances, which are positive."""

    mean: Array
    components: Array
    variances: Array


def residual_scores(basis: LinearRepresentation, samples: Array, name: str = "a chunk") -> Array:
    """Return -|x - x^|^2 (n,), float64, with the reconstruction x^ from the components of a basis.

    The residual itself is squared: the difference of |x - mean|^2 and the squared scores would lose digits.
    """
    scores = np.empty(len(samples))
    for rows, centered in _centered(basis.mean, samples, basis.components.dtype, name):
        components = basis.components.astype(centered.dtype, copy=False)
        centered -= (centered @ components.T) @ components
        scores[rows] = -np.einsum("ij,ij->i", centered, centered, dtype=np.float64)
    return scores


def least_scores(least: LeastComponents, samples: Array, name: str = "a chunk") -> Array:
    """Return -sum_j y_j^2 / lambda_j (n,), float64, over the least components (Jolliffe 2002, section 10.1).

    With all components this is minus the squared Mahalanobis distance (Alakkari 2020, section 2.1.2). Its mean over the
    samples of the fit is -n_least (n - 1) / n.
    """
    scores = np.empty(len(samples))
    weights = 1 / np.sqrt(least.variances)
    for rows, centered in _centered(least.mean, samples, least.components.dtype, name):
        y = (centered @ least.components.T.astype(centered.dtype, copy=False)).astype(np.float64) * weights
        scores[rows] = -np.einsum("ij,ij->i", y, y)
    return scores


def _scores_by_blocks(basis: LinearRepresentation, x: Any) -> da.Array:
    blocks = BasisBlocks(basis)
    return blocks.encode(blocks.samples(x))


def _residuals_by_blocks(basis: LinearRepresentation, x: Any) -> da.Array:
    blocks = BasisBlocks(basis)
    samples = blocks.samples(x)
    return -blocks.residuals(samples, blocks.encode(samples))


def _likelihoods_by_blocks(model: Likelihood, x: Any) -> da.Array:
    blocks = BasisBlocks(model.basis)
    samples = blocks.samples(x)
    scores = blocks.encode(samples)
    lost = blocks.residuals(samples, scores)
    squares = (scores.astype(np.float64) ** 2) @ model.precisions.ravel()
    return -0.5 * (model.constant + squares + lost * float(model.noise_precisions[0]))


# Functions of each sample, and the same for components on disk.
_BY_BLOCKS: dict[Any, Callable[[Any, Any], da.Array]] = {
    Representation.encode: _scores_by_blocks,
    residual_scores: _residuals_by_blocks,
    log_likelihoods: _likelihoods_by_blocks,
}


def _centered(mean: Array, samples: Array, least_dtype: np.dtype[Any], name: str) -> Iterator[tuple[slice, Array]]:
    """Yield blocks of samples minus the mean, in a buffer that is reused; raise an error for NaN and infinity."""
    check_finite(samples, 0, name)
    n, d = len(samples), len(mean)
    flat = samples.reshape(n, d)
    dtype = np.result_type(working_dtype(samples.dtype), least_dtype)
    shift = mean.astype(dtype)
    step = max(1, _BLOCK_BYTES // (d * dtype.itemsize))
    for start in range(0, n, step):
        block = flat[start : start + step]
        out = linalg.scratch("centered", block.shape, dtype)
        yield slice(start, start + len(block)), np.subtract(block, shift, out=out, dtype=dtype)
