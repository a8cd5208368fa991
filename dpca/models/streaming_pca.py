"""StreamingPCA: principal components in one pass over data of any size, by any of the field's update rules."""

from __future__ import annotations

import math
import os
import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dpca.engine.checkpoint import Checkpoints
from dpca.engine.fold import FoldReport, fold
from dpca.engine.source import Source, as_source
from dpca.models.lazy import as_lazy, default_client, is_lazy, map_samples, scores_of
from dpca.models.linear_basis import LinearBasis
from dpca.models.streaming_methods import make_rule
from dpca.partition.whole import Whole
from dpca.rules.refinement import Refinement
from dpca.rules.state import State, working_dtype
from storage.errors import DataError
from storage.progress import Progress, no_progress
from storage.stack import open_stack

Array = NDArray[Any]


class OrderWarning(UserWarning):
    """A rule that assumes samples in random order met a store, whose order it cannot know."""


class StreamingPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Principal component analysis of a stream of samples, in one pass and memory that does not grow.

    Parameters
    ----------
    n_components : int
        Components to find.
    method : str
        The update rule. "incremental-svd" (Brand 2002; Ross et al. 2008) is close to exact after one pass in any order
        of samples and merges, so that segments are folded side by side. The others are the sequential rules of the
        field, each described where it is defined in `dpca.rules`: "oja", "oja-subspace", "krasulina", "sanger",
        "implicit-krasulina", "block-power", "accelerated-block-power", "accelerated-oja", "ccipca", "ipca" and
        "similarity-matching". They assume samples in random order and run as a chain, one segment after the other.
    batch_size : int, optional
        Samples of one update, whatever the chunks of the store; default what the rule does best with.
    oversampling : int, optional
        Further directions that "incremental-svd" keeps; default 50.
    n_passes : int
        Passes over the data. Each one after the first multiplies the components by the covariance (orthogonal
        iteration with Rayleigh-Ritz, T 3.4.5; L 5.3) and measures exactly what they capture.
    center : bool
        Subtract the mean: exactly in one pass by "incremental-svd", by the running mean in the other rules.
    random_state : int, RandomState or None
        Seed of the rules that begin with a random basis.
    memory_budget : int, optional
        Bytes that one task may take beyond what its process holds; default from the workers' limits or the machine.

    Attributes
    ----------
    components_ : array (n_components, n_features)
        Orthonormal rows, ordered by variance; the entry of largest magnitude is positive. float32, or float64 for
        float64 input and wide integers.
    mean_ : array (n_features,), float64
    explained_variance_, explained_variance_ratio_, singular_values_ : array (n_components,), float64
        What the rule knows of the variances (divisor n - 1); measured exactly where ``n_passes`` > 1, for the
        components before the last multiplication.
    total_variance_ : float
        Certificate: the sum of all variances of the samples, exact.
    captured_bound_ : float
        Certificate: the captured variance is at least this share of what the best components would capture; nan where
        the rule knows no bound.
    residual_norms_ : array (n_components,), float64
        ||C v - lambda v|| of the components measured in the last pass; only with ``n_passes`` > 1.
    n_components_, n_features_in_, n_samples_seen_ : int
    sample_shape_ : tuple of int
    fit_report_ : FoldReport
        Plan, seconds, peak memory of the first pass.

    Notes
    -----
    One pass costs 2 n d (2 q) operations for "incremental-svd", q = n_components + oversampling, and memory for q rows
    of d. Runs on the current ``distributed.Client`` if there is one and the input is on disk or a Dask array, else on
    threads of this process.

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import StreamingPCA
    >>> images = np.random.default_rng(0).integers(0, 256, (300, 20, 30), dtype=np.uint8)
    >>> model = StreamingPCA(5, random_state=0).fit(images)
    >>> model.transform(images).shape
    (300, 5)
    """

    def __init__(
        self,
        n_components: int,
        *,
        method: str = "incremental-svd",
        batch_size: int | None = None,
        oversampling: int | None = None,
        n_passes: int = 1,
        center: bool = True,
        random_state: Any = None,
        memory_budget: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.batch_size = batch_size
        self.oversampling = oversampling
        self.n_passes = n_passes
        self.center = center
        self.random_state = random_state
        self.memory_budget = memory_budget

    # -- learning

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        client: Any | None = None,
        checkpoints: Checkpoints | None = None,
        progress: Progress = no_progress,
    ) -> Self:
        """Find the components in ``n_passes`` passes.

        Parameters
        ----------
        X : array (n_samples, *sample_shape), numpy, Dask or Zarr; storage.Stack; or path of a stack store or Zarr array
        y : ignored
        client : distributed.Client, optional
            Default: the current one, if any.
        checkpoints : Checkpoints, optional
            Folder of a fit that was stopped, to go on from.
        progress : Progress, optional
            Told the bytes read.

        Raises
        ------
        DataError
            For values that are not finite, or parameters that do not fit the data.
        PlanError
            When the state and a batch do not fit the memory budget.
        """
        if isinstance(self.n_passes, bool) or not isinstance(self.n_passes, int | np.integer) or self.n_passes < 1:
            raise DataError(f"n_passes is {self.n_passes!r}: give at least 1")
        source = self._source(X)
        rule = self._rule(math.prod(source.shape[1:]), source.shape[0])
        if rule.rule.random_order and is_lazy(X):
            warnings.warn(
                f"{self.method} assumes samples in random order and the order of {source.name} is not known to be: "
                f"shuffle it before, or use method='incremental-svd', which takes any order",
                OrderWarning,
                stacklevel=2,
            )
        self._state: State | None = None
        results, self.fit_report_ = self._fold(rule, source, client, checkpoints, progress, "fit")
        self.restore(results[0], tuple(source.shape[1:]), source.shape[0])
        for turn in range(1, int(self.n_passes)):
            refine = Refinement(self.components_, self.mean_, bool(self.center))
            found, _ = self._fold(refine, source, client, checkpoints, progress, f"pass {turn + 1}")
            self.restore(found[0], tuple(source.shape[1:]), source.shape[0])
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Take in further samples, held in memory.

        Parameters
        ----------
        X : array (n_samples, *sample_shape)
            The first call fixes the sample shape and dtype. What `fit` learned is forgotten: it keeps no state.
        """
        fresh = getattr(self, "_state", None) is None
        X = self._dense(X, reset=fresh)
        rows = np.ascontiguousarray(X.reshape(len(X), -1))
        if fresh:
            self._stream_rule = self._rule(rows.shape[1], None)
            self._state = self._stream_rule.init(rows.shape[1], rows.dtype)
            self._stream_dtype, self.sample_shape_ = rows.dtype, tuple(X.shape[1:])
        if rows.dtype != self._stream_dtype or tuple(X.shape[1:]) != self.sample_shape_:
            raise DataError(
                f"this batch has samples of {tuple(X.shape[1:])} {rows.dtype} but the first one had "
                f"{self.sample_shape_} {self._stream_dtype}: all batches must agree"
            )
        self._go_on(self._stream_rule.update(self._state, rows))
        return self

    def merge(self, other: StreamingPCA) -> Self:
        """Take in all that another estimator has seen through `partial_fit`.

        Raises
        ------
        DataError
            If the method cannot merge, or the two did not see samples of one shape and dtype with the same parameters.
        """
        check_is_fitted(self)
        check_is_fitted(other)
        if getattr(self, "_state", None) is None or getattr(other, "_state", None) is None:
            raise DataError("merge joins what partial_fit has seen: fit keeps no state, give it all the data at once")
        rule = self._stream_rule
        if not rule.mergeable:
            raise DataError(f"{self.method} cannot merge: use method='incremental-svd'")
        alike = other._stream_rule == rule and other._stream_dtype == self._stream_dtype
        if not alike or other.sample_shape_ != self.sample_shape_:
            raise DataError("the two estimators differ in parameters, sample shape or dtype: they must be alike")
        self._go_on(rule.merge(self._state, other._state))
        return self

    def _go_on(self, state: State) -> None:
        self._state = state
        n = state.counts["n_samples"] + state.counts["n_held"]
        # ``finish`` uses a state up.
        copy = State({name: array.copy() for name, array in state.arrays.items()}, dict(state.counts))
        self.restore(self._stream_rule.finish(copy), self.sample_shape_, n)

    def _source(self, X: Any) -> Source:
        if is_lazy(X):
            source = as_source(open_stack(X) if isinstance(X, str | os.PathLike) else X)
            self.n_features_in_ = math.prod(source.shape[1:])
        else:
            source = as_source(np.ascontiguousarray(self._dense(X, reset=True)))
        if source.shape[0] < 2:
            raise DataError(f"{source.shape[0]} sample has no variance: a fit needs at least 2 samples")
        return source

    def _dense(self, X: Any, *, reset: bool) -> Array:
        """Check samples in memory by scikit-learn's conventions, which count features along a single axis only."""
        if getattr(X, "ndim", 2) <= 2:
            rows: Array = validate_data(self, X, dtype="numeric", reset=reset)
            return rows
        samples: Array = check_array(X, dtype="numeric", allow_nd=True, estimator=self, input_name="X")
        if reset:
            self.n_features_in_ = math.prod(samples.shape[1:])
        return samples

    def _rule(self, d: int, n: int | None) -> Any:
        k = self.n_components
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise DataError(f"n_components is {k!r}: give a positive integer")
        if k > d:
            raise DataError(f"n_components is {k} but a sample has only {d} attributes: ask for at most that many")
        if n is not None and k > n:
            raise DataError(f"n_components is {k} but there are only {n} samples: ask for at most that many")
        seed = int(check_random_state(self.random_state).randint(2**31))
        return make_rule(
            self.method,
            int(k),
            center=bool(self.center),
            oversampling=self.oversampling,
            batch_size=self.batch_size,
            seed=seed,
        )

    def _fold(
        self, rule: Any, source: Source, client: Any, checkpoints: Checkpoints | None, progress: Progress, stage: str
    ) -> tuple[list[dict[str, Array]], FoldReport]:
        here = None if checkpoints is None else Checkpoints(f"{checkpoints.folder}/{stage.replace(' ', '-')}")
        return fold(
            rule,
            source,
            Whole(tuple(source.shape[1:])),
            client=client or default_client(),
            budget=self.memory_budget,
            checkpoints=here,
            progress=progress,
            stage=stage,
        )

    def restore(self, found: dict[str, Array], sample_shape: tuple[int, ...], n: int) -> None:
        """Set the learned attributes from what a rule found or a store holds."""
        self.components_ = found["components"]
        self.mean_ = found["mean"]
        self.explained_variance_ = found["explained_variance"]
        self.total_variance_ = float(found["total_variance"])
        total = self.total_variance_
        self.explained_variance_ratio_ = self.explained_variance_ / total if total > 0 else 0 * self.explained_variance_
        self.singular_values_ = np.sqrt(np.maximum(self.explained_variance_, 0) * max(n - 1, 0))
        captured = float(self.explained_variance_.sum())
        if "residual_norms" in found:
            # Measured now, not estimated; what the best components could capture is known from the first pass, or all.
            self.residual_norms_ = found["residual_norms"]
            self.captured_bound_ = min(captured / min(self._optimum, total), 1.0) if total > 0 else 1.0
        else:
            self.captured_bound_ = float(found.get("captured_bound", np.nan))
            self._optimum: float = captured / self.captured_bound_ if "captured_bound" in found else math.inf
        self.n_samples_seen_ = n
        self.n_components_ = len(self.components_)
        self.sample_shape_ = sample_shape
        self.n_features_in_ = math.prod(sample_shape)

    # -- using

    @property
    def basis_(self) -> LinearBasis:
        """The mean and the components: what tasks are sent."""
        check_is_fitted(self, "components_")
        return LinearBasis(self.mean_, self.components_, self.sample_shape_)

    def transform(self, X: Any) -> Any:
        """Return the scores (n_samples, n_components): a Dask array for Dask arrays, Zarr arrays, stacks and paths."""
        basis = self.basis_
        if not is_lazy(X):
            return basis.project(self._checked(self._dense(X, reset=False)))
        lazy = self._checked(as_lazy(X))
        dtype = np.result_type(working_dtype(lazy.dtype), basis.components.dtype)
        return map_samples(lazy, scores_of, basis, (basis.components.shape[0],), dtype)

    def inverse_transform(self, X: Any) -> Any:
        """Return the samples (n_samples, *sample_shape) that scores stand for. Lazy in, lazy out."""
        basis = self.basis_
        scores = as_lazy(X) if is_lazy(X) else np.asarray(X)
        if scores.ndim != 2 or scores.shape[1] != self.n_components_:
            raise DataError(f"scores have shape {scores.shape} but this model needs (n_samples, {self.n_components_})")
        if isinstance(scores, np.ndarray):
            return basis.reconstruct(scores)
        dtype = np.result_type(scores.dtype, basis.components.dtype)
        return map_samples(scores, LinearBasis.reconstruct, basis, self.sample_shape_, dtype)

    def _checked(self, X: Any) -> Any:
        if tuple(X.shape[1:]) != self.sample_shape_:
            raise DataError(
                f"samples have shape {tuple(X.shape[1:])} but this model was fitted to {self.sample_shape_}"
            )
        return X

    # -- keeping

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a Zarr group; see `load`."""
        from dpca.models.streaming_store import save_model

        check_is_fitted(self, "components_")
        save_model(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> StreamingPCA:
        """Read a model that `save` wrote; nothing in it is executed. It knows no samples to go on from.

        Raises
        ------
        StoreError
            If there is no such model, or it comes from a newer version.
        """
        from dpca.models.streaming_store import load_model

        return load_model(path)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_
