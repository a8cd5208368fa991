"""Base of `KernelPCA`: its attributes, incremental fits, and stores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin
from sklearn.utils.validation import check_is_fitted

from dpca.engine.folds.boundary import named_errors
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import as_source, opened
from dpca.kernels.algebra.types import Array
from dpca.kernels.inner_products import Kernel, KernelMap
from dpca.models.base.estimator import Estimator
from dpca.models.base.parameters import check_parameters, check_states_fit
from dpca.models.base.samples import fractions_of
from dpca.models.base.store import StoreContents, StoredModel, count_of, stored_parameters
from dpca.models.kernel.kernel_methods import Found, check_found
from dpca.models.kernel.landmarks import default_gamma
from dpca.models.kernel.large_samples import StoredLandmarks
from dpca.models.streaming.stored_states import RequiresState
from dpca.representation.base import Representation
from dpca.representation.kernel import KernelRepresentation
from dpca.representation.lazy import is_lazy
from dpca.storage.errors import DataError
from dpca.storage.remote.memory import usable_bytes

# Results of a fit, which are also stored: arrays with the names of their axes, and numbers.
_ARRAYS: dict[str, tuple[str, ...]] = {
    "landmarks": ("landmark", "feature"),
    "coefficients": ("landmark", "component"),
    "offset": ("component",),
    "mean_coefficients": ("landmark",),
    "landmark_scores": ("landmark", "component"),
    "eigenvalues": ("component",),
}
_NUMBERS = ("gamma", "inverse_gamma", "total", "residual", "captured_bound")
_FOUND = {"_basis", *(f"{name}_" for name in (*_ARRAYS, *_NUMBERS, "n_components"))}


class KernelModel(ClassNamePrefixFeaturesOutMixin, Estimator):  # type: ignore[misc]
    """Base of `KernelPCA`, the subclass with the parameters and ``_problem``."""

    scores_kind: ClassVar[str] = KernelRepresentation.scores_kind
    measures_ssim: ClassVar[bool] = False
    report_title: ClassVar[str] = "Kernel components"

    _stored: StoredLandmarks | None = None  # landmarks that stay in their source

    # -- fitting

    def _set_results(self, found: Found, sample_shape: tuple[int, ...], n: int) -> None:
        """Set the attributes from the results of a fit."""
        kernel, results = found.to_landmarks.kernel, found.results
        check_found(results, int(self.n_components))
        for name in _ARRAYS.keys() - {"landmarks"}:
            setattr(self, f"{name}_", results[name])
        self.landmarks_, self.gamma_, self._stored = found.to_landmarks.points, kernel.gamma, found.stored
        # The scores of a single landmark have no width. Two scores at plus and minus one standard deviation replace it.
        spread = np.sqrt(self.eigenvalues_ / n) * [[-1], [1]]
        scores = self.landmark_scores_ if len(self.landmark_scores_) > 1 else spread
        self.inverse_gamma_ = float(self.inverse_gamma or default_gamma(scores, "inverse_gamma", found.weights))
        for name in ("total", "residual", "captured_bound"):
            setattr(self, f"{name}_", float(results[name]))
        self._set_basis(sample_shape, n)

    def _set_basis(self, sample_shape: tuple[int, ...], n: int) -> None:
        self.sample_shape_, self.n_samples_seen_ = sample_shape, n
        self.n_components_, self.n_features_in_ = len(self.eigenvalues_), math.prod(sample_shape)
        kernel = Kernel(self.kernel, self.gamma_, int(self.degree), float(self.coef0))
        self._basis = KernelRepresentation(
            sample_shape,
            KernelMap(kernel, self.landmarks_),
            self.coefficients_,
            self.offset_,
            self.mean_coefficients_,
            self.landmark_scores_,
            self.pre_image,
            replace(kernel, gamma=self.inverse_gamma_),
            float(self.alpha),
        )

    # -- incremental fits

    @RequiresState
    def partial_fit(
        self, X: Any, y: Any = None, *, sample_weight: Any = None, sample_dim: str | Sequence[str] | None = None
    ) -> Self:
        """Update the model with further samples in memory. Requires method "nystrom".

        Parameters
        ----------
        X : array (n_samples, *sample_shape)
            Unless landmarks are given, they are chosen from the first batch, which must have at least as many samples.
            Costs as much as the pass of `fit`. Components are computed on access.
        sample_weight, sample_dim
            As in `fit`, but ``n_samples_seen_`` is the sum of all weights. The dims are those of the first
            ``DataArray``.

        Raises
        ------
        DataError
            After `fit` or `load`, for another method, and for samples that do not match the earlier ones.
        """
        fresh = self._states is None
        if fresh:
            check_parameters(self)
            if self.method != "nystrom":
                raise DataError(
                    f"method is {self.method!r}, and partial_fit requires method='nystrom': use that, or fit()"
                )
        x = self._batch(X, sample_dim, sample_weight)
        rows, weights = np.ascontiguousarray(x.reshape(len(x), -1)), fractions_of(sample_weight)
        if fresh:
            n = len(x) if isinstance(self.landmarks, str) else None
            problem = self._problem(n, tuple(x.shape[1:]), x.dtype)
            rng = np.random.default_rng(problem.seed)
            to_landmarks = named_errors(problem.landmarks_of, "X")(rows, rng, weights)
            self._rule, self.sample_shape_ = problem.rule(to_landmarks), tuple(x.shape[1:])
            check_states_fit(self._rule, [rows.shape[1]], rows.dtype)
        if tuple(x.shape[1:]) != self.sample_shape_:
            raise DataError(
                f"this batch has samples of shape {tuple(x.shape[1:])} but the first batch had {self.sample_shape_}: "
                f"give samples of that shape"
            )
        state = self._states[0] if self._states else self._rule.init(rows.shape[1], rows.dtype)
        update = self._rule.update if weights is None else partial(self._rule.weigh, weights=weights)
        self._set_state(named_errors(update, "X")(state, rows))
        return self

    def merge(self, other: KernelModel) -> Self:
        """Merge another estimator with the same landmarks and gamma, as if this one had seen its samples, too.

        Raises
        ------
        DataError
            If one of the two keeps no state, or their kernels, landmarks or sample shapes differ.
        """
        check_is_fitted(self)
        if not isinstance(other, KernelModel):
            raise DataError(f"merge requires another KernelPCA: {type(other).__name__} was given")
        check_is_fitted(other)
        if self._states is None or other._states is None:
            raise DataError("merge requires the states of both estimators, and one has none: fit both by partial_fit")
        a, b = self._rule.to_landmarks, other._rule.to_landmarks
        if a.kernel != b.kernel or not np.array_equal(a.points, b.points) or self.sample_shape_ != other.sample_shape_:
            raise DataError(
                "the two estimators differ in kernel, landmarks or sample shape: give both the same landmarks and gamma"
            )
        self._set_state(named_errors(self._rule.merge, "the other estimator")(self._states[0].copy(), other._states[0]))
        return self

    def _set_state(self, state: Any) -> None:
        """Set the state. `__getattr__` computes the attributes from it on access."""
        self._states, self.n_samples_seen_ = [state], state.counts["n_samples"]
        for name in _FOUND:
            self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        if name in _FOUND and self._states:
            if self.n_samples_seen_ < 2:
                raise DataError(f"the model has seen {self.n_samples_seen_} sample: give at least 2 to partial_fit")
            found = Found(self._rule.to_landmarks, named_errors(self._rule.finish, "X")(self._states[0].copy()))
            self._set_results(found, self.sample_shape_, self.n_samples_seen_)
        return object.__getattribute__(self, name)

    # -- representation

    @property
    def basis_(self) -> KernelRepresentation:
        """The landmarks and the coefficients, as they are sent to tasks. Landmarks in their source are read."""
        basis: KernelRepresentation = self._encoder
        if self._stored is None:
            return basis
        return replace(basis, to_landmarks=replace(basis.to_landmarks, points=self._landmarks_in_memory()))

    @property
    def _encoder(self) -> KernelRepresentation:
        check_is_fitted(self)
        basis: KernelRepresentation = self._basis
        return basis

    def _landmarks_in_memory(self) -> Array:
        """Return the landmarks (m, d) in memory.

        Raises
        ------
        PlanError
            If they do not fit.
        """
        landmarks: Any = self.landmarks_
        if self._stored is None:
            return np.asarray(landmarks)
        if (need := landmarks.nbytes) > (room := usable_bytes()):
            raise PlanError(
                f"{len(landmarks):,} landmarks of {self.n_features_in_:,} attributes require {need / 1e6:,.0f} "
                f"MB, but this process may use {room / 1e6:,.0f} MB: use transform() and landmark_scores_, which "
                f"read blocks of attributes, or method='nystrom' with fewer landmarks"
            )
        return np.asarray(landmarks.compute())

    def _each_sample(
        self, X: Any, function: Any, basis: Any, shape: tuple[int, ...], dtype_for: Callable[[DTypeLike], DTypeLike]
    ) -> Any:
        if self._stored is None or function is not Representation.encode:
            return super()._each_sample(X, function, basis, shape, dtype_for)
        lazy = is_lazy(X)
        source = self._of_this_shape(as_source(opened(X, self._key) if lazy else self._in_memory(X)))
        kernels: Any = self._stored.kernels_of(source, basis.to_landmarks.kernel)
        scored: Any = partial(_scores, coefficients=self.coefficients_, offset=self.offset_)
        scores: Any = kernels.map_blocks(scored, chunks=(kernels.chunks[0], shape), dtype=np.float64)
        return scores if lazy else scores.compute()

    @property
    def eigenvectors_(self) -> Array:
        """Eigenvectors (n_samples, n_components), float64, of the centered kernel matrix. Only for method "exact"."""
        if self.method != "exact":
            raise AttributeError(f"eigenvectors_ requires method='exact', not {self.method!r}: use transform")
        vectors: Array = self.landmark_scores_ / np.sqrt(self.eigenvalues_)
        return vectors

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def report_numbers(self) -> dict[str, Any]:
        """Return the numbers of the fitted model for a report; see `dpca.report.record`."""
        return {
            "components": self.n_components_,
            "explained_variance_ratio": float(self.eigenvalues_.sum() / self.total_),
            "method": f"{self.method}, {self.kernel} kernel",
            "landmarks": len(self.landmarks_),
            "passes": 1 + int(self.n_passes) if self.method == "kha" else 1,
            "attributes": self.n_features_in_,
            "scalars_ratio": self.n_features_in_ / self.n_components_,
            "captured_bound": self.captured_bound_,
        }

    # -- stores

    def _to_store(self) -> StoreContents:
        stored = stored_parameters(self) | {"landmarks": self.landmarks if isinstance(self.landmarks, str) else None}
        facts = {
            "sample_shape": list(self.sample_shape_),
            "n_components": self.n_components_,
            "n_samples_seen": count_of(self.n_samples_seen_),
            "n_landmarks": len(self.landmarks_),
            **{name: getattr(self, f"{name}_") for name in _NUMBERS},
            "parameters": dict(sorted(stored.items())),
        }
        arrays = {name: (getattr(self, f"{name}_"), axes) for name, axes in _ARRAYS.items()}
        arrays["landmarks"] = self._landmarks_in_memory(), _ARRAYS["landmarks"]
        return StoreContents(arrays, facts, self.store_version)

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        facts = stored.facts
        given = stored.parameters(cls)
        lengths = {"component": stored.n_components, "feature": math.prod(stored.sample_shape)}
        lengths["landmark"] = int(facts["n_landmarks"])
        arrays = stored.arrays({name: tuple(lengths[axis] for axis in axes) for name, axes in _ARRAYS.items()})
        if given["landmarks"] is None:
            given["landmarks"] = arrays["landmarks"].reshape(-1, *stored.sample_shape)
        model = cls(**given)
        for name, values in (arrays | {name: float(facts[name]) for name in _NUMBERS}).items():
            setattr(model, f"{name}_", values)
        model._set_basis(stored.sample_shape, stored.n_samples)
        model.check_parameters_for(0)
        return model


def _scores(kernels: Array, *, coefficients: Array, offset: Array) -> Array:
    scores: Array = kernels @ coefficients - offset
    return scores
